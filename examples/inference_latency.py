"""Latency and throughput of inference: batch sizes, precisions, percentiles, and the effect of `inference_mode`.

In the conventions of PyTorch's performance tuning guide: warm up, time with CUDA events, wait once at the end.
"""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with batch norm, added to their input."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = inputs == outputs and stride == 1
        self.shortcut: nn.Module = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def small_resnet(width: int, classes: int = 1000) -> nn.Sequential:
    blocks: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    blocks.append(nn.MaxPool2d(3, 2, 1))
    channels = width
    for stage in range(4):
        outputs = width * 2**stage
        blocks += [ResidualBlock(channels, outputs, 1 if stage == 0 else 2), ResidualBlock(outputs, outputs, 1)]
        channels = outputs
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def latencies(model: nn.Module, images: Tensor, calls: int, context: AbstractContextManager[object]) -> Tensor:
    """Milliseconds of each of `calls` calls, sorted."""
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(calls)]
    with context:
        for _ in range(3):
            model(images)
        for start, end in events:
            start.record()
            model(images)
            end.record()
            end.synchronize()  # one request at a time: a latency, not a throughput
    return torch.tensor([start.elapsed_time(end) for start, end in events]).sort().values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--size", type=int, default=224, help="height and width of the images")
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args()

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    model = small_resnet(options.width).cuda().eval()
    print(f"{torch.cuda.get_device_name()}, images of {options.size} x {options.size}")
    throughput: dict[tuple[str, int], float] = {}
    for name, dtype in (("float32", torch.float32), ("float16", torch.float16)):
        model = model.to(dtype).to(memory_format=torch.channels_last)
        for batch in options.batch_sizes:
            images = torch.randn(batch, 3, options.size, options.size, device="cuda", dtype=dtype)
            images = images.to(memory_format=torch.channels_last)
            times = latencies(model, images, options.calls, torch.inference_mode())
            median, tail = times[len(times) // 2].item(), times[int(0.95 * (len(times) - 1))].item()
            throughput[name, batch] = 1e3 * batch / median
            print(
                f"{name} batch {batch:4d}: median {median:8.3f} ms, 95th percentile {tail:8.3f} ms, "
                f"{throughput[name, batch]:9.1f} images per second"
            )

    batch = max(options.batch_sizes)
    images = torch.randn(batch, 3, options.size, options.size, device="cuda", dtype=torch.float16)
    for name, context in (("inference_mode", torch.inference_mode()), ("with autograd", nullcontext())):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        latencies(model, images, 2, context)
        print(f"{name}: {(torch.cuda.max_memory_allocated() - before) / 2**20:.1f} MiB above the model")
    smallest = min(options.batch_sizes)
    print(f"batching gains {throughput['float16', batch] / throughput['float16', smallest]:.1f}, ", end="")
    print(f"FP16 gains {throughput['float16', batch] / throughput['float32', batch]:.1f} at batch {batch}")


if __name__ == "__main__":
    main()
