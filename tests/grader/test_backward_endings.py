"""Graphs that PyTorch refuses in backward are the submission's mistake, and what the machine lacks is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gradebox.sandbox.probe_loader import WrongReturn
from grader.shared.probes.endings import run_backward
from vgpu.device.errors import Unsupported


def raising(error: BaseException, module: str = "torch.somewhere") -> Tensor:
    """A number whose backward pass raises this, in code of this module."""
    space: dict[str, Any] = {"__name__": module, "error": error}
    exec("def backward(gradient):\n    raise error", space)
    value = torch.ones((), requires_grad=True) * 1
    value.register_hook(space["backward"])
    return value


def other_computation() -> Tensor:
    """A checkpointed segment that keeps fewer tensors when it is computed again."""
    layers = iter([torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Sigmoid()), torch.nn.Tanh()])
    return checkpoint(lambda x: next(layers)(x), torch.ones(3, requires_grad=True), use_reentrant=False).sum()


def other_shape() -> Tensor:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient[:1]

    return Wrong.apply(torch.ones(3, requires_grad=True)).sum()  # type: ignore[no-untyped-call]


def changed_in_place() -> Tensor:
    x = torch.ones(3, requires_grad=True)
    exponential = x.exp()
    total = exponential.sum()
    exponential.detach().mul_(2)
    exponential.add_(1)
    return total + exponential.sum()


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (other_computation, "ends with CheckpointError: .*different number of tensors was saved"),
        (other_shape, "ends with RuntimeError: .*invalid gradient at index 0"),
        (changed_in_place, "ends with RuntimeError: .*modified by an inplace operation"),
    ],
)
def test_a_graph_that_pytorch_refuses_is_the_submissions_mistake(graph: Any, message: str) -> None:
    with pytest.raises(WrongReturn, match="backward of Model " + message) as caught:
        run_backward(graph(), of="Model")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        Unsupported("a kernel", "another one"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
    ],
)
def test_what_the_machine_lacks_passes_on(error: RuntimeError) -> None:
    with pytest.raises(type(error)) as caught:
        run_backward(raising(error), of="Model")
    assert caught.value is error


def test_an_error_of_the_submissions_own_line_passes_on() -> None:
    with pytest.raises(RuntimeError, match="wrong by itself"):
        run_backward(raising(RuntimeError("wrong by itself"), "labs.lab4_memory.flash_attention"), of="Model")
    with pytest.raises(WrongReturn):
        run_backward(raising(RuntimeError("wrong by itself"), "elsewhere"), of="Model")


def test_gradients_are_those_of_backward() -> None:
    x = torch.arange(3.0, requires_grad=True)
    run_backward(x * x, torch.ones(3), of="Model")
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 2.0, 4.0]
