"""`torch.func`: inside a transform a tensor lives where it lives outside."""

from __future__ import annotations

import torch
from torch.func import grad, vjp, vmap
from torch.nn import functional

from tests.conformance.machine import Gpu
from tests.conformance.programs import program

SOURCE = "PyTorch docs: torch.func, function transforms"


@program(SOURCE)
def test_a_tensor_says_its_device_inside_a_transform(cuda: Gpu) -> None:
    x = torch.randn(4, 3, device="cuda")
    devices = []

    def look(t: torch.Tensor) -> torch.Tensor:
        devices.append((t.device.type, t.is_cuda))
        return (t * torch.arange(3.0, device=t.device)).sum()

    vjp(look, x[0])
    grad(look)(x[0])
    assert vmap(look)(x).device.type == "cuda"
    assert vmap(grad(look))(x).device.type == "cuda"
    assert devices == [("cuda", True)] * 4


@program(f"{SOURCE}; PyTorch notes: Reproducibility")
def test_dropout_inside_a_transform_draws_from_the_gpus_generator(cuda: Gpu) -> None:
    x = torch.ones(64, 64, device="cuda")
    results = []
    for call in (functional.dropout, functional.dropout, lambda t, p: vjp(lambda y: functional.dropout(y, p), t)[0]):
        torch.cuda.manual_seed(7)
        before = torch.get_rng_state()
        results.append(call(x, 0.5))
        assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(results[0], other) for other in results[1:])
