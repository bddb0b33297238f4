"""The reference trainer of Lab 5 on the CPU and on the virtual GPU: what the grade does not ask, and its programs."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import vgpu
from labkit import data
from labkit.loader import ResumableLoader
from labkit.results import TrainerRun, ValidationResult, load_json
from solutions.lab5_production import train
from solutions.lab5_production.checkpoints import latest_checkpoint, list_checkpoints, write_checkpoint
from solutions.lab5_production.config import ConfigError, TrainerConfig
from solutions.lab5_production.log import Log
from solutions.lab5_production.schedule import warmup_cosine
from solutions.lab5_production.trainer import ProductionTrainer

ROOT = Path(__file__).parents[2]
SMALL = TrainerConfig(epochs=2, warmup_steps=5, accumulation_steps=2, max_grad_norm=1.0, log_every_steps=10)


def trainer(folder: Path, *, config: TrainerConfig = SMALL, device: str = "cpu", **more: object) -> ProductionTrainer:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10)
    )
    train_loader = ResumableLoader(data.load("digits"), 64, seed=2)
    val_loader = ResumableLoader(data.load("digits", split="test"), 100, shuffle=False, padded=False)
    changed = dataclasses.replace(config, output_dir=str(folder))
    return ProductionTrainer(model.to(device), train_loader, val_loader, changed, **more)  # type: ignore[arg-type]


def weights(trainer: ProductionTrainer) -> list[Tensor]:
    return [value.cpu().clone() for value in trainer.model.state_dict().values()]


@pytest.fixture
def settings_put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a deterministic trainer sets for the whole process, and the tests after this one must not find."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the trainer's own; other sizes take other memory
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("settings_put_back")
@pytest.mark.parametrize(
    "dtype",
    [pytest.param("float32", marks=pytest.mark.night), "float16", pytest.param("bfloat16", marks=pytest.mark.night)],
)
def test_a_resumed_run_has_the_same_bits_on_the_virtual_gpu(dtype: str, tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, dtype=dtype, deterministic=True)
    with vgpu.attach("T4"):
        whole = trainer(tmp_path / "whole", config=config, device="cuda")
        run = whole.fit()
        first = trainer(tmp_path / "parts", config=config, device="cuda")
        first.train_epoch(0)
        first.save_checkpoint(0)
        second = trainer(tmp_path / "parts", config=config, device="cuda")
        resumed = second.fit()
        assert all(map(torch.equal, weights(whole), weights(second)))
    assert (run.optimizer_steps, run.ended, run.final_scale) == (
        resumed.optimizer_steps,
        resumed.ended,
        resumed.final_scale,
    )


def test_a_finished_run_that_is_started_again_trains_nothing(tmp_path: Path) -> None:
    first = trainer(tmp_path).fit()
    again = trainer(tmp_path)
    second = again.fit()
    assert dataclasses.replace(second, seconds=first.seconds) == first
    assert again.train_loader.position == len(again.train_loader)


def test_the_best_parameters_are_kept(tmp_path: Path) -> None:
    training = trainer(tmp_path)
    run = training.fit()
    best = torch.load(tmp_path / "best.pt", weights_only=True)
    assert best["epoch"] == run.best_epoch
    assert best["model"].keys() == training.model.state_dict().keys()


def test_a_monitor_is_told_the_metrics_under_the_names_of_its_rules(tmp_path: Path) -> None:
    class Sink:
        def __init__(self) -> None:
            self.told: dict[str, list[int]] = {}

        def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
            for name in metrics:
                self.told.setdefault(name, []).append(step)

    sink = Sink()
    run = trainer(tmp_path, monitor=sink).fit()
    half = run.optimizer_steps // 2
    logged = list(range(10, run.optimizer_steps + 1, 10))
    assert sink.told == {
        "loss": logged,
        "learning_rate": logged,
        "gradient_norm": logged,
        "throughput": logged,
        "validation/loss": [half, 2 * half],
        "accuracy": [half, 2 * half],
    }


def test_a_checkpoint_of_more_ranks_is_refused(tmp_path: Path) -> None:
    training = trainer(tmp_path)
    path = training.save_checkpoint(0)
    state = torch.load(path, weights_only=True)
    write_checkpoint(path, {**state, "ranks": state["ranks"] * 2})
    with pytest.raises(ValueError, match="2 ranks"):
        training.load_checkpoint(path)


def test_a_validation_without_samples_is_an_error(tmp_path: Path) -> None:
    training = trainer(tmp_path)
    training.val_loader = []
    with pytest.raises(ValueError, match="no samples"):
        training.validate()


def test_the_schedule_begins_above_zero_and_stays_at_its_end() -> None:
    def rates(**options: float) -> list[float]:
        return [warmup_cosine(step, total_steps=10, **options) for step in (0, 1, 2, 6, 10, 99)]  # type: ignore[arg-type]

    assert rates(warmup_steps=2, minimum_ratio=0.2) == pytest.approx([0.5, 1, 1, 0.6, 0.2, 0.2])
    assert rates(warmup_steps=0)[0] == 1
    assert rates(warmup_steps=10)[-1] == 0


@pytest.mark.parametrize(
    ("name", "value"), [("epochs", 0), ("dtype", "half"), ("learning_rate", math.nan), ("patience", 0), ("momentum", 1)]
)
def test_values_that_make_no_sense_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        TrainerConfig(**{name: value})  # type: ignore[arg-type]


def test_a_run_stops_early_and_a_loss_that_is_not_a_number_is_never_the_best(tmp_path: Path) -> None:
    losses = [0.9, math.nan, 0.5, 0.5, 0.7, 0.1]
    config = dataclasses.replace(SMALL, epochs=6, patience=2)
    training = trainer(tmp_path, config=config)
    remaining = iter(losses)
    training.validate = lambda: ValidationResult(loss=next(remaining), accuracy=0.5, samples=1)  # type: ignore[method-assign]
    run = training.fit()
    assert (run.ended, len(run.epochs), run.best_epoch) == ("early", 5, 2), "an equal loss is not lower"
    assert torch.load(tmp_path / "best.pt", weights_only=True)["epoch"] == 2
    again = trainer(tmp_path, config=config)
    assert (again.fit().ended, again.steps) == ("early", training.steps)


def test_sigterm_during_a_validation_is_not_forgotten(tmp_path: Path) -> None:
    training = trainer(tmp_path, config=dataclasses.replace(SMALL, epochs=5))
    validate = training.validate

    def signalled() -> ValidationResult:
        os.kill(os.getpid(), signal.SIGTERM)
        return validate()

    training.validate = signalled  # type: ignore[method-assign]
    run = training.fit()
    assert (run.ended, len(run.epochs), len(run.validations)) == ("signal", 1, 1)


@pytest.mark.parametrize("text", ["epohcs = 3", "epochs = 'three'", "epochs = 0", "epochs = ", "warmup_steps = -1"])
def test_a_configuration_that_makes_no_sense_names_its_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"run\.toml"):
        TrainerConfig.load(tmp_path / "run.toml")


def test_a_configuration_is_read_as_it_was_written(tmp_path: Path) -> None:
    odd = 'a "quoted" \\ path\x7f\u00e9'
    config = dataclasses.replace(SMALL, output_dir=odd, momentum=0.0, weight_decay=1e-300, patience=3)
    config.save(tmp_path / "new" / "run.toml")
    assert TrainerConfig.load(tmp_path / "new" / "run.toml") == config


def test_entries_of_steps_that_a_killed_run_had_made_do_not_count_twice(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = Log(tmp_path)
    for step in range(1, 6):
        first.add(step, {"train/loss": 1.0})
    first.close()
    time.sleep(1)  # TensorBoard orders files by the second in their names
    second = Log(tmp_path)
    second.resume_at(3)
    for step in range(4, 8):
        second.add(step, {"train/loss": 2.0})
    second.close()
    reader = EventAccumulator(str(tmp_path))
    reader.Reload()
    assert [entry.step for entry in reader.Scalars("train/loss")] == list(range(1, 8))
    assert [entry.value for entry in reader.Scalars("train/loss")] == [1.0] * 3 + [2.0] * 4


def launch(arguments: list[str], out: Path, *, ranks: int) -> subprocess.Popen[str]:
    program = ["-m", "solutions.lab5_production.train", "--out", str(out), *arguments]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [sys.executable, *(torchrun if ranks > 1 else []), *program]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.mark.night
@pytest.mark.parametrize(("ranks", "device"), [(1, "cpu"), (2, "cpu"), (2, "vgpu")])
def test_the_program_is_told_to_stop_and_goes_on_when_it_is_started_again(
    ranks: int, device: str, tmp_path: Path
) -> None:
    epochs = "3" if device == "vgpu" else "40"
    running = launch(["--device", device, "--epochs", epochs], tmp_path, ranks=ranks)
    checkpoints = tmp_path / "run" / "checkpoints"
    limit = time.monotonic() + 200
    while not list_checkpoints(checkpoints) and running.poll() is None and time.monotonic() < limit:
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    said = running.communicate(timeout=200)[0]
    assert "told to stop" in said, said
    stopped = list_checkpoints(checkpoints)[-1]
    assert latest_checkpoint(checkpoints) == stopped
    if ranks == 1:
        assert running.returncode == 0, said
    running = launch(["--device", device, "--epochs", epochs], tmp_path, ranks=ranks)
    said = running.communicate(timeout=400)[0]
    assert running.returncode == 0, said
    (run,) = load_json(tmp_path / "training.json", TrainerRun).results
    assert (run.ended, run.world_size, len(run.epochs)) == ("finished", ranks, int(epochs))
    assert run.epochs[0].samples in (
        len(data.load("digits")),
        len(data.load("digits")) + len(data.load("digits")) % ranks,
    )
    assert run.validations[-1].samples == len(data.load("digits", split="test"))
    assert (tmp_path / "training.png").read_bytes().startswith(b"\x89PNG")


def test_the_program_takes_its_configuration_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = dataclasses.replace(SMALL, output_dir=str(tmp_path / "elsewhere"), epochs=1)
    config.save(tmp_path / "run.toml")
    threads = torch.get_num_threads()
    assert train.main(["--device", "cpu", "--config", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out")]) == 0
    torch.set_num_threads(threads)
    assert TrainerConfig.load(tmp_path / "elsewhere" / "config.toml") == config
    assert "accuracy" in capsys.readouterr().out
