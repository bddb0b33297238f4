"""A probe of the operands of Lab 1's products: there must be two of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from gradebox.sandbox.probe_loader import Student
from grader.lab1.shared.cases.operands import Operands, OperandsReply
from grader.shared.probes.endings import ending
from grader.shared.probes.kept import notes
from grader.shared.probes.threads import in_every_thread

_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm"}


class _Watching(TorchDispatchMode):
    """Of every product it is noted whether both operands are the same numbers."""

    def __init__(self, note: Callable[[float], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note = note

    def __torch_dispatch__(
        self,
        func: OpOverload[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func._can_decompose():  # in inference mode no autograd layer has taken it apart
            with self:
                return func.decompose(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in _PRODUCTS:
            left, right = [argument for argument in args if isinstance(argument, torch.Tensor)][-2:]
            self._note(float(left.data_ptr() == right.data_ptr()))
        return func(*args, **(kwargs or {}))


def watched(student: Student, inputs: Operands) -> OperandsReply:
    """`benchmark_matmul`, and how many of its products were of one matrix."""
    torch.set_num_threads(1)
    note, noted = notes()
    run = student.module("lab1_gpu_basics.benchmark").benchmark_matmul
    with in_every_thread(lambda: _Watching(note)):
        ending(functools.partial(run, inputs.place, inputs.size, inputs.iterations))  # how it ends, other probes report
    same = noted()
    return OperandsReply(products=len(same), of_one_matrix=round(sum(same)))
