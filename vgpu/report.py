"""The text of `gpu.summary()`. Not here: pictures and traces."""

from __future__ import annotations

from collections.abc import Sequence

from vgpu.allocator import CachingAllocator
from vgpu.device_queue import Kernel
from vgpu.spec import Spec


def summary_text(
    spec: Spec, timeline: Sequence[Kernel], utilization: float, allocator: CachingAllocator, count: int
) -> str:
    """The `count` operations that kept the device busy longest, with calls, seconds, share and achieved rate."""
    totals: dict[str, list[float]] = {}
    for kernel in timeline:
        entry = totals.setdefault(kernel.name, [0.0, 0.0, 0.0, 0.0])
        for index, amount in enumerate((1, kernel.seconds, kernel.flops, kernel.bytes)):
            entry[index] += amount
    busy = sum(entry[1] for entry in totals.values()) or 1.0
    rows = sorted(totals.items(), key=lambda item: item[1][1], reverse=True)[:count]
    width = max([len(name) for name, _ in rows] + [9])
    lines = [
        f"Simulated {spec.title} (vgpu, {spec.name}): modelled times, nothing was measured",
        f"{len(timeline)} kernels and transfers; device busy {utilization:.1%} of the time; "
        f"peak memory {allocator.peak('allocated_bytes') / 2**20:.1f} MiB allocated, "
        f"{allocator.peak('reserved_bytes') / 2**20:.1f} MiB reserved",
        f"{'operation':<{width}} {'calls':>7} {'ms':>11} {'share':>7} {'TFLOPS':>8} {'GB/s':>8}",
    ]
    for name, (calls, seconds, flops, moved) in rows:
        rate = f"{flops / seconds / 1e12:8.2f}" if flops else f"{'-':>8}"
        lines.append(
            f"{name:<{width}} {int(calls):>7} {seconds * 1e3:>11.3f} {seconds / busy:>7.1%} {rate} "
            f"{moved / seconds / 1e9:>8.1f}"
        )
    return "\n".join(lines)
