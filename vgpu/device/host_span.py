"""What a host thread did, from when to when: for pictures, traces and recordings."""

from __future__ import annotations

from typing import NamedTuple


class HostSpan(NamedTuple):
    """What a host thread did from `start` to `end` (seconds since attach), other than launching kernels.

    `kind` is "operation" (on CPU tensors), "metadata" (a view, an allocation), "module" (calling one), "wait" (for the
    device or a thread), "sleep", "load" (waiting for a data loader), "start" (CUDA context, library handles),
    "communication", or "region": a block that the program named (`record_function`, NVTX ranges) and that contains
    others.
    """

    kind: str
    name: str
    start: float
    end: float
    thread: str
