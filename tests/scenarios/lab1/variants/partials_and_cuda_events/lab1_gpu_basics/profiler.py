"""Task 1.4: ask the PyTorch profiler which operations take the time.

Not for timing one operation (benchmark.py does that better: a profiler costs time of its own).

Run: python -m labs.lab1_gpu_basics.profiler
"""

import operator
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import torch
from torch.autograd import DeviceType
from torch.nn import functional
from torch.profiler import ProfilerActivity

from labkit import program
from labkit.device import open_device
from labkit.results import OperationTime, save_json

from .memory_profiling import default_batch, default_model
from .pipes import insist_at_least, kind_of, times, waiter

RESULTS = Path(__file__).parent / "results"
MICROSECOND = 1e-6


def profile_operations(
    step: Callable[[], object], *, device: str = "cuda", steps: int = 5, warmup: int = 2
) -> list[OperationTime]:
    """Record some calls of `step` with `torch.profiler` and sum up the time by operation.

    Args:
        step: does the work, for example one training step; called `warmup + steps` times, and no more.
        device: where the work runs, "cuda", perhaps with its index ("cuda:0"), or "cpu".
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
    insist_at_least(1, steps=steps)
    insist_at_least(0, warmup=warmup)
    on_cpu, wait = kind_of(device) == "cpu", waiter(device)
    wait()  # without a warm-up nobody else does
    with torch.profiler.profile(
        activities=[ProfilerActivity.CPU, *([] if on_cpu else [ProfilerActivity.CUDA])],
        schedule=torch.profiler.schedule(wait=0, warmup=warmup, active=steps, repeat=1),
    ) as recording:
        times(warmup + steps, lambda: (step(), wait(), recording.step()))
    entries = filter(
        lambda entry: entry.key.startswith("aten::") and entry.device_type == DeviceType.CPU, recording.key_averages()
    )
    operations = [
        OperationTime(
            name=entry.key,
            calls=entry.count,
            cpu_seconds=entry.self_cpu_time_total * MICROSECOND,
            device_seconds=0.0 if on_cpu else entry.self_device_time_total * MICROSECOND,
        )
        for entry in entries
    ]
    return sorted(operations, key=lambda one: -(one.cpu_seconds if on_cpu else one.device_seconds))


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
    insist_at_least(1, count=count)
    by_device = any(map(operator.attrgetter("device_seconds"), operations))
    order = sorted(operations, key=operator.attrgetter("device_seconds" if by_device else "cpu_seconds"), reverse=True)
    return list(islice(order, count))


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
