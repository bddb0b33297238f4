"""Probes of the roofline's functions and program. No answers here."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grader.shared.probes.endings import ending
from grader.shared.probes.figures import watch_png, words_of
from grader.shared.probes.support import fields, run_program
from labkit.results import KernelPlace, KernelWork

MODULE = "kernels_exercise.roofline"


def works(student: Any, *, cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What each of the functions `name` says of `sizes`."""
    module = student.module(MODULE)
    return {
        "works": [
            fields(getattr(module, case["name"])(**case["sizes"]), KernelWork, f"{case['name']}()") for case in cases
        ]
    }


def places(student: Any, *, cases: Sequence[dict[str, Any]], nonsense: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What `place` says of each case, and the error that each of the nonsensical ones ends with."""
    place = student.module(MODULE).place

    def ask(case: dict[str, Any]) -> Any:
        work = KernelWork(flops=case["flops"], bytes=case["bytes"])
        return place(
            "a kernel",
            work,
            case["seconds"],
            peak_flops=case["peak_flops"],
            bytes_per_second=case["bytes_per_second"],
        )

    return {
        "places": [fields(ask(case), KernelPlace, "place()") for case in cases],
        "errors": [ending(lambda: ask(case)) for case in nonsense],  # noqa: B023
    }


def program(student: Any, *, arguments: Sequence[str]) -> dict[str, Any]:
    """The roofline's program with these arguments: what it wrote, printed and drew."""
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed), watch_png(words_of) as words:
        told = run_program(student, MODULE, arguments, Path(folder, "results"))
    return {**told, "printed": printed.getvalue(), "words": words}
