"""What a rank holds and sends (sections 5 and 7 of arXiv:1910.02054), and which share of messages is hidden."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from grader.sharding.analysis.cases import LargestCall, SentCall, Times


def memory(
    parameters: int,
    ranks: int,
    stage: int,
    *,
    parameter_bytes: int = 2,
    gradient_bytes: int = 2,
    optimizer_bytes: int = 12,
) -> dict[str, float]:
    """Bytes that a rank holds, by what they are for."""
    held = {
        "optimizer_bytes": optimizer_bytes * parameters / (ranks if stage > 0 else 1),
        "gradient_bytes": gradient_bytes * parameters / (ranks if stage > 1 else 1),
        "parameter_bytes": parameter_bytes * parameters / (ranks if stage > 2 else 1),
    }
    return {**held, "total_bytes": sum(held.values())}


def largest(call: LargestCall) -> float:
    """The number of parameters that fit, which need not be whole."""
    return call["memory_bytes"] / memory(1, call["ranks"], call["stage"])["total_bytes"]


def sent(call: SentCall) -> float:
    """Bytes that a rank sends in a step."""
    ranks, rounds = call["ranks"], 3 if call["stage"] == 3 else 2
    return rounds * call["parameters"] * call.get("element_bytes", 2) * (ranks - 1) / ranks


def hidden_share(communication: Times, computation: Times) -> float | None:
    """The share of the communication's time in which something is computed; None if nothing takes any time."""
    moments = sorted({moment for times in (communication, computation) for pair in times for moment in pair})
    total = hidden = 0.0
    for start, end in itertools.pairwise(moments):
        if _is_busy(communication, start, end):
            total += end - start
            hidden += (end - start) * _is_busy(computation, start, end)
    return hidden / total if total else None


def _is_busy(times: Sequence[Sequence[float]], start: float, end: float) -> bool:
    """Whether something is under way between two moments, between which nothing begins or ends."""
    return any(begin <= start and end <= until for begin, until in times)
