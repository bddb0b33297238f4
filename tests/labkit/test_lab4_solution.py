"""The reference of Lab 4 on the CPU and on virtual GPUs: checkpointing, attention, trainings, retries, predictions."""

from __future__ import annotations

import gc
import importlib.util
import types
from pathlib import Path

import pytest
import torch

import vgpu
from labkit import LabError
from labkit.device import GPU_24_GB
from labkit.results import AttentionResult, CheckpointingResult, LargeTraining, TrainingSetup, load_json
from solutions.lab4_memory import flash_attention, gradient_checkpointing, memory_analysis, oom_fixes, oom_retry

LAB = Path(__file__).parents[2] / "solutions" / "lab4_memory"


@pytest.fixture(scope="module")
def broken() -> types.ModuleType:
    """The script as students get it."""
    spec = importlib.util.spec_from_file_location(
        "solutions.lab4_memory.oom_fixes_template", LAB / "oom_fixes.template.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def setup(**changed: object) -> TrainingSetup:
    usual = {"layers": 3, "width": 512, "heads": 8, "tokens": 1024, "optimizer": "adam", "dtype": "float32"}
    return TrainingSetup(**{"model": "transformer", "checkpoint_every": None, **usual, **changed})  # type: ignore[arg-type]


def test_every_interval_gives_the_same_gradients_with_dropout() -> None:
    gradients = []
    for interval in (None, 1, 2, 5):
        torch.manual_seed(0)
        model = gradient_checkpointing.CheckpointedTransformer(3, width=16, heads=2, checkpoint_every=interval)
        model(torch.ones(2, 5, 16)).square().mean().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0])


@pytest.mark.parametrize("arguments", [{"num_layers": 0}, {"checkpoint_every": 0}])
def test_a_transformer_without_layers_or_with_empty_segments_is_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="start at 1"):
        gradient_checkpointing.CheckpointedTransformer(**{"num_layers": 2, "width": 8, "heads": 1, **arguments})


def test_the_best_interval_is_the_fastest_that_fits() -> None:
    def row(every: int, seconds: float, peak: int | None) -> CheckpointingResult:
        return CheckpointingResult(device="cuda", checkpoint_every=every, step_seconds=seconds, peak_bytes=peak)

    rows = [row(1, 3.0, 10), row(2, 2.0, 20), row(3, 2.0, 15), row(4, 1.0, 21), row(6, 0.5, None)]
    assert gradient_checkpointing.best_interval(rows, budget_bytes=20).checkpoint_every == 3
    with pytest.raises(ValueError, match="no interval fits"):
        gradient_checkpointing.best_interval(rows, budget_bytes=9)


@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (3, 11), (11, 3), (1, 5)])
@pytest.mark.parametrize("causal", [False, True])
def test_three_attentions_agree(queries: int, keys: int, causal: bool) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(2, 2, n, 8, dtype=torch.float64, requires_grad=True) for n in (queries, keys, keys)]
    results = []
    for attend in (
        flash_attention.standard_attention,
        flash_attention.flash_attention,
        lambda *tensors, causal: flash_attention.tiled_attention(*tensors, causal=causal, block_size=4),
    ):
        output = attend(*inputs, causal=causal)
        results.append([output, *torch.autograd.grad(output.square().sum(), inputs)])
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[0])


def test_an_attention_that_runs_out_of_memory_is_a_result_and_the_next_is_measured() -> None:
    with vgpu.attach("T4", values=False):
        first, second = flash_attention.benchmark_attention([60001], heads=4)
    assert (first.method, first.seconds, first.peak_bytes) == ("standard", None, None)
    assert second.seconds
    assert second.backend == "sdpa"


def test_flash_attn_computes_the_same_on_a_virtual_gpu_that_simulates_it() -> None:
    """Lengths on both sides, whose causal masks PyTorch's kernel would begin in the other corner."""
    torch.manual_seed(0)
    with vgpu.attach("A100-80GB"):
        assert flash_attention.attention_backend("cuda", torch.float16) == "flash_attn"
        assert flash_attention.attention_backend("cuda", torch.float32) == "sdpa"
        for queries, keys in ((7, 7), (3, 11), (11, 3)):
            inputs = [torch.randn(2, 2, n, 8, device="cuda").half().requires_grad_() for n in (queries, keys, keys)]
            standard, flash = (
                attend(*inputs, causal=True)
                for attend in (flash_attention.standard_attention, flash_attention.flash_attention)
            )
            torch.testing.assert_close(flash, standard, rtol=0, atol=2e-3)
            gradient = torch.randn_like(flash)
            for expected, actual in zip(
                *(torch.autograd.grad(output, inputs, gradient) for output in (standard, flash)), strict=True
            ):
                torch.testing.assert_close(actual, expected, rtol=0, atol=5e-3)


def test_a_backend_that_is_not_there_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    arguments = ["--lengths", "64", "--out", str(tmp_path), "--backend", "flash_attn", "--device"]
    for device in ("cpu", "vgpu:T4"):
        with pytest.raises(LabError, match=r"computed by sdpa here, not by flash_attn\..*--device vgpu:A100-80GB"):
            flash_attention.main([*arguments, device])
    assert flash_attention.main([*arguments, "vgpu:A100-80GB"]) == 0
    rows = load_json(tmp_path / "attention.json", AttentionResult).results
    assert [row.backend for row in rows] == ["torch", "flash_attn", "torch"]


def test_the_given_script_dies_on_24_gb_and_the_mended_one_does_not(broken: types.ModuleType) -> None:
    with vgpu.attach(GPU_24_GB, values=False) as gpu:
        for module, fits in ((broken, False), (oom_fixes, True)):
            with torch.device("cuda"):
                model = module.VeryLargeModel()
            batches = module.large_batches(2)
            try:
                result = module.train_large_model(model, batches, batches[:1], micro_batch=16)
            except torch.OutOfMemoryError:
                result = None
            assert (result is not None) == fits
            del model
            gc.collect()
        assert result is not None
        assert 12e9 < result.peak_bytes < gpu.spec.memory_bytes


def test_the_given_script_computes_what_the_mended_one_does(broken: types.ModuleType) -> None:
    torch.manual_seed(0)
    batches = [(torch.randn(6, 5).double(), torch.randn(6, 5).double()) for _ in range(3)]
    runs: list[LargeTraining] = []
    for module, micro_batch in ((broken, 6), (oom_fixes, 4)):
        torch.manual_seed(1)
        model = module.VeryLargeModel(3, 5).double()
        runs.append(
            module.train_large_model(model, batches, batches[:2], epochs=2, micro_batch=micro_batch, learning_rate=0.01)
        )
    assert runs[1].losses == pytest.approx(runs[0].losses, rel=1e-12)
    assert runs[1].validation_losses == pytest.approx(runs[0].validation_losses, rel=1e-12)
    assert runs[1].losses[-1] < runs[1].losses[0]


def test_a_retry_halves_and_other_errors_pass() -> None:
    tried = []

    def attempt(micro_batch: int) -> str:
        tried.append(micro_batch)
        if micro_batch > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return "done"

    assert oom_retry.run_with_oom_retry(attempt, 11) == ("done", 2)
    assert tried == [11, 5, 2]
    with pytest.raises(RuntimeError, match="shapes"):
        oom_retry.run_with_oom_retry(lambda micro_batch: (_ for _ in ()).throw(RuntimeError("shapes")), 4)
    with pytest.raises(ValueError, match="starts at 1"):
        oom_retry.run_with_oom_retry(attempt, 0)


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "mlp", "optimizer": "sgd", "heads": 1},
        {"model": "mlp", "dtype": "bfloat16", "heads": 1},
        {"optimizer": "momentum"},
        {"dtype": "float16"},
        {"checkpoint_every": 2},
    ],
)
def test_predictions_are_right_to_a_thousandth(changed: dict[str, object]) -> None:
    with vgpu.attach("A100-80GB", values=False):
        measured = memory_analysis.measure_memory(setup(**changed))
    predicted = memory_analysis.predict_memory(setup(**changed))
    for part in ("parameter_bytes", "gradient_bytes", "optimizer_state_bytes", "activation_bytes"):
        assert getattr(predicted, part) == pytest.approx(getattr(measured, part), rel=1e-3, abs=1024)


@pytest.mark.parametrize("changed", [{"model": "cnn"}, {"dtype": "int8"}, {"model": "mlp", "checkpoint_every": 1}])
def test_a_setup_that_does_not_exist_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no such training step"):
        memory_analysis.predict_memory(setup(**changed))


def test_the_program_on_a_cpu_writes_times_and_no_plot(tmp_path: Path) -> None:
    arguments = ["--device", "cpu", "--steps", "1", "--layers", "2", "--out", str(tmp_path)]
    assert gradient_checkpointing.main(arguments) == 0
    results = load_json(tmp_path / "checkpointing.json", CheckpointingResult).results
    assert all(result.step_seconds > 0 and result.peak_bytes is None for result in results)
    assert not (tmp_path / "checkpointing.png").exists()
