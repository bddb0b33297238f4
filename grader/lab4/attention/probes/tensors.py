"""Probe of what Lab 4's attention makes on the way: its largest tensor, and the memory that it adds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradebox.sandbox.probe_loader import Student
from grader.lab4.attention.cases.types import Call, Largest, LargestReply, LargestRun
from grader.lab4.attention.probes.module import options, without_libraries
from grader.shared.probes.endings import run_backward
from grader.shared.probes.record import mark, memory_since_now, reading
from grader.shared.probes.support import tensor


def largest(student: Student, inputs: Largest) -> LargestReply:
    """Largest tensor that any kernel was given, by the device's record, and added peak in forward and backward of one
    head."""
    function = getattr(without_libraries(student), inputs.function)

    def attention(call: Call, operands: list[Tensor]) -> Tensor:
        return tensor(function(*operands, **options(call)), f"{inputs.function}()", operands[0].shape)

    def drawn(queries: int, keys: int, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
        operands = [
            torch.randn(1, 1, count, inputs.head_dim, device=student.device, dtype=dtype, requires_grad=True)
            for count in (queries, keys, keys)
        ]
        return operands, torch.randn(1, 1, queries, inputs.head_dim, device=student.device, dtype=dtype)

    runs = []
    for case in inputs.cases:
        dtype = getattr(torch, case.dtype)
        operands, gradient = drawn(96, 128, dtype)  # first use of the libraries
        run_backward(attention(case, operands), gradient, of=f"{inputs.function}()")
        operands, gradient = drawn(case.queries, case.keys, dtype)
        output = None  # of what was before, nothing is let go while memory is watched
        memory, begun = memory_since_now(student.gpu), mark(student.gpu)
        output = attention(case, operands)
        kept = memory.held()
        run_backward(output, gradient, of=f"{inputs.function}()")
        elements: Any = reading(student.gpu, "largest_elements", begun)
        flops: Any = reading(student.gpu, "all_flops", begun)
        copied: Any = reading(student.gpu, "copied_bytes", begun)
        fused: Any = reading(student.gpu, "names", begun, containing="attention")
        added = memory.added()
        values: Any = []
        if inputs.returned:
            given = [each.detach().double() for each in (*operands, gradient, output)]
            values = [*given, *(each.grad.double() for each in operands if each.grad is not None)]
        runs.append(
            LargestRun(
                largest_elements=elements,
                flops=flops,
                copied_bytes=copied,
                added_bytes=added,
                kept_bytes=kept,
                attention_kernels=fused,
                values=values,
            )
        )
    return LargestReply(runs=runs)
