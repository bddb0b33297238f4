"""`gpu.save_trace`: the Trace Event Format that chrome://tracing, Perfetto and TensorBoard's plugin read.

Categories, flow arrows ("ac2g") and keys follow the traces of PyTorch's own profiler (libkineto,
`output_json.cpp`), so that tools for those read these; every file says that it is simulated. Format:
"Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
Not here: which events belong to the window (`vgpu.runtime.views.history`).
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgpu.device.host_span import HostSpan
from vgpu.device.queue import Kernel
from vgpu.runtime.attachment import machine
from vgpu.runtime.views import history
from vgpu.runtime.views.history import DeviceHistory, History

if TYPE_CHECKING:
    from vgpu.runtime.gpu import VirtualGPU

SUFFIXES = (".json", ".json.gz")
MARK = "simulated by vgpu - modelled, not measured"

# Ranks of one job keep apart when their files are merged.
_HOST_PID, _PIDS_PER_RANK = 10_000, 100
_BUSY_SLOTS = 200
_HOST_CATEGORIES = {
    "launch": "cpu_op", "operation": "cpu_op", "metadata": "cpu_op", "wait": "cuda_runtime", "start": "cuda_runtime",
    "sleep": "sleep", "load": "load", "communication": "communication", "region": "user_annotation",
}  # fmt: skip
# Launches come with their kernels; of calls of modules PyTorch's own traces have nothing either.
_IN_NO_TRACE = ("launch", "module")
_DEVICE_CATEGORIES = {"product": "kernel", "other": "kernel", "copy": "gpu_memcpy", "communication": "kernel"}


def check_path(path: str | os.PathLike[str]) -> Path:
    """The path, when its suffix names the format; raises ValueError."""
    checked = Path(path)
    if not checked.name.endswith(SUFFIXES):
        raise ValueError(f"{checked}: a trace ends in {' or '.join(SUFFIXES)}")
    return checked


def save(
    gpu: VirtualGPU,
    path: str | os.PathLike[str],
    *,
    start: float | None = None,
    stop: float | None = None,
    gpus: Sequence[int] | None = None,
) -> Path:
    """Write what happened between `start` and `stop` (seconds since attach; default: everything)."""
    checked = check_path(path)
    run = history.record(gpu, start=0.0 if start is None else start, stop=stop, gpus=gpus)
    write(document(gpu, run), checked)
    return checked


def write(trace: Any, path: str | os.PathLike[str]) -> None:
    """The same bytes for the same trace, compressed when the name ends in .gz."""
    data = json.dumps(trace, separators=(",", ":")).encode()
    Path(path).write_bytes(gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)


def document(
    gpu: VirtualGPU, run: History, shapes: bool = True, metadata: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The whole trace as it becomes JSON; `metadata` adds keys of the program."""
    rank, ranks = rank_and_size()
    events = [*_names(run, rank), *sorted(_events(run, rank, shapes), key=_order)]
    result: dict[str, Any] = {
        "schemaVersion": 1, "simulated": True, "simulator": "vgpu", "gpu": gpu.spec.name, "note": MARK,
        "displayTimeUnit": "ms",
        "deviceProperties": [_properties(each, number) for number, each in enumerate(history.gpus_of(gpu))],
    }  # fmt: skip
    if rank is not None:
        result["distributedInfo"] = {"rank": rank, "world_size": ranks}
    return {**result, **(metadata or {}), "traceEvents": events}


def rank_and_size() -> tuple[int | None, int]:
    """This process's rank among those of a distributed job, and their number; (None, 1) outside of one."""
    attached = machine()
    if attached is not None and attached.rank is not None:
        return attached.rank, attached.ranks
    if os.environ.get("RANK", "").isdigit() and os.environ.get("WORLD_SIZE", "").isdigit():
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return None, 1


def _properties(gpu: VirtualGPU, number: int) -> dict[str, Any]:
    major, minor = gpu.spec.compute_capability
    return {
        "id": number, "name": f"{gpu.spec.title} (simulated)", "totalGlobalMem": gpu.spec.memory_bytes,
        "computeMajor": major, "computeMinor": minor, "numSms": gpu.spec.multiprocessors,
    }  # fmt: skip


def _order(event: Mapping[str, Any]) -> tuple[float, float, int]:
    """By time; what contains others comes before them, and arrows after the slices that they bind to."""
    return event["ts"], -event.get("dur", 0.0), 0 if event["ph"] == "X" else 1


def _host_pid(rank: int | None) -> int:
    return _HOST_PID + (rank or 0)


def _device_pid(rank: int | None, index: int) -> int:
    return (rank or 0) * _PIDS_PER_RANK + index


def _threads(run: History) -> list[str]:
    names = dict.fromkeys([*run.threads, *run.regions])
    return sorted(names, key=lambda name: name != "MainThread")


def _names(run: History, rank: int | None) -> Iterator[dict[str, Any]]:
    """Metadata events: what the viewer shows next to each row, and in which order."""
    who = f"rank {rank} " if rank is not None else ""
    processes = [(_host_pid(rank), f"{who}host", "CPU", {n + 1: name for n, name in enumerate(_threads(run))})]
    for device in run.devices:
        streams = {stream: "default stream" if stream == 0 else f"stream {stream}" for stream in device.streams}
        title = f"{who}cuda:{device.index} {device.title}"
        processes.append((_device_pid(rank, device.index), title, f"GPU {device.index}", streams))
    for order, (pid, name, label, threads) in enumerate(processes):
        yield {
            "ph": "M",
            "pid": pid,
            "tid": 0,
            "ts": 0,
            "name": "process_name",
            "args": {"name": f"{name} (simulated)"},
        }
        yield {"ph": "M", "pid": pid, "tid": 0, "ts": 0, "name": "process_labels", "args": {"labels": label}}
        yield {"ph": "M", "pid": pid, "tid": 0, "ts": 0, "name": "process_sort_index", "args": {"sort_index": order}}
        for tid, thread in threads.items():
            yield {"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": "thread_name", "args": {"name": thread}}
            yield {"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": "thread_sort_index", "args": {"sort_index": tid}}


def _events(run: History, rank: int | None, shapes: bool) -> Iterator[dict[str, Any]]:
    tids = {name: number + 1 for number, name in enumerate(_threads(run))}
    pid = _host_pid(rank)
    for spans in (*run.regions.values(), *run.threads.values()):
        for span in spans:
            if span.kind not in _IN_NO_TRACE:
                yield _slice(span.name, _HOST_CATEGORIES.get(span.kind, span.kind), pid, tids[span.thread], span)
    # Flow ids are unique over all ranks' files.
    number = (rank or 0) << 32
    for device in run.devices:
        for stream, kernels in device.streams.items():
            for kernel in kernels:
                number += 1
                yield from _kernel(kernel, device.index, stream, number, pid, tids.get(kernel.thread, 0), rank, shapes)
        yield from _counters(run, device, _device_pid(rank, device.index))


def _kernel(
    kernel: Kernel, index: int, stream: int, number: int, pid: int, tid: int, rank: int | None, shapes: bool
) -> Iterator[dict[str, Any]]:
    """The launch on the host, the kernel on the device, and the arrow between them."""
    launch = HostSpan(
        "launch", kernel.name, kernel.launched_at, kernel.launched_at + kernel.host_seconds, kernel.thread
    )
    category = _DEVICE_CATEGORIES[history.kernel_kind(kernel)]
    device_pid = _device_pid(rank, index)
    on_host = _slice(host_name(kernel), "cpu_op", pid, tid, launch, {"correlation": number})
    if shapes and kernel.shapes:
        on_host["args"]["Input Dims"] = [list(shape) for shape in kernel.shapes]
    yield on_host
    arguments = {
        "correlation": number, "device": index, "stream": stream, "flops": kernel.flops, "bytes": kernel.bytes,
        "dtype": kernel.dtype, "simulated": True,
    }  # fmt: skip
    yield _slice(kernel.name, category, device_pid, stream, kernel, arguments)
    arrow = {"cat": "ac2g", "name": "ac2g", "id": number}
    # Both ends must lie within their slices: the launch's beginning always does.
    yield {**arrow, "ph": "s", "pid": pid, "tid": tid, "ts": _microseconds(kernel.launched_at)}
    yield {**arrow, "ph": "f", "bp": "e", "pid": device_pid, "tid": stream, "ts": _microseconds(kernel.start)}


def host_name(kernel: Kernel) -> str:
    """The operation that launched a kernel, as PyTorch's profiler calls it."""
    return "aten::copy_" if kernel.name.startswith("Memcpy") else kernel.name


def _slice(
    name: str, category: str, pid: int, tid: int, span: HostSpan | Kernel, arguments: dict[str, Any] | None = None
) -> dict[str, Any]:
    # Both ends are rounded, not the length: what follows without a gap must not overlap.
    begin, end = _microseconds(span.start), _microseconds(span.end)
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": begin, "dur": round(end - begin, 3),
        "args": arguments if arguments is not None else {},
    }  # fmt: skip


def _counters(run: History, device: DeviceHistory, pid: int) -> Iterator[dict[str, Any]]:
    """Memory after each change, and the busy share of slots of time."""

    def counter(name: str, moment: float, values: Mapping[str, float]) -> dict[str, Any]:
        at = _microseconds(max(moment, run.start))
        return {"ph": "C", "cat": "counter", "name": name, "pid": pid, "tid": 0, "ts": at, "args": dict(values)}

    for sample in device.memory:
        values = {"allocated": sample.allocated_bytes, "reserved": sample.reserved_bytes}
        yield counter("memory (bytes)", sample.seconds, values)
    for moment, split in device.categories:
        yield counter("memory by category (bytes)", moment, split)
    width = (run.stop - run.start) / _BUSY_SLOTS
    shares = history.busy_shares(device.kernels, run.start, run.stop, _BUSY_SLOTS)
    for slot, share in enumerate([*shares, 0.0]):
        yield counter("busy (%)", run.start + slot * width, {"busy": round(100 * share, 2)})


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
