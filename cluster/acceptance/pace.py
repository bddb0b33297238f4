"""Figures of repetitions of one thing, which a worker records instead of thousands of times. No PyTorch here."""

from bisect import bisect_right
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from cluster.acceptance.records import percentile

SLOW = 1.25
"""Times the quick quarter: a repetition that takes longer counts as slow."""
SPARED_SHARE, MOST_SPARED = 1 / 200, 3
"""Of the repetitions the longest are left out of the mean, one at least: a host interrupts every program sometimes."""


def summary(seconds: Sequence[float]) -> dict[str, Any]:
    """Figures of the repetitions; the mean is without the longest ones, of which one or a few are nobody's fault."""
    ordered = sorted(seconds)
    spared = max(1, min(MOST_SPARED, int(SPARED_SHARE * len(ordered)))) if len(ordered) > 1 else 0
    quick = percentile(ordered, 25)
    return {
        "samples": len(ordered),
        **{f"p{percent}_seconds": percentile(ordered, percent) for percent in (25, 50, 95, 99)},
        "longest_seconds": ordered[-1],
        "mean_seconds": fmean(ordered[: len(ordered) - spared]),
        "slow_share": 1 - bisect_right(ordered, SLOW * quick) / len(ordered),
    }
