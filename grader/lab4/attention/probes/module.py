"""The module of a submission that Lab 4's probes of attention call, and how they call its functions."""

from __future__ import annotations

import sys
from types import ModuleType

from gradebox.sandbox.probe_loader import Student
from grader.lab4.attention.cases.types import Call

MODULE = "lab4_memory.flash_attention"


def without_libraries(student: Student) -> ModuleType:
    """The student's module; on a virtual GPU flash-attn cannot be imported, so that no points depend on a simulated
    package: what is checked of it has stand-ins."""
    if student.gpu is not None:
        for name in ("flash_attn", "flash_attn.cute"):
            sys.modules[name] = None  # type: ignore[assignment]
    return student.module(MODULE)


def options(call: Call) -> dict[str, bool | int]:
    """The arguments of a call next to its operands; without a mask there is no `causal`, as in the document."""
    options: dict[str, bool | int] = {"causal": True} if call.causal else {}
    return options if call.block_size is None else {**options, "block_size": call.block_size}
