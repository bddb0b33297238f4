"""The judge's own account of where a timeline's time goes: on a grid of moments, in NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from grader.lab5.profiling.cases import Span, TimelineCase
from grader.lab5.profiling.cases.drawn import NAMES


def account(timeline: TimelineCase) -> dict[str, float]:
    """Seconds per step of each of `NAMES`, moment by moment."""
    start, stop = timeline.start, timeline.stop
    edges = [start, stop, *(edge for spans in _all(timeline) for span in spans for edge in span)]
    cuts = np.unique(np.clip(np.asarray(edges, dtype=np.float64), start, stop))
    lengths, middles = np.diff(cuts), (cuts[1:] + cuts[:-1]) / 2

    def during(spans: Iterable[Span]) -> NDArray[np.bool_]:
        inside = np.zeros(len(middles), dtype=bool)
        for begin, end in spans:
            inside |= (begin < middles) & (middles < end)
        return inside

    data, moving = during(timeline.regions["data"]), during(timeline.regions["transfer"])
    compute = during(timeline.kernels)
    communication = during(timeline.collectives) & ~compute
    idle = ~compute & ~communication
    waiting = during([*timeline.waits, *timeline.copies_out]) & ~data & ~moving
    number = np.cumsum(np.concatenate(([0], np.diff(idle.astype(int)) != 0)))  # of the gap, or of what lies between
    waited = idle & np.isin(number, number[idle & waiting])
    masks = [compute, communication, idle & data]
    masks.append(idle & ~data & (moving | during(timeline.copies_in)))
    rest = idle & ~masks[2] & ~masks[3]
    masks += [rest & waited, rest & ~waited]
    return {name: float(lengths[mask].sum()) / timeline.steps for name, mask in zip(NAMES, masks, strict=True)}


def _all(timeline: TimelineCase) -> list[Sequence[Span]]:
    return [
        timeline.kernels,
        timeline.collectives,
        timeline.copies_in,
        timeline.copies_out,
        timeline.waits,
        *timeline.regions.values(),
    ]
