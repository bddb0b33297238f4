"""Gradient checkpointing: a transformer trained with every k-th block recomputed; peak memory, time, same gradients.

After PyTorch's documentation of `torch.utils.checkpoint` (non-reentrant variant).
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a layer norm and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class Transformer(nn.Module):
    """`layers` blocks; where `every` is k > 0, of every k blocks the first is recomputed in backward."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.every = 0
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for index, block in enumerate(self.blocks):
            recompute = self.every and index % self.every == 0
            x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        return x


def measure(model: Transformer, batch: Tensor, steps: int) -> tuple[float, int, Tensor]:
    """Milliseconds per step, the peak of allocated bytes, and the first block's gradient."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for step in range(steps + 1):
        if step == 1:  # the first step warms up
            torch.cuda.reset_peak_memory_stats()
            start.record()
        optimizer.zero_grad(set_to_none=True)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
    end.record()
    torch.cuda.synchronize()
    gradient = model.blocks[0].get_parameter("qkv.weight").grad
    assert gradient is not None
    return start.elapsed_time(end) / steps, torch.cuda.max_memory_allocated(), gradient.clone()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()

    torch.manual_seed(0)
    model = Transformer(options.width, options.heads, options.layers).cuda()
    batch = torch.randn(options.batch_size, options.length, options.width, device="cuda")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters:,} parameters, {options.layers} blocks, {options.batch_size} x {options.length} tokens")

    results: dict[str, tuple[float, int, Tensor]] = {}
    for name, every in (("none", 0), ("every 2nd", 2), ("all", 1)):
        model.every = every
        results[name] = measure(model, batch, options.steps)
        milliseconds, peak, _ = results[name]
        print(f"checkpointed: {name:<10} {milliseconds:8.2f} ms per step, peak {peak / 2**20:9.1f} MiB")

    whole, saved = results["none"], results["all"]
    difference = (whole[2] - saved[2]).abs().max().item()
    print(f"largest difference of gradients {difference:.1e}")
    print(f"memory saved {1 - saved[1] / whole[1]:.0%}, time added {saved[0] / whole[0] - 1:.0%}")


if __name__ == "__main__":
    main()
