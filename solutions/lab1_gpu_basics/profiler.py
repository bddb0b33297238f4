"""Task 1.4: ask the PyTorch profiler which operations take the time.

Not for timing one operation (benchmark.py does that better: a profiler costs time of its own).

Run: python -m labs.lab1_gpu_basics.profiler
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity

from labkit import program
from labkit.device import open_device
from labkit.results import OperationTime, save_json

from .memory_profiling import default_batch, default_model

RESULTS = Path(__file__).parent / "results"
MICROSECOND = 1e-6


def profile_operations(
    step: Callable[[], object], *, device: str = "cuda", steps: int = 5, warmup: int = 2
) -> list[OperationTime]:
    """Record some calls of `step` with `torch.profiler` and sum up the time by operation.

    Args:
        step: does the work, for example one training step; called `warmup + steps` times, and no more.
        device: where the work runs, "cuda", perhaps with the index of the current one ("cuda:0"), or "cpu".
        steps: recorded calls.
        warmup: calls before the recording starts. They are not recorded, and the device is idle when it starts.

    Returns:
        One `OperationTime` per PyTorch operation (its name begins with "aten::") that ran while recording, whatever the
        shapes it ran with, and also if it launched no kernel:
        - calls: how often, over all recorded steps together;
        - cpu_seconds, device_seconds: *self* times, that is without the operations it called in turn, summed over
          these calls, in seconds (the profiler itself counts in microseconds). A kernel counts for the operation that
          launched it; on a CPU device_seconds is 0.0.
        The slowest comes first: by device_seconds on a GPU, by cpu_seconds on a CPU.

    Raises:
        ValueError: `steps` is below 1 or `warmup` below 0.

    Source: https://docs.pytorch.org/docs/stable/profiler.html
    """
    # TODO(task 1.4):
    # 1. Refuse arguments that make no sense.
    # 2. Run the warm-up steps and wait for the device.
    # 3. Run the recorded steps inside torch.profiler.profile, recording the activity of the CPU and, for a GPU, CUDA's;
    #    wait for the device before the recording ends.
    # 4. Turn each entry of key_averages() that is an operation into an OperationTime. Mind the microseconds, and that
    #    kernels are listed twice: within the operation that launched them, and once more by their own names.
    # 5. Sort, the slowest first.
    # --- solution: task 1.4 ---
    if steps < 1 or warmup < 0:
        raise ValueError(f"steps start at 1, warmup at 0; got {steps}, {warmup}")
    on_gpu = torch.device(device).type == "cuda"
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]

    for _ in range(warmup):
        step()
    _synchronize(on_gpu)
    with torch.profiler.profile(activities=activities) as recorded:
        for _ in range(steps):
            step()
        _synchronize(on_gpu)

    operations = [
        OperationTime(
            name=entry.key,
            calls=entry.count,
            cpu_seconds=entry.self_cpu_time_total * MICROSECOND,
            device_seconds=entry.self_device_time_total * MICROSECOND,
        )
        for entry in recorded.key_averages()
        # Kernels are listed once more by their own names; what is not "aten::" is bookkeeping around the operations.
        if entry.device_type.name == "CPU" and entry.key.startswith("aten::")
    ]
    return sorted(operations, key=lambda operation: _cost(operation, on_gpu), reverse=True)
    # --- end ---


# --- solution only ---
def _synchronize(on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()


def _cost(operation: OperationTime, on_gpu: bool) -> float:
    return operation.device_seconds if on_gpu else operation.cpu_seconds


# --- end ---


def slowest(operations: Sequence[OperationTime], count: int = 5) -> list[OperationTime]:
    """The operations worth looking at first.

    Args:
        operations: in any order.
        count: how many at most.

    Returns:
        The `count` slowest, the slowest first: by device_seconds, or by cpu_seconds when no operation has any
        device_seconds (a CPU).

    Raises:
        ValueError: `count` is below 1.
    """
    # TODO(task 1.4): sort by the time that matters on this device and cut the list off.
    # --- solution: task 1.4 ---
    if count < 1:
        raise ValueError(f"count starts at 1, got {count}")
    on_gpu = any(operation.device_seconds > 0 for operation in operations)
    return sorted(operations, key=lambda operation: _cost(operation, on_gpu), reverse=True)[:count]
    # --- end ---


def make_training_step(device: str) -> Callable[[], object]:
    """One training step of the digits classifier of Task 1.3 (Adam, cross entropy), to be called again and again."""
    model = default_model().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    inputs, targets = (tensor.to(device) for tensor in default_batch())

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def main(argv: Sequence[str] | None = None) -> int:
    """Profile a training step; print its slowest operations; write OUT/operations.json.

    Returns:
        0.
    """
    parser = program.make_parser(__doc__ or "", results=RESULTS)
    parser.add_argument("--steps", type=program.positive_int, default=5, metavar="N", help="recorded training steps")
    options = parser.parse_args(argv)
    with open_device(options.device) as device:
        step = make_training_step(device.torch_device)
        operations = profile_operations(step, device=device.torch_device, steps=options.steps)
        rows = [
            (
                operation.name,
                operation.calls,
                f"{operation.cpu_seconds * 1e3:.3f}",
                f"{operation.device_seconds * 1e3:.3f}",
            )
            for operation in slowest(operations, 8)
        ]
        program.print_table(f"{options.steps} training steps", ("operation", "calls", "CPU ms", "GPU ms"), rows)
        program.print_written(save_json(options.out / "operations.json", operations, device.provenance()))
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
