"""What Lab 5's trainer costs per step, compared with a bare loop, Lightning's Trainer and Hugging Face's Accelerate.

All train the same model on the same batches, with clipping and a schedule, in interleaved rounds. All but the bare
loop log the loss to TensorBoard after every tenth step; none validates or saves. On the CPU one thread computes, and
measured is the CPU time of the process, which a busy machine changes least; on a GPU it is the time until the GPU is
done.

Lightning and Accelerate come with the extra `benchmarks`.
"""

from __future__ import annotations

import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import accelerate
import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks.measure import load, save
from labkit import models
from labkit.loader import ResumableLoader
from solutions.lab5_production.config import TrainerConfig
from solutions.lab5_production.monitor import GPUMonitor
from solutions.lab5_production.trainer import ProductionTrainer

ROUNDS = 9
STEPS = 100
LOG_EVERY = 10
CLASSES = 10
MODELS: dict[str, tuple[int, tuple[int, ...], int]] = {
    "small: 64-256-10, batches of 32": (64, (256,), 32),
    "medium: 784-1024-1024-10, batches of 128": (784, (1024, 1024), 128),
}
"""Features, widths and batch size."""
REFERENCE = "bare_loop"
Epoch = Callable[[], float]
"""Trains STEPS steps and returns their seconds."""


class Setting:
    """What all candidates share: a model of its own for each, the same data, a clock."""

    def __init__(self, name: str, device: torch.device, folder: Path, open_things: ExitStack) -> None:
        self.features, self.hidden, self.batch_size = MODELS[name]
        self.device, self.folder, self.open_things = device, folder, open_things
        generator = torch.Generator().manual_seed(0)
        samples = STEPS * self.batch_size
        inputs = torch.randn(samples, self.features, generator=generator)
        self.data = TensorDataset(inputs, torch.randint(CLASSES, (samples,), generator=generator))

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return models.mlp(self.features, self.hidden, CLASSES).to(self.device)

    def loader(self) -> ResumableLoader:
        return ResumableLoader(self.data, self.batch_size)

    def now(self) -> float:
        """Seconds: of this process on a CPU, of the wall clock on a GPU that has caught up."""
        if self.device.type == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def timed(self, epoch: Callable[[], object]) -> float:
        start = self.now()
        epoch()
        return self.now() - start


def _parts(model: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.0)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))


def _bare_loop(setting: Setting) -> Epoch:
    model, loader = setting.model(), setting.loader()
    optimizer, scheduler = _parts(model)

    def epoch() -> None:
        for inputs, targets in loader:
            optimizer.zero_grad()
            outputs = model(inputs.to(setting.device))
            nn.functional.cross_entropy(outputs, targets.to(setting.device)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()

    return lambda: setting.timed(epoch)


def _production(setting: Setting, monitor: GPUMonitor | None = None) -> Epoch:
    config = TrainerConfig(
        output_dir=str(setting.folder / f"production-{monitor is not None}"), epochs=10_000, max_grad_norm=1.0,
        log_every_steps=LOG_EVERY,
    )  # fmt: skip
    trainer = ProductionTrainer(setting.model(), setting.loader(), [], config, monitor=monitor)
    epochs = iter(range(config.epochs))
    return lambda: setting.timed(lambda: trainer.train_epoch(next(epochs)))


def _monitored(setting: Setting) -> Epoch:
    """The monitor samples once a second, serves nobody, and is told the same metrics."""
    return _production(setting, setting.open_things.enter_context(GPUMonitor(setting.folder / "monitor", rank=0)))


def _accelerate(setting: Setting) -> Epoch:
    helper = accelerate.Accelerator(
        cpu=setting.device.type == "cpu", log_with="tensorboard", project_dir=setting.folder / "accelerate"
    )
    helper.init_trackers("run")
    plain = setting.model()
    loader = setting.loader()
    model, optimizer, scheduler = helper.prepare(plain, *_parts(plain))
    taken = 0

    def epoch() -> None:
        nonlocal taken
        for inputs, targets in loader:
            with helper.accumulate(model):
                outputs = model(inputs.to(helper.device))
                loss: Tensor = nn.functional.cross_entropy(outputs, targets.to(helper.device))
                helper.backward(loss)
                if helper.sync_gradients:
                    helper.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            taken += 1
            if taken % LOG_EVERY == 0:
                helper.log({"train/loss": loss.item()}, step=taken)

    return lambda: setting.timed(epoch)


class _Module(lightning.LightningModule):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.model(inputs), targets)
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer, scheduler = _parts(self.model)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class _Clock(lightning.Callback):
    """The epoch alone: a Trainer's own beginning and end are not steps."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.seconds = setting, 0.0

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self.seconds -= self.setting.now()

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.seconds += self.setting.now()


def _lightning(setting: Setting) -> Epoch:
    from lightning.pytorch.loggers import TensorBoardLogger

    module, loader = _Module(setting.model()), setting.loader()

    def epoch() -> float:
        clock = _Clock(setting)
        trainer = lightning.Trainer(
            accelerator="cpu" if setting.device.type == "cpu" else "gpu", devices=1, max_epochs=1, callbacks=[clock],
            gradient_clip_val=1.0, log_every_n_steps=LOG_EVERY, logger=TensorBoardLogger(str(setting.folder)),
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(module, loader)
        return clock.seconds

    return epoch


CANDIDATES: dict[str, Callable[[Setting], Epoch]] = {
    REFERENCE: _bare_loop,
    "production_trainer": _production,
    "production_trainer_and_monitor": _monitored,
    "lightning": _lightning,
    "accelerate": _accelerate,
}


def measure(name: str, device: torch.device) -> dict[str, Any]:
    """Microseconds per step of each candidate, interleaved; the ratios are of each round, then their median."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as open_things:
        setting = Setting(name, device, Path(folder), open_things)
        epochs = {candidate: make(setting) for candidate, make in CANDIDATES.items()}
        rounds = [{candidate: epoch() for candidate, epoch in epochs.items()} for _ in range(ROUNDS + 1)][1:]
    described: dict[str, Any] = {}
    for candidate in CANDIDATES:
        seconds = [each[candidate] / STEPS for each in rounds]
        ratios = sorted(each[candidate] / each[REFERENCE] for each in rounds)
        described[candidate] = {
            "median_microseconds_per_step": round(sorted(seconds)[ROUNDS // 2] * 1e6, 1),
            "min_microseconds_per_step": round(min(seconds) * 1e6, 1),
            "max_microseconds_per_step": round(max(seconds) * 1e6, 1),
            f"ratio_to_{REFERENCE}": round(ratios[ROUNDS // 2], 3),
        }
    return described


def main() -> Path:
    """Measure on the CPU, and on the GPU where there is one; save microseconds and ratios."""
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning.*")
    devices = [torch.device("cpu"), *([torch.device("cuda", 0)] if torch.cuda.is_available() else [])]
    before = load()
    results = {
        (device.type if device.type == "cpu" else torch.cuda.get_device_name(device)): {
            name: measure(name, device) for name in MODELS
        }
        for device in devices
    }
    return save(
        "trainer_overhead",
        {
            "what": "microseconds per training step of the same model on the same batches, interleaved rounds",
            "versions": {name: version(name) for name in ("lightning", "accelerate")},
            "load_average": {"before": before, "after": load()},
            "rounds": ROUNDS,
            "steps_per_round": STEPS,
            "results": results,
        },
    )


if __name__ == "__main__":
    print(main())
