"""What the collectives are called with: lists and options in every form that PyTorch allows, and NCCL's rules for them.

Not here: the collectives (`vgpu.torch_integration.distributed.group`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

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
        if not _is_contiguous(tensor):
            raise ValueError("Tensors must be contiguous")
        if tensor.dtype not in gloo_transport.NCCL_TYPES and not tensor.dtype.is_complex:
            raise TypeError(f"Input tensor data type is not supported for NCCL process group: {_scalar(tensor.dtype)}")
    return gloo_transport.NCCL_TYPES.get(tensors[0].dtype, "f32") if tensors else "f32"


def check_nccl_message(tensor: _T, peer: int | None, ranks: int) -> None:
    """A send or receive: elements go in the order of memory, also where the tensor has gaps."""
    if not _is_contiguous(tensor):
        warnings.warn(
            "Detected non-contiguous tensor in P2P operations. It is user responsibility to guarantee that source and "
            "destination tensors have the same contiguity format.",
            stacklevel=4,
        )
    check_nccl([tensor if tensor.is_sparse else gloo_transport.flat(tensor)])
    if peer is not None and not 0 <= peer < ranks:
        raise dist.DistBackendError(
            f"NCCL error: invalid argument (ncclInvalidArgument: Send/Recv : invalid peer {peer} (nranks={ranks})) "
            "[simulated by vgpu]"
        )


def _is_contiguous(tensor: _T) -> bool:
    return tensor.is_contiguous() or (
        tensor.dim() in (4, 5) and tensor.is_contiguous(memory_format=_channels_last(tensor))
    )


def require_one_dtype(pairs: Sequence[tuple[_T, _T]], text: str) -> None:
    """Of `_allgather_base` and `_reduce_scatter_base`: each output and its input."""
    if any(output.dtype != tensor.dtype for output, tensor in pairs):
        raise TypeError(text)


def require_splits(tensor: _T, sizes: Sequence[int], ranks: int) -> None:
    """Of `alltoall_base` (torch/csrc/distributed/c10d/Utils.hpp, `checkSplitSizes`)."""
    if not sizes:
        if tensor.dim() and tensor.shape[0] % ranks:
            raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
    elif len(sizes) != ranks:
        raise RuntimeError("Number of tensor splits not equal to group size")
    elif sum(sizes) != tensor.shape[0]:
        raise RuntimeError("Split sizes doesn't match total dim 0 size")


def require_list(name: str, kind: str, tensors: Sequence[_T], like: _T, ranks: int) -> None:
    """What the root of `scatter` and `gather` is given: one tensor per rank, like the single one."""
    if len(tensors) != ranks:
        raise ValueError(
            f"ProcessGroupNCCL::{name}: Incorrect {kind} list size {len(tensors)}. {kind.capitalize()} list size "
            f"should be {ranks}, same as size of the process group."
        )
    for index, tensor in enumerate(tensors):
        if tensor.dtype != like.dtype:
            raise ValueError(f"ProcessGroupNCCL::{name}: invalid tensor type at index {index}")
        if tensor.shape != like.shape:
            raise ValueError(
                f"ProcessGroupNCCL::{name}: invalid tensor size at index {index} (expected {list(like.shape)}, got "
                f"{list(tensor.shape)})"
            )


def require_one_each(tensors: Sequence[Sequence[_T]], ranks: int) -> None:
    """Lists of `all_gather`, `reduce_scatter` and `all_to_all`: on a card the others' memory would be touched."""
    if any(len(parts) != ranks for parts in tensors):
        raise RuntimeError("Tensor list input to scatter/gather must match number of collective participants")


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
