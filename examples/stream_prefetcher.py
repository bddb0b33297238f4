"""Overlapping copies with computation: pinned memory, a side stream and a prefetcher, against plain loading.

After PyTorch's "CUDA semantics" notes (pinned buffers, streams, `record_stream`) and the data prefetchers of
NVIDIA's training examples.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn


class Prefetcher:
    """Copies the next batch on a stream of its own while the current one is computed on."""

    def __init__(self, batches: Iterable[Tensor]) -> None:
        self.batches = iter(batches)
        self.stream = torch.cuda.Stream()
        self.next: Tensor | None = None
        self.preload()

    def preload(self) -> None:
        batch = next(self.batches, None)
        if batch is None:
            self.next = None
            return
        with torch.cuda.stream(self.stream):
            self.next = batch.to("cuda", non_blocking=True)

    def __iter__(self) -> Iterator[Tensor]:
        while self.next is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            batch = self.next
            # Its memory belongs to the side stream: do not give it away while the main stream reads it.
            batch.record_stream(torch.cuda.current_stream())
            self.preload()
            yield batch


def pageable(batches: list[Tensor]) -> Iterator[Tensor]:
    for batch in batches:
        yield batch.to("cuda")


def pinned(batches: list[Tensor]) -> Iterator[Tensor]:
    for batch in batches:
        yield batch.to("cuda", non_blocking=True)


def prefetched(batches: list[Tensor]) -> Iterator[Tensor]:
    return iter(Prefetcher(batches))


def train(
    model: nn.Module, load: Callable[[list[Tensor]], Iterator[Tensor]], batches: list[Tensor], epochs: int
) -> tuple[float, float]:
    """Milliseconds per batch, and the sum of all losses (which must not depend on the way of loading)."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    total = torch.zeros((), device="cuda")
    started = 0.0
    for epoch in range(epochs + 1):
        if epoch == 1:  # the first epoch warms up
            torch.cuda.synchronize()
            started = time.perf_counter()
        for batch in load(batches):
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - started) / (epochs * len(batches)), total.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(options.width, options.width), nn.GELU()) for _ in range(options.layers)]
    model = nn.Sequential(*layers).cuda()
    ordinary = [torch.randn(options.batch_size, options.width) for _ in range(options.batches)]
    locked = [batch.pin_memory() for batch in ordinary]
    print(f"{options.batches} batches of {ordinary[0].nbytes / 2**20:.1f} MiB; pinned: {locked[0].is_pinned()}")

    results = {
        "pageable": train(model, pageable, ordinary, options.epochs),
        "pinned": train(model, pinned, locked, options.epochs),
        "prefetched": train(model, prefetched, locked, options.epochs),
    }
    base, expected = results["pageable"]
    for name, (milliseconds, total) in results.items():
        agrees = "same losses" if abs(total - expected) <= 1e-5 * abs(expected) else "DIFFERENT losses"
        print(f"{name:<10} {milliseconds:8.3f} ms per batch, {base / milliseconds:.2f} times as fast, {agrees}")


if __name__ == "__main__":
    main()
