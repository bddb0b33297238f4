"""Calls `flash_attention`: output and gradients, what the kernels of both passes did, and what it refuses."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from gradebox.sandbox.probe_loader import Student
from grader.kernels.attention.cases import Case, Memory, Run, Runs
from grader.kernels.shared.cases import Refusals
from grader.kernels.shared.probes.refusals import endings
from grader.kernels.shared.probes.watching import nothing, observe, unchanged
from grader.shared.probes.endings import graph_of
from grader.shared.probes.record import mark, memory_since_now, reading
from vgpu.device.errors import Unsupported

MODULE = "kernels_exercise.flash_attention"


def attend(student: Student, *, cases: Sequence[Case], q: Tensor, k: Tensor, v: Tensor, gradient: Tensor) -> Runs:
    """Output and gradients for each case."""
    attention = student.module(MODULE).flash_attention
    runs: list[Run] = []
    for case in cases:
        dtype = getattr(torch, case["dtype"])
        inputs = []
        for tensor in (q * case["factor"], k, v):
            operand = _cut(tensor, case).to(dtype).to(student.device)
            if case["transposed"]:
                operand = operand.transpose(1, 2).contiguous().transpose(1, 2)
            inputs.append(operand.requires_grad_())
        before = [tensor.detach().clone() for tensor in inputs]
        forward = observe(student, partial(attention, *inputs, **_causal(case["causal"])), "flash_attention()")
        run: Run = {"forward": forward, "unchanged": unchanged(before, inputs)}
        if case["backward"]:
            run.update(_gradients(student, attention, inputs, case, gradient))
        runs.append(run)
    return {"runs": runs}


def _causal(causal: bool) -> dict[str, bool]:
    """The argument `causal`, if it is not the default."""
    return {"causal": True} if causal else {}


def _cut(tensor: Tensor, case: Case) -> Tensor:
    return tensor[: case["batch"], : case["heads"], : case["length"], : case["width"]].contiguous()


def _gradients(
    student: Student, attention: Callable[..., Tensor], inputs: Sequence[Tensor], case: Case, gradient: Tensor
) -> Run:
    output = attention(*inputs, **_causal(case["causal"]))
    if not output.requires_grad:
        return _without("the output is not differentiable: no torch.autograd.Function has made it")
    upstream = _cut(gradient, case).to(output.dtype).to(student.device)
    if case["summed"]:
        upstream = torch.ones((), dtype=output.dtype, device=student.device).expand(output.shape)
    torch.cuda.synchronize() if student.device == "cuda" else None
    gradients: list[Tensor] = []

    def backward() -> Tensor:
        gradients.extend(torch.autograd.grad(output, list(inputs), upstream, allow_unused=True))
        missing = [name for name, each in zip(_NAMES, gradients, strict=True) if each is None]
        if missing:
            raise _NoGradient(f"backward returns None for {', '.join(missing)}")
        return gradients[0]

    try:
        watched = observe(student, backward, "the gradients")
    except Unsupported:  # what the virtual GPU cannot tell, nobody is blamed for
        raise
    except _NoGradient as error:
        return _without(str(error))
    except Exception as error:
        # Forward is a task of its own, and is judged whatever becomes of backward.
        return _without(f"backward raised {type(error).__name__}: {str(error)[:200]}{_where(error)}")
    d_query, d_key, d_value = (each.detach().double() for each in gradients)
    return cast(
        Run,  # whose tensors are arrays on the other side
        {
            "backward": {name: watched.get(name) for name in nothing()},
            "d_query": d_query,
            "d_key": d_key,
            "d_value": d_value,
        },
    )


_NAMES = ("d_query", "d_key", "d_value")


class _NoGradient(Exception):
    """Backward has come to its end, and given nothing."""


def _where(error: Exception) -> str:
    """The last line of the exercise that it passed through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "kernels_exercise" in frame.filename]
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def _without(why: str) -> Run:
    """Instead of gradients: why there are none."""
    return {"no_gradients": why, "backward": nothing()}


def memory(student: Student, *, length: int, width: int, causal: bool) -> Memory:
    """What forward and backward of one head add to the memory that is allocated, and what the device did."""
    attention = student.module(MODULE).flash_attention
    shape = (1, 1, length, width)
    inputs = [torch.randn(shape, device=student.device, requires_grad=True) for _ in range(3)]
    upstream = torch.randn(shape, device=student.device)
    added, begun = memory_since_now(student.gpu), mark(student.gpu)
    output = attention(*inputs, **_causal(causal))
    with graph_of("flash_attention()"):
        torch.autograd.grad(output, inputs, upstream)
    del output
    return cast(
        Memory,  # on the other side
        {
            "added_bytes": added.added(),
            "flops": reading(student.gpu, "all_flops", begun),
            "copied_bytes": reading(student.gpu, "copied_bytes", begun),
        },
    )


def refusals(student: Student) -> Refusals:
    """What `flash_attention` says to what does not fit."""
    module, zeros = student.module(MODULE), partial(torch.zeros, device=student.device)

    def attend(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> object:
        return module.flash_attention(*(zeros(*shape, dtype=dtype) for shape in shapes))

    right = (1, 1, 3, 16)
    return endings(
        student,
        {
            "flash_attention() of 3 queries and 4 keys": lambda: attend(right, (1, 1, 4, 16), (1, 1, 4, 16)),
            "flash_attention() of three sides": lambda: attend((1, 3, 16), (1, 3, 16), (1, 3, 16)),
            "flash_attention() of head_dim 24": lambda: attend(*[(1, 1, 3, 24)] * 3),
            "flash_attention() of float64": lambda: attend(*[right] * 3, dtype=torch.float64),
            "flash_attention() of float32 and float16": lambda: module.flash_attention(
                zeros(*right), zeros(*right, dtype=torch.float16), zeros(*right)
            ),
        },
        {"flash_attention() of one query and one key": lambda: attend(*[(1, 1, 1, 16)] * 3)},
    )
