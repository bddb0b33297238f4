"""The entries of a recording, in the order in which things happened. Plain lists: they become JSON as they are.

Threads, works and events are numbers; an event is something with an end that others may wait for: a launch, a meeting
of ranks, a batch of a data loader. Not here: who writes (`vgpu.runtime.recorder`), who reads
(`vgpu.device.recording.replay`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vgpu.device import cost
from vgpu.device.spec import Spec

Entry = list[Any]

LAUNCH = "launch"
"""[thread, gpu, stream, work, event, whether the host pays for the launch]"""
STREAM = "stream"
"""[thread, gpu, stream]: a stream was made."""
HOLD = "hold"
"""[gpu, stream, event, whether its start counts]: what comes next on the stream waits."""
HOLD_FOR = "hold for"
"""[thread, gpu, stream, seconds]: the same, for a time after now."""
SPEND = "spend"
"""[thread, key, seconds]: the host works. Work that depends on the card has a key of KEYS, else ""."""
WAIT = "wait"
"""[thread, event, whether its start counts]: the host waits."""
IDLE = "idle"
"""[thread, gpu, stream or None]: the host waits for all that is queued on a stream, or on the GPU."""
SLEEP = "sleep"
"""[thread, seconds]: the host waits for something that no card decides."""
SPAWN = "spawn"
"""[thread, new thread]"""
CALL = "call"
"""[thread, other]: one thread wakes another."""
WOKEN = "woken"
"""[thread]: a thread that waited goes on where it was called."""
MEET = "meet"
"""[thread, group, its ranks, host seconds, (gpu, stream, the group's own stream) or None, event or None, lag, seconds
after, event]: ranks wait for the latest of them, which came `lag` seconds after this one. What they do then takes so
many seconds, and is the event. On a GPU, the slowest of equal ranks is late by a share of what it did since LEVEL."""
LEVEL = "level"
"""[gpu]: a device's work has waited for other ranks."""
ASK = "ask"
"""[thread, loader, batch]: a batch is asked of a loader's workers."""
BATCH = "batch"
"""[thread, loader, batch, worker, its seconds, seconds of pinning, event]: a batch is needed, which a worker made."""
WORKERS = "workers"
"""[thread, loader, seconds until each worker begins]"""

KINDS = frozenset({
    LAUNCH, STREAM, HOLD, HOLD_FOR, SPEND, WAIT, IDLE, SLEEP, SPAWN, CALL, WOKEN, MEET, LEVEL, ASK, BATCH, WORKERS,
})  # fmt: skip

KEYS: dict[str, Callable[[Spec], float]] = {
    "metadata": lambda spec: spec.metadata_seconds,
    "optimizer": cost.optimizer_seconds,
    "autocast": cost.autocast_seconds,
    "module": cost.module_seconds,
    "synchronize": lambda spec: spec.synchronize_seconds,
    "context": lambda spec: spec.context_seconds,
    "blas": lambda spec: spec.blas_handle_seconds,
    "cudnn": lambda spec: spec.cudnn_handle_seconds,
    "blas again": lambda spec: spec.blas_handle_seconds / 10,
    "cudnn again": lambda spec: spec.cudnn_handle_seconds / 10,
}
"""What the host spends by the card's figures."""
START_UP = ("context", "blas", "cudnn", "blas again", "cudnn again")
