"""The module of a submission that Lab 4's probes of attention call, and how they call its functions."""

from __future__ import annotations

from types import ModuleType

from gradebox.sandbox.probe_loader import Student
from grader.lab4.attention.cases.types import Call
from grader.lab4.shared.probes import hide_flash_attn

MODULE = "lab4_memory.flash_attention"


def without_libraries(student: Student) -> ModuleType:
    """The student's module; on a virtual GPU flash-attn is hidden."""
    if student.gpu is not None:
        hide_flash_attn()
    return student.module(MODULE)


def options(call: Call) -> dict[str, bool | int]:
    """The arguments of a call next to its operands; without a mask there is no `causal`, as in the document."""
    options: dict[str, bool | int] = {"causal": True} if call.causal else {}
    return options if call.block_size is None else {**options, "block_size": call.block_size}
