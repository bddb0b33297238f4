"""Probes of the exercise's predictions and program."""

from __future__ import annotations

import contextlib
import functools
import io
import tempfile
from pathlib import Path
from typing import cast

import torch
from torch.multiprocessing.spawn import ProcessRaisedException

from gradebox.sandbox.probe_loader import Student
from grader.sharding.analysis.cases import (
    Held,
    HideMessages,
    Intervals,
    Predict,
    PredictionsReply,
    ProgramReply,
    RunProgram,
    SharesReply,
)
from grader.shared.probes.endings import ending
from grader.shared.probes.figures import watch_png, words_of
from grader.shared.probes.support import fields, plain, run_program
from labkit.results import ShardedMemory

MODULE = "sharding_exercise.analysis"


def predicted(student: Student, inputs: Predict) -> PredictionsReply:
    """What the functions say of these arguments, and the error of each call that makes no sense."""
    module = student.module(MODULE)
    return PredictionsReply(
        memory=[
            cast("Held", fields(module.memory_per_rank(**call), ShardedMemory, "memory_per_rank()"))
            for call in inputs.memory
        ],
        largest=[plain(module.largest_model(**call), "largest_model()") for call in inputs.largest],
        sent=[plain(module.sent_per_rank(**call), "sent_per_rank()") for call in inputs.sent],
        errors=[
            ending(lambda: getattr(module, call["name"])(**call["arguments"]))  # noqa: B023 - called at once
            for call in inputs.refused
        ],
    )


def overlap(student: Student, inputs: HideMessages) -> SharesReply:
    """`hidden_share` of each case, and the error of each that makes no sense."""
    share = student.module(MODULE).hidden_share

    def call(case: Intervals) -> object:
        return share(
            *([(start, end) for start, end in times] for times in (case["communication"], case["computation"]))
        )

    return SharesReply(
        shares=[plain(call(case), "hidden_share()") for case in inputs.cases],
        errors=[ending(functools.partial(call, case)) for case in inputs.refused],
    )


def program(student: Student, inputs: RunProgram) -> ProgramReply:
    """What the program wrote and drew."""
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        watch_png(words_of) as words,
    ):
        try:
            written = run_program(student, MODULE, inputs.command, Path(folder, "results"))
        except ProcessRaisedException as error:
            # Its text is the whole traceback of the rank; the last line says what was wrong.
            lines = [line for line in str(error).splitlines() if line.strip()]
            error.args = (f"rank {error.error_index}: {lines[-1] if lines else 'no reason'}",)
            raise
    return ProgramReply(**written, words=words)
