"""Where the time of a training step goes: `torch.profiler` with a schedule, named regions and a trace per cycle.

After PyTorch's profiler recipe and its TensorBoard tutorial. The trace files open in chrome://tracing or Perfetto.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule, tensorboard_trace_handler


class ConvNet(nn.Module):
    """Three convolutions with batch norm, then a linear layer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for factor in (1, 2, 4):
            layers += [nn.Conv2d(channels, factor * width, 3, padding=1), nn.BatchNorm2d(factor * width), nn.ReLU()]
            layers.append(nn.MaxPool2d(2))
            channels = factor * width
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(channels, 10)

    def forward(self, images: Tensor) -> Tensor:
        with record_function("features"):
            features = self.features(images).mean(dim=(2, 3))
        with record_function("head"):
            logits: Tensor = self.head(features)
        return logits


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> Tensor:
    with record_function("to_device"):
        images, labels = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
    with record_function("forward"):
        loss = F.cross_entropy(model(images), labels)
    with record_function("backward"):
        optimizer.zero_grad()
        loss.backward()
    with record_function("optimizer"):
        optimizer.step()
    return loss.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=32, help="height and width of the images")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--active", type=int, default=3, help="steps recorded per cycle")
    parser.add_argument("--cycles", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("log"))
    options = parser.parse_args()

    torch.manual_seed(0)
    model = ConvNet(options.width).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(options.batch_size, 3, options.size, options.size).pin_memory()
    labels = torch.randint(10, (options.batch_size,)).pin_memory()

    waiting, warmup = 1, 1
    write_trace = tensorboard_trace_handler(str(options.out))
    tables: list[str] = []

    def on_trace_ready(profiler: profile) -> None:
        averages = profiler.key_averages()
        tables.append(averages.table(sort_by="self_device_time_total", row_limit=8))
        regions = {entry.key: entry for entry in averages if entry.key in ("forward", "backward", "optimizer")}
        for name, entry in regions.items():
            print(f"step {profiler.step_num}: {name:<10} x{entry.count} {entry.cpu_time_total:9.1f} us on the host")
        write_trace(profiler)

    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=waiting, warmup=warmup, active=options.active, repeat=options.cycles),
        on_trace_ready=on_trace_ready,
        record_shapes=True,
        profile_memory=True,
    ) as profiler:
        for _ in range((waiting + warmup + options.active) * options.cycles):
            training_step(model, optimizer, images, labels)
            profiler.step()
    print(tables[-1])

    traces = sorted(options.out.glob("*.pt.trace.json"))
    events = json.loads(traces[-1].read_text())["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    print(f"{len(traces)} traces; the last has {len(kernels)} kernels", end="")
    print(f", busy for {sum(kernel['dur'] for kernel in kernels):.0f} us")


if __name__ == "__main__":
    main()
