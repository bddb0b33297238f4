"""Calls the roofline's functions, and runs its program."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import vgpu
from gradebox.sandbox.probe_loader import Student
from grader.kernels.roofline.cases import Place, PlaceCase, Places, Work, WorkCase, Works
from grader.shared.probes.endings import ending
from grader.shared.probes.figures import watch_png, words_of
from grader.shared.probes.record import mark, reading
from grader.shared.probes.support import fields, run_program
from labkit.results import KernelPlace, KernelWork

MODULE = "kernels_exercise.roofline"


def works(student: Student, *, cases: Sequence[WorkCase]) -> Works:
    """What each of the functions says of its arguments."""
    module = student.module(MODULE)
    results = [
        fields(getattr(module, case["name"])(**case["sizes"]), KernelWork, f"{case['name']}()") for case in cases
    ]
    return {"works": cast(list[Work], results)}


def places(student: Student, *, cases: Sequence[PlaceCase], nonsense: Sequence[PlaceCase]) -> Places:
    """What `place` says of each case, and the error that each of the nonsensical ones ends with."""
    place = student.module(MODULE).place

    def ask(case: PlaceCase) -> object:
        work = KernelWork(flops=case["flops"], bytes=case["bytes"])
        return place(
            "a kernel",
            work,
            case["seconds"],
            peak_flops=case["peak_flops"],
            bytes_per_second=case["bytes_per_second"],
        )

    results = [fields(ask(case), KernelPlace, "place()") for case in cases]
    return {
        "places": cast(list[Place], results),
        "errors": [ending(lambda: ask(case)) for case in nonsense],  # noqa: B023
    }


def program(student: Student, *, arguments: Sequence[str]) -> dict[str, Any]:
    """The roofline's program with these arguments: what it wrote, printed and drew."""
    printed = io.StringIO()
    start = 0 if student.gpu is None else mark(student.gpu)
    with (
        vgpu.watch_kernels(),
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(printed),
        watch_png(words_of) as words,
    ):
        outcome = run_program(student, MODULE, arguments, Path(folder, "results"))
    launched: Any = [] if student.gpu is None else reading(student.gpu, "triton_names", start)
    return {**outcome, "printed": printed.getvalue(), "words": words, "launched": launched}
