"""The reference of Lab 2 on the CPU: what each step does, the numerical tools, and the conclusions on known data."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torch import nn

from labkit.results import AmpTraining, NumberFormat, PrecisionResult, StabilityRun, load_json
from solutions.lab2_mixed_precision import amp_training, numerics, precision_comparison, stability_tests, workloads

FLOAT16, BFLOAT16, FLOAT32 = torch.float16, torch.bfloat16, torch.float32


@pytest.fixture
def regression() -> tuple[nn.Linear, list[tuple[torch.Tensor, torch.Tensor]]]:
    """A linear model and five batches of different sizes."""
    torch.manual_seed(0)
    sizes = (3, 6, 2, 5, 4)
    return nn.Linear(7, 3), [(torch.randn(size, 7), torch.randn(size, 3)) for size in sizes]


def result(dtype: str, seconds: float, peak: int | None = 100, accuracy: float = 0.9) -> PrecisionResult:
    return PrecisionResult(
        device="cuda",
        dtype=dtype,
        step_seconds=seconds,
        samples_per_second=8 / seconds,
        peak_bytes=peak,
        accuracy=accuracy,
    )


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
def test_training_reports_what_it_did(dtype: torch.dtype, regression) -> None:
    model, batches = regression
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    training = amp_training.train_with_amp(
        model, batches, 2, dtype=dtype, criterion=nn.functional.mse_loss, scaler=scaler
    )
    assert (training.device, training.dtype) == ("cpu", str(dtype).removeprefix("torch."))
    assert (training.optimizer_steps, training.skipped_steps, training.peak_bytes) == (10, 0, None)
    assert training.final_scale == (256.0 if dtype == FLOAT16 else None)
    assert training.losses[1] < training.losses[0]
    assert {parameter.dtype for parameter in model.parameters()} == {FLOAT32}


def test_a_window_acts_like_one_large_batch(regression) -> None:
    model, batches = regression
    windows = [batches[:2], batches[2:4], batches[4:]]
    joined = [tuple(torch.cat(parts) for parts in zip(*window, strict=True)) for window in windows]
    weights = []
    for loader, length in ((batches, 2), (joined, 1)):
        twin = nn.Linear(7, 3).double()
        twin.load_state_dict(model.state_dict())
        amp_training.train_with_amp(
            twin,
            [(inputs.double(), targets.double()) for inputs, targets in loader],
            3,
            dtype=FLOAT32,
            optimizer=torch.optim.SGD(twin.parameters(), lr=0.1),
            criterion=nn.functional.mse_loss,
            accumulation_steps=length,
        )
        weights.append(twin.weight.detach())
    torch.testing.assert_close(*weights, rtol=1e-12, atol=0)


def test_an_overflow_skips_step_and_scheduler_and_halves_the_scale(regression) -> None:
    model, batches = regression
    batches[1][0].fill_(1e5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    training = amp_training.train_with_amp(
        model,
        batches,
        1,
        optimizer=optimizer,
        scheduler=scheduler,
        scaler=scaler,
        criterion=nn.functional.mse_loss,
        max_grad_norm=1.0,
    )
    assert (training.optimizer_steps, training.skipped_steps, training.final_scale) == (4, 1, 128.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01 / 2**4)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert training.losses[0] is not None


def test_an_epoch_without_any_step_has_no_loss(regression) -> None:
    model, _ = regression
    hopeless = [(torch.full((2, 7), 1e5), torch.zeros(2, 3))]
    training = amp_training.train_with_amp(model, hopeless, 2, criterion=nn.functional.mse_loss)
    assert (training.losses, training.optimizer_steps, training.skipped_steps) == ((None, None), 0, 2)


@pytest.mark.parametrize("arguments", [{"dtype": torch.int8}, {"epochs": 0}, {"accumulation_steps": 0}])
def test_training_refuses_senseless_arguments(arguments, regression) -> None:
    model, batches = regression
    with pytest.raises(ValueError, match="start at 1"):
        amp_training.train_with_amp(model, batches, **arguments)


def test_evaluation_weighs_samples_and_leaves_the_mode_alone() -> None:
    model = nn.Sequential(nn.Identity(), nn.Dropout(0.9)).train()
    model.register_parameter("unused", nn.Parameter(torch.zeros(1)))
    logits = torch.eye(4)
    batches = [(logits[:3], torch.tensor([0, 1, 2])), (logits[3:], torch.tensor([0]))]
    assert amp_training.evaluate(model, batches) == 0.75
    assert model.training
    with pytest.raises(ValueError, match="no samples"):
        amp_training.evaluate(model, [])


def test_formats_are_those_of_the_standard() -> None:
    half, brain, single = numerics.describe_formats()
    assert (half.largest, half.smallest, half.smallest_normal) == (65504, 2.0**-24, 2.0**-14)
    assert (brain.epsilon, single.epsilon) == (2.0**-7, 2.0**-23)
    assert (half.bits, brain.bits, single.bits) == (16, 16, 32)


def test_softmax_survives_what_exp_does_not() -> None:
    x = torch.tensor([[1e4, 1e4 - 1, -torch.inf]])
    torch.testing.assert_close(numerics.stable_softmax(x), torch.softmax(x, -1))
    long = torch.zeros(1, 70_000, dtype=FLOAT16)
    assert numerics.stable_softmax(long).float().sum() == pytest.approx(1, rel=0.05)


def test_nonfinite_gradients_are_named_in_order() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for parameter, value in zip(model.parameters(), (torch.nan, 1e30, -torch.inf, None), strict=True):
        parameter.grad = None if value is None else torch.full_like(parameter, value)
    assert numerics.find_nonfinite(model) == ["0.weight", "1.weight"]


def test_the_first_bad_layer_is_named_and_no_hook_stays() -> None:
    model = workloads.UnstableModel(workloads.LARGE_ACTIVATIONS)
    images = torch.ones(2, 1, 8, 8)
    assert numerics.trace_nonfinite(model, images, dtype=FLOAT16) == "shrink"
    assert numerics.trace_nonfinite(model, images, dtype=BFLOAT16) is None
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("gradient", "answer"),
    [
        ([1.0, 2.0, 0.0], "healthy"),
        ([0.0, 2.0, 0.0], "underflow"),
        ([torch.inf, 0.0, 0.0], "overflow"),
        ([torch.nan, 2.0, 0.0], "overflow"),
    ],
)
def test_gradients_are_classified_beside_their_reference(gradient: list[float], answer: str) -> None:
    reference = {"weight": torch.tensor([1.0, 2.0, 0.0])}
    assert numerics.classify_gradients({"weight": torch.tensor(gradient)}, reference) == answer


def test_the_loss_scale_follows_the_rule_of_grad_scaler() -> None:
    scale = stability_tests.DynamicLossScale(8.0, growth_interval=2)
    scales = []
    for overflow in (False, False, False, True, False, False):
        scale.update(overflow)
        scales.append(scale.scale)
    assert scales == [8, 16, 16, 8, 8, 16]
    for wrong in ({"initial_scale": 0}, {"growth_factor": 1}, {"backoff_factor": 1}, {"growth_interval": 0}):
        with pytest.raises(ValueError, match="initial_scale is above 0"):
            stability_tests.DynamicLossScale(**wrong)


def test_the_gain_changes_nothing_in_float32() -> None:
    batches, _ = workloads.batches()
    losses = []
    for gain in (workloads.HARMLESS, workloads.LARGE_ACTIVATIONS):
        torch.manual_seed(0)
        model = workloads.UnstableModel(gain)
        losses.append(stability_tests.train_unstable(model, batches[:3], 2, dtype=FLOAT32).losses)
    assert losses[0] == losses[1]


def test_the_scale_comes_down_until_large_gradients_fit() -> None:
    batches, _ = workloads.batches()
    torch.manual_seed(0)
    model = workloads.UnstableModel(workloads.LARGE_GRADIENTS)
    scale = stability_tests.DynamicLossScale()
    run = stability_tests.train_unstable(model, batches, 1, loss_scale=scale)
    assert 0 < run.skipped_steps < len(batches)
    ratios = [after / before for before, after in itertools.pairwise(run.scales)]
    assert set(ratios) <= {0.5, 1.0}
    assert ratios[:3] == [0.5, 0.5, 0.5]
    assert scale.scale == 2.0 ** (16 - run.skipped_steps)
    assert run.nonfinite_parameters
    assert run.nonfinite_layer is None


def test_large_activations_cannot_be_helped_by_a_scale() -> None:
    batches, _ = workloads.batches()
    model = workloads.UnstableModel(workloads.LARGE_ACTIVATIONS)
    run = stability_tests.train_unstable(model, batches[:2], 1, loss_scale=stability_tests.DynamicLossScale())
    assert (run.optimizer_steps, run.losses, run.nonfinite_layer) == (0, (None,), "shrink")


def test_conclusions_follow_the_numbers() -> None:
    conclusions = precision_comparison.conclude(
        [result("bfloat16", 1.0, 90), result("float32", 1.0), result("float16", 0.25)]
    )
    assert conclusions.speedups == {"bfloat16": 1.0, "float32": 1.0, "float16": 4.0}
    assert conclusions.memory_ratios == {"bfloat16": 0.9, "float32": 1.0, "float16": 1.0}
    assert (conclusions.fastest, conclusions.recommended, conclusions.needs_loss_scaling) == (
        "float16",
        "float16",
        True,
    )


@pytest.mark.parametrize(
    ("half", "brain", "accuracy", "recommended"),
    [(0.5, 0.52, 0.9, "bfloat16"), (0.5, 0.6, 0.9, "float16"), (0.5, 0.4, 0.8, "float16"), (1.2, 1.1, 0.9, "float32")],
)
def test_the_recommendation_follows_its_rule(half: float, brain: float, accuracy: float, recommended: str) -> None:
    rows = [result("float32", 1.0), result("float16", half), result("bfloat16", brain, accuracy=accuracy)]
    assert precision_comparison.conclude(rows).recommended == recommended


def test_conclusions_need_float32_once() -> None:
    for rows in ([result("float16", 1.0)], [result("float32", 1.0), result("float32", 2.0)]):
        with pytest.raises(ValueError, match="no precision twice"):
            precision_comparison.conclude(rows)


def test_no_memory_ratio_without_peaks() -> None:
    assert precision_comparison.conclude([result("float32", 1.0, None)]).memory_ratios == {}


@pytest.mark.night
def test_the_programs_run_on_a_cpu(tmp_path: Path) -> None:
    few = ["--device=cpu", f"--out={tmp_path}", "--epochs=1"]
    assert amp_training.main(few) == 0
    assert stability_tests.main(few) == 0
    assert precision_comparison.main([*few, "--steps=2"]) == 0
    assert numerics.main(few[:2]) == 0
    kinds = {"training": AmpTraining, "stability": StabilityRun, "precisions": PrecisionResult, "formats": NumberFormat}
    for name, kind in kinds.items():
        assert load_json(tmp_path / f"{name}.json", kind).results
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
