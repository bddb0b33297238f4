"""Saving and loading: a tensor comes back where it was, unless it is told otherwise."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.conformance.machine import Gpu
from tests.conformance.programs import program

CUDA = torch.device("cuda", 0)
SERIALIZATION = "torch docs: torch.load, map_location"


def saved(value: object) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


@program("torch docs: torch.load: storages are restored to the device they were saved from")
def test_a_tensor_saved_on_the_gpu_comes_back_on_the_gpu(cuda: Gpu, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"x": torch.tensor([1.5, 2.0], device="cuda"), "host": torch.ones(1)}, path)
    loaded = torch.load(path)
    assert (loaded["x"].device, loaded["x"].tolist()) == (CUDA, [1.5, 2.0])
    assert loaded["host"].device.type == "cpu"


@program(SERIALIZATION)
def test_map_location_in_every_form(cuda: Gpu) -> None:
    x = torch.tensor([1.0, 2.0], device="cuda")
    for target in ("cpu", torch.device("cpu"), {"cuda:0": "cpu"}, lambda storage, location: storage):
        loaded = torch.load(saved(x), map_location=target)
        assert (loaded.device.type, loaded.tolist()) == ("cpu", [1.0, 2.0])
    for target in ("cuda", "cuda:0", CUDA, lambda storage, location: storage.cuda(0)):
        loaded = torch.load(saved(x.cpu()), map_location=target)
        assert (loaded.device, loaded.tolist()) == (CUDA, [1.0, 2.0])
    with torch.device("cuda"):
        assert torch.load(saved(x), map_location="cpu").device.type == "cpu"


@program("torch docs: Serialization semantics: views keep sharing their storage")
def test_views_share_their_storage_after_loading(cuda: Gpu) -> None:
    x = torch.arange(6.0, device="cuda")
    loaded = torch.load(saved([x, x[2:4]]))
    loaded[0][2] = 99
    assert loaded[1].tolist() == [99, 3]
    assert torch.load(saved(x[:1])).untyped_storage().nbytes() == 24


@program("torch/serialization.py: _validate_device")
def test_a_gpu_that_is_not_there_cannot_be_loaded_to(cuda: Gpu) -> None:
    missing = torch.cuda.device_count()
    text = (
        rf"Attempting to deserialize object on CUDA device {missing} but torch.cuda.device_count\(\) is {missing}. "
        "Please use torch.load with map_location to map your storages to an existing device."
    )
    with pytest.raises(RuntimeError, match=text):
        torch.load(saved(torch.zeros(1)), map_location=f"cuda:{missing}")


@program("torch docs: nn.Module.load_state_dict copies into the module's tensors")
def test_a_state_dict_crosses_devices(cuda: Gpu) -> None:
    torch.manual_seed(0)
    host, model = nn.Linear(3, 2), nn.Linear(3, 2).cuda()
    parameter = model.weight
    assert str(model.load_state_dict(torch.load(saved(host.state_dict())))) == "<All keys matched successfully>"
    assert model.weight is parameter
    assert model.weight.device == CUDA
    assert torch.equal(model.weight.cpu(), host.weight)
    on_host = torch.load(saved(model.state_dict()), map_location="cpu")
    assert all(value.device.type == "cpu" for value in on_host.values())
    fresh = nn.Linear(3, 2)
    fresh.load_state_dict(model.state_dict())
    assert fresh.weight.device.type == "cpu"


@program("torch/optim/optimizer.py: _process_value_according_to_param_policy")
def test_an_optimizers_state_follows_its_parameters(cuda: Gpu) -> None:
    def trained(device: str, **options: bool) -> torch.optim.Adam:
        weight = torch.ones(3, device=device, requires_grad=True)
        optimizer = torch.optim.Adam([weight], lr=0.1, **options)
        weight.grad = torch.ones(3, device=device)
        optimizer.step()
        return optimizer

    for options, step in (({}, "cpu"), ({"fused": True}, "cuda")):
        optimizer = trained("cuda", **options)
        optimizer.load_state_dict(torch.load(saved(optimizer.state_dict()), map_location="cpu"))
        (state,) = optimizer.state.values()
        assert state["exp_avg"].device == state["exp_avg_sq"].device == CUDA
        assert state["step"].device.type == step
        assert state["step"].item() == 1


@program("torch docs: saving and loading a general checkpoint (tutorial); torch.load weights_only=True by default")
def test_a_checkpoint_resumes_bit_for_bit(cuda: Gpu, tmp_path: Path) -> None:
    def parts() -> tuple[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler, object]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        return model, optimizer, torch.amp.GradScaler("cuda"), scheduler

    def train(model, optimizer, scaler, scheduler, steps: int) -> None:  # type: ignore[no-untyped-def]
        for _ in range(steps):
            with torch.autocast("cuda"):
                loss = model(torch.randn(4, 8, device="cuda")).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()

    straight = parts()
    train(*straight, 4)
    first = parts()
    train(*first, 2)
    state = {"parts": [part.state_dict() for part in first], "cuda": torch.cuda.get_rng_state(),
             "cpu": torch.get_rng_state()}  # fmt: skip
    torch.save(state, tmp_path / "checkpoint.pt")
    second = parts()
    loaded = torch.load(tmp_path / "checkpoint.pt", map_location="cpu")
    for part, values in zip(second, loaded["parts"], strict=True):
        part.load_state_dict(values)
    torch.cuda.set_rng_state(loaded["cuda"])
    torch.set_rng_state(loaded["cpu"])
    train(*second, 2)
    for parameter, other in zip(straight[0].parameters(), second[0].parameters(), strict=True):
        assert torch.equal(parameter, other)
    assert straight[2].state_dict() == second[2].state_dict()


@program("torch docs: torch.load(weights_only=False); nn.Module pickles its tensors with their device")
def test_a_whole_module_and_its_parameters(cuda: Gpu) -> None:
    model = nn.BatchNorm1d(2).cuda()
    loaded = torch.load(saved(model), weights_only=False)
    assert loaded.weight.device == loaded.running_mean.device == CUDA
    assert isinstance(loaded.weight, nn.Parameter)
    moved = torch.load(saved(model), weights_only=False, map_location="cpu")
    assert moved.weight.device.type == "cpu"
    half = torch.load(saved(torch.ones(2, device="cuda", dtype=torch.bfloat16)))
    assert (half.dtype, half.device) == (torch.bfloat16, CUDA)
    learns = torch.load(saved(torch.ones(2, device="cuda", requires_grad=True)))
    assert learns.requires_grad
