"""Find the largest batch that fits: double until out of memory, bisect, then show what the memory went to.

Catches `torch.OutOfMemoryError` outside the `except` block, as PyTorch's FAQ advises, so that the failed step's tensors
can be freed; the snapshot at the end is `torch.cuda.memory_snapshot`.
"""

from __future__ import annotations

import argparse
import gc

import torch
import torch.nn.functional as F
from torch import nn


def make_model(width: int, layers: int) -> nn.Sequential:
    blocks = [nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(layers)]
    return nn.Sequential(*blocks, nn.Linear(width, 10))


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch_size: int, width: int) -> None:
    inputs = torch.randn(batch_size, width, device="cuda")
    labels = torch.randint(10, (batch_size,), device="cuda")
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()


def fits(model: nn.Module, optimizer: torch.optim.Optimizer, batch_size: int, width: int) -> bool:
    """Try one step from a clean start: what earlier attempts left in the cache must not decide."""
    optimizer.zero_grad()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    message = None
    try:
        training_step(model, optimizer, batch_size, width)
    except torch.OutOfMemoryError as error:
        message = str(error)
    if message is not None:
        print(f"batch {batch_size:7d}: out of memory ({message.split('. ')[1]})")
        return False
    peak = torch.cuda.max_memory_allocated()
    print(f"batch {batch_size:7d}: peak {peak / 2**20:.1f} MiB")
    return True


def largest_batch(model: nn.Module, optimizer: torch.optim.Optimizer, width: int, resolution: int) -> int:
    """The largest multiple of `resolution` that fits."""
    good, bad = 0, resolution
    while fits(model, optimizer, bad, width):
        good, bad = bad, 2 * bad
    while bad - good > resolution:
        middle = (good + bad) // 2 // resolution * resolution
        if fits(model, optimizer, middle, width):
            good = middle
        else:
            bad = middle
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--resolution", type=int, default=256)
    parser.add_argument("--fraction", type=float, default=1.0, help="of the GPU's memory that may be used")
    options = parser.parse_args()

    torch.cuda.set_per_process_memory_fraction(options.fraction)
    free, total = torch.cuda.mem_get_info()
    print(f"{free / 2**30:.2f} of {total / 2**30:.2f} GiB free, of which {options.fraction:.0%} may be used")
    torch.manual_seed(0)
    model = make_model(options.width, options.layers).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    best = largest_batch(model, optimizer, options.width, options.resolution)
    print(f"largest batch: {best}")

    # The same again without any search before it: the answer must not depend on what failed earlier.
    assert fits(model, optimizer, best, options.width)
    assert not fits(model, optimizer, best + options.resolution, options.width)
    stats = torch.cuda.memory_stats()
    print(f"{stats['num_ooms']} times out of memory, {stats['num_alloc_retries']} retries")
    snapshot = torch.cuda.memory_snapshot()
    reserved = sum(segment["total_size"] for segment in snapshot)
    active = sum(segment["allocated_size"] for segment in snapshot)
    print(f"snapshot: {len(snapshot)} segments, {reserved / 2**20:.1f} MiB reserved, {active / 2**20:.1f} MiB in use")
    assert reserved == torch.cuda.memory_reserved()
    assert active == torch.cuda.memory_allocated()
    print("\n".join(torch.cuda.memory_summary(abbreviated=True).splitlines()[:8]))


if __name__ == "__main__":
    main()
