"""The step is a generator that stops after each stage; whoever drives it reads the memory. Adam goes one by one."""

import itertools
import sys
from functools import partial
from pathlib import Path

import torch

from labkit import data, models, plotting, program
from labkit.device import open_device
from labkit.results import MemoryProfile, StageMemory, save_json

RESULTS = Path(__file__).parent / "results"


def default_model():
    return models.mlp(in_features=64, hidden=(2048, 2048), classes=10)


def default_batch():
    images, labels = data.load("digits").tensors
    return images[:512], labels[:512]


def training_step(create_model, create_batch, device, dtype):
    torch.cuda.empty_cache()
    yield "baseline"
    model = create_model().to(device).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    yield "model"
    inputs, targets = create_batch()
    inputs, targets = inputs.to(device).to(dtype), targets.to(device)
    output = model(inputs)
    yield "forward"
    loss = torch.nn.CrossEntropyLoss()(output, targets)
    yield "loss"
    loss.backward()
    yield "backward"
    optimizer.step()
    yield "step"
    for parameter in model.parameters():
        parameter.grad = None
    yield "zero_grad"


def profile_training_memory(
    create_model=default_model, create_batch=default_batch, *, device="cuda", dtype=torch.float32
):
    if torch.device(device).type != "cuda":
        raise ValueError(f"memory is counted on GPUs, not on {device}")

    def reading(stage):
        torch.cuda.synchronize(device)
        try:
            return StageMemory(
                stage=stage,
                allocated_bytes=torch.cuda.memory_allocated(device),
                reserved_bytes=torch.cuda.memory_reserved(device),
                peak_bytes=torch.cuda.max_memory_allocated(device),
            )
        finally:
            torch.cuda.reset_peak_memory_stats(device)

    torch.cuda.reset_peak_memory_stats(device)
    stages = tuple(map(reading, training_step(create_model, create_batch, device, dtype)))
    return MemoryProfile(device="cuda", dtype=str(dtype).split(".")[-1], stages=stages)


def compare_precisions(create_model=default_model, create_batch=default_batch, *, device="cuda"):
    of = partial(profile_training_memory, create_model, create_batch, device=device)
    return tuple(of(dtype=dtype) for dtype in (torch.float32, torch.float16))


def stage_increases(profile):
    pairs = itertools.pairwise([0, *(stage.allocated_bytes for stage in profile.stages)])
    return {stage.stage: b - a for stage, (a, b) in zip(profile.stages, pairs, strict=True)}


def find_bottleneck(profile):
    peaks = [stage.peak_bytes for stage in profile.stages]
    return profile.stages[peaks.index(max(peaks))].stage


def plot_memory(profiles, path):
    figure, axes = plotting.new_figure("Memory", columns=len(profiles), x_label="stage", y_label="MB")
    for axis, profile in zip(axes, profiles, strict=True):
        for name in ("allocated", "reserved", "peak"):
            axis.plot([getattr(stage, f"{name}_bytes") / 1e6 for stage in profile.stages], "o-", label=name)
        axis.set_xticks(range(len(profile.stages)), [stage.stage for stage in profile.stages], rotation=45)
        axis.set_title(profile.dtype)
        axis.legend()
    return plotting.save_png(figure, path)


def main(argv=None):
    options = program.make_parser(__doc__, results=RESULTS).parse_args(argv)
    with open_device(options.device) as device:
        profiles = compare_precisions(device=device.torch_device)
        program.print_written(
            save_json(options.out / "memory.json", profiles, device.provenance()),
            plot_memory(profiles, options.out / "memory.png"),
        )
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
