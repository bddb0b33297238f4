"""The CUDA path without a GPU: `--device cuda` is graded on a virtual GPU that passes for a real one.

    python -m grader.rehearsal [SUBMISSION] [--lab LABS] [--criterion NAMES]

The judge is told of an NVIDIA GPU, one request at a time. In the sandbox a virtual GPU is attached first of all, and
hidden: probes are handed none, so nothing but what CUDA tells can be asked, and `labkit` takes it for real. So checks
and probes take their branches for real GPUs. It computes values, unless a check says that it looks at none: work of an
A100's size, which no CPU has the time and memory for. Not here: what only hardware can show, see docs/on-a-gpu.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from gradebox.devices import CPU, Device
from grader.shared import devices as real
from grader.shared.devices import (
    CLASSES,
    INSTRUMENTS,
    SIMULATOR,
    before_imports,
    from_probe,
    hidden,
    parts,
    seed,
    to_probe,
    visible,
)

__all__ = [
    "CLASSES", "INSTRUMENTS", "SIMULATOR", "attach", "before_imports", "from_probe", "hidden", "parse", "parts",
    "prepare", "prepares", "require_forkable", "seed", "serve", "serves", "to_probe", "visible",
]  # fmt: skip

MODEL = "A100-80GB"
NAME = __name__ if __name__ != "__main__" else "grader.rehearsal"


def parse(option: str) -> Device:
    """As where NVML finds a GPU."""
    if option in ("auto", "cuda"):
        return Device("cuda", f"{MODEL} (rehearsed)", serial=True)
    return real.parse(option)


def prepares(device: str) -> str:
    """Always: the virtual GPU is there before anything else."""
    return real.prepares(f"vgpu:{MODEL}" if device == "cuda" else device)


def prepare(what: str) -> Any:
    """As for a virtual GPU."""
    return real.prepare(what)


def serves(device: str) -> bool:
    """As for a virtual GPU."""
    return device != CPU


def serve(device: str, lines: Sequence[Connection], control: Connection, **how: Any) -> dict[str, Any]:
    """As for a virtual GPU."""
    return real.serve(f"vgpu:{MODEL}" if device == "cuda" else device, lines, control, **how)


@contextlib.contextmanager
def attach(device: str, *, values: bool, ranks: int, prepared: Any, line: Connection | None) -> Iterator[Any]:
    """What is attached as "cuda" is a virtual GPU, and nobody is told."""
    if device != "cuda":
        with real.attach(device, values=values, ranks=ranks, prepared=prepared, line=line) as gpu:
            yield gpu
        return
    with real.attach(f"vgpu:{MODEL}", values=values, ranks=ranks, prepared=prepared, line=line):
        _passing.append(True)  # the child ends with its request
        yield None


_passing: list[bool] = []


def require_forkable() -> None:
    """In the server, before anything is compared: put in place what lets a virtual GPU pass for a real one."""
    real.require_forkable()
    import labkit.device

    attached = labkit.device._attached
    labkit.device._attached = lambda: None if _passing else attached()


def main(
    submission: Annotated[Path, typer.Argument(help="Folder to grade.")] = Path("solutions"),
    lab: Annotated[str | None, typer.Option(help="Labs, as `pytest --grade` takes them.")] = None,
    criterion: Annotated[str | None, typer.Option(help="Criteria.")] = None,
    number: Annotated[int, typer.Option("--seed", help="Of the questions.")] = 1,
) -> None:
    """Grade as with `--device cuda`, and list what lost points."""
    import grader
    from gradebox.order import Order
    from gradebox.run import run
    from gradebox.texts import printable

    course = grader.course()
    course = replace(course, devices=NAME, environment=replace(course.environment, devices=NAME))
    rubric, labs = course.select(lab, criterion)
    order = Order(course, submission.resolve(), rubric, tuple(labs), parse("cuda"), number)
    grade = run(order)
    console = Console(markup=False, highlight=False)
    for one in (check for found in grade.labs for part in found.criteria for check in part.checks):
        if one.outcome != "passed":
            console.print(printable(f"{one.id}: {one.outcome}: {one.message}"), soft_wrap=True)
    console.print(f"rehearsal of --device cuda: {grade.score} of {grade.max_score}, {grade.seconds:.0f} s")
    raise typer.Exit(0 if grade.score == grade.max_score else 1)


if __name__ == "__main__":
    typer.run(main)
