"""The data of pictures, traces and summaries of a run: host threads, streams, memory, busy shares, in one window.

Pure Python. Not here: how it is drawn (`vgpu.runtime.views.picture`), written (`vgpu.runtime.views.trace`) or summed up
(`vgpu.runtime.views.report`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from vgpu.device.host_span import HostSpan
from vgpu.device.queue import Kernel

if TYPE_CHECKING:
    from vgpu.runtime.gpu import VirtualGPU
    from vgpu.runtime.memory.device_memory import MemorySample

_Sample = TypeVar("_Sample", bound=tuple[Any, ...])

# The order in which memory is stacked and listed; `vgpu.runtime.memory.categories` may know others, which then come
# last.
CATEGORIES = ("parameters", "gradients", "optimizer_state", "activations", "workspaces", "other")


def kernel_kind(kernel: Kernel) -> str:
    """ "product", "other", "copy" or "communication": what a kernel keeps busy."""
    name = kernel.name
    if name.startswith(("Memcpy", "Memset")):
        return "copy"
    if name.startswith(("nccl", "c10d", "_c10d")):
        return "communication"
    return "product" if kernel.flops else "other"


@dataclass(frozen=True, slots=True)
class DeviceHistory:
    """One GPU in the window."""

    index: int
    title: str
    spec_name: str
    streams: Mapping[int, Sequence[Kernel]]
    memory: Sequence[MemorySample]
    categories: Sequence[tuple[float, Mapping[str, int]]]

    @property
    def kernels(self) -> list[Kernel]:
        """Those of all streams, one stream after the other."""
        return [kernel for stream in self.streams.values() for kernel in stream]


@dataclass(frozen=True, slots=True)
class History:
    """A run between `start` and `stop` (seconds since attach). `left_out` says what comes before, if anything."""

    start: float
    stop: float
    devices: Sequence[DeviceHistory]
    threads: Mapping[str, Sequence[HostSpan]]
    regions: Mapping[str, Sequence[HostSpan]]
    left_out: str = ""


def gpus_of(gpu: VirtualGPU) -> tuple[VirtualGPU, ...]:
    """All GPUs of its machine."""
    machine = getattr(gpu, "machine", None)
    return tuple(machine.gpus) if machine is not None else (gpu,)


def launches(kernels: Iterable[Kernel]) -> list[HostSpan]:
    """The host's side of kernels: how long each launch held its thread."""
    return [HostSpan("launch", k.name, k.launched_at, k.launched_at + k.host_seconds, k.thread) for k in kernels]


def record(
    gpu: VirtualGPU,
    *,
    start: float | None = None,
    stop: float | None = None,
    gpus: Sequence[int] | None = None,
    kernels: Sequence[Sequence[Kernel]] | None = None,
) -> History:
    """The history of `gpu`'s machine from `start` to `stop`, in seconds since attach.

    `gpus` chooses GPUs by index (default: those that did something). Without `start` the creation of the CUDA context
    and of library handles is left out when it comes first, since it would dwarf the rest. `kernels` are those of each
    GPU (default: all that ran). Raises ValueError for an empty window or a GPU that is not there.
    """
    known = gpus_of(gpu)
    if gpus is not None and not set(gpus) <= set(range(len(known))):
        raise ValueError(f"no such GPU: there are {len(known)}, and {list(gpus)} was asked for")
    spans = gpu.clock.spans
    timelines = [list(each.timeline) for each in known] if kernels is None else kernels
    everything = [kernel for timeline in timelines for kernel in timeline]
    begin, left_out = (start, "") if start is not None else _after_start_up(spans, everything)
    ends = [span.end for span in spans] + [kernel.end for kernel in everything] + [gpu.clock.now]
    end = stop if stop is not None else max(ends)
    if not begin < end:
        raise ValueError(f"nothing happened between {begin:.9g} s and {end:.9g} s of virtual time")
    shown = [index for index in range(len(known)) if timelines[index]] or [0]
    devices = [
        _device(known[index], index, timelines[index], begin, end) for index in (shown if gpus is None else gpus)
    ]
    host = [span for span in [*spans, *launches(everything)] if span.end > begin and span.start < end]
    # Of blocks with the same extent the outer one ends, and so is noted, last.
    host.reverse()
    host.sort(key=lambda span: (span.start, -span.end))
    threads: dict[str, list[HostSpan]] = {}
    regions: dict[str, list[HostSpan]] = {}
    for span in host:
        (regions if span.kind == "region" else threads).setdefault(span.thread, []).append(span)
    return History(begin, end, devices, threads, regions, left_out)


def _after_start_up(spans: Sequence[HostSpan], kernels: Sequence[Kernel]) -> tuple[float, str]:
    """Where a picture begins by default: after the start-up of context and libraries, when that came first."""
    starting = [span for span in spans if span.kind == "start"]
    if not starting or not kernels:
        return 0.0, ""
    end = max(span.end for span in starting)
    launched = [kernel.launched_at for kernel in kernels]
    # A library that is first used late in a run is part of the run.
    if sum(1 for moment in launched if moment >= end) * 2 < len(launched):
        return 0.0, ""
    return end, f"begins after start-up (context, library handles: {end:.3g} s); start=0 shows that too"


def _device(gpu: VirtualGPU, index: int, timeline: Sequence[Kernel], begin: float, end: float) -> DeviceHistory:
    streams: dict[int, list[Kernel]] = {}
    for kernel in timeline:
        if kernel.end > begin and kernel.start < end:
            streams.setdefault(kernel.stream, []).append(kernel)
    categories = [(float(moment), values) for moment, values in getattr(gpu, "category_timeline", ())]
    return DeviceHistory(
        index, gpu.spec.title, gpu.spec.name, dict(sorted(streams.items())),
        _windowed(gpu.memory_timeline, begin, end), _windowed(categories, begin, end),
    )  # fmt: skip


def _windowed(samples: Sequence[_Sample], begin: float, end: float) -> list[_Sample]:
    """The samples of the window, and the last one before it: that still holds when it begins."""
    ordered = sorted(samples, key=lambda sample: float(sample[0]))
    before = [sample for sample in ordered if sample[0] <= begin]
    inside = [sample for sample in ordered if begin < sample[0] <= end]
    return before[-1:] + inside


def busy_shares(kernels: Iterable[Kernel], start: float, stop: float, bins: int) -> list[float]:
    """Share of each of `bins` equal parts of the window in which at least one kernel ran (ratios)."""
    width = (stop - start) / bins
    shares = [0.0] * bins
    until = start
    for kernel in sorted(kernels, key=lambda each: each.start):
        low, high = max(kernel.start, until), min(kernel.end, stop)
        until = max(until, min(kernel.end, stop))
        if high <= low:
            continue
        first, last = int((low - start) / width), min(int((high - start) / width), bins - 1)
        for index in range(first, last + 1):
            left, right = start + index * width, start + (index + 1) * width
            shares[index] += max(0.0, min(high, right) - max(low, left)) / width
    return [min(share, 1.0) for share in shares]
