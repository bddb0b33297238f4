"""Counts what ranks tell each other while a submission runs: the bytes of their collectives, and what they compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from grader.shared.probes.kept import function, notes
from grader.shared.readings import PRODUCTS

EarlyBytes: TypeAlias = Callable[[], int | None]
"""Says how many bytes were carried between the forward passes of the windows."""


class Collectives(TorchDispatchMode):
    """Counts the bytes of every collective, those of DistributedDataParallel's C++ reducer included."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reduced_bytes = 0
        """Of reductions."""
        self.reduced_numbers = 0
        """How many numbers these bytes are."""
        self.carried_bytes = 0
        """Of collectives of any kind, messages from one rank to another included."""
        self.product_flops = 0
        """Of matrix products, without which nothing is there to be reduced."""

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        name = str(func)
        if name.startswith(("c10d.", "_c10d_functional.")):
            self.carried_bytes += sum(tensor.nbytes for tensor in _tensors(args))
            if "reduce" in name:
                self.reduced_bytes += sum(tensor.nbytes for tensor in _tensors(args[0]))
                self.reduced_numbers += sum(tensor.numel() for tensor in _tensors(args[0]))
        elif name.partition(".")[2].partition(".")[0] in PRODUCTS:
            left, right = _tensors(args)[-2:]
            self.product_flops += 2 * left.numel() * right.shape[-1]
        return func(*args, **(kwargs or {}))


@contextmanager
def watching_windows(model: nn.Module, collectives: Collectives, steps: int, batches: int) -> Iterator[EarlyBytes]:
    """What is carried while a model is trained in windows of so many batches, of the epoch's `batches` in all."""
    note, carried = notes()

    def look(module: nn.Module, _: object) -> None:
        if module is model:
            note(collectives.carried_bytes)

    hook = register_module_forward_pre_hook(function(look))  # for all: one of the model's own nobody could copy with it

    def early_bytes() -> int | None:
        """Bytes between the forward passes of a window; None if not each batch had one pass."""
        marks: list[int] = carried()
        if len(marks) % batches:
            return None
        epochs = [marks[begin : begin + batches] for begin in range(0, len(marks), batches)]
        windows = [epoch[begin : begin + steps] for epoch in epochs for begin in range(0, batches, steps)]
        return sum(window[-1] - window[0] for window in windows)

    try:
        yield early_bytes
    finally:
        hook.remove()


def _tensors(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for part in value for tensor in _tensors(part)] if isinstance(value, (list, tuple)) else []
