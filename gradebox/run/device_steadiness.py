"""Is a real device's pace even enough to judge what was measured on it?

Asked only after a check has failed twice by what it measured. The course's probe repeats the same work many times; on a
device that nobody else uses each takes the same time. Not for whether the device works at all
(`gradebox.run.device_trial`).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from gradebox.run.device_use import DeviceUse
from gradebox.sandbox import Request, Sandbox

_UNEVEN = {"device": 1.25, "host": 1.6}
"""Ratio of the ninth decile of the times to the first. Two processes on one card take turns, so that some rounds take
at least twice as long; a host is preempted now and then even when nothing else runs, so it has more room."""
_FEWEST = 10


def problem(use: DeviceUse, sandbox: Sandbox, pace: str) -> str:
    """How the device's pace is uneven, by the course's probe `pace`; empty if it is even, or unknown."""
    if not pace or not use.is_shared:
        return ""
    reply = use.run(Request(pace, device=use.device, student=False), sandbox).reply
    if reply.kind != "ok":
        return ""
    return "; ".join(text for what in _UNEVEN if (text := _uneven(what, reply.value)))


def _uneven(what: str, value: Any) -> str:
    seconds: Sequence[float] = value.get(f"{what}_seconds", ())
    if len(seconds) < _FEWEST:
        return ""
    deciles = statistics.quantiles(seconds, n=10)
    if deciles[-1] <= _UNEVEN[what] * deciles[0]:
        return ""
    return f"the same work of the {what} took between {deciles[0] * 1e6:.0f} µs and {deciles[-1] * 1e6:.0f} µs"
