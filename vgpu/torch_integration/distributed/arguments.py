"""What the collectives are called with: lists and options in every form that PyTorch allows, and NCCL's rules for them.

Not here: the collectives (`vgpu.torch_integration.distributed.group`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vgpu.runtime.unsupported import unsupported
from vgpu.torch_integration.distributed import gloo_transport

_T = torch.Tensor


def listed(value: Any) -> list[_T]:
    return [value] if isinstance(value, _T) else list(value)


def nested(value: Any) -> list[list[_T]]:
    """A list of lists; the old signatures take one list."""
    value = list(value)
    return [value] if value and isinstance(value[0], _T) else [list(parts) for parts in value]


def with_reduction(opts: Any, kind: type[Any]) -> Any:
    """Options, also where only the reduction is given (the old signatures)."""
    if opts is None or not hasattr(opts, "reduceOp"):
        made = kind()
        if opts is not None:
            made.reduceOp = opts
        return made
    return opts


def reduction_name(opts: Any, tensors: Sequence[_T]) -> str:
    dtype = tensors[0].dtype if tensors else torch.float32
    return gloo_transport.kernel_reduction(gloo_transport.reduction_of(opts.reduceOp), dtype)


def total_bytes(tensors: Sequence[_T]) -> int:
    if any(tensor.layout is not torch.strided for tensor in tensors):
        raise unsupported("collectives of sparse tensors")
    return sum(tensor.nbytes for tensor in tensors)


def dtype_name(tensors: Sequence[_T]) -> str:
    return str(tensors[0].dtype).removeprefix("torch.") if tensors else "float32"


def parts_of(tensor: _T, sizes: Sequence[int], ranks: int) -> list[_T]:
    """The parts of the first dimension that go to each rank: equal ones where no sizes are given."""
    if not sizes:
        return (
            list(gloo_transport.flat(tensor).chunk(ranks)) if tensor.numel() else [gloo_transport.flat(tensor)] * ranks
        )
    return list(tensor.split(list(sizes)))


def check_nccl(tensors: Sequence[_T]) -> str:
    """The short name of the dtype in NCCL's kernels; what ProcessGroupNCCL refuses is refused in its words."""
    for tensor in tensors:
        if tensor.is_sparse:
            raise unsupported("collectives of sparse tensors")
        if not tensor.is_contiguous() and not (
            tensor.dim() in (4, 5) and tensor.is_contiguous(memory_format=_channels_last(tensor))
        ):
            raise ValueError("Tensors must be contiguous")
        if tensor.dtype not in gloo_transport.NCCL_TYPES and not tensor.dtype.is_complex:
            raise TypeError(f"Input tensor data type is not supported for NCCL process group: {_scalar(tensor.dtype)}")
    return gloo_transport.NCCL_TYPES.get(tensors[0].dtype, "f32") if tensors else "f32"


def _channels_last(tensor: _T) -> torch.memory_format:
    return torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d


def _scalar(dtype: torch.dtype) -> str:
    """The name of a dtype in C++ (c10/core/ScalarType.h)."""
    names = {torch.int16: "Short", torch.uint16: "UInt16", torch.uint32: "UInt32", torch.uint64: "UInt64"}
    return names.get(dtype, str(dtype).removeprefix("torch."))


class Loan:
    """Tensors of a GPU are copied for gloo, whose threads keep what they are given for a while."""

    def __init__(self, *, copies: bool) -> None:
        self._copies = copies
        self._lent: list[tuple[_T, _T]] = []

    def lend(self, value: Any) -> Any:
        """A tensor, or lists of them, for gloo to read and write."""
        if not isinstance(value, _T):
            return [self.lend(item) for item in value]
        if not self._copies:
            return value
        self._lent.append((value, value.clone()))
        return self._lent[-1][1]

    def give_back(self) -> None:
        """What gloo has written."""
        for tensor, copy in self._lent:
            tensor.copy_(copy)
