"""Runs a lab's program; the same for all labs."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path

import torch

from gradebox.sandbox.probe_loader import Student
from grader.shared.cases import ProgramReply, RunProgram
from grader.shared.probes.support import run_program


def run(student: Student, inputs: RunProgram) -> ProgramReply:
    """Run the program and describe what it wrote."""
    torch.set_num_threads(1)  # small work: a second thread would only wait for a core that others use
    with tempfile.TemporaryDirectory() as folder:
        reply = ProgramReply(**run_program(student, inputs.module, inputs.words, Path(folder, "results")))
    gc.collect()  # a loader that only a cycle of references holds ends its workers
    return reply
