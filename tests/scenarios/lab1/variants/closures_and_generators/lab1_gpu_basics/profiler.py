"""The profiler's own schedule does the warm-up."""

import sys
from pathlib import Path

import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, schedule

from labkit import program
from labkit.device import open_device
from labkit.results import OperationTime, save_json

from .memory_profiling import default_batch, default_model

RESULTS = Path(__file__).parent / "results"


def profile_operations(step, *, device="cuda", steps=5, warmup=2):
    if not (steps >= 1 and warmup >= 0):
        raise ValueError("too few steps")
    gpu = not str(device).startswith("cpu")
    wait = torch.cuda.synchronize if gpu else int
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * gpu
    for _ in range(max(0, warmup - 1)):
        step()
    plan = schedule(wait=0, warmup=min(warmup, 1), active=steps, repeat=1)
    if not warmup:
        wait()
    with profile(activities=kinds, schedule=plan) as recording:
        for number in range(min(warmup, 1) + steps):
            step()
            if number < warmup or number == warmup + steps - 1:
                wait()
            recording.step()
    found = {}
    for event in recording.key_averages():
        if event.key[:6] == "aten::":
            found[event.key] = OperationTime(
                name=event.key,
                calls=event.count,
                cpu_seconds=event.self_cpu_time_total / 1e6,
                device_seconds=event.self_device_time_total / 1e6 if gpu else 0.0,
            )
    return slowest(list(found.values()), len(found) or 1)


def slowest(operations, count=5):
    if count < 1:
        raise ValueError("count must be 1 or more")
    times = "device_seconds" if sum(one.device_seconds for one in operations) else "cpu_seconds"
    return sorted(operations, key=lambda one: -getattr(one, times))[:count]


def make_training_step(device):
    model = default_model().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    inputs, targets = (tensor.to(device) for tensor in default_batch())

    def step():
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def main(argv=None):
    options = program.make_parser(__doc__, results=RESULTS).parse_args(argv)
    with open_device(options.device) as device:
        rows = profile_operations(make_training_step(device.torch_device), device=device.torch_device)
        program.print_written(save_json(options.out / "operations.json", rows, device.provenance()))
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
