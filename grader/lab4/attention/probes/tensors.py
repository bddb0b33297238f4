"""Probe of what Lab 4's attention makes on the way: its largest tensor, and the memory that it adds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gradebox.sandbox.probe_loader import Student
from grader.lab4.attention.cases.types import Call, Largest, LargestReply, LargestRun
from grader.lab4.attention.probes.module import options, without_libraries
from grader.shared.probes.support import tensor


class _LargestSpy(TorchDispatchMode):
    """Notes the elements of the largest tensor that any operation returns; an expanded one counts what it holds."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    # As PyTorch declares it: any operation, with any arguments.
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                own = min(leaf.numel(), leaf.untyped_storage().nbytes() // leaf.element_size())
                self.elements = max(self.elements, own)
        return result


def largest(student: Student, inputs: Largest) -> LargestReply:
    """Largest tensor and added peak in forward and backward of one head."""
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
        attention(case, operands).backward(gradient)
        operands, gradient = drawn(case.queries, case.keys, dtype)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with _LargestSpy() as spy:
            attention(case, operands).backward(gradient)
        added = torch.cuda.max_memory_allocated() - before
        runs.append(LargestRun(largest_elements=spy.elements, added_bytes=added))
    return LargestReply(runs=runs)
