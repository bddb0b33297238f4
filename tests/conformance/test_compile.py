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


@program("torch docs: torch.compile, fullgraph and graph breaks")
def test_a_full_graph_has_no_branch_on_values(cuda: Gpu) -> None:
    import torch._dynamo

    @torch.compile(fullgraph=True)
    def branch(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    @torch.compile(fullgraph=True)
    def broken(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1

    for function in (branch, broken):
        with pytest.raises(torch._dynamo.exc.Unsupported):
            function(torch.ones(2, device="cuda"))


@program("torch docs: torch.compile, backend, mode and options")
def test_unknown_backends_modes_and_options_are_refused(cuda: Gpu) -> None:
    import torch._dynamo

    with pytest.raises(torch._dynamo.exc.InvalidBackend):
        torch.compile(lambda x: x, backend="nonsense")
    with pytest.raises(RuntimeError, match="Unrecognized mode=nonsense"):
        torch.compile(lambda x: x, mode="nonsense")
    with pytest.raises(RuntimeError, match="Unexpected optimization option nope"):
        torch.compile(lambda x: x, options={"nope": 1})


@program("torch docs: torch.compiler; torch.compile, custom backends")
def test_a_program_sees_that_it_is_compiled_and_what_was_captured(cuda: Gpu) -> None:
    import torch._dynamo

    captured: list[tuple[torch.fx.GraphModule, list[torch.Tensor]]] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        captured.append((graph, inputs))
        return graph.forward

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + torch.ones(3, device=x.device) if torch.compiler.is_compiling() and x.is_cuda else x
        torch._dynamo.graph_break()
        return y * 2

    x = torch.zeros(3, device="cuda")
    assert torch.compile(function, backend=backend)(x).tolist() == [2.0, 2.0, 2.0]
    assert len(captured) == 2
    explained = torch._dynamo.explain(function)(x)
    assert (explained.graph_count, explained.graph_break_count) == (2, 1)
    assert type(torch.compile(layers())) is torch._dynamo.OptimizedModule


@program("torch docs: torch.compile, recompilation; torch._dynamo.mark_dynamic")
def test_guards_see_shapes_and_devices(cuda: Gpu) -> None:
    import torch._dynamo

    function = torch.compile(lambda x: x + torch.ones(x.shape[0], device=x.device), dynamic=False)
    assert function(torch.ones(3, device="cuda")).is_cuda
    assert not function(torch.ones(3)).is_cuda
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert function(torch.ones(3, device="cuda")).is_cuda
        with pytest.raises(torch._dynamo.exc.RecompileError):
            function(torch.ones(4, device="cuda"))
    x = torch.ones(4, 3, device="cuda")
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.raises(RuntimeError, match="specialized it to be a constant"):
        torch.compile(lambda x: x.view(4, -1))(x)


@program("torch docs: torch.compile, backend aot_eager; AOTAutograd")
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_every_backend_computes_the_same_gradients(cuda: Gpu, backend: str) -> None:
    class Losses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 1, 24).view(6, 4))

        def forward(self, classes: torch.Tensor) -> torch.Tensor:
            weight = self.weight
            picked = weight[classes] * nn.functional.one_hot(classes, 4)[:, :4]
            large = nn.functional.interpolate(weight[None, None], scale_factor=2)
            moved = weight + torch.arange(4, device=classes.device) + torch.tensor(2.0, device="cuda")
            loss: torch.Tensor = nn.functional.cross_entropy(weight, classes)
            return loss + picked.sum() + large.square().sum() + moved.sort(0)[0][0].prod() + weight.std()

    model, classes = Losses().cuda(), torch.tensor([0, 1, 2, 3, 0, 1], device="cuda")
    model(classes).backward()
    expected, model.weight.grad = model.weight.grad, None
    torch.compile(model, backend=backend)(classes).backward()
    gradient = model.weight.grad
    assert gradient is not None
    assert expected is not None
    assert gradient.is_cuda
    assert torch.allclose(gradient, expected, atol=1e-5)


@program("torch/_functorch/_aot_autograd/runtime_wrappers.py")
def test_compiled_code_has_no_second_backward_pass(cuda: Gpu) -> None:
    x = torch.ones(3, device="cuda", requires_grad=True)
    (first,) = torch.autograd.grad(torch.compile(lambda x: (x**3).sum())(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        first.sum().backward()


@program("torch docs: torch.compile, compiling the optimizer")
def test_an_optimizer_step_compiles(cuda: Gpu) -> None:
    def trained(*, compiled: bool) -> torch.Tensor:
        torch.manual_seed(1)
        model = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        step = torch.compile(optimizer.step) if compiled else optimizer.step
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 8, device="cuda")).square().sum().backward()
            step()
        return model.weight

    assert torch.allclose(trained(compiled=True), trained(compiled=False), atol=1e-5)


@program("torch docs: torch.cond, torch.func")
def test_functions_of_functions_compile(cuda: Gpu) -> None:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        return result

    for x in (torch.ones(2, device="cuda"), -torch.ones(2, device="cuda")):
        expected = x.sin() if x[0] > 0 else x.cos()
        assert torch.allclose(chosen(x), expected)
        assert torch.allclose(torch.compile(chosen, fullgraph=True)(x), expected)
    slope = torch.compile(torch.func.grad(lambda x: x.sin().sum()))
    assert torch.allclose(slope(torch.ones(2, device="cuda")), torch.ones(2, device="cuda").cos())


@program("torch docs: torch.nn.attention.flex_attention")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_attention(cuda: Gpu, *, compiled: bool) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = (torch.randn(1, 2, 128, 16, device="cuda", requires_grad=True) for _ in range(3))
    causal = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cuda")
    attention = torch.compile(flex_attention) if compiled else flex_attention
    out = attention(q, k, v, block_mask=causal, score_mod=lambda score, b, h, i, j: score * 2)
    expected = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=2 / 4)
    assert torch.allclose(out, expected, atol=1e-4)
    for actual, gradient in zip(
        torch.autograd.grad(out.square().sum(), (q, k, v)),
        torch.autograd.grad(expected.square().sum(), (q, k, v)),
        strict=True,
    ):
        assert actual.is_cuda
        assert torch.allclose(actual, gradient, atol=1e-3)


@program("torch docs: CUDAGraph Trees, limitations")
def test_a_replayed_graph_writes_over_its_outputs(cuda: Gpu) -> None:
    function = torch.compile(lambda x: x @ x, mode="reduce-overhead")
    x = torch.eye(4, device="cuda")
    first = function(x)
    second = function(x)
    with pytest.raises(RuntimeError, match="overwritten by a subsequent run"):
        first.sum().item()
    assert torch.equal(second, x)
