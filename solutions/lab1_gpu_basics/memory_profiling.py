"""Task 1.3: follow the GPU's memory through one training step, in float32 and in float16.

Float16 here is the model cast as a whole, to compare memory and nothing else. As a way of training, that same cast is
the classic mistake that Lab 2 is about: weights and Adam's averages lose what small updates need.

Not for saving memory: Lab 4 does that.

Run: python -m labs.lab1_gpu_basics.memory_profiling
"""

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from labkit import data, models, plotting, program
from labkit.device import DeviceError, open_device
from labkit.results import MemoryProfile, StageMemory, save_json

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
        device: the GPU, "cuda", perhaps with the index of the current one ("cuda:0").
        dtype: of parameters and inputs, and so of gradients, averages and activations.

    Returns:
        A `MemoryProfile`, whose `device` is the type alone ("cuda"), with one `StageMemory` per name in
        `labkit.results.STAGES`, in that order, in bytes:
        - allocated_bytes: `torch.cuda.memory_allocated` at the end of the stage;
        - reserved_bytes: `torch.cuda.memory_reserved` at the end of the stage (what the caching allocator holds);
        - peak_bytes: `torch.cuda.max_memory_allocated` of this stage alone, because the peak is reset as it begins.
        What others hold on the device is counted with it, in every stage. No reading needs a synchronisation: PyTorch
        counts all three on the host, as it allocates.

    Raises:
        ValueError: `device` is a CPU, whose memory PyTorch does not count.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
    """
    # TODO(task 1.3):
    # 1. Refuse a CPU.
    # 2. Write a helper that ends a stage: read the three figures, reset the peak for the next stage.
    # 3. Empty the cache and read the baseline.
    # 4. Go through the stages above in order, one reading after each.
    # --- solution: task 1.3 ---
    if torch.device(device).type == "cpu":
        raise ValueError('device must be a GPU, such as "cuda": PyTorch does not count the memory of a CPU')
    readings: list[StageMemory] = []

    with _stage("baseline", device, readings):
        gc.collect()  # tensors of earlier work that only reference cycles still hold
        torch.cuda.empty_cache()
    with _stage("model", device, readings):
        model = create_model().to(device, dtype)
        optimizer = torch.optim.Adam(model.parameters())
    with _stage("forward", device, readings):
        inputs, targets = create_batch()
        inputs, targets = inputs.to(device, dtype), targets.to(device)
        output = model(inputs)
    with _stage("loss", device, readings):
        loss = functional.cross_entropy(output, targets)
    with _stage("backward", device, readings):
        loss.backward()
    with _stage("step", device, readings):
        optimizer.step()
    with _stage("zero_grad", device, readings):
        optimizer.zero_grad(set_to_none=True)

    return MemoryProfile(
        device=torch.device(device).type, dtype=str(dtype).removeprefix("torch."), stages=tuple(readings)
    )
    # --- end ---


# --- solution only ---
@contextmanager
def _stage(name: str, device: str, readings: list[StageMemory]) -> Iterator[None]:
    """Reset the peak, run the block, and append what its memory holds now and held at most."""
    torch.cuda.reset_peak_memory_stats(device)
    yield
    readings.append(
        StageMemory(
            stage=name,
            allocated_bytes=torch.cuda.memory_allocated(device),
            reserved_bytes=torch.cuda.memory_reserved(device),
            peak_bytes=torch.cuda.max_memory_allocated(device),
        )
    )


# --- end ---


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
    # TODO(task 1.3): call profile_training_memory twice.
    # --- solution: task 1.3 ---
    return (
        profile_training_memory(create_model, create_batch, device=device, dtype=torch.float32),
        profile_training_memory(create_model, create_batch, device=device, dtype=torch.float16),
    )
    # --- end ---


def stage_increases(profile: MemoryProfile) -> dict[str, int]:
    """How much each stage added to what is allocated.

    Args:
        profile: one step.

    Returns:
        For each stage, in order, its allocated bytes less those of the stage before (negative: the stage freed memory).
        The first stage has none before it and counts from 0, so the values add up to what is allocated in the end.
    """
    # TODO(task 1.3): subtract from each stage's allocated_bytes those of the stage before.
    # --- solution: task 1.3 ---
    increases = {}
    before = 0
    for stage in profile.stages:
        increases[stage.stage] = stage.allocated_bytes - before
        before = stage.allocated_bytes
    return increases
    # --- end ---


def find_bottleneck(profile: MemoryProfile) -> str:
    """The stage that decides whether the step fits into the device.

    Args:
        profile: one step.

    Returns:
        The name of the stage with the largest peak_bytes; of equal ones the first.
    """
    # TODO(task 1.3): find the largest peak. Why not the largest allocated_bytes?
    # --- solution: task 1.3 ---
    return max(profile.stages, key=lambda stage: stage.peak_bytes).stage  # max keeps the first of equal ones
    # --- end ---


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
    # TODO(task 1.3):
    # 1. Take a figure with one column per profile from labkit.plotting.new_figure.
    # 2. For each profile draw the three figures over the names of the stages, in MiB.
    # 3. Write it with labkit.plotting.save_png.
    # --- solution: task 1.3 ---
    figure, axes = plotting.new_figure(
        "Memory of one training step", columns=len(profiles), x_label="stage", y_label="MiB on the device"
    )
    for axis, profile in zip(axes, profiles, strict=True):
        stages = profile.stages
        names = [stage.stage for stage in stages]
        blue, orange, *_ = plotting.COLORS
        axis.bar(names, [stage.peak_bytes / MEBIBYTE for stage in stages], color=PALE_BLUE, label="peak")
        axis.bar(
            names, [stage.allocated_bytes / MEBIBYTE for stage in stages], width=0.5, color=blue, label="allocated"
        )
        reserved = [stage.reserved_bytes / MEBIBYTE for stage in stages]
        axis.step(names, reserved, where="mid", color=orange, label="reserved")
        axis.set_title(profile.dtype, fontsize=11)
        axis.tick_params(axis="x", rotation=35)
    axes[0].legend(frameon=False, loc="upper left")
    return plotting.save_png(figure, path)
    # --- end ---


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
