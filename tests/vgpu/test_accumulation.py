"""Gradients that meet are added in place where nobody else holds them (torch/csrc/autograd/input_buffer.cpp)."""

from __future__ import annotations

from typing import Any

import torch

import vgpu

_TENSOR = 4 * (1 << 20)


def _peak_of_backward(output: torch.Tensor) -> int:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    output.backward()
    return (torch.cuda.max_memory_allocated() - before) // _TENSOR


def _input() -> torch.Tensor:
    return torch.ones(1 << 20, device="cuda", requires_grad=True)


def test_two_gradients_are_added_in_place(shapes: vgpu.VirtualGPU) -> None:
    x = _input()
    hidden = x * 2
    loss = (hidden * 3 + hidden * 4).sum()
    # Each branch has its gradient; their sum takes the place of the first, the gradient of x comes next to it.
    assert _peak_of_backward(loss) == 2


def test_a_gradient_that_a_hook_keeps_is_not_written_to(gpu: vgpu.VirtualGPU) -> None:
    x = _input()
    hidden = x * 2
    total = hidden + hidden.relu()
    kept: list[torch.Tensor] = []
    total.register_hook(kept.append)
    (total * 3).sum().backward()
    assert kept[0][0].item() == 3.0
    assert x.grad is not None
    assert x.grad[0].item() == 12.0


def test_a_saved_tensor_is_not_written_to(gpu: vgpu.VirtualGPU) -> None:
    class AddSaved(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(tensor)
            return tensor * 1

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            (saved,) = ctx.saved_tensors
            before = torch.cuda.memory_allocated()
            total = saved + gradients[0]
            assert torch.cuda.memory_allocated() - before == _TENSOR
            return total  # type: ignore[no-any-return]

    x = _input()
    AddSaved.apply(x * 2).sum().backward()
    assert x.grad is not None
    assert x.grad[0].item() == 6.0


def test_the_bytes_of_an_accumulation_are_counted_once(shapes: vgpu.VirtualGPU) -> None:
    x = _input()
    hidden = x * 2
    (hidden * 3 + hidden * 4).sum().backward()
    del hidden
    assert torch.cuda.memory_allocated() == 2 * _TENSOR
    x.grad = None
    assert torch.cuda.memory_allocated() == _TENSOR
