"""Task 1.3: follow the GPU's memory through one training step, in float32 and in float16.

Float16 here is the model cast as a whole, to compare memory and nothing else. As a way of training, that same cast is
the classic mistake that Lab 2 is about: weights and Adam's averages lose what small updates need.

Not for saving memory: Lab 4 does that.

Run: python -m labs.lab1_gpu_basics.memory_profiling
"""

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

from labkit import data, models, plotting, program
from labkit.device import DeviceError, open_device
from labkit.results import STAGES, MemoryProfile, StageMemory, save_json

from .gauges import Forward, Place, Reading, Trainee

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
    2. model: the model is moved to the device and cast to `dtype`, and `torch.optim.Adam` is created for it, with its
       defaults; which of its implementations does the work (`foreach`, `fused`) is yours to choose.
    3. forward: the batch is moved to the device (inputs cast to `dtype`, targets as they are) and the output computed.
    4. loss: the cross entropy of output, as it is, and targets is computed.
    5. backward: gradients are computed; the graph with its saved activations is freed.
    6. step: Adam updates the parameters, and makes its two averages on this first step.
    7. zero_grad: gradients are set to None.

    Batch, output and loss stay referenced until the end, as in a training loop; nothing else is kept.

    Args:
        create_model: returns the model on the CPU in float32; it maps the inputs to logits [N, classes].
        create_batch: returns inputs [N, ...] float32 and targets [N] int64, on the CPU.
        device: the GPU, "cuda", perhaps with its index ("cuda:0").
        dtype: of parameters and inputs, and so of gradients, averages and activations.

    Returns:
        A `MemoryProfile`, whose `device` is the type alone ("cuda"), with one `StageMemory` per name in
        `labkit.results.STAGES`, in that order, in bytes:
        - allocated_bytes: `torch.cuda.memory_allocated` at the end of the stage;
        - reserved_bytes: `torch.cuda.memory_reserved` at the end of the stage (what the caching allocator holds);
        - peak_bytes: `torch.cuda.max_memory_allocated` of this stage alone, because the peak is reset as it begins.
        What others hold on the device is counted with it, in every stage. Synchronising before a reading changes none
        of the three (PyTorch counts on the host), but is a good habit.

    Raises:
        ValueError: `device` is a CPU, whose memory PyTorch does not count.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
    """
    place = Place.gpu(device, "PyTorch does not count its memory")
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(place.where)
    return MemoryProfile(
        device=place.kind,
        dtype=str(dtype).removeprefix("torch."),
        stages=tuple(
            StageMemory(
                stage=stage,
                allocated_bytes=reading.allocated,
                reserved_bytes=reading.reserved,
                peak_bytes=reading.peak,
            )
            for stage, reading in _readings(place, create_model, create_batch, dtype)
        ),
    )


def _readings(
    place: Place,
    create_model: Callable[[], nn.Module],
    create_batch: Callable[[], tuple[Tensor, Tensor]],
    dtype: torch.dtype,
) -> Iterator[tuple[str, Reading]]:
    """Take one training step, a stage for each reading asked for."""
    names = iter(STAGES)
    yield next(names), Reading.taken(place)
    trainee = Trainee.moved(create_model(), place, dtype)
    yield next(names), Reading.taken(place)
    forward = Forward.moved(create_batch(), trainee, place, dtype)
    yield next(names), Reading.taken(place)
    loss = forward.loss(nn.CrossEntropyLoss())
    yield next(names), Reading.taken(place)
    torch.autograd.backward(loss)
    yield next(names), Reading.taken(place)
    trainee.adam.step()
    yield next(names), Reading.taken(place)
    trainee.adam.zero_grad(set_to_none=True)
    yield next(names), Reading.taken(place)


@dataclass(frozen=True, slots=True)
class _Bar:
    """One of the three figures, drawn next to the others."""

    name: str
    shift: float
    color: str

    def draw(self, axis: Axes, profile: MemoryProfile) -> None:
        heights = [float(Fraction(getattr(stage, f"{self.name}_bytes"), MEBIBYTE)) for stage in profile.stages]
        places = [position + self.shift for position in range(len(heights))]
        axis.bar(places, heights, width=0.25, color=self.color, label=self.name)


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
    single, half = (
        profile_training_memory(create_model, create_batch, device=device, dtype=dtype)
        for dtype in (torch.float32, torch.float16)
    )
    return single, half


def stage_increases(profile: MemoryProfile) -> dict[str, int]:
    """How much each stage added to what is allocated.

    Args:
        profile: one step.

    Returns:
        For each stage, in order, its allocated bytes less those of the stage before (negative: the stage freed memory).
        The first stage has none before it and counts from 0, so the values add up to what is allocated in the end.
    """
    held = [0, *(stage.allocated_bytes for stage in profile.stages)]
    return {stage.stage: after - before for stage, (before, after) in zip(profile.stages, pairwise(held), strict=True)}


def find_bottleneck(profile: MemoryProfile) -> str:
    """The stage that decides whether the step fits into the device.

    Args:
        profile: one step.

    Returns:
        The name of the stage with the largest peak_bytes; of equal ones the first.
    """
    return max(profile.stages, key=attrgetter("peak_bytes")).stage


def plot_memory(profiles: Sequence[MemoryProfile], path: Path | str) -> Path:
    """Plot allocated, reserved and peak memory over the stages, the profiles side by side on one scale, in one unit.

    Args:
        profiles: one or more.
        path: the PNG file to write.

    Returns:
        The path written, as it was given.

    Raises:
        OSError: the file cannot be written.
    """
    figure, axes = plotting.new_figure(
        "GPU memory of one training step", columns=len(profiles), x_label="stage", y_label="MiB"
    )
    bars = (
        _Bar("reserved", -0.27, PALE_BLUE),
        _Bar("peak", 0.0, plotting.COLORS[1]),
        _Bar("allocated", 0.27, plotting.COLORS[0]),
    )
    for axis, profile in zip(axes, profiles, strict=True):
        for bar in bars:
            bar.draw(axis, profile)
        axis.set_title(profile.dtype)
        axis.set_xticks(range(len(profile.stages)), [stage.stage for stage in profile.stages], rotation=40, ha="right")
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
