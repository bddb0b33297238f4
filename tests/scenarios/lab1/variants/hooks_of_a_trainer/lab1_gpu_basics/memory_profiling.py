"""A trainer with hooks, and a callback that listens to them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional

from labkit.plotting import new_figure, save_png
from labkit.results import STAGES, MemoryProfile, StageMemory

from . import kept_memory as kept

default_model, default_batch = kept.default_model, kept.default_batch


class Callback:
    """Hears of stages."""

    def on_stage_start(self, trainer: Trainer, stage: str) -> None:
        pass

    def on_stage_end(self, trainer: Trainer, stage: str) -> None:
        pass


@dataclass
class MemoryMonitor(Callback):
    """Reads the memory when a stage ends."""

    device: torch.device
    readings: list[StageMemory] = field(default_factory=list)

    def on_stage_start(self, trainer, stage):
        torch.cuda.reset_peak_memory_stats(self.device)

    def on_stage_end(self, trainer, stage):
        torch.cuda.synchronize(self.device)
        self.readings.append(
            StageMemory(
                stage=stage,
                allocated_bytes=torch.cuda.memory_allocated(self.device),
                reserved_bytes=torch.cuda.memory_reserved(self.device),
                peak_bytes=torch.cuda.max_memory_allocated(self.device),
            )
        )


class Classifier(nn.Module):
    """A model with its step's parts, in the manner of Lightning."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs):
        return self.network(inputs)

    def configure_optimizers(self):
        return torch.optim.Adam(params=[{"params": self.parameters(), "lr": 1e-3}])


class Trainer:
    """One step, stage by stage; what a loop keeps is kept in attributes until `close`."""

    def __init__(self, create_model, create_batch, device, dtype, callbacks) -> None:
        self.create_model, self.create_batch = create_model, create_batch
        self.device, self.dtype, self.callbacks = device, dtype, callbacks

    def fit_one_step(self) -> None:
        for stage in STAGES:
            for callback in self.callbacks:
                callback.on_stage_start(self, stage)
            getattr(self, stage)()
            for callback in self.callbacks:
                callback.on_stage_end(self, stage)

    def baseline(self) -> None:
        torch.cuda.empty_cache()

    def model(self) -> None:
        self.module = Classifier(self.create_model()).to(device=self.device, dtype=self.dtype)
        self.optimizer = self.module.configure_optimizers()

    def forward(self) -> None:
        inputs, targets = self.create_batch()
        self.batch = inputs.to(device=self.device, dtype=self.dtype), targets.to(self.device)
        self.output = self.module(self.batch[0])

    def loss(self) -> None:
        self.value = functional.cross_entropy(self.output, self.batch[1])

    def backward(self) -> None:
        self.value.backward()

    def step(self) -> None:
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.module.zero_grad(set_to_none=True)

    def close(self) -> None:
        self.__dict__.clear()


def profile_training_memory(
    create_model=default_model, create_batch=default_batch, *, device="cuda", dtype=torch.float32
):
    place = torch.device(device)
    if place.type == "cpu":
        raise ValueError("there is nothing to read on a CPU")
    monitor = MemoryMonitor(place)
    trainer = Trainer(create_model, create_batch, place, dtype, [monitor])
    try:
        trainer.fit_one_step()
    finally:
        trainer.close()
    return MemoryProfile(device=place.type, dtype=str(dtype).partition(".")[2], stages=tuple(monitor.readings))


def compare_precisions(create_model=default_model, create_batch=default_batch, *, device="cuda"):
    single = profile_training_memory(create_model, create_batch, device=device)
    half = profile_training_memory(create_model, create_batch, device=device, dtype=torch.float16)
    return single, half


def stage_increases(profile):
    first, *rest = profile.stages
    increases = {first.stage: first.allocated_bytes}
    for before, after in zip(profile.stages, rest, strict=False):
        increases[after.stage] = after.allocated_bytes - before.allocated_bytes
    return increases


def find_bottleneck(profile):
    worst = profile.stages[0]
    for stage in profile.stages:
        if stage.peak_bytes > worst.peak_bytes:
            worst = stage
    return worst.stage


def plot_memory(profiles, path):
    figure, axes = new_figure("Memory", columns=3, y_label="MiB")
    for axis, what in zip(axes, ("allocated_bytes", "reserved_bytes", "peak_bytes"), strict=True):
        for profile in profiles:
            heights = [getattr(stage, what) / 2**20 for stage in profile.stages]
            axis.stairs(heights, label=profile.dtype)
        axis.set_title(what)
    axes[-1].legend()
    return save_png(figure, path)


for _function in (profile_training_memory, compare_precisions, stage_increases, find_bottleneck, plot_memory):
    setattr(kept, _function.__name__, _function)


def main(argv=None):
    return kept.main(argv)
