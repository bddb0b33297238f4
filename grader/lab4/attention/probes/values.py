"""Probes of what Lab 4's attention computes: outputs and gradients, and what a changed key moves."""

from __future__ import annotations

import torch

from gradebox.sandbox.probe_loader import Student
from grader.lab4.attention.cases.types import Attend, AttendReply, AttendRun, Future, FutureReply
from grader.lab4.attention.probes.module import options, without_libraries
from grader.shared.probes.endings import run_backward
from grader.shared.probes.support import plain, tensor


def attend(student: Student, inputs: Attend) -> AttendReply:
    """Output and gradients of a function for each call."""
    attention = getattr(without_libraries(student), inputs.function)
    runs = []
    for call in inputs.calls:
        dtype, many = getattr(torch, call.dtype), 1 if call.alone else None
        operands = []
        for name, values, count in (
            ("Q", inputs.q * call.factor, call.queries),
            ("K", inputs.k, call.keys),
            ("V", inputs.v, call.keys),
        ):
            operand = values[:many, :many, :count].to(dtype).to(student.device)
            if call.transposed:
                operand = operand.transpose(1, 2).contiguous().transpose(1, 2)
            operands.append(operand.requires_grad_(name in call.needed))
        before = [operand.detach().clone() for operand in operands]
        output = tensor(attention(*operands, **options(call)), f"{inputs.function}()", operands[0].shape)
        detached = output.detach().double()
        if output.requires_grad:  # else there are no gradients, which is for the judge to say
            upstream = inputs.gradient[:many, :many, : call.queries].to(dtype).to(student.device)
            run_backward(output, upstream, of=f"{inputs.function}()")
        d_query, d_key, d_value = (
            (torch.zeros_like(operand) if operand.grad is None else operand.grad).double() for operand in operands
        )
        kept = (bool((old == new.detach()).all()) for old, new in zip(before, operands, strict=True))
        runs.append(
            AttendRun(
                dtype=plain(output.dtype, ""),
                output=detached,
                d_query=d_query,
                d_key=d_key,
                d_value=d_value,
                changed=[name for name, same in zip("QKV", kept, strict=True) if not same],
            )
        )
    return AttendReply(runs=runs)


def future(student: Student, inputs: Future) -> FutureReply:
    """How far each query's causal output moves when one key and its value change, per function and case."""
    module = without_libraries(student)
    generator = torch.Generator().manual_seed(inputs.seed)
    moved: dict[str, list[list[float]]] = {name: [] for name in inputs.functions}
    for case in inputs.cases:
        shapes = ((1, 2, case.queries, 8), (1, 2, case.keys, 8), (1, 2, case.keys, 8))
        q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
        other_k, other_v = k.clone(), v.clone()
        other_k[:, :, case.changed] += 1.0
        other_v[:, :, case.changed] -= 3.0
        for name in inputs.functions:
            for enabled in (True, False):
                with torch.set_grad_enabled(enabled):
                    before, after = (
                        tensor(
                            getattr(module, name)(*(x.to(student.device) for x in operands), causal=True),
                            f"{name}()",
                            q.shape,
                        )
                        for operands in ((q, k, v), (q, other_k, other_v))
                    )
                moved[name].append((before - after).abs().amax(dim=(0, 1, 3)).tolist())
    return FutureReply(moved=moved)
