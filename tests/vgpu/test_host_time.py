"""What calls take the host, by kind: what was measured with an H100 (benchmarks/results/h100.json)."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import vgpu
from vgpu.device import cost
from vgpu.runtime.views import history, report, trace


def _host_seconds(call: Callable[[], object]) -> float:
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@pytest.mark.parametrize("gpu", ["T4", "V100", "A100-40GB", "RTX4090"])
def test_a_card_in_a_slower_host_has_slower_calls_in_proportion(gpu: str) -> None:
    def seconds(name: str) -> float:
        with vgpu.attach(name, values=False):
            layer, x = nn.Linear(8, 8, device="cuda"), torch.ones(8, 8, device="cuda")
            with torch.no_grad():
                return _host_seconds(lambda: layer(x).add_(1))

    own, reference = (vgpu.get_spec(name).launch_seconds for name in (gpu, "H100"))
    assert seconds(gpu) / seconds("H100") == pytest.approx(own / reference, rel=0.02)


def _modules(count: int) -> nn.Module:
    module: nn.Module = nn.Identity()
    for _ in range(count - 1):
        module = nn.Sequential(module)
    return module


@pytest.mark.parametrize("count", [1, 12])
def test_a_container_costs_what_a_layer_does(count: int) -> None:
    with vgpu.attach("H100", values=False) as gpu:
        module, x = _modules(count), torch.ones(8, device="cuda")
        assert _host_seconds(lambda: module(x)) == pytest.approx(count * cost.module_seconds(gpu.spec), rel=0.02)


def test_a_function_takes_less_than_its_module() -> None:
    """F.relu took 8.3 us with the H100, nn.ReLU 14.8, F.layer_norm 12.0 and nn.LayerNorm 22.5."""
    with vgpu.attach("H100", values=False), torch.no_grad():
        x, norm = torch.ones(8, 8, device="cuda"), nn.LayerNorm(8, device="cuda")
        relu, module = _host_seconds(lambda: nn.functional.relu(x)), _host_seconds(lambda: nn.ReLU()(x))
        plain = _host_seconds(lambda: nn.functional.layer_norm(x, (8,), norm.weight, norm.bias))
        whole = _host_seconds(lambda: norm(x))
    assert relu == pytest.approx(8.3e-6, rel=0.25)
    assert module == pytest.approx(14.8e-6, rel=0.25)
    assert plain == pytest.approx(12.0e-6, rel=0.25)
    assert whole == pytest.approx(22.5e-6, rel=0.25)


def test_compiled_code_calls_no_modules() -> None:
    """Eager, twelve modules take 96 us; compiled, the outermost alone is called."""
    with vgpu.attach("H100", values=False):
        module = nn.Sequential(*[nn.ReLU() for _ in range(11)]).cuda()
        compiled, x = torch.compile(module), torch.ones(8, device="cuda")
        eager, fused = _host_seconds(lambda: module(x)), _host_seconds(lambda: compiled(x))
    assert eager > 12 * 8e-6 + 11 * 7e-6
    assert fused < 60e-6


def test_calls_of_modules_are_part_of_the_hosts_time_and_of_no_trace() -> None:
    with vgpu.attach("H100", values=False) as gpu:
        module, x = _modules(50), torch.ones(8, device="cuda")
        module(x)
        spent = report.host_seconds(gpu)["module"]
        traced = {event["name"] for event in trace.document(gpu, history.record(gpu))["traceEvents"]}
    assert spent == pytest.approx(50 * cost.module_seconds(gpu.spec))
    assert not traced & {"Sequential", "Identity"}


def test_modules_are_as_before_when_the_gpu_is_gone() -> None:
    before = nn.Module.__call__
    with vgpu.attach("T4"):
        assert nn.Module.__call__ is not before
    assert nn.Module.__call__ is before


def test_backward_takes_the_host_longer_than_forward() -> None:
    with vgpu.attach("H100", values=False):
        layer, x = nn.Linear(8, 8, device="cuda"), torch.ones(8, 8, device="cuda")
        forward = _host_seconds(lambda: layer(x).sum())
        whole = _host_seconds(lambda: layer(x).sum().backward())
    assert whole - forward == pytest.approx(146e-6, rel=0.25)


def test_what_is_recomputed_in_backward_is_called_as_in_forward() -> None:
    with vgpu.attach("H100", values=False) as gpu:
        layer = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).cuda()
        x = torch.ones(8, 8, device="cuda", requires_grad=True)
        checkpoint(layer, x, use_reentrant=False).sum().backward()
        forward = [kernel.host_seconds for kernel in gpu.timeline if kernel.name == "aten::addmm"]
        products = [kernel.host_seconds for kernel in gpu.timeline if kernel.name == "aten::mm"]
    assert forward == [cost.launch_seconds(gpu.spec, "product")] * 2
    assert products == [cost.launch_seconds(gpu.spec, "product_backward")] * 2


@pytest.mark.parametrize(
    ("make", "measured"),
    [
        (lambda weights: torch.optim.SGD(weights, lr=1e-3), 153e-6),
        (lambda weights: torch.optim.SGD(weights, lr=1e-3, momentum=0.9), 188e-6),
        (lambda weights: torch.optim.Adam(weights, lr=1e-3), 583e-6),
        (lambda weights: torch.optim.Adam(weights, lr=1e-3, foreach=False), 3923e-6),
        (lambda weights: torch.optim.AdamW(weights, lr=1e-3, fused=True), 266e-6),
    ],
)
def test_steps_of_optimizers_take_the_host_as_long_as_measured(
    make: Callable[[list[torch.Tensor]], torch.optim.Optimizer], measured: float
) -> None:
    with vgpu.attach("H100", values=False):
        weights = [torch.ones(8, device="cuda", requires_grad=True) for _ in range(60)]
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        assert _host_seconds(make(weights).step) == pytest.approx(measured, rel=0.3)


def test_a_step_takes_longer_the_more_tensors_have_gradients() -> None:
    with vgpu.attach("T4", values=False) as gpu:
        weights = [torch.ones(8, device="cuda", requires_grad=True) for _ in range(4)]
        weights[0].grad = torch.ones_like(weights[0])
        step = torch.optim.SGD(weights, lr=1e-3).step
        single = _host_seconds(step)
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        assert _host_seconds(step) - single == pytest.approx(3 * cost.optimizer_seconds(gpu.spec), rel=0.01)


def test_an_optimizer_of_the_host_is_none_of_the_cards() -> None:
    with vgpu.attach("T4") as gpu:
        weight = torch.ones(8, requires_grad=True)
        weight.grad = torch.ones_like(weight)
        took = _host_seconds(torch.optim.SGD([weight], lr=1e-3).step)
    assert took < cost.optimizer_seconds(gpu.spec) + 10 * gpu.spec.host.operation_seconds
    assert not gpu.timeline


def test_an_optimizer_of_an_outer_machine_costs_once() -> None:
    def step() -> float:
        weight = torch.ones(8, device="cuda", requires_grad=True)
        weight.grad = torch.ones_like(weight)
        return _host_seconds(torch.optim.SGD([weight], lr=1e-3).step)

    with vgpu.attach("T4", values=False):
        alone = step()
        with vgpu.attach("T4", values=False):
            inside = step()
    assert inside == pytest.approx(alone)


def test_autocast_takes_the_host_as_long_as_measured() -> None:
    with vgpu.attach("H100", values=False):
        layer, x = nn.Linear(8, 8, device="cuda"), torch.ones(8, 8, device="cuda")

        def cast() -> None:
            with torch.autocast("cuda", torch.float16):
                layer(x)

        assert _host_seconds(cast) == pytest.approx(59e-6, rel=0.25)
