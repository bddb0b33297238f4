"""`torch.compile`: values, gradients, state, recompilations."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.conformance.machine import Gpu
from tests.conformance.programs import program

COMPILE = "torch docs: torch.compile"
MODULE = "torch docs: torch.compile of modules; torch/_dynamo/eval_frame.py, OptimizedModule"


def layers() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).cuda()


@program(COMPILE)
def test_a_compiled_function_computes_what_the_function_does(cuda: Gpu) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.sin(x) * y + 1, dim=-1)

    x, y = torch.randn(5, 7, device="cuda"), torch.randn(7, device="cuda")
    assert torch.allclose(torch.compile(function)(x, y), function(x, y), atol=1e-6)


@program(COMPILE)
def test_gradients_pass_through_compiled_code(cuda: Gpu) -> None:
    model, x = layers(), torch.randn(6, 8, device="cuda")
    model(x).square().sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    torch.compile(model)(x).square().sum().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, gradient, atol=1e-5)


@program(MODULE)
def test_a_compiled_module_is_still_a_module(cuda: Gpu) -> None:
    model = layers()
    compiled = torch.compile(model)
    assert isinstance(compiled, nn.Module)
    assert getattr(compiled, "0") is model[0]
    assert [name for name, _ in compiled.named_parameters()][:2] == ["_orig_mod.0.weight", "_orig_mod.0.bias"]
    compiled.eval()
    assert not model.training
    model.train()
    assert compiled.training
    compiled.note = "set"
    assert model.note == "set"
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    before = model[0].weight.detach().clone()
    compiled(torch.randn(3, 8, device="cuda")).sum().backward()
    optimizer.step()
    assert not torch.equal(before, model[0].weight)


@program(MODULE)
def test_a_module_compiles_in_place(cuda: Gpu) -> None:
    model, x = layers(), torch.randn(2, 8, device="cuda")
    expected = model(x)
    model.compile()
    assert torch.allclose(model(x), expected, atol=1e-6)
    assert next(iter(model.state_dict())) == "0.weight"


@program(COMPILE)
def test_it_decorates_with_and_without_options(cuda: Gpu) -> None:
    @torch.compile
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @torch.compile(mode="max-autotune-no-cudagraphs", dynamic=True)
    def triple(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    x = torch.arange(4.0, device="cuda")
    assert double.__name__ == "double"
    assert (double(x) + triple(x)).tolist() == [0.0, 5.0, 10.0, 15.0]


@program(COMPILE)
def test_mode_and_options_exclude_each_other(cuda: Gpu) -> None:
    with pytest.raises(RuntimeError, match="Either mode or options can be specified"):
        torch.compile(lambda x: x, mode="default", options={"max_autotune": True})


@program(COMPILE)
def test_control_flow_and_side_effects_stay_python(cuda: Gpu) -> None:
    flags = []

    @torch.compile
    def function(x: torch.Tensor, flag: bool) -> torch.Tensor:
        flags.append(flag)
        return x + 1 if flag else x - 1

    x = torch.zeros(2, device="cuda")
    assert [function(x, flag)[0].item() for flag in (True, False, True)] == [1.0, -1.0, 1.0]
    assert flags == [True, False, True]


@program(COMPILE)
def test_compiled_code_may_wait_for_the_device(cuda: Gpu) -> None:
    @torch.compile
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum().item() > 0 else x * 3

    assert function(torch.ones(2, device="cuda")).tolist() == [2.0, 2.0]
    assert function(-torch.ones(2, device="cuda")).tolist() == [-3.0, -3.0]


@program(COMPILE)
def test_a_training_step_is_the_same_compiled_and_eager(cuda: Gpu) -> None:
    def trained(*, compiled: bool) -> list[torch.Tensor]:
        model = layers()
        run = torch.compile(model) if compiled else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        generator = torch.Generator("cuda").manual_seed(1)
        for _ in range(3):
            x = torch.randn(5, 8, device="cuda", generator=generator)
            with torch.autocast("cuda", torch.bfloat16):
                loss = run(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    for actual, other in zip(trained(compiled=True), trained(compiled=False), strict=True):
        assert torch.allclose(actual, other, atol=2e-2)
