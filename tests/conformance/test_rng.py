"""Random numbers: the GPU's generator is its own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.conformance.machine import Gpu
from tests.conformance.programs import program

RANDOM = "torch docs: torch.cuda Random Number Generator"
REPRODUCIBILITY = "PyTorch reproducibility notes"


def draw() -> list[float]:
    return torch.rand(8, device="cuda").tolist()


@program("torch docs: torch.manual_seed: on all devices")
def test_manual_seed_seeds_the_gpu_too(cuda: Gpu) -> None:
    torch.manual_seed(7)
    first, host = draw(), torch.rand(4).tolist()
    torch.manual_seed(7)
    assert draw() == first
    assert torch.rand(4).tolist() == host
    assert torch.cuda.initial_seed() == torch.initial_seed() == 7
    torch.manual_seed(8)
    assert draw() != first


@program(RANDOM)
def test_the_gpus_seed_leaves_the_cpu_alone(cuda: Gpu) -> None:
    torch.manual_seed(1)
    torch.cuda.manual_seed(5)
    host = torch.rand(4).tolist()
    torch.manual_seed(1)
    assert torch.rand(4).tolist() == host
    torch.cuda.manual_seed_all(5)
    first = draw()
    torch.cuda.manual_seed(5)
    assert draw() == first
    assert torch.cuda.initial_seed() == 5


@program(f"{REPRODUCIBILITY}: results differ between CPU and GPU even with identical seeds")
def test_the_gpu_draws_other_numbers_than_the_cpu(cuda: Gpu) -> None:
    torch.manual_seed(0)
    host, gpu = torch.rand(100), torch.rand(100, device="cuda").cpu()
    assert not torch.equal(host, gpu)
    torch.manual_seed(0)
    host = torch.randn(100)
    torch.manual_seed(0)
    assert not torch.equal(host, torch.randn(100, device="cuda").cpu())


@program(f"{RANDOM}; aten/src/ATen/cuda/CUDAGeneratorImpl.cpp")
def test_drawing_on_one_device_does_not_move_the_other(cuda: Gpu) -> None:
    torch.manual_seed(3)
    host = torch.rand(4).tolist()
    torch.manual_seed(3)
    draw()
    torch.randperm(10, device="cuda")
    nn.functional.dropout(torch.ones(10, device="cuda"))
    torch.zeros(3, device="cuda").normal_().uniform_()
    torch.ones(3, device="cuda").multinomial(2)
    assert torch.rand(4).tolist() == host
    state = torch.cuda.get_rng_state()
    torch.rand(100)
    assert torch.equal(torch.cuda.get_rng_state(), state)


@program(RANDOM)
def test_the_state_can_be_put_back(cuda: Gpu) -> None:
    state = torch.cuda.get_rng_state()
    assert (state.device.type, state.dtype) == ("cpu", torch.uint8)
    first = draw()
    assert not torch.equal(torch.cuda.get_rng_state(), state)
    torch.cuda.set_rng_state(state)
    assert draw() == first
    states = torch.cuda.get_rng_state_all()
    assert len(states) == torch.cuda.device_count()
    second = draw()
    torch.cuda.set_rng_state_all(states)
    assert draw() == second
    with pytest.raises(TypeError, match=r"RNG state must be a torch.ByteTensor"):
        torch.cuda.set_rng_state(torch.zeros(16, device="cuda"))


@program("aten/src/ATen/cuda/CUDAGeneratorImpl.cpp: get_state: seed and Philox offset, 8 bytes each")
def test_the_state_is_a_seed_and_an_offset(cuda: Gpu) -> None:
    assert torch.cuda.get_rng_state().numel() == 16
    generator = torch.Generator(device="cuda").manual_seed(4)
    assert generator.get_state()[:8].view(torch.int64).item() == 4
    assert generator.get_state()[8:].view(torch.int64).item() == 0
    torch.rand(10, device="cuda", generator=generator)
    assert generator.get_state()[8:].view(torch.int64).item() > 0


@program("torch docs: torch.random.fork_rng")
def test_fork_rng_restores_both_devices(cuda: Gpu) -> None:
    torch.manual_seed(11)
    with torch.random.fork_rng():
        torch.manual_seed(99)
        draw()
        torch.rand(5)
    after = draw(), torch.rand(3).tolist()
    torch.manual_seed(11)
    assert (draw(), torch.rand(3).tolist()) == after
    with torch.random.fork_rng(devices=[0], device_type="cuda"):
        inside = draw()
    assert draw() == inside


@program("torch docs: torch.Generator")
def test_a_generator_on_the_gpu(cuda: Gpu) -> None:
    generator = torch.Generator(device="cuda")
    assert generator.device.type == "cuda"
    assert isinstance(generator, torch.Generator)
    assert generator.manual_seed(5) is generator
    assert generator.initial_seed() == 5
    torch.manual_seed(5)
    default = draw()
    first = torch.rand(8, device="cuda", generator=generator).tolist()
    assert first == default
    draw()  # the default generator is another one
    second = torch.rand(8, device="cuda", generator=generator).tolist()
    generator.manual_seed(5)
    assert torch.rand(8, device="cuda", generator=generator).tolist() == first
    assert torch.rand(8, device="cuda", generator=generator).tolist() == second
    copy = torch.Generator(device="cuda")
    copy.set_state(generator.get_state())
    assert torch.randn(3, device="cuda", generator=copy).tolist() == (
        torch.randn(3, device="cuda", generator=generator).tolist()
    )
    assert torch.cuda.default_generators[0].initial_seed() == torch.cuda.initial_seed()


@program("torch docs: torch.utils.data: base_seed and samplers use the CPU generator")
def test_the_order_of_a_loader_does_not_depend_on_the_gpu(cuda: Gpu) -> None:
    def order(*, use_gpu: bool) -> list[int]:
        torch.manual_seed(2)
        if use_gpu:
            draw()
        loader = torch.utils.data.DataLoader(list(range(20)), batch_size=4, shuffle=True)
        return [value.item() for batch in loader for value in batch]

    assert order(use_gpu=True) == order(use_gpu=False)


@program(f"{REPRODUCIBILITY}; torch docs: nn.Dropout")
def test_dropout_is_reproducible_and_unbiased(cuda: Gpu) -> None:
    x = torch.ones(100_000, device="cuda")
    torch.cuda.manual_seed(3)
    first = nn.functional.dropout(x, 0.25)
    torch.cuda.manual_seed(3)
    assert torch.equal(nn.functional.dropout(x, 0.25), first)
    assert not torch.equal(nn.functional.dropout(x, 0.25), first)
    assert torch.allclose(first[first > 0], torch.tensor(1 / 0.75, device="cuda"))
    assert abs((first == 0).float().mean().item() - 0.25) < 0.01
    assert nn.functional.dropout(x, 0.25, training=False) is x or torch.equal(
        nn.functional.dropout(x, 0.25, training=False), x
    )
