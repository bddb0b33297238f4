"""CUDA's rules on mixing devices, with PyTorch's own error texts (aten/src/ATen/TensorIterator.cpp, core/adaption.cpp).

Not here: what happens once the devices agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch

from vgpu.gpu import VirtualGPU
from vgpu.operations import Operation

_TWO_DEVICES = "Expected all tensors to be on the same device, but found at least two devices, {}!"


def reconcile(
    gpu: VirtualGPU,
    operation: Operation,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    inputs: Sequence[torch.Tensor],
) -> bool | None:
    """Decide on an operation with tensors on both devices.

    Returns True or False for a `copy_` to or from the GPU, None where the operation may go on as it is; raises
    RuntimeError as PyTorch does.
    """
    has, registry = gpu.registry.has, gpu.registry
    outside = []
    for tensor in inputs:
        if not has(tensor):
            if registry.is_open(tensor) and (gpu.values or tensor.is_meta):
                registry.add(tensor)
            else:
                outside.append(tensor)
    if not outside or operation.is_collective:
        return None
    if operation.base in ("copy_", "copy"):
        return has(args[0]) if has(args[0]) != has(args[1]) else None
    if operation.base in ("index", "index_put_", "_index_put_impl_", "index_put"):
        _reconcile_index(gpu, operation, args)
        return None
    if operation.mixed_devices or operation.base.startswith("_foreach_copy"):
        return None
    if operation.strict_argument is not None:
        raise RuntimeError(_strict_text(gpu, operation, args))
    written_outside = operation.mutates and isinstance(args[0], torch.Tensor) and not has(args[0])
    if all(tensor.dim() == 0 for tensor in outside) and not written_outside:
        return None
    first, second = ("cpu", "cuda:0") if not has(inputs[0]) else ("cuda:0", "cpu")
    raise RuntimeError(_TWO_DEVICES.format(f"{first} and {second}"))


def _reconcile_index(gpu: VirtualGPU, operation: Operation, args: Sequence[Any]) -> None:
    """Indices may be on the CPU (they are copied); the indexed tensor and the values must agree."""
    has = gpu.registry.has
    if not has(args[0]):
        if any(isinstance(index, torch.Tensor) and has(index) for index in args[1]):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        raise RuntimeError(_TWO_DEVICES.format("cpu and cuda:0"))
    if operation.base != "index" and not has(args[2]) and args[2].dim() > 0:
        raise RuntimeError(_TWO_DEVICES.format("cuda:0 and cpu"))
    for index in args[1]:
        if isinstance(index, torch.Tensor) and not has(index):
            gpu.transfer(index.nbytes, to_device=True, pinned=False, non_blocking=False)


def _strict_text(gpu: VirtualGPU, operation: Operation, args: Sequence[Any]) -> str:
    """The wrapper's check: the first tensor sets the device, the first that differs is named."""
    common: str | None = None
    for argument, value in zip(operation.overload._schema.arguments, args, strict=False):
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if not isinstance(tensor, torch.Tensor):
                continue
            device = str(gpu.registry.device_of(tensor))
            if common is None:
                common = device
            elif device != common:
                return (
                    f"Expected all tensors to be on the same device, but got {argument.name} is on {device}, "
                    f"different from other tensors on {common} "
                    f"(when checking argument in method wrapper_CUDA_{operation.name.split('::')[1]})"
                )
    return _TWO_DEVICES.format("cuda:0 and cpu")


def require_room(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a factory call that can never fit before the CPU really allocates its bytes."""
    size = args[0] if args else kwargs.get("size")
    if isinstance(size, (list, tuple)) and all(isinstance(edge, int) for edge in size):
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        gpu.memory.require(prod(size) * dtype.itemsize)
