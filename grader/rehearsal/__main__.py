"""The CUDA path without a GPU: `--device cuda` is graded on a virtual GPU that passes for a real one.

python -m grader.rehearsal [SUBMISSION] [--lab LABS] [--criterion NAMES] [--disturbed]
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import grader
from gradebox.common.texts import printable
from gradebox.run.device_use import Answer, DeviceUse
from gradebox.run.grading import Grading
from gradebox.run.request import GradingRequest
from gradebox.sandbox import Request, Sandbox
from gradebox.sandbox.measuring import measured_by
from grader.rehearsal import devices

_BURSTS = 60
"""They get longer and rarer, so that short requests see many and long ones some."""


class Disturbed(DeviceUse):
    """Slows down at random what the requests of undeclared probes launch, as neighbours on a card would.

    A check that loses points by it judges times, and its probe does not say so (`gradebox.sandbox.measuring`).
    """

    def __init__(self, order: GradingRequest) -> None:
        super().__init__(order.device, order.course.folder, order.course.devices)
        self._folder = order.course.folder
        self._random = random.Random(order.seed)

    def run(self, request: Request, sandbox: Sandbox) -> Answer:
        if request.device == "cuda" and not measured_by(self._folder, request.probe):
            request = replace(request, conditions=[*request.conditions, *self._neighbours()])
        return super().run(request, sandbox)

    def _neighbours(self) -> Iterator[dict[str, float]]:
        """They come and go: now and then some kernels take several times as long."""
        begin = self._random.randrange(5)
        for _ in range(_BURSTS):
            count = self._random.randint(1, 2 + begin // 4)
            yield {"factor": self._random.choice((3.0, 8.0, 20.0)), "skip": begin, "count": count}
            begin += count + self._random.randint(1, 2 + begin // 4)


def main(
    submission: Annotated[Path, typer.Argument(help="Folder to grade.")] = Path("solutions"),
    lab: Annotated[str | None, typer.Option(help="Labs, as `pytest --grade` takes them.")] = None,
    criterion: Annotated[str | None, typer.Option(help="Criteria.")] = None,
    number: Annotated[int, typer.Option("--seed", help="Of the questions.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Sandboxes side by side.")] = 2,
    disturbed: Annotated[bool, typer.Option(help="Slow down whatever does not measure, as neighbours would.")] = False,
) -> None:
    """Grade as with `--device cuda`, and list what lost points."""
    course = grader.course()
    course = replace(
        course, devices=devices.__name__, environment=replace(course.environment, devices=devices.__name__)
    )
    rubric, labs = course.select(lab, criterion)
    order = GradingRequest(course, submission.resolve(), rubric, tuple(labs), devices.parse("cuda"), number, jobs=jobs)
    with Grading(order, device_use=Disturbed(order) if disturbed else None) as grading:
        grading.carry_out()
        grade = grading.result()
    console = Console(markup=False, highlight=False)
    for result in (check for lab_result in grade.labs for part in lab_result.criteria for check in part.checks):
        if result.outcome != "passed":
            console.print(printable(f"{result.id}: {result.outcome}: {result.message}"), soft_wrap=True)
    console.print(f"rehearsal of --device cuda: {grade.score} of {grade.max_score}, {grade.seconds:.0f} s")
    raise typer.Exit(0 if grade.score == grade.max_score else 1)


if __name__ == "__main__":
    typer.run(main)
