"""A model no laptop can hold: a training step of 48 layers, 4096 wide, on shapes only; real and virtual time, memory.

Two models take batches of 64 x 128 tokens and train with Adam: 48 transformer layers (9.7 billion parameters) on an
H200 that was given the memory for them, and 48 linear layers on an A100 cut down to 24 GiB.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vgpu
from benchmarks.measure import load, save

LAYERS, WIDTH, HEADS = 48, 4096, 32
BATCH, TOKENS = 64, 128
STEPS = 5
PROTOTYPE_SECONDS = 1.3
# Inside `attach` the functions of `time` show virtual time, under whatever name a module has bound them; not here.
REAL = {"wall": time.perf_counter, "cpu": time.process_time}


class Block(nn.Module):
    """One pre-norm transformer layer: attention and a feed-forward layer four times as wide."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.narrow(nn.functional.gelu(self.wide(self.norm2(x))))  # type: ignore[no-any-return]


def transformer() -> nn.Module:
    return nn.Sequential(*[Block() for _ in range(LAYERS)])


def linear_stack() -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)) for _ in range(LAYERS)])


def measure(spec: vgpu.Spec, make: Callable[[], nn.Module]) -> dict[str, Any]:
    """Build the model and do some steps: real seconds of each, virtual seconds of a warm one, and the peak."""
    real: dict[str, list[float]] = {name: [] for name in REAL}
    virtual: list[float] = []

    @contextlib.contextmanager
    def timed() -> Iterator[None]:
        started, begun = {name: now() for name, now in REAL.items()}, gpu.now()
        yield
        virtual.append(gpu.now() - begun)
        for name, now in REAL.items():
            real[name].append(now() - started[name])

    with vgpu.attach(spec, values=False, force=True) as gpu:
        with timed(), torch.device("cuda"):
            model, batch = make(), torch.randn(BATCH, TOKENS, WIDTH)
            optimizer = torch.optim.Adam(model.parameters())
        for _ in range(STEPS + 1):
            with timed():
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
                torch.cuda.synchronize()
        peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        kernels = len(gpu.timeline)
        parameters = sum(parameter.numel() for parameter in model.parameters())
    return {
        "gpu": f"{spec.title}, simulated, {spec.memory_bytes / 2**30:.1f} GiB",
        "parameters": parameters,
        "real_seconds": {name: _described(values) for name, values in real.items()},
        "virtual_seconds_per_step": virtual[-1],
        "peak_allocated_bytes": peak,
        "peak_reserved_bytes": reserved,
        "kernels_in_all": kernels,
    }


def _described(seconds: list[float]) -> dict[str, Any]:
    building, first, *steps = seconds
    later = {"median": statistics.median(steps), "min": min(steps), "max": max(steps)}
    return {"building": building, "first_step": first, "later_steps": later}


def main() -> Path:
    """Measure both models and save the figures."""
    torch.set_num_threads(1)
    before = load()
    h200, a100 = vgpu.get_spec("H200"), vgpu.get_spec("A100-40GB")
    roomy = functools.partial(dataclasses.replace, h200, name="H200-roomy", title="NVIDIA H200 with more memory")
    small = functools.partial(dataclasses.replace, a100, name="A100-24GB", title="NVIDIA A100 with less memory")
    results = {
        "transformer": measure(roomy(memory_bytes=320 << 30), transformer),
        "linear_layers": measure(small(memory_bytes=24 << 30), linear_stack),
    }
    return save(
        "vgpu_big_step",
        {
            "what": f"training step with Adam of {LAYERS} layers, {WIDTH} wide, batch {BATCH} x {TOKENS} tokens, FP32",
            "mode": "shapes only; virtual seconds and bytes are modelled",
            "prototype_real_seconds": PROTOTYPE_SECONDS,
            "load_average": {"before": before, "after": load()},
            "results": results,
        },
    )


if __name__ == "__main__":
    print(main())
