"""The program's own tensors and operations: tensor subclasses with a dispatch of their own, custom operators.

They run with both modes switched on again, so that what they do inside is seen. Not here: operations of PyTorch
(`vgpu.torch_integration.dispatch.dispatch_mode`), extensions in CUDA C++ and Triton kernels, which are refused.
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.library
from torch.overrides import TorchFunctionMode

from vgpu.runtime.machine import Machine
from vgpu.runtime.operations.operation import Operation
from vgpu.runtime.patching import PatchSet
from vgpu.runtime.unsupported import unsupported
from vgpu.torch_integration.devices import place
from vgpu.torch_integration.handling_mode import seen_by

_FAKE = torch._C._TorchDispatchModeKey.FAKE
_KERNELS_OF_CUDA = (torch._C.DispatchKey.CUDA, torch._C.DispatchKey.CompositeExplicitAutograd)
_CUDA_KERNEL = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
# Where a kernel written in Python may be registered so that CUDA tensors reach it (torch/library.py, `impl`).
_REACHED_FROM_CUDA = ("CUDA", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


def are_fake(types: Sequence[Any]) -> bool:
    """Whether a tensor without values is among the types: `FakeTensorMode` keeps its device and shape by itself."""
    return any(kind.__name__ == "FakeTensor" for kind in types)


def fake_mode_is_on() -> bool:
    """Whether a `FakeTensorMode` makes all tensors; PyTorch asks it last, after every other mode."""
    return torch._C._get_dispatch_mode(_FAKE) is not None


def is_distributed(types: Sequence[Any]) -> bool:
    """Whether a DTensor is among the types: PyTorch takes it apart in C++, and its parts come back to the mode."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(issubclass(kind, module.DTensor) for kind in types)


def run_subclass(func: Any, types: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What PyTorch does when no mode handles a call: ask each tensor subclass in turn."""
    for kind in types:
        result = kind.__torch_dispatch__(func, types, args, kwargs)
        if result is not NotImplemented:
            return result
    names = ", ".join(kind.__name__ for kind in types)
    raise TypeError(f"Multiple dispatch failed for '{func.name()}'; all __torch_dispatch__ handlers returned "
                    f"NotImplemented: {names}")  # fmt: skip


def run_higher_order(mode: TorchFunctionMode, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a function of functions does on CUDA, where no mode handles it.

    Raises:
        NotImplementedError: it has no kernel for CUDA.
        Unsupported: it is an operator with objects of C++ classes, such as a quantized layer's.
    """
    if isinstance(func, torch._ops.OpOverload):
        raise unsupported("kernels that the CPU underneath lacks", func.name())
    for key in _KERNELS_OF_CUDA:
        if key in func.py_kernels:
            with seen_by(mode):
                return func.py_kernels[key](*args, **kwargs)
    raise NotImplementedError(f"could not find kernel for HigherOrderOperator {func} at dispatch key CUDA")


def has_python_kernel(operation: Operation) -> bool:
    """Whether a kernel written in Python serves this operator on CUDA; raises as PyTorch does where there is none."""
    name = str(operation.overload.name())
    place_of = name.replace("::", "/")
    registered = torch.library._impls
    if any(f"{place_of}/{key}" in registered for key in _REACHED_FROM_CUDA):
        return True
    only_cpu = f"{place_of}/CPU" in registered
    if only_cpu or (torch.version.cuda is not None and not has_cuda_kernel(name)):
        raise NotImplementedError(
            f"Could not run '{name}' with arguments from the 'CUDA' backend. This could be because the operator "
            "doesn't exist for this backend, or was omitted during the selective/custom build process "
            "(if using custom build)."
        )
    return False


def has_cuda_kernel(name: str) -> bool:
    """Whether PyTorch has a CUDA kernel for an operator; False for all on a build without CUDA."""
    return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CUDA"))


def is_made_on_gpu(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator without tensors among its arguments names a GPU, and has a kernel for it in Python."""
    devices = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.device)]
    return any(device.type == "cuda" for device in devices) and has_python_kernel(operation)


def run_python_kernel(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The kernel that CUDA tensors would reach."""
    return operation.overload.redispatch(_CUDA_KERNEL, *args, **kwargs)


def install(patches: PatchSet, machine: Machine) -> None:
    """A wrapper without memory of its own, made for the GPU, is on the GPU as its parts are."""
    make = torch.Tensor._make_wrapper_subclass

    def make_wrapper(cls: Any, *args: Any, **kwargs: Any) -> Any:
        devices = [value for value in (*args, kwargs.get("device")) if isinstance(value, (str, torch.device))]
        gpu = place(machine, devices[0] if devices else None)
        if gpu is None:
            return make(cls, *args, **kwargs)
        real = torch.device("cpu" if machine.values else "meta")
        args = tuple(real if value is devices[0] else value for value in args)
        if "device" in kwargs:
            kwargs["device"] = real
        result = make(cls, *args, **kwargs)
        machine.registry.add_wrapper(result, gpu)
        return result

    patches.set(torch.Tensor, "_make_wrapper_subclass", staticmethod(make_wrapper))
