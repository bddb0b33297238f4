"""Task 1.4: ask the PyTorch profiler which operations take the time.

Not for timing one operation (benchmark.py does that better: a profiler costs time of its own).

Run: python -m labs.lab1_gpu_basics.profiler
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity

from labkit import program
from labkit.device import open_device
from labkit.results import OperationTime, save_json

from ._timing import log, logged
from .memory_profiling import default_batch, default_model

RESULTS = Path(__file__).parent / "results"
MICROSECOND = 1e-6


@logged
def profile_operations(
    step: Callable[[], object], *, device: str = "cuda", steps: int = 5, warmup: int = 2
) -> list[OperationTime]:
    """Record some calls of `step` with `torch.profiler` and sum up the time by operation.

    Args:
        step: does the work, for example one training step; called `warmup + steps` times.
        device: where the work runs, "cuda" or "cpu".
        steps: recorded calls.
        warmup: calls before the recording starts. They are not recorded, and the device is idle when it starts.

    Returns:
        One `OperationTime` per PyTorch operation (its name begins with "aten::") that ran while recording:
        - calls: how often, over all recorded steps together;
        - cpu_seconds, device_seconds: *self* times, that is without the operations it called in turn, summed over
          these calls, in seconds (the profiler itself counts in microseconds). A kernel counts for the operation that
          launched it; on a CPU device_seconds is 0.0.
        The slowest comes first: by device_seconds on a GPU, by cpu_seconds on a CPU.

    Raises:
        ValueError: `steps` is below 1 or `warmup` below 0.

    Source: https://docs.pytorch.org/docs/stable/profiler.html
    """
    if steps < 1 or warmup < 0:
        raise ValueError(f"{steps=}, {warmup=}")
    gpu = torch.device(device).type == "cuda"

    def settle() -> None:
        if gpu:
            torch.cuda.synchronize()

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
    wait = torch.profiler.schedule(wait=warmup, warmup=0, active=steps, repeat=1) if warmup else None
    with torch.profiler.profile(activities=activities, schedule=wait) as prof:
        for number in range(warmup + steps):
            step()
            if number in (warmup - 1, warmup + steps - 1):
                settle()
            prof.step() if wait else None
    totals: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for event in prof.events():
        if event.name.startswith("aten::") and event.device_type == torch.autograd.DeviceType.CPU:
            row = totals[event.name]
            row[0] += 1
            row[1] += event.self_cpu_time_total
            row[2] += event.self_device_time_total if gpu else 0
    rows = [
        OperationTime(name=k, calls=int(c), cpu_seconds=h / 1e6, device_seconds=d / 1e6)
        for k, (c, h, d) in totals.items()
    ]
    log.info(f"{len(rows)} operations")
    return sorted(rows, key=lambda r: r.device_seconds if gpu else r.cpu_seconds, reverse=True)


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
    if count < 1:
        raise ValueError("at least one")
    on_gpu = any(operation.device_seconds > 0 for operation in operations)
    ordered = sorted(operations, key=lambda operation: -(operation.device_seconds if on_gpu else operation.cpu_seconds))
    return ordered[:count]


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
