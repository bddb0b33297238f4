"""What the probes of the exercise share: a call, what it gave, and what its kernels did. No answers here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import vgpu
from gradebox.sandbox.probe_loader import Student
from grader.kernels.shared.cases import Activity, Observed
from grader.shared.probes.record import mark, reading
from grader.shared.probes.support import instance, plain


def observe(student: Student, call: Callable[[], object], what: str) -> Observed:
    """The tensor that `call` returns, and what it did on the way; `what` is what a message calls the tensor."""
    start = 0 if student.gpu is None else mark(student.gpu)
    with vgpu.watch_kernels():  # the judge gets the device's record of it
        output = instance(call(), Tensor, what)
    if student.device == "cuda":
        torch.cuda.synchronize()
    longest: Any = 0.0 if student.gpu is None else reading(student.gpu, "longest", start)
    return {
        **activity(student, start),
        "output": output.detach().double(),
        "dtype": plain(output.dtype, what),
        "shape": list(output.shape),
        "contiguous": output.is_contiguous(),
        "seconds": longest,
    }


def activity(student: Student, start: int) -> Activity:
    """What ran since a mark; nothing on a real GPU."""
    if student.gpu is None:
        return nothing()
    read: list[Any] = [
        reading(student.gpu, what, start)
        for what in ("triton", "library_flops", "launched", "copied_bytes", "largest_elements")
    ]
    runs, library_flops, kernels, copied_bytes, largest_elements = read
    return {
        "runs": runs,
        "library_flops": library_flops,
        "kernels": kernels,
        "copied_bytes": copied_bytes,
        "largest_elements": largest_elements,
    }


def nothing() -> Activity:
    """What ran if nothing did, or nobody can tell."""
    return {"runs": [], "library_flops": 0.0, "kernels": [], "copied_bytes": 0, "largest_elements": 0}


def laid_out(values: Tensor, dtype: str, device: str, style: str) -> Tensor:
    """The same values on the device: "plain", a "view" into something larger, or "transposed"."""
    tensor = values.to(getattr(torch, dtype)).to(device)
    if style == "plain":
        return tensor
    if style == "transposed":
        return tensor.transpose(0, 1).contiguous().transpose(0, 1)
    wide = torch.full((*tensor.shape[:-1], tensor.shape[-1] + 5), float("nan"), dtype=tensor.dtype, device=device)
    wide[..., 3 : 3 + tensor.shape[-1]] = tensor
    return wide[..., 3 : 3 + tensor.shape[-1]]


def unchanged(before: Sequence[Tensor], after: Sequence[Tensor]) -> bool:
    """Whether operands are what they were; minus infinity is itself."""
    return all(bool((old == new.detach()).all()) for old, new in zip(before, after, strict=True))
