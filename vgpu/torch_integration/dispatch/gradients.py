"""Gradients come home: PyTorch's engine moves a gradient to the device of its tensor, where it sees a difference.

On CUDA a copy between devices sends its gradient back (CopyBackwards in torch/csrc/autograd/functions/tensor.cpp), and
a 0-dimensional gradient is moved (`validate_outputs` in torch/csrc/autograd/engine.cpp). The real devices here are
equal, so neither happens by itself. Not here: copies that the function mode makes
(`vgpu.torch_integration.dispatch.transfers`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils.hooks import unserializable_hook

from vgpu.runtime.attachment import machine as attached_machine
from vgpu.runtime.machine import Machine
from vgpu.torch_integration.dispatch import transfers
from vgpu.torch_integration.handling_mode import HandlingMode

_MARK = "_vgpu_gradient_comes_home"
_PLEASE = "Please ensure that the gradient and the tensor are on the same device"


def bring_home(machine: Machine, tensor: torch.Tensor) -> None:
    """Let the gradient of `tensor`, which an operation on another device reads, end where the tensor is."""
    if not tensor.requires_grad or getattr(tensor, _MARK, False):
        return
    reference, home = weakref.ref(tensor), machine.registry.gpu_of(tensor)

    @unserializable_hook  # type: ignore[untyped-decorator]
    def hook(gradient: torch.Tensor) -> torch.Tensor | None:
        if attached_machine() is not machine:
            return None
        owner = reference()
        target = home if owner is None else machine.registry.gpu_of(owner)
        return None if machine.registry.gpu_of(gradient) is target else transfers.move(machine, gradient, target)

    tensor.register_hook(hook)
    setattr(tensor, _MARK, True)


def assign(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`tensor.grad = gradient` wants both on one device (THPVariable_set_grad in python_variable.cpp)."""
    tensor, gradient = args
    registry = mode.registry
    if isinstance(gradient, torch.Tensor) and not registry.is_open(gradient):
        ours, theirs = registry.gpu_of(tensor), registry.gpu_of(gradient)
        if ours is not theirs:
            if ours is None or theirs is None:
                kinds = ["cpu" if gpu is None else "cuda" for gpu in (theirs, ours)]
                raise RuntimeError(
                    f"attempting to assign a gradient with device type '{kinds[0]}' to a tensor with device type "
                    f"'{kinds[1]}'. {_PLEASE}"
                )
            raise RuntimeError(
                f"attempting to assign a gradient located on device with index '{theirs.index}' to a tensor located "
                f"on device with index '{ours.index}'. {_PLEASE}"
            )
    return func(tensor, gradient)


def read(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`tensor.grad` is where its tensor is, even if C++ code made it (zeros, in formulas of `sgn` or `repeat`)."""
    gradient = func(*args)
    if gradient is not None:
        mode.registry.settle(gradient, args[0])
    return gradient
