"""Counts what ranks tell each other while a submission runs: the bytes of their collectives, and what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from grader.shared.readings import PRODUCTS


class Collectives(TorchDispatchMode):
    """Counts the bytes of every collective, those of DistributedDataParallel's C++ reducer included."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reduced_bytes = 0
        """Of reductions."""
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
        elif name.partition(".")[2].partition(".")[0] in PRODUCTS:
            left, right = _tensors(args)[-2:]
            self.product_flops += 2 * left.numel() * right.shape[-1]
        return func(*args, **(kwargs or {}))


def _tensors(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for part in value for tensor in _tensors(part)] if isinstance(value, (list, tuple)) else []
