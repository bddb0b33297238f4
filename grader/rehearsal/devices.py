"""The device of a rehearsal: `cuda` is a virtual GPU that passes for a real one (`DeviceModule`).

The judge is told of an NVIDIA GPU. In the sandbox a virtual GPU is attached first of all, and hidden: probes are handed
none, so nothing but what CUDA tells can be asked, and `labkit` takes it for real. So checks and probes take their
branches for real GPUs. It computes values, unless a check says that it looks at none: work of an A100's size, which no
CPU has the time and memory for. Not here: what only hardware can show, see docs/on-a-gpu.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gradebox.sandbox.devices import CPU, Device
from grader.shared import devices as real
from grader.shared.devices import (
    CLASSES,
    EXCHANGED,
    INSTRUMENTS,
    SIMULATOR,
    answering,
    before_imports,
    from_probe,
    hidden,
    links,
    modes,
    parts,
    seed,
    to_probe,
    visible,
)

__all__ = [
    "CLASSES", "EXCHANGED", "INSTRUMENTS", "SIMULATOR", "answering", "attach", "before_imports", "from_probe", "hidden",
    "links", "modes", "parse", "parts", "prepare", "prepares", "require_forkable", "seed", "serve", "serves",
    "to_probe", "visible", "watch",
]  # fmt: skip

MODEL = "A100-80GB"
_HARDWARE = f"rehearsed in {Path(__file__).parents[2]}"
"""The same for all judges of one checkout, as one real GPU would be."""


def parse(option: str) -> Device:
    """As where NVML finds a GPU."""
    if option in ("auto", "cuda"):
        return Device("cuda", f"{MODEL} (rehearsed)", hardware=_HARDWARE, memory_bytes=80 << 30)
    return real.parse(option)


def watch(device: str) -> contextlib.AbstractContextManager[Sequence[str]]:
    """What a test says of the GPU, see `DISTURBANCES`."""
    return contextlib.nullcontext(tuple(DISTURBANCES))


DISTURBANCES: list[str] = []
"""Of every request that measures; a test puts in what NVML would say of a busy card."""


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
