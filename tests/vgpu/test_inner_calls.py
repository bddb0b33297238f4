"""Code that runs inside an operation sees the devices that the program sees: dispatch modes, fake tensors, cond.

Expectations: notes of `torch.utils._python_dispatch`, documentation of "Fake tensor" and of `torch.cond`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import vgpu


class _Watch(TorchDispatchMode):
    """Notes the devices of what comes in, and makes and moves tensors of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, list[str]]] = []
        self.made: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        self.seen.append((func.__name__, [str(value.device) for value in tensors]))
        if tensors:
            device = tensors[0].device
            here = torch.zeros(2, device=device) + 1
            there = torch.ones(2).to(device)
            back = tensors[0].detach().cpu()
            self.made += [str(here.device), str(there.device), str(back.device), str((here + there).device)]
        return func(*args, **(kwargs or {}))


@pytest.fixture
def watch() -> _Watch:
    return _Watch()


def test_a_dispatch_mode_of_the_program_sees_the_gpu(gpu: vgpu.VirtualGPU, watch: _Watch) -> None:
    x = torch.ones(3, 3, device="cuda", requires_grad=True)
    with watch:
        (x @ x).sum().backward()
    devices = {device for _, used in watch.seen for device in used}
    assert devices == {"cuda:0"}
    assert {name.partition(".")[0] for name, _ in watch.seen} >= {"mm", "sum", "expand"}
    assert set(watch.made[::4]) == set(watch.made[1::4]) == set(watch.made[3::4]) == {"cuda:0"}
    assert set(watch.made[2::4]) == {"cpu"}


def test_the_same_mode_without_a_gpu_is_as_it_was(watch: _Watch) -> None:
    own = _Watch.__torch_dispatch__
    with vgpu.attach("T4"), watch:
        torch.ones(1, device="cuda") + 1
        assert _Watch.__torch_dispatch__ is own
    assert "__torch_dispatch__" not in vars(watch)
    with watch:
        assert torch.ones(2).sum().item() == 2
    assert set(watch.made[-4:]) == {"cpu"}


class _Parts(TorchDispatchMode):
    """Takes apart whatever can be, and notes the rest and where it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[str] = []
        self.devices: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._can_decompose():
            with self:
                return func.decompose(*args, **(kwargs or {}))
        self.ran.append(func.overloadpacket.__name__)
        self.devices |= {str(value.device) for value in args if isinstance(value, torch.Tensor)}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("values", [True, False])
def test_a_mode_takes_operations_apart(values: bool) -> None:
    def program(device: str) -> _Parts:
        parts = _Parts()
        with parts, torch.inference_mode():
            x = torch.ones(2, 3, 3, device=device)
            assert torch.promote_types(x.dtype, torch.float16) == torch.float32
            y = torch.nn.functional.linear(x @ x, x[0])
            assert y.shape == (2, 3, 3)
        return parts

    expected = program("cpu").ran
    with vgpu.attach("T4", values=values):
        on_gpu = program("cuda")
    assert {"bmm", "mm"} <= set(expected)
    assert (on_gpu.ran, on_gpu.devices) == (expected, {"cuda:0"})


def test_flops_are_counted_in_inference_mode(gpu: vgpu.VirtualGPU) -> None:
    layer = torch.nn.Linear(16, 4).to("cuda")
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        layer(torch.ones(8, 16, device="cuda"))
    assert counter.get_total_flops() == 2 * 8 * 16 * 4


def test_flops_are_counted_on_the_gpu(gpu: vgpu.VirtualGPU) -> None:
    counter = FlopCounterMode(display=False)
    with counter:
        torch.nn.Linear(8, 16).cuda()(torch.ones(4, 8, device="cuda"))
    assert counter.get_total_flops() == 2 * 4 * 8 * 16


def test_selective_checkpointing_recomputes_on_the_gpu(gpu: vgpu.VirtualGPU) -> None:
    def policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        is_product = operation is torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    def layer(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ weight).sin() @ weight

    weight = torch.randn(16, 16, device="cuda", requires_grad=True)
    inputs = torch.randn(4, 16, device="cuda", requires_grad=True)
    contexts = partial(create_selective_checkpoint_contexts, policy)
    checkpoint(layer, inputs, use_reentrant=False, context_fn=contexts).sum().backward()
    (expected,) = torch.autograd.grad(layer(inputs).sum(), weight)
    assert weight.grad is not None
    assert weight.grad.is_cuda
    assert torch.equal(weight.grad, expected)


def test_fake_tensors_keep_their_device_and_take_nothing(gpu: vgpu.VirtualGPU) -> None:
    real = torch.ones(4, 8, device="cuda")
    before = torch.cuda.memory_allocated(), len(gpu.timeline)
    with FakeTensorMode() as mode:
        layer = torch.nn.Linear(8, 16, device="cuda")
        result = layer(torch.ones(4, 8, device="cuda"))
        assert str(result.device) == "cuda:0"
        assert str(result.cpu().device) == "cpu"
        assert str(mode.from_tensor(real).device) == "cuda:0"
    assert str((result + 1).device) == "cuda:0"
    assert (torch.cuda.memory_allocated(), len(gpu.timeline)) == before


def test_an_operator_called_with_a_device_makes_its_tensor_there(gpu: vgpu.VirtualGPU) -> None:
    made = torch.ops.aten.zeros.default([2, 3], device=torch.device("cuda"))
    moved = torch.ops.aten._to_copy.default(torch.ones(2), device=torch.device("cuda"), dtype=torch.float16)
    assert (str(made.device), str(moved.device), moved.dtype) == ("cuda:0", "cuda:0", torch.float16)
    assert torch.cuda.memory_allocated() == 2 * 512
    like = torch.ops.aten.new_full.default(torch.ones(2), [3], 7.0, device=torch.device("cuda"))
    scalar = torch.ops.aten._efficientzerotensor.default([2], device=torch.device("cuda"))  # no function names it
    assert (like.is_cuda, like.tolist(), str(scalar.device)) == (True, [7.0, 7.0, 7.0], "cuda:0")


def test_cuda_is_initialised_when_it_is_used() -> None:
    with vgpu.attach("T4", gpus=2):
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 2
        assert not torch.cuda.is_initialized()
        torch.cuda.set_device(1)
        assert torch.cuda.is_initialized()
    with vgpu.attach("T4"):
        torch.zeros(1, device="cuda")
        assert torch.cuda.is_initialized()


def test_cond_runs_the_branch_that_is_chosen(gpu: vgpu.VirtualGPU) -> None:
    x = torch.full((3,), 2.0, device="cuda")
    result = torch.cond(x.sum() > 0, lambda value: value * 2, lambda value: value - 1, (x,))
    assert result.tolist() == [4.0, 4.0, 4.0]
    assert result.is_cuda


def test_a_subclass_reaches_the_functions_it_overrides(gpu: vgpu.VirtualGPU) -> None:
    class Named(torch.Tensor):
        pass

    x = torch.ones(3, 2, device="cuda").as_subclass(Named)
    assert len(x) == 3
    assert type(x.norm()) is Named
    assert torch.allclose(x.norm(dim=1), torch.full((3,), 2.0, device="cuda").sqrt())
