"""Optimizers on the GPU: their three implementations, their state's bytes, and clipping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.conformance.machine import Gpu
from tests.conformance.measure import allocated, bytes_of, host_seconds, rounded
from tests.conformance.programs import program

OPTIM = "torch docs: torch.optim"
COUNT, SIZE = 16, 1 << 16
PARAMETERS = COUNT * SIZE * 4


def parameters(count: int = COUNT, size: int = SIZE) -> list[nn.Parameter]:
    torch.manual_seed(0)
    made = [nn.Parameter(torch.randn(size, device="cuda")) for _ in range(count)]
    for parameter in made:
        parameter.grad = torch.randn(size, device="cuda")
    return made


Make = Callable[..., torch.optim.Optimizer]


def all_ways(make: Make, **options: Any) -> list[list[torch.Tensor]]:
    """The parameters after three steps, by the loop, foreach and fused implementations."""
    results = []
    for way in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        weights = parameters(3, 1000)
        optimizer = make(weights, **options, **way)
        for _ in range(3):
            optimizer.step()
        results.append([weight.detach() for weight in weights])
    return results


@program(f"{OPTIM}: foreach and fused implementations compute the same")
def test_three_implementations_agree(cuda: Gpu) -> None:
    for make, options in (
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        (torch.optim.Adam, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}),
        (torch.optim.AdamW, {"lr": 0.01, "maximize": True}),
    ):
        loop, foreach, fused = all_ways(make, **options)
        for from_loop, from_foreach, from_fused in zip(loop, foreach, fused, strict=True):
            assert torch.allclose(from_loop, from_foreach, atol=1e-6)
            assert torch.allclose(from_loop, from_fused, atol=1e-5)


@program("torch docs: torch.optim.Adam, the algorithm; torch/optim/adam.py")
def test_adam_computes_its_algorithm(cuda: Gpu) -> None:
    weight = nn.Parameter(torch.tensor([1.0, -2.0], device="cuda"))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    expected, first, second = torch.tensor([1.0, -2.0], dtype=torch.float64), 0.0, 0.0
    for step in range(1, 4):
        gradient = expected * 2
        weight.grad = weight.detach() * 2
        optimizer.step()
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        expected = expected - 0.1 * (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
    assert weight.tolist() == pytest.approx(expected.tolist(), abs=1e-5)


@program(f"{OPTIM}: state is made at the first step")
def test_the_states_bytes(cuda: Gpu) -> None:
    for make, options, tensors in (
        (torch.optim.SGD, {"lr": 0.1}, 0),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, 1),
        (torch.optim.Adam, {}, 2),
        (torch.optim.AdamW, {"amsgrad": True}, 3),
        (torch.optim.RMSprop, {}, 1),
    ):
        weights = parameters()
        start = allocated()
        optimizer = make(weights, **options)
        assert allocated() == start
        optimizer.step()
        assert allocated() - start == tensors * PARAMETERS, make
        del weights, optimizer


@program("torch/optim/adam.py: _init_group: step is on the CPU unless capturable or fused")
def test_where_the_step_counter_lives(cuda: Gpu) -> None:
    for options, device in (({}, "cpu"), ({"foreach": False}, "cpu"), ({"fused": True}, "cuda")):
        weights = parameters()
        start = allocated()
        optimizer = torch.optim.Adam(weights, **options)
        optimizer.step()
        state = optimizer.state[weights[0]]
        assert (state["step"].device.type, state["step"].item()) == (device, 1)
        assert state["exp_avg"].is_cuda
        steps = COUNT * rounded(4) if device == "cuda" else 0
        assert allocated() - start == 2 * PARAMETERS + steps
        del weights, optimizer, state


@program("torch docs: torch.optim.Adam: foreach uses about sizeof(params) more peak memory than the loop")
def test_foreach_needs_more_memory_for_a_moment(cuda: Gpu) -> None:
    def extra(**options: Any) -> int:
        optimizer = torch.optim.Adam(parameters(), **options)
        optimizer.step()
        return bytes_of(optimizer.step).peak

    loop, foreach, default, fused = extra(foreach=False), extra(foreach=True), extra(), extra(fused=True)
    assert loop <= 3 * SIZE * 4
    assert PARAMETERS <= foreach <= 2.1 * PARAMETERS
    assert default == foreach  # the default on CUDA (torch/optim/optimizer.py, _default_to_fused_or_foreach)
    assert fused <= 64 * 1024


@program("torch docs: torch.optim: foreach and fused launch fewer kernels")
def test_fewer_launches_take_less_host_time(cuda: Gpu) -> None:
    def seconds(**options: Any) -> float:
        optimizer = torch.optim.Adam(parameters(100, 16), **options)
        for _ in range(2):
            optimizer.step()
        return min(host_seconds(optimizer.step, finish=True) for _ in range(3))

    loop, foreach, fused = seconds(foreach=False), seconds(foreach=True), seconds(fused=True)
    assert foreach < 0.5 * loop
    assert fused < 0.8 * foreach


@program(f"{OPTIM}: fused and foreach together; torch/optim/adam.py")
def test_contradictory_options_are_refused(cuda: Gpu) -> None:
    with pytest.raises(RuntimeError, match="`fused` and `foreach` cannot be `True` together"):
        torch.optim.Adam(parameters(1, 4), fused=True, foreach=True)
    with pytest.raises(ValueError, match=r"Invalid learning rate: -1.0"):
        torch.optim.Adam(parameters(1, 4), lr=-1.0)
    with pytest.raises(ValueError, match="optimizer got an empty parameter list"):
        torch.optim.SGD([], lr=0.1)


@program("torch docs: nn.utils.clip_grad_norm_, clip_grad_value_")
def test_clipping_on_the_gpu(cuda: Gpu) -> None:
    for foreach in (None, False, True):
        weights = parameters(3, 100)
        expected = torch.cat([weight.grad for weight in weights]).norm()
        norm = nn.utils.clip_grad_norm_(weights, 1.0, foreach=foreach)
        assert norm.is_cuda
        assert norm.item() == pytest.approx(expected.item(), rel=1e-5)
        assert torch.cat([weight.grad for weight in weights]).norm().item() == pytest.approx(1.0, abs=1e-3)
    nn.utils.clip_grad_value_(weights, 0.01)
    assert max(weight.grad.abs().max().item() for weight in weights) <= 0.01
    assert nn.utils.get_total_norm([weight.grad for weight in weights]).is_cuda


@program("torch docs: torch.optim.swa_utils, torch.optim.lr_scheduler, a tensor as learning rate")
def test_schedulers_averages_and_tensor_rates(cuda: Gpu) -> None:
    weight = nn.Parameter(torch.ones(2, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    rates = []
    for _ in range(3):
        weight.grad = torch.ones(2, device="cuda")
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert rates == [1.0, 0.5, 0.25]
    assert weight.tolist() == [-0.75, -0.75]
    tensor_rate = torch.optim.Adam([weight], lr=torch.tensor(0.5, device="cuda"), fused=True)
    tensor_rate.step()
    assert weight.tolist() == pytest.approx([-1.25, -1.25])
    layer = nn.Linear(2, 1, bias=False).cuda()
    averaged = torch.optim.swa_utils.AveragedModel(layer, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
    averaged.update_parameters(layer)
    with torch.no_grad():
        before = layer.weight.clone()
        layer.weight.add_(2)
    averaged.update_parameters(layer)
    assert torch.allclose(averaged.module.weight, before + 1)


@program("torch docs: Optimizer.step(closure), torch.optim.LBFGS")
def test_a_closure_runs_on_the_gpu(cuda: Gpu) -> None:
    weight = nn.Parameter(torch.tensor([5.0, -3.0], device="cuda"))
    optimizer = torch.optim.LBFGS([weight], lr=0.5, max_iter=20)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (weight - 1).square().sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    assert weight.tolist() == pytest.approx([1.0, 1.0], abs=1e-3)


@program("torch docs: Tensor.register_post_accumulate_grad_hook (tutorial: optimizer step in backward)")
def test_a_step_inside_backward_saves_the_gradients(cuda: Gpu) -> None:
    weights = [nn.Parameter(torch.full((1 << 18,), 0.1, device="cuda")) for _ in range(4)]
    x = torch.ones(1 << 18, device="cuda")

    def loss() -> torch.Tensor:
        y = x
        for weight in weights:
            y = y + weight
        return y.sum()

    optimizers = {weight: torch.optim.SGD([weight], lr=0.1) for weight in weights}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    def peak() -> int:
        for weight in weights:
            weight.grad = None
        start = allocated()
        torch.cuda.reset_peak_memory_stats()
        loss().backward()
        return torch.cuda.max_memory_allocated() - start

    together = peak()
    for weight in weights:
        weight.register_post_accumulate_grad_hook(step)
    one_by_one = peak()
    assert one_by_one <= together - 2 * x.nbytes
    assert all(weight.grad is None for weight in weights)
