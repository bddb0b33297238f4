"""GradScaler in all its states: scaling, unscaling, skipping, growing, and its errors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.conformance.machine import Gpu
from tests.conformance.programs import program

SCALER = "torch docs: torch.amp.GradScaler"
SOURCE = "torch/amp/grad_scaler.py"
EXAMPLES = "PyTorch AMP examples notes"


def one_weight(value: float = 1.0, **options: object) -> tuple[torch.Tensor, torch.optim.Optimizer]:
    weight = torch.full((2,), value, device="cuda", requires_grad=True)
    return weight, torch.optim.SGD([weight], lr=0.5, **options)


@program(f"{SCALER}: defaults")
def test_the_first_scale(cuda: Gpu) -> None:
    scaler = torch.amp.GradScaler("cuda")
    assert scaler.is_enabled()
    assert scaler.get_scale() == 65536.0
    assert (scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()) == (2.0, 0.5, 2000)
    loss = torch.tensor(2.0, device="cuda")
    scaled = scaler.scale(loss)
    assert (scaled.item(), scaled.device.type) == (131072.0, "cuda")
    assert [value.item() for value in scaler.scale([loss, (loss + 1)])] == [131072.0, 196608.0]
    half = scaler.scale(torch.tensor(0.5, device="cuda", dtype=torch.float16))
    assert half.item() == 32768.0
    with pytest.raises(ValueError, match="outputs must be a Tensor or an iterable of Tensors"):
        scaler.scale(3.0)


@program(f"{SCALER}: step and update")
def test_an_ordinary_step_uses_the_unscaled_gradients(cuda: Gpu) -> None:
    weight, optimizer = one_weight()
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    scaler.scale(weight.sum()).backward()
    assert weight.grad.tolist() == [1024.0, 1024.0]
    scaler.step(optimizer)
    assert weight.grad.tolist() == [1.0, 1.0]
    scaler.update()
    assert weight.tolist() == [0.5, 0.5]
    assert scaler.get_scale() == 1024.0


@program(f"{SCALER}: step skips optimizer.step() where gradients are inf or NaN; update backs off")
def test_an_overflow_skips_the_step_and_halves_the_scale(cuda: Gpu) -> None:
    for bad in (float("inf"), float("-inf"), float("nan")):
        weight, optimizer = one_weight(momentum=0.9)
        scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
        scaler.scale(weight.sum()).backward()
        weight.grad[1] = bad
        assert scaler.step(optimizer) is None
        scaler.update()
        assert weight.tolist() == [1.0, 1.0]
        assert optimizer.state[weight] == {}
        assert scaler.get_scale() == 4.0
        optimizer.zero_grad()
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert weight.tolist() == [0.5, 0.5]
        assert scaler.get_scale() == 4.0


@program(f"{SCALER}: growth_interval consecutive iterations without inf or NaN")
def test_the_scale_grows_after_quiet_steps_only(cuda: Gpu) -> None:
    weight, optimizer = one_weight()
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0, growth_interval=3, growth_factor=2.0, backoff_factor=0.25)

    def step(*, overflow: bool = False) -> float:
        optimizer.zero_grad()
        scaler.scale(weight.sum()).backward()
        if overflow:
            weight.grad.fill_(float("inf"))
        scaler.step(optimizer)
        scaler.update()
        return scaler.get_scale()

    assert [step(), step()] == [4, 4]
    assert step(overflow=True) == 1
    assert [step(), step(), step()] == [1, 1, 2]
    assert [step(), step(), step()] == [2, 2, 4]
    assert scaler.state_dict()["_growth_tracker"] == 0
    step()
    assert scaler.state_dict()["_growth_tracker"] == 1


@program(f"{EXAMPLES}: Gradient clipping: unscale_ before clip_grad_norm_")
def test_clipping_sees_unscaled_gradients(cuda: Gpu) -> None:
    weight, optimizer = one_weight()
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    scaler.scale(3 * weight[0] + 4 * weight[1]).backward()
    scaler.unscale_(optimizer)
    assert weight.grad.tolist() == [3.0, 4.0]
    norm = nn.utils.clip_grad_norm_([weight], 1.0)
    assert norm.item() == pytest.approx(5.0)
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == pytest.approx([1 - 0.3, 1 - 0.4], rel=1e-5)


@program(f"{SOURCE}: unscale_")
def test_unscaling_twice_is_refused(cuda: Gpu) -> None:
    weight, optimizer = one_weight()
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    text = r"unscale_\(\) has already been called on this optimizer since the last update\(\)."
    with pytest.raises(RuntimeError, match=text):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) is being called after step\(\)."):
        scaler.unscale_(optimizer)
    scaler.update()


@program(f"{SOURCE}: step, update, _check_scale_growth_tracker")
def test_the_order_of_calls_is_checked(cuda: Gpu) -> None:
    weight, optimizer = one_weight()
    scaler = torch.amp.GradScaler("cuda")
    with pytest.raises(AssertionError, match="Attempted step but _scale is None"):
        scaler.step(optimizer)
    with pytest.raises(AssertionError, match="Attempted update but _scale is None"):
        scaler.update()
    scaled = scaler.scale(weight.sum())
    with pytest.raises(AssertionError, match=r"No inf checks were recorded prior to update."):
        scaler.update()
    with pytest.raises(AssertionError, match=r"No inf checks were recorded for this optimizer."):
        scaler.step(optimizer)
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(weight.sum())
    scaled.backward()
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\) has already been called since the last update\(\)."):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"Closure use is not currently supported if GradScaler is enabled."):
        scaler.step(optimizer, closure=lambda: None)


@program(f"{SOURCE}: _unscale_grads_: a model cast to half has nothing to unscale to")
def test_gradients_in_float16_cannot_be_unscaled(cuda: Gpu) -> None:
    model = nn.Linear(2, 1).cuda().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0)
    scaler.scale(model(torch.ones(1, 2, device="cuda", dtype=torch.float16)).sum()).backward()
    with pytest.raises(ValueError, match=r"Attempting to unscale FP16 gradients."):
        scaler.step(optimizer)


@program(f"{EXAMPLES}: Working with multiple models, losses, and optimizers")
def test_optimizers_are_skipped_one_by_one(cuda: Gpu) -> None:
    good, first = one_weight()
    bad, second = one_weight()
    scaler = torch.amp.GradScaler("cuda", init_scale=16.0)
    scaler.scale(good.sum() + bad.sum()).backward()
    bad.grad[0] = float("nan")
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    assert good.tolist() == [0.5, 0.5]
    assert bad.tolist() == [1.0, 1.0]
    assert scaler.get_scale() == 8.0


@program(f"{SCALER}: enabled=False makes every method a no-op")
def test_a_disabled_scaler_does_nothing(cuda: Gpu) -> None:
    weight, optimizer = one_weight()
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    loss = weight.sum()
    assert scaler.scale(loss) is loss
    loss.backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [0.5, 0.5]
    assert scaler.get_scale() == 1.0
    assert scaler.state_dict() == {}


@program(f"{SCALER}: state_dict, load_state_dict, update(new_scale)")
def test_the_state_is_kept_and_set(cuda: Gpu) -> None:
    weight, optimizer = one_weight()
    scaler = torch.amp.GradScaler("cuda", init_scale=32.0, growth_interval=5)
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    state = scaler.state_dict()
    assert state == {
        "scale": 32.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 5, "_growth_tracker": 1,
    }  # fmt: skip
    other = torch.amp.GradScaler("cuda")
    other.load_state_dict(state)
    assert other.state_dict() == state
    with pytest.raises(RuntimeError, match="The source state dict is empty"):
        other.load_state_dict({})
    scaler.scale(weight.sum())
    scaler.update(7.0)
    assert scaler.get_scale() == 7.0
    scaler.update(torch.tensor(9.0, device="cuda"))
    assert scaler.get_scale() == 9.0


@program(f"{SOURCE}: step: fused optimizers get grad_scale and found_inf")
def test_a_fused_optimizer_unscales_and_skips_by_itself(cuda: Gpu) -> None:
    weight = torch.ones(4, device="cuda", requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == pytest.approx([0.9] * 4, abs=1e-5)
    assert optimizer.state[weight]["exp_avg"].tolist() == pytest.approx([0.1] * 4)
    before = weight.tolist()
    weight.grad.fill_(float("inf"))
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == before
    assert optimizer.state[weight]["step"].item() == 1
    assert scaler.get_scale() == 128.0


@program(f"{EXAMPLES}: Gradient accumulation: scale each loss, step and update once")
def test_accumulation_scales_every_part(cuda: Gpu) -> None:
    weight, optimizer = one_weight()
    scaler = torch.amp.GradScaler("cuda", init_scale=64.0)
    for _ in range(4):
        scaler.scale(weight.sum() / 4).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [0.5, 0.5]


@program("torch docs: torch.cuda.amp.GradScaler is deprecated")
def test_the_old_spelling_warns_and_works(cuda: Gpu) -> None:
    with pytest.warns(FutureWarning, match=r"torch.cuda.amp.GradScaler\(args...\)` is deprecated"):
        scaler = torch.cuda.amp.GradScaler(init_scale=2.0)
    weight, optimizer = one_weight()
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [0.5, 0.5]
    assert isinstance(scaler, torch.amp.GradScaler)


@program(f"{EXAMPLES}: Typical mixed precision training; float16 overflows above 65504")
def test_a_too_large_scale_finds_its_level(cuda: Gpu) -> None:
    torch.manual_seed(0)
    model = nn.Linear(16, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40)
    inputs = torch.randn(8, 16).cuda()
    skipped = 0
    for _ in range(60):
        before = model.weight.detach().clone()
        with torch.autocast("cuda"):
            loss = (model(inputs) - 1).float().square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        skipped += int(torch.equal(model.weight, before))
    assert 10 < skipped < 40
    assert scaler.get_scale() == 2.0 ** (40 - skipped)
    assert torch.isfinite(model.weight).all()
    assert loss.item() < 1.0
