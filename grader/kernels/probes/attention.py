"""Probes of flash attention: output and gradients, and what the kernels of forward and backward did."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grader.kernels.probes.watching import observe, unchanged
from vgpu.device.errors import Unsupported

MODULE = "kernels_exercise.flash_attention"


def attend(
    student: Any, *, cases: Sequence[dict[str, Any]], q: Tensor, k: Tensor, v: Tensor, gradient: Tensor
) -> dict[str, Any]:
    """Output and gradients for each case: `batch`, `heads`, `length`, `width`, `dtype`, `causal`, `factor` of the
    queries, `transposed` operands, and whether the output is `summed`, so that its gradient is 1 everywhere.
    """
    attention = student.module(MODULE).flash_attention
    runs = []
    for case in cases:
        dtype = getattr(torch, case["dtype"])
        inputs = []
        for tensor in (q * case["factor"], k, v):
            operand = _cut(tensor, case).to(dtype).to(student.device)
            if case["transposed"]:
                operand = operand.transpose(1, 2).contiguous().transpose(1, 2)
            inputs.append(operand.requires_grad_())
        before = [tensor.detach().clone() for tensor in inputs]
        forward = observe(student, lambda: attention(*inputs, **_asked(case["causal"])), "flash_attention()")  # noqa: B023
        run: dict[str, Any] = {"forward": forward, "unchanged": unchanged(before, inputs)}
        if case["backward"]:
            run |= _gradients(student, attention, inputs, case, gradient)
        runs.append(run)
    return {"runs": runs}


def _asked(causal: bool) -> dict[str, Any]:
    """The argument `causal`, where it is not the default."""
    return {"causal": True} if causal else {}


def _cut(tensor: Tensor, case: dict[str, Any]) -> Tensor:
    return tensor[: case["batch"], : case["heads"], : case["length"], : case["width"]].contiguous()


def _gradients(
    student: Any, attention: Any, inputs: Sequence[Tensor], case: dict[str, Any], gradient: Tensor
) -> dict[str, Any]:
    output = attention(*inputs, **_asked(case["causal"]))
    if not output.requires_grad:
        return _without("the output is not differentiable: no torch.autograd.Function has made it")
    given = _cut(gradient, case).to(output.dtype).to(student.device)
    if case["summed"]:
        given = torch.ones((), dtype=output.dtype, device=student.device).expand(output.shape)
    torch.cuda.synchronize() if student.device == "cuda" else None
    found: list[Tensor] = []

    def backward() -> Tensor:
        found.extend(torch.autograd.grad(output, list(inputs), given, allow_unused=True))
        missing = [name for name, one in zip(_NAMES, found, strict=True) if one is None]
        if missing:
            raise _NoGradient(f"backward returns None for {', '.join(missing)}")
        return found[0]

    try:
        watched = observe(student, backward, "the gradients")
    except Unsupported:  # what the virtual GPU cannot tell, nobody is blamed for
        raise
    except _NoGradient as error:
        return _without(str(error))
    except Exception as error:
        # Forward is a task of its own, and is judged whatever becomes of backward.
        return _without(f"backward raised {type(error).__name__}: {str(error)[:200]}{_where(error)}")
    return {
        "backward": {name: watched[name] for name in ("runs", "kernels")},
        **{name: one.detach().double() for name, one in zip(_NAMES, found, strict=True)},
    }


_NAMES = ("d_query", "d_key", "d_value")


class _NoGradient(Exception):
    """Backward has come to its end, and given nothing."""


def _where(error: Exception) -> str:
    """The last line of the exercise that it passed through."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if "kernels_exercise" in one.filename]
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def _without(why: str) -> dict[str, Any]:
    """In the place of gradients: why there are none."""
    return {"no_gradients": why, "backward": {"runs": [], "kernels": []}}


def memory(student: Any, *, length: int, width: int, causal: bool) -> dict[str, Any]:
    """What forward and backward of one head add to the memory that is allocated."""
    attention = student.module(MODULE).flash_attention
    shape = (1, 1, length, width)
    inputs = [torch.randn(shape, device=student.device, requires_grad=True) for _ in range(3)]
    given = torch.randn(shape, device=student.device)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(attention(*inputs, **_asked(causal)), inputs, given)
    return {"added_bytes": torch.cuda.max_memory_allocated() - before}
