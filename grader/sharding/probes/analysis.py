"""Probes of the exercise's predictions and program. No answers here."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.spawn import ProcessRaisedException

from grader.shared.probes.endings import ending
from grader.shared.probes.figures import watch_png, words_of
from grader.shared.probes.support import fields, plain, run_program
from labkit.results import ShardedMemory

MODULE = "sharding_exercise.analysis"


def predicted(
    student: Any,
    *,
    memory: Sequence[dict[str, Any]],
    largest: Sequence[dict[str, Any]],
    sent: Sequence[dict[str, Any]],
    nonsense: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """What the functions say of these arguments, and the error of each of the nonsensical calls (by `name`).

    Each of the first three is asked only where there are cases.
    """
    module = student.module(MODULE)
    return {
        "memory": [fields(module.memory_per_rank(**case), ShardedMemory, "memory_per_rank()") for case in memory],
        "largest": [plain(module.largest_model(**case), "largest_model()") for case in largest],
        "sent": [plain(module.sent_per_rank(**case), "sent_per_rank()") for case in sent],
        "errors": [ending(lambda: getattr(module, case["name"])(**case["arguments"])) for case in nonsense],  # noqa: B023
    }


def overlap(student: Any, *, cases: Sequence[dict[str, Any]], nonsense: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`hidden_share` of each case, and the error of each that makes no sense."""
    share = student.module(MODULE).hidden_share

    def ask(case: dict[str, Any]) -> Any:
        return share(*([(start, end) for start, end in case[name]] for name in ("communication", "computation")))

    return {
        "shares": [plain(ask(case), "hidden_share()") for case in cases],
        "errors": [ending(lambda: ask(case)) for case in nonsense],  # noqa: B023
    }


def program(student: Any, *, arguments: Sequence[str]) -> dict[str, Any]:
    """The program with these arguments, on virtual GPUs that it opens itself: what it wrote and drew."""
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        watch_png(words_of) as words,
    ):
        try:
            told = run_program(student, MODULE, arguments, Path(folder, "results"))
        except ProcessRaisedException as error:
            # Its text is the whole traceback of the rank; the last line says what was wrong.
            lines = [line for line in str(error).splitlines() if line.strip()]
            error.args = (f"rank {error.error_index}: {lines[-1] if lines else 'no reason'}",)
            raise
    return {**told, "words": words}
