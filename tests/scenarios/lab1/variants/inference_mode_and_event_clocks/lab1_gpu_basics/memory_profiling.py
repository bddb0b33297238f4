"""Task 1.3: follow the GPU's memory through one training step, in float32 and in float16.

Float16 here is the model cast as a whole, to compare memory and nothing else. As a way of training, that same cast is
the classic mistake that Lab 2 is about: weights and Adam's averages lose what small updates need.

Not for saving memory: Lab 4 does that.

Run: python -m labs.lab1_gpu_basics.memory_profiling
"""

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from labkit import data, models, plotting, program
from labkit.device import DeviceError, open_device
from labkit.results import MemoryProfile, StageMemory, save_json

from ._timing import dtype_name, logged


def _one_step(
    create_model: Callable[[], nn.Module],
    create_batch: Callable[[], tuple[Tensor, Tensor]],
    device: torch.device,
    dtype: torch.dtype,
) -> Iterator[str]:
    """A training step that pauses after each stage."""
    yield "baseline"
    model: nn.Module = create_model()
    model.to(device).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    yield "model"
    inputs, targets = (t.to(device) for t in create_batch())
    inputs = inputs.to(dtype)
    output = model(inputs)
    yield "forward"
    loss = functional.cross_entropy(output, targets, reduction="mean")
    yield "loss"
    loss.backward()
    yield "backward"
    optimizer.step()
    yield "step"
    model.zero_grad(set_to_none=True)
    yield "zero_grad"


RESULTS = Path(__file__).parent / "results"
MEBIBYTE = 2**20
PALE_BLUE = "#bcd0e6"


def default_model() -> nn.Module:
    """A classifier of digits with two hidden layers of 2048: 4.3 million parameters, 16.6 MiB in float32."""
    return models.mlp(in_features=64, hidden=(2048, 2048), classes=10)


def default_batch() -> tuple[Tensor, Tensor]:
    """The first 512 handwritten digits: images [512, 1, 8, 8] float32 and labels [512] int64, on the CPU."""
    images, labels = data.load("digits").tensors
    return images[:512], labels[:512]


@logged
def profile_training_memory(
    create_model: Callable[[], nn.Module] = default_model,
    create_batch: Callable[[], tuple[Tensor, Tensor]] = default_batch,
    *,
    device: str = "cuda",
    dtype: torch.dtype = torch.float32,
) -> MemoryProfile:
    """Run one training step (Adam, cross entropy) and read the device's memory at the end of each of its stages.

    1. baseline: the cache is emptied; nothing of this step is on the device yet. What is allocated now belongs to
       others: on a second call, before PyTorch 2.15, the workspaces that cuBLAS keeps from its first product on.
    2. model: the model is moved to the device and cast to `dtype`, and Adam is created for it.
    3. forward: the batch is moved to the device (inputs cast to `dtype`, targets as they are) and the output computed.
    4. loss: the cross entropy of output and targets is computed.
    5. backward: gradients are computed; the graph with its saved activations is freed.
    6. step: Adam updates the parameters, and makes its two averages on this first step.
    7. zero_grad: gradients are set to None.

    Batch, output and loss stay referenced until the end, as in a training loop; nothing else is kept.

    Args:
        create_model: returns the model on the CPU in float32; it maps the inputs to logits [N, classes].
        create_batch: returns inputs [N, ...] float32 and targets [N] int64, on the CPU.
        device: the GPU, "cuda".
        dtype: of parameters and inputs, and so of gradients, averages and activations.

    Returns:
        A `MemoryProfile` with one `StageMemory` per name in `labkit.results.STAGES`, in that order, in bytes:
        - allocated_bytes: `torch.cuda.memory_allocated` at the end of the stage;
        - reserved_bytes: `torch.cuda.memory_reserved` at the end of the stage (what the caching allocator holds);
        - peak_bytes: `torch.cuda.max_memory_allocated` of this stage alone, because the peak is reset as it begins.
        The device is synchronised before each reading.

    Raises:
        ValueError: `device` is a CPU, whose memory PyTorch does not count.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
    """
    place = torch.device(device)
    if place.type == "cpu":
        raise ValueError("a CPU does not count")
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(place)
    stages = []
    for name in _one_step(create_model, create_batch, place, dtype):
        torch.cuda.synchronize(place)
        stages.append(
            StageMemory(
                stage=name,
                allocated_bytes=torch.cuda.memory.memory_allocated(place),
                reserved_bytes=torch.cuda.memory.memory_reserved(place),
                peak_bytes=torch.cuda.memory.max_memory_allocated(place),
            )
        )
        torch.cuda.memory.reset_peak_memory_stats(place)
    return MemoryProfile(device=place.type, dtype=dtype_name(dtype), stages=tuple(stages))


def compare_precisions(
    create_model: Callable[[], nn.Module] = default_model,
    create_batch: Callable[[], tuple[Tensor, Tensor]] = default_batch,
    *,
    device: str = "cuda",
) -> tuple[MemoryProfile, MemoryProfile]:
    """Profile the same step in float32 and in float16, the model being cast as a whole.

    Args:
        create_model, create_batch, device: as in `profile_training_memory`.

    Returns:
        The profiles (float32, float16).

    Raises:
        ValueError: `device` is a CPU.
    """
    profiles = {
        d: profile_training_memory(create_model, create_batch, device=device, dtype=d)
        for d in (torch.float32, torch.float16)
    }
    return profiles[torch.float32], profiles[torch.float16]


def stage_increases(profile: MemoryProfile) -> dict[str, int]:
    """How much each stage added to what is allocated.

    Args:
        profile: one step.

    Returns:
        For each stage, in order, its allocated bytes less those of the stage before (negative: the stage freed memory).
        The first stage has none before it and counts from 0, so the values add up to what is allocated in the end.
    """
    from itertools import pairwise

    first, *_ = profile.stages
    return {first.stage: first.allocated_bytes} | {
        after.stage: after.allocated_bytes - before.allocated_bytes for before, after in pairwise(profile.stages)
    }


def find_bottleneck(profile: MemoryProfile) -> str:
    """The stage that decides whether the step fits into the device.

    Args:
        profile: one step.

    Returns:
        The name of the stage with the largest peak_bytes; of equal ones the first.
    """
    worst = profile.stages[0]
    for stage in profile.stages[1:]:
        if stage.peak_bytes > worst.peak_bytes:
            worst = stage
    return worst.stage


def plot_memory(profiles: Sequence[MemoryProfile], path: Path | str) -> Path:
    """Plot allocated, reserved and peak memory over the stages, the profiles side by side on one scale.

    Args:
        profiles: one or more.
        path: the PNG file to write.

    Returns:
        The path written.

    Raises:
        OSError: the file cannot be written.
    """
    figure, axes = plotting.new_figure("Memory of a training step", columns=len(profiles), y_label="MiB")
    styles = {"allocated": "-", "reserved": "--", "peak": ":"}
    for axis, profile in zip(axes, profiles, strict=True):
        labels = [stage.stage for stage in profile.stages]
        for (what, style), color in zip(styles.items(), plotting.COLORS, strict=False):
            values = [getattr(stage, f"{what}_bytes") / MEBIBYTE for stage in profile.stages]
            axis.step(labels, values, style, where="mid", color=color, label=what)
        axis.set_title(profile.dtype)
        axis.tick_params(axis="x", labelrotation=45)
    axes[0].legend(frameon=False)
    return plotting.save_png(figure, path)


def main(argv: Sequence[str] | None = None) -> int:
    """Profile one step in float32 and float16; print a table; write OUT/memory.json and OUT/memory.png.

    Returns:
        0.

    Raises:
        DeviceError: the device is a CPU.
    """
    options = program.make_parser(__doc__ or "", results=RESULTS).parse_args(argv)
    with open_device(options.device) as device:
        if device.torch_device == "cpu":
            raise DeviceError("PyTorch does not count the memory of a CPU: use --device cuda or --device vgpu")
        profiles = compare_precisions(device=device.torch_device)
        for profile in profiles:
            increases = stage_increases(profile)
            rows = [
                (
                    stage.stage,
                    f"{stage.allocated_bytes / MEBIBYTE:.2f}",
                    f"{increases[stage.stage] / MEBIBYTE:+.2f}",
                    f"{stage.reserved_bytes / MEBIBYTE:.2f}",
                    f"{stage.peak_bytes / MEBIBYTE:.2f}",
                )
                for stage in profile.stages
            ]
            columns = ("stage", "allocated MiB", "added", "reserved MiB", "peak MiB")
            program.print_table(f"One training step in {profile.dtype}", columns, rows)
            print(f"the peak falls into the stage {find_bottleneck(profile)}")
        program.print_written(
            save_json(options.out / "memory.json", profiles, device.provenance()),
            plot_memory(profiles, options.out / "memory.png"),
        )
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
