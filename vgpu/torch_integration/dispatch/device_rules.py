"""CUDA's rules on mixing devices, with PyTorch's own error texts (aten/src/ATen/TensorIterator.cpp, core/adaption.cpp).

Not here: what happens once the devices agree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch

from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.machine import Machine
from vgpu.runtime.memory.residency import Registry
from vgpu.runtime.operations.operation import Operation
from vgpu.torch_integration.dispatch import extensions
from vgpu.torch_integration.dispatch.gradients import bring_home

# Kernels that take no scalar from the CPU, although no wrapper checks (TensorCompare.cpp, `clamp_out`).
_WITHOUT_CPU_SCALARS = {"aten::clamp.Tensor_out"}
_WITH_SCALARS = {"_foreach_addcmul", "_foreach_addcdiv"}
_TWO_DEVICES = "Expected all tensors to be on the same device, but found at least two devices, {} and {}!"


def reconcile(
    machine: Machine,
    operation: Operation,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    inputs: Sequence[torch.Tensor],
) -> bool:
    """Decide on an operation with tensors on more than one device, at least one of them on a GPU.

    Returns whether it is a copy between devices, False where the operation may go on as it is; raises RuntimeError as
    PyTorch does.
    """
    registry = machine.registry
    gpu_of = registry.gpu_of
    common = next(filter(None, map(gpu_of, inputs)))
    outside = []
    for tensor in inputs:
        home = gpu_of(tensor)
        if home is None and registry.is_open(tensor) and (machine.values or tensor.is_meta):
            registry.add(tensor, common)
        elif home is not common:
            outside.append(tensor)
    if operation.base in _WITH_SCALARS and len(args) > 3:  # they are read on the host, however many
        outside = [tensor for tensor in outside if tensor is not args[3]]
    if not outside or operation.is_collective:
        return False
    if operation.base in ("copy_", "copy"):
        return gpu_of(args[0]) is not gpu_of(args[1])
    if operation.base.startswith("_foreach_copy"):
        return True
    if operation.indexes:
        _reconcile_index(machine, operation, args)
        return False
    if operation.base == "set_":
        registry.require_own_device(args[0], inputs[1].untyped_storage())
    # A kernel in Python is reached as soon as one tensor is on the GPU, and looks at the others itself.
    if operation.mixed_devices or (operation.is_custom and extensions.has_python_kernel(operation)):
        return False
    if operation.base == "masked_fill":
        _check_masked_fill(registry, args)
    if operation.base == "convolution" and any(gpu_of(tensor) is None for tensor in outside):
        raise RuntimeError(convolution_text(registry, args))
    if operation.strict_devices:
        raise RuntimeError(_strict_text(registry, operation, args, kwargs))
    in_place = operation.mutates and "out" not in kwargs and isinstance(args[0], torch.Tensor)
    written_outside = in_place and gpu_of(args[0]) is None
    if operation.overload.name() in _WITHOUT_CPU_SCALARS:
        raise RuntimeError(_two_devices(registry, kwargs, inputs))
    if operation.cpu_scalars is not None and not written_outside:
        _check_cpu_scalars(operation.base, operation.cpu_scalars, args, outside, _two_devices(registry, kwargs, inputs))
    if not written_outside and all(tensor.dim() == 0 and gpu_of(tensor) is None for tensor in outside):
        for tensor in outside:
            bring_home(machine, tensor)
        return False
    raise RuntimeError(_two_devices(registry, kwargs, inputs))


def _check_cpu_scalars(
    base: str, places: Sequence[int], args: Sequence[Any], outside: Sequence[torch.Tensor], two_devices: str
) -> None:
    """PointwiseOps.cpp, `addcmul`, and others: one number on the CPU, and not in every place."""
    wrong = [place for place, value in enumerate(args) for tensor in outside if value is tensor and place not in places]
    if len(outside) > 1 and places:
        raise RuntimeError("Trying to pass too many CPU scalars to non-CPU kernel!")
    if not wrong:
        return
    if base == "addcmul" and not outside[0].dim():
        hint = (
            "" if wrong[0] == 0 else " However, CPU Scalar support for tensor2 is supported, please swap your tensor1 "
            "and tensor2 terms."
        )  # fmt: skip
        name = ("self", "tensor1")[wrong[0]]
        raise RuntimeError(
            f"CPU Scalar support for {name} argument is not supported when calling addcmul on CUDA tensors.{hint}"
        )
    raise RuntimeError(two_devices)


def _check_masked_fill(registry: Registry[VirtualGPU], args: Sequence[Any]) -> None:
    """IndexKernel.cpp (CUDA), `masked_fill__cuda`: a 0-dimensional value may be on the CPU, no other tensor."""
    device, mask = (registry.device_of(tensor) for tensor in args[:2])
    if device.type == "cpu" and isinstance(args[2], torch.Tensor) and registry.has(args[2]):
        raise RuntimeError("masked_fill_: Expected inputs to be on same device")
    if device != mask:
        raise RuntimeError(
            f"expected self and mask to be on the same device, but got mask on {mask} and self on {device}"
        )


def _two_devices(registry: Registry[VirtualGPU], kwargs: Mapping[str, Any], inputs: Sequence[torch.Tensor]) -> str:
    """The first tensor on a GPU sets the common device, outputs come before inputs (`compute_types`)."""
    out = [kwargs["out"]] if isinstance(kwargs.get("out"), torch.Tensor) else []
    devices = [registry.device_of(tensor) for tensor in (*out, *inputs)]
    common = next(device for device in devices if device.type == "cuda")
    return _TWO_DEVICES.format(common, next(device for device in devices if device != common))


def _reconcile_index(machine: Machine, operation: Operation, args: Sequence[Any]) -> None:
    """Indices may be on the CPU, a 0-dimensional value anywhere: they are copied. All else must agree."""
    registry = machine.registry
    gpu = registry.gpu_of(args[0])
    device = registry.device_of(args[0])
    indices = [index for index in args[1] if isinstance(index, torch.Tensor)]
    if any(registry.gpu_of(index) not in (gpu, None) for index in indices):
        raise RuntimeError(f"indices should be either on cpu or on the same device as the indexed tensor ({device})")
    if gpu is None:
        raise RuntimeError(_TWO_DEVICES.format("cpu", registry.device_of(args[2])))
    if operation.base != "index" and (home := registry.gpu_of(args[2])) is not gpu:
        value = args[2]
        if value.dim() > 0:
            raise RuntimeError(_TWO_DEVICES.format(device, registry.device_of(value)))
        bring_home(machine, value)
        if home is None:
            gpu.transfer(value.nbytes, to_device=True, pinned=False, non_blocking=False)
        else:
            machine.peer_copy(home, gpu, value.nbytes)
    for index in indices:
        if not registry.has(index):
            gpu.transfer(index.nbytes, to_device=True, pinned=False, non_blocking=False)


def _strict_text(
    registry: Registry[VirtualGPU], operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    """The wrapper's check: the first tensor sets the device, the first that differs is named."""
    common: str | None = None
    for place, argument in enumerate(operation.overload._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if not isinstance(tensor, torch.Tensor):
                continue
            device = str(registry.device_of(tensor))
            if common is None:
                common = device
            elif device != common:
                # An embedding is an `index_select` on CUDA (Embedding.cpp).
                name = "index" if operation.base == "embedding" and argument.name == "indices" else argument.name
                method = operation.wrapper or operation.name.split("::")[1]
                return (
                    f"Expected all tensors to be on the same device, but got {name} is on {device}, "
                    f"different from other tensors on {common} (when checking argument in method wrapper_CUDA_{method})"
                )
    return _TWO_DEVICES.format("cuda:0", "cpu")


def convolution_text(registry: Registry[VirtualGPU], args: Sequence[Any]) -> str:
    """Convolution.cpp, `check_input_same_type_as_parameters`: the weight comes before the bias."""
    source, *parameters = (_type_of(registry, tensor) for tensor in args[:3] if tensor is not None)
    name, other = next(
        (pair for pair in zip(("weight", "bias"), parameters, strict=False) if pair[1] != source), ("weight", source)
    )
    return f"Input type ({source}) and {name} type ({other}) should be the same"


def _type_of(registry: Registry[VirtualGPU], tensor: torch.Tensor) -> str:
    name: str = torch._C._TensorBase.type(tensor)
    plain = name.replace("torch.meta.", "torch.")
    return plain.replace("torch.", "torch.cuda.", 1) if registry.has(tensor) else plain


# c10/core/impl/alloc_cpu.cpp; EmptyTensor.cpp, `storage_max`.
_NO_HOST_MEMORY = re.compile(r"DefaultCPUAllocator: .*you tried to allocate (\d+) bytes")
_MOST_BYTES = 1 << 63


def require_room(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a factory call that can never fit before the CPU really allocates its bytes."""
    size = args[0] if args else kwargs.get("size")
    if isinstance(size, (list, tuple)) and all(isinstance(edge, int) for edge in size):
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        wanted = prod(size) * dtype.itemsize
        if wanted < _MOST_BYTES:  # else PyTorch refuses the sizes before it asks for memory
            gpu.memory.require(wanted)


def require_room_for_failed(gpu: VirtualGPU, error: RuntimeError) -> None:
    """The host could not allocate what an operation needs: on a GPU that cannot either, the error is CUDA's."""
    failed = _NO_HOST_MEMORY.search(str(error))
    if failed is not None:
        gpu.memory.require(int(failed[1]))
