"""One model on two GPUs: its halves run one after the other, then overlap on split batches.

After PyTorch's tutorial "Single-Machine Model Parallel Best Practices". While the second GPU works on one part of the
batch, the first already has the next one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn


def half(width: int, layers: int) -> nn.Sequential:
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)])


class ModelParallel(nn.Module):
    """The first half lives on cuda:0, the second and the head on cuda:1."""

    def __init__(self, width: int, layers: int, classes: int = 10) -> None:
        super().__init__()
        self.first = half(width, layers).to("cuda:0")
        self.second = nn.Sequential(half(width, layers), nn.Linear(width, classes)).to("cuda:1")

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(x).to("cuda:1"))
        return result


class PipelineParallel(ModelParallel):
    """The batch goes through in parts of `split` samples, so that both GPUs work at once."""

    def __init__(self, width: int, layers: int, split: int) -> None:
        super().__init__(width, layers)
        self.split = split

    def forward(self, x: Tensor) -> Tensor:
        parts = iter(x.split(self.split))
        previous = self.first(next(parts)).to("cuda:1", non_blocking=True)
        results = []
        for part in parts:
            results.append(self.second(previous))  # on cuda:1, while
            previous = self.first(part).to("cuda:1", non_blocking=True)  # cuda:0 computes the next part
        results.append(self.second(previous))
        return torch.cat(results)


def train(model: nn.Module, inputs: Tensor, labels: Tensor, steps: int) -> tuple[float, float]:
    """First and last loss of `steps` steps of SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses: list[float] = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[0], losses[-1]


def synchronize() -> None:
    for index in range(2):
        torch.cuda.synchronize(index)


def seconds_per_call(call: Callable[[], object], repeats: int) -> float:
    call()
    synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
        synchronize()  # each call by itself: the first half of the next one must not overlap with this one
    return (time.perf_counter() - start) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=4, help="per half")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--split", type=int, default=256)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    if torch.cuda.device_count() < 2:
        parser.error("this example needs two GPUs")

    torch.manual_seed(0)
    inputs = torch.randn(options.batch_size, options.width, device="cuda:0")
    labels = torch.randint(10, (options.batch_size,), device="cuda:1")
    model = ModelParallel(options.width, options.layers)
    print(f"first half on {next(model.first.parameters()).device}, second on {next(model.second.parameters()).device}")
    first, last = train(model, inputs, labels, options.steps)
    print(f"output on {model(inputs).device}, loss {first:.4f} -> {last:.4f}")
    for index in range(2):
        print(f"cuda:{index} holds {torch.cuda.memory_allocated(index) / 2**20:.3f} MiB")

    pipeline = PipelineParallel(options.width, options.layers, options.split)
    pipeline.load_state_dict(model.state_dict())
    with torch.no_grad():
        print(f"largest difference {(pipeline(inputs) - model(inputs)).abs().max().item():.1e}")
        plain = seconds_per_call(lambda: model(inputs), options.steps)
        overlapped = seconds_per_call(lambda: pipeline(inputs), options.steps)
    print(f"one after the other {plain * 1e3:.3f} ms, overlapping {overlapped * 1e3:.3f} ms")
    print(f"speedup {plain / overlapped:.2f}")


if __name__ == "__main__":
    main()
