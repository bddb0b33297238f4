"""The shape of repetitions: of a list of times the slow part, the end against the beginning, and one that stands out.

A median says nothing of these. What sound machines show is in usual.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from cluster.acceptance.records import percentile

FEWEST = 4
FEWEST_TIMES = 20
"""Repetitions of which quarters are compared."""
LARGE_BYTES = 2**24
LATE = 3.0
"""Times the median, that the first step takes if it still chooses kernels."""
MOST_OF_FIRST = 2
"""Steps of a training that may choose kernels."""


def of_list(values: Sequence[float], path: str) -> Iterator[tuple[str, float]]:
    """Figures of a list of numbers, by their place."""
    if path.endswith("losses"):
        quarter = max(1, len(values) // 4)
        yield f"{path} in the last quarter", fmean(values[-quarter:])
        if first := fmean(values[:quarter]):
            yield f"{path} at the end of its start", fmean(values[-quarter:]) / first
        return
    own = values[MOST_OF_FIRST:] if path.endswith("own_seconds") and len(values) > 2 * FEWEST else values
    if path.endswith(("own_seconds", "alone_seconds")) and len(own) >= FEWEST and max(own[:1]) < LATE * median(own):
        # Of four it is the longest one, which may have been interrupted.
        name = "slow fifth" if len(own) > FEWEST else "slow one of few"
        yield f"{path} {name} of the median", percentile(own, 80) / median(own)
        yield from ((f"{path} {name}", value) for name, value in shape(own).items())
    elif path.endswith("seconds") and len(own) >= FEWEST and "slowed" not in path:
        yield from ((f"{path} {name}", value) for name, value in shape(own).items())
    if len(values) >= FEWEST_TIMES and (low := percentile(values, 25)):
        yield f"{path} quarter", percentile(values, 75) / low


def shape(times: Sequence[float]) -> dict[str, float]:
    """The slow ones, and the end, against the usual."""
    half, usual = len(times) // 2, median(times)
    # Of few, one that was interrupted moves the median of a half.
    percent = 50 if half >= FEWEST else 25
    early, late = percentile(times[:half], percent), percentile(times[-half:], percent)
    if not usual or not early:
        return {}
    ordered = sorted(times)
    return {
        "late half of the early one": late / early,
        # One may be interrupted; what the others take more than usual costs that share of the rate.
        "mean without the longest of the median": fmean(ordered[:-1]) / usual,
        "longest but one of the median": ordered[-2] / usual,
        "longest of the median": ordered[-1] / usual,
    }


def of_messages(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """Figures of all operations: of small messages the one unlike the others, of large ones the worst shape."""
    least = min(row["bytes"] for row in rows)
    small = {row["operation"]: median(row["seconds"]) for row in rows if row["bytes"] == least}
    middle = median(small.values())
    # One that is far from the others, on whichever side.
    worst = max(small.values(), key=lambda value: max(value / middle, middle / value))
    yield "collectives of 1 KiB of the other operations", worst / middle
    for size, chosen in (("large", [row for row in rows if row["bytes"] >= LARGE_BYTES]),
                         ("small", [row for row in rows if row["bytes"] < LARGE_BYTES])):  # fmt: skip
        lists = [row["seconds"] for row in chosen if len(row["seconds"]) >= FEWEST]
        if size == "large" and lists:
            spread = max(percentile(own, 75) / percentile(own, 25) for own in lists)
            yield "collectives of large messages, slow quarter of the quick one", spread
        shapes = [shape(own) for own in lists]
        for name in shapes[0] if shapes else ():
            yield f"collectives of {size} messages, {name}", max(own[name] for own in shapes)
