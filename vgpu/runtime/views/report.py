"""The text of `gpu.summary()`: where the device's and the host's time went, and the memory's peak.

Pure Python. Not here: pictures (`vgpu.runtime.views.picture`) and traces (`vgpu.runtime.views.trace`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vgpu.device import cost
from vgpu.device.queue import Kernel
from vgpu.device.spec import Spec
from vgpu.runtime.views import history
from vgpu.runtime.views.thinning import bytes_text, seconds_text

if TYPE_CHECKING:
    from vgpu.runtime.gpu import VirtualGPU

_WIDTH = 96
_NAME_WIDTH = 26
_PRECISIONS = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "tf32": "tf32", "complex64": "c64",
    "complex128": "c128",
}  # fmt: skip
_LONG = {short: name for name, short in _PRECISIONS.items()}
# Work that reaches less than this share of either peak keeps only part of the device busy.
_FILLED_RATIO = 0.2
_NOTES = {
    "launch": "shorter than the {} that launching it takes the host",
    "occupancy": "far from both peaks: too little work, or a shape that leaves multiprocessors idle",
    "L2 cache": "faster than memory: taken to find its operands in the cache, where they fit",
}
_HOST = {
    "start": "start-up", "launch": "launching", "operation": "CPU operations", "metadata": "views and allocations",
    "module": "Python of modules", "wait": "waiting for the GPU", "load": "waiting for data",
    "communication": "waiting for ranks", "sleep": "asleep",
}  # fmt: skip


@dataclass(slots=True)
class Cost:
    """What all kernels of one operation in one precision took together. `bounds` holds seconds by what bound them."""

    name: str
    precision: str
    calls: int
    seconds: float
    flops: float
    bytes: float
    bounds: dict[str, float]

    @property
    def bound(self) -> str:
        """What most of its time was bound by."""
        return max(self.bounds, key=lambda kind: self.bounds[kind])


def bound_by(spec: Spec, kernel: Kernel) -> str:
    """What decided how long a kernel took.

    "compute", "bandwidth", "launch" (shorter than its own launch), "occupancy" (far from both peaks: too little work,
    or of a shape that leaves multiprocessors idle), "L2 cache" (faster than memory would be), "transfer" (over PCIe) or
    "link" (between GPUs).
    """
    kind = history.kernel_kind(kernel)
    if kind in ("copy", "communication"):
        between_gpus = kind == "communication" or "PtoP" in kernel.name
        return "link" if between_gpus else "bandwidth" if "DtoD" in kernel.name else "transfer"
    if kernel.seconds <= spec.launch_seconds:
        return "launch"
    traffic = kernel.bytes / (spec.bandwidth_bytes_per_second * spec.bandwidth_efficiency_ratio)
    arithmetic = kernel.flops / _peak(spec, kernel.dtype)
    if traffic > kernel.seconds and not kernel.flops:
        return "L2 cache"
    if max(traffic, arithmetic) < _FILLED_RATIO * kernel.seconds:
        return "occupancy"
    return "compute" if kernel.flops and traffic < 0.99 * kernel.seconds else "bandwidth"


def costs(spec: Spec, timeline: Sequence[Kernel]) -> list[Cost]:
    """The operations of a timeline, costliest first."""
    entries: dict[tuple[str, str], Cost] = {}
    for kernel in timeline:
        precision = "" if history.kernel_kind(kernel) == "copy" else _PRECISIONS.get(kernel.dtype, kernel.dtype)
        entry = entries.setdefault(
            (kernel.name, precision), Cost(kernel.name, precision, 0, 0.0, 0.0, 0.0, {"compute": 0.0})
        )
        entry.calls += 1
        entry.seconds += kernel.seconds
        entry.flops += kernel.flops
        entry.bytes += kernel.bytes
        bound = bound_by(spec, kernel)
        entry.bounds[bound] = entry.bounds.get(bound, 0.0) + kernel.seconds
    return sorted(entries.values(), key=lambda entry: -entry.seconds)


def host_seconds(gpu: VirtualGPU, thread: str = "MainThread") -> dict[str, float]:
    """Where a host thread's time went: seconds by kind, "launch" among them."""
    launched = history.launches(kernel for each in history.gpus_of(gpu) for kernel in each.timeline)
    totals: dict[str, float] = {}
    for span in (*gpu.clock.spans, *launched):
        if span.thread == thread and span.kind != "region":
            totals[span.kind] = totals.get(span.kind, 0.0) + span.end - span.start
    return totals


def summary_text(gpu: VirtualGPU, count: int = 10) -> str:
    """The `count` operations that kept the device busy longest, the host's time, and the memory's peak."""
    spec, timeline = gpu.spec, gpu.timeline
    elapsed = max(gpu.clock.now, gpu.queue.ready_at())
    ranking = costs(spec, timeline)
    gpus = history.gpus_of(gpu)
    which = f", cuda:{gpu.index} of {len(gpus)} GPUs" if len(gpus) > 1 else ""
    lines = [
        f"Simulated {spec.title} (vgpu, {spec.name}{which}): modelled times, nothing was measured",
        "",
        f"time     {seconds_text(elapsed)} of virtual time, device busy {gpu.utilization:.1%}; "
        f"{len(timeline)} kernels and copies",
        *_wrapped("host     ", _shares(host_seconds(gpu), elapsed)),
        *_memory(gpu),
        "",
        *_table(spec, ranking[:count], sum(entry.seconds for entry in ranking)),
    ]
    if len(ranking) > count:
        rest = sum(entry.seconds for entry in ranking[count:])
        lines.append(f"... and {len(ranking) - count} more operations, {rest * 1e3:.3f} ms together")
    bounds = {entry.bound for entry in ranking[:count]}
    lines += [
        f"{bound}: {note.format(seconds_text(spec.launch_seconds))}"
        for bound, note in _NOTES.items()
        if bound in bounds
    ]
    return "\n".join(lines)


def _shares(seconds: Mapping[str, float], elapsed: float) -> list[str]:
    """Words for where the main thread's time went, largest first."""
    if not elapsed:
        return ["nothing ran"]
    named = {_HOST.get(kind, kind): amount for kind, amount in seconds.items()}
    named["Python and clocks"] = max(elapsed - sum(seconds.values()), 0.0)
    parts = sorted(named.items(), key=lambda item: -item[1])
    return [f"{words} {amount / elapsed:.1%}" for words, amount in parts if amount / elapsed >= 0.0005]


def _memory(gpu: VirtualGPU) -> list[str]:
    allocator = gpu.memory.settled()
    lines = [
        f"memory   peak {bytes_text(allocator.peak('allocated_bytes'))} allocated, "
        f"{bytes_text(allocator.peak('reserved_bytes'))} reserved, of {bytes_text(gpu.spec.memory_bytes)}"
    ]
    by_category = getattr(gpu, "peak_by_category", None)
    split: Mapping[str, int] = by_category() if by_category is not None else {}
    parts = [f"{name.replace('_', ' ')} {bytes_text(size)}" for name, size in split.items() if size]
    return lines + (_wrapped("at peak  ", parts) if parts else [])


def _wrapped(label: str, parts: Sequence[str]) -> list[str]:
    """`label` and the parts, separated by commas, on as many lines as it takes."""
    lines, line = [], label
    for number, part in enumerate(parts):
        text = part + ("," if number + 1 < len(parts) else "")
        if len(line) + 1 + len(text) > _WIDTH and line.strip():
            lines.append(line.rstrip())
            line = " " * len(label)
        line += text + " "
    return [*lines, line.rstrip()]


def _table(spec: Spec, ranking: Sequence[Cost], seconds: float) -> list[str]:
    if not ranking:
        return ["no kernel was launched"]
    width = max(9, *(len(_label(entry.name)) for entry in ranking))
    head = (
        f"{'operation':<{width}} {'':<4} {'calls':>6} {'total ms':>9} {'share':>6} {'mean us':>8} "
        f"{'TFLOPS':>6} {'peak':>4} {'GB/s':>5} {'peak':>4}  bound by"
    )
    lines = [head, "-" * len(head)]
    for entry in ranking:
        flops, bytes_rate = entry.flops / entry.seconds, entry.bytes / entry.seconds
        arithmetic = (
            f"{flops / 1e12:>6.2f} {flops / _peak(spec, _LONG.get(entry.precision, 'float32')):>4.0%}"
            if entry.flops
            else f"{'-':>6} {'-':>4}"
        )
        on_board = entry.bound not in ("transfer", "link")
        share = f"{bytes_rate / spec.bandwidth_bytes_per_second:>4.0%}" if on_board else f"{'-':>4}"
        lines.append(
            f"{_label(entry.name):<{width}} {entry.precision:<4} {entry.calls:>6} {entry.seconds * 1e3:>9.3f} "
            f"{entry.seconds / seconds:>6.1%} {entry.seconds / entry.calls * 1e6:>8.2f} {arithmetic} "
            f"{bytes_rate / 1e9:>5.0f} {share}  {entry.bound}"
        )
    return lines


def _label(name: str) -> str:
    """A name that fits its column; "Memcpy HtoD (Pageable -> Device)" becomes "Memcpy HtoD (Pageable)"."""
    name = name.replace(" -> Device", "").replace("Device -> ", "")
    return name if len(name) <= _NAME_WIDTH else f"{name[: _NAME_WIDTH - 2]}.."


def _peak(spec: Spec, dtype: str) -> float:
    return spec.peak_flops["tf32"] if dtype == "tf32" else cost.peak_flops(spec, dtype)
