"""Mixed precision: the same training in FP32 and with autocast and a GradScaler; time, memory and loss of each.

After PyTorch's recipe on automatic mixed precision (tutorials/recipes/amp_recipe), with its two functions
`start_timer` and `end_timer_and_print`.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn


def make_model(width: int, layers: int) -> nn.Sequential:
    modules: list[nn.Module] = []
    for _ in range(layers):
        modules += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*modules, nn.Linear(width, width))


def start_timer() -> float:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    return time.perf_counter()


def end_timer(started: float) -> tuple[float, int]:
    """Seconds since `started` and the peak of allocated bytes."""
    torch.cuda.synchronize()
    return time.perf_counter() - started, torch.cuda.max_memory_allocated()


def train(
    options: argparse.Namespace, data: list[Tensor], targets: list[Tensor], dtype: torch.dtype | None
) -> tuple[float, int, float, float]:
    """Train a fresh model; returns seconds, peak bytes, first and last loss. `dtype` None: plain FP32."""
    torch.manual_seed(0)
    net = make_model(options.width, options.layers).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=options.lr, momentum=0.9)
    loss_function = nn.MSELoss()
    # Gradients of FP16 need scaling; with BF16 or FP32 the scaler is a no-op.
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)

    losses: list[Tensor] = []
    started = 0.0
    for epoch in range(options.epochs + 1):
        if epoch == 1:  # the first epoch warms up
            started = start_timer()
        for inputs, target in zip(data, targets, strict=True):
            with torch.autocast(device_type="cuda", dtype=dtype, enabled=dtype is not None):
                output = net(inputs)
                loss = loss_function(output, target)
            scaler.scale(loss).backward()
            # Gradients are unscaled before they are clipped, as their norm means nothing otherwise.
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), max_norm=1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.detach())
    seconds, peak = end_timer(started)
    print(f"  output {output.dtype}, loss {loss.dtype}, parameters {next(net.parameters()).dtype}", end="")
    print(f", scale {scaler.get_scale():.0f}" if scaler.is_enabled() else "")
    return seconds, peak, float(losses[0]), float(losses[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--dtype", choices=["float16", "bfloat16"], default="float16")
    options = parser.parse_args()

    torch.manual_seed(1)
    data = [torch.randn(options.batch_size, options.width, device="cuda") for _ in range(options.batches)]
    targets = [0.1 * inputs.roll(1, dims=1) for inputs in data]

    print(f"{torch.cuda.get_device_name()}: width {options.width}, batch {options.batch_size}")
    print("float32:")
    plain = train(options, data, targets, None)
    print(f"{options.dtype}:")
    mixed = train(options, data, targets, getattr(torch, options.dtype))
    for name, (seconds, peak, first, last) in {"float32": plain, options.dtype: mixed}.items():
        print(f"{name}: {seconds * 1e3:.2f} ms, peak {peak / 2**20:.1f} MiB, loss {first:.4f} -> {last:.4f}")
    print(f"speedup {plain[0] / mixed[0]:.2f}, peak memory ratio {mixed[1] / plain[1]:.2f}")


if __name__ == "__main__":
    main()
