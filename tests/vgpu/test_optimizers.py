"""Fused and foreach optimizers: which one is the default, what they allocate, and where step counts live.

Expectations: torch/optim/optimizer.py (`_default_to_fused_or_foreach`) and the optimizers' own modules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import vgpu
from tests.vgpu.conftest import rounded

COUNT, WIDTH = 6, 128
ONE = rounded(4 * WIDTH)
ALL = COUNT * ONE


def _parameters() -> list[nn.Parameter]:
    made = [nn.Parameter(torch.ones(WIDTH, device="cuda")) for _ in range(COUNT)]
    for parameter in made:
        parameter.grad = torch.ones_like(parameter)
    return made


def _kernels(gpu: vgpu.VirtualGPU, work: Callable[[], object]) -> list[str]:
    begin = len(gpu.timeline)
    work()
    return [kernel.name for kernel in gpu.timeline[begin:]]


def _extra_at_peak(work: Callable[[], object]) -> int:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    return torch.cuda.max_memory_allocated() - before


KINDS: list[Any] = [
    torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.NAdam,
    torch.optim.RAdam, torch.optim.Adadelta, torch.optim.Adamax, torch.optim.Rprop, torch.optim.ASGD,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_foreach_is_the_default_on_cuda(shapes: vgpu.VirtualGPU, kind: Any) -> None:
    optimizer = kind(_parameters(), lr=0.1)
    names = _kernels(shapes, optimizer.step)
    assert any(name.startswith("aten::_foreach") for name in names)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_fused_is_one_kernel(shapes: vgpu.VirtualGPU, kind: Any) -> None:
    optimizer = kind(_parameters(), lr=0.1, fused=True)
    optimizer.step()
    names = [name for name in _kernels(shapes, optimizer.step) if "fused" in name]
    assert names == [f"aten::_fused_{kind.__name__.lower()}_"]


def test_a_loop_over_parameters_when_both_are_off(shapes: vgpu.VirtualGPU) -> None:
    optimizer = torch.optim.SGD(_parameters(), lr=0.1, foreach=False)
    assert _kernels(shapes, optimizer.step) == ["aten::add_"] * COUNT


def test_where_adam_keeps_its_step_counts(gpu: vgpu.VirtualGPU) -> None:
    def devices(**options: Any) -> set[str]:
        optimizer = torch.optim.Adam(_parameters(), lr=0.1, **options)
        optimizer.step()
        return {str(state["step"].device) for state in optimizer.state.values()}

    assert devices() == devices(foreach=False) == {"cpu"}
    assert devices(fused=True) == devices(capturable=True) == {"cuda:0"}


def test_foreach_adam_makes_one_temporary_tensor_per_parameter(shapes: vgpu.VirtualGPU) -> None:
    optimizer = torch.optim.Adam(_parameters(), lr=0.1)
    optimizer.step()
    assert _extra_at_peak(optimizer.step) == ALL  # the roots of the second moments


def test_a_loop_makes_them_one_after_the_other(shapes: vgpu.VirtualGPU) -> None:
    optimizer = torch.optim.Adam(_parameters(), lr=0.1, foreach=False)
    optimizer.step()
    # The root, the root divided by the bias correction, and the last parameter's denominator, whose name is still bound
    # (torch/optim/adam.py, _single_tensor_adam).
    assert _extra_at_peak(optimizer.step) == 3 * ONE


def test_fused_adam_makes_none(shapes: vgpu.VirtualGPU) -> None:
    optimizer = torch.optim.Adam(_parameters(), lr=0.1, fused=True)
    optimizer.step()
    assert _extra_at_peak(optimizer.step) == 0


def test_foreach_weight_decay_makes_a_decayed_gradient(shapes: vgpu.VirtualGPU) -> None:
    optimizer = torch.optim.SGD(_parameters(), lr=0.1, weight_decay=0.1)
    assert _extra_at_peak(optimizer.step) == ALL  # _foreach_add(grads, params, alpha=weight_decay)


def test_clipping_makes_a_norm_per_tensor(shapes: vgpu.VirtualGPU) -> None:
    parameters = _parameters()
    kept = _extra_at_peak(lambda: nn.utils.clip_grad_norm_(parameters, 1.0))
    assert kept <= (2 * COUNT + 6) * 512  # 0-dimensional tensors only


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {"foreach": False}, {"capturable": True}])
def test_all_spellings_give_the_same_values(gpu: vgpu.VirtualGPU, options: dict[str, Any]) -> None:
    def train(**chosen: Any) -> torch.Tensor:
        parameter = nn.Parameter(torch.linspace(-1, 1, WIDTH, device="cuda"))
        optimizer = torch.optim.AdamW([parameter], lr=0.1, weight_decay=0.1, **chosen)
        for _ in range(5):
            optimizer.zero_grad()
            parameter.pow(4).sum().backward()
            optimizer.step()
        return parameter.detach()

    # A capturable optimizer corrects the bias in FP32 on the GPU, the others in FP64 on the host.
    assert torch.allclose(train(**options), train(), atol=1e-4)
