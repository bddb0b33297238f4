"""Makes lanes with any number of events readable: single bars while distinguishable, else shares per time slot.

Pure Python. Not here: colours and axes (`vgpu.runtime.views.panels`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

# A lane of the picture is about 1200 pixels wide.
MOST_BARS = 400
SLOTS = 600


class Bar(NamedTuple):
    """One event of a lane; seconds since attach."""

    start: float
    end: float
    kind: str
    name: str


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit in which a span of `seconds` reads well, as (seconds per unit, name)."""
    for scale, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= 2 * scale:
            return scale, name
    return 1e-9, "ns"


def seconds_text(seconds: float) -> str:
    """A duration in its unit, with three digits."""
    scale, name = time_unit(2.001 * seconds) if seconds > 0 else (1e-6, "µs")
    return f"{seconds / scale:.3g} {name}"


def bytes_unit(size: float) -> tuple[int, str]:
    """The unit in which `size` bytes read well, as (bytes per unit, name)."""
    for scale, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= 2 * scale:
            return scale, name
    return 1, "bytes"


def bytes_text(size: float) -> str:
    """A number of bytes in its unit, with four digits at most."""
    scale, name = bytes_unit(size)
    return f"{size / scale:.4g} {name}"


def clipped(bars: Iterable[Bar], start: float, stop: float) -> list[Bar]:
    """The parts of the bars in the window."""
    inside = [bar for bar in bars if bar.end > start and bar.start < stop]
    return [bar._replace(start=max(bar.start, start), end=min(bar.end, stop)) for bar in inside]


def shares(bars: Iterable[Bar], start: float, stop: float, slots: int = SLOTS) -> Mapping[str, list[float]]:
    """For each kind, the share of every one of `slots` equal time slots that its bars fill (ratios)."""
    width = (stop - start) / slots
    rows: dict[str, list[float]] = {}
    for bar in clipped(bars, start, stop):
        row = rows.setdefault(bar.kind, [0.0] * slots)
        low, high = (bar.start - start) / width, (bar.end - start) / width
        first, last = int(low), min(int(high), slots - 1)
        if first >= last:
            row[min(first, slots - 1)] += high - low
            continue
        row[first] += first + 1 - low
        for slot in range(first + 1, last):
            row[slot] += 1.0
        row[last] += min(high - last, 1.0)
    return rows


def with_depth(bars: Sequence[Bar]) -> list[tuple[int, Bar]]:
    """Nested blocks with how deep each lies (0: in no other), for those of one thread."""
    open_until: list[float] = []
    blocks = []
    for bar in sorted(bars, key=lambda each: (each.start, -each.end)):
        while open_until and open_until[-1] <= bar.start:
            open_until.pop()
        blocks.append((len(open_until), bar))
        open_until.append(bar.end)
    return blocks


def gaps(bars: Iterable[Bar], start: float, stop: float) -> list[tuple[float, float]]:
    """When nothing ran between the first and the last of the bars in the window."""
    until: float | None = None
    spans = []
    for bar in sorted(clipped(bars, start, stop)):
        if until is not None and bar.start > until:
            spans.append((until, bar.start))
        until = bar.end if until is None else max(until, bar.end)
    return spans


def highest(
    samples: Sequence[tuple[float, tuple[float, ...]]], start: float, stop: float, slots: int = SLOTS
) -> list[tuple[float, tuple[float, ...]]]:
    """Of samples (time, values) in the order of time, those with the largest sum and the last of each slot.

    No peak is lost, and what holds at the end of a slot still does. The first sample may lie before the window.
    """
    if len(samples) <= 2 * slots:
        return list(samples)
    width = (stop - start) / slots
    kept: list[tuple[float, tuple[float, ...]]] = []
    slot_of_last = -1
    best: tuple[float, tuple[float, ...]] | None = None
    last: tuple[float, tuple[float, ...]] | None = None
    for sample in samples:
        slot = int((sample[0] - start) / width)
        if slot != slot_of_last and best is not None and last is not None:
            kept += [best] if best is last else [best, last]
            best = None
        slot_of_last, last = slot, sample
        if best is None or sum(sample[1]) > sum(best[1]):
            best = sample
    if best is not None and last is not None:
        kept += [best] if best is last else [best, last]
    return kept
