"""The course's own account of where a timeline's time goes: on a grid of moments, in NumPy; also by a mistake."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from grader.lab5.profiling.cases import Span, TimelineCase
from grader.lab5.profiling.cases.drawn import NAMES

MISTAKES = (
    "data_while_busy",
    "transfer_while_busy",
    "collectives_compute",
    "overlaps_twice",
    "of_all_steps",
    "wait_alone_is_sync",
    "waits_in_regions_are_sync",
    "waits_in_data_are_sync",
    "waits_in_transfer_are_sync",
    "copies_out_are_no_waits",
    "copies_in_left_out",
    "transfer_before_data",
)
"""What `account` can make of a timeline by mistake."""


def account(timeline: TimelineCase, mistake: str = "") -> dict[str, float]:
    """Seconds per step of each of `NAMES`, moment by moment; `mistake` is one of `MISTAKES`, or none."""
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
    if mistake == "collectives_compute":
        compute = compute | during(timeline.collectives)
    communication = during(timeline.collectives) & ~compute
    idle = ~compute & ~communication
    of_regions = {
        "waits_in_regions_are_sync": np.zeros_like(data),
        "waits_in_data_are_sync": moving,
        "waits_in_transfer_are_sync": data,
    }.get(mistake, data | moving)
    copies_out = [] if mistake == "copies_out_are_no_waits" else timeline.copies_out
    waiting = during([*timeline.waits, *copies_out]) & ~of_regions
    number = np.cumsum(np.concatenate(([0], np.diff(idle.astype(int)) != 0)))  # of the gap, or of what lies between
    waited = idle & (waiting if mistake == "wait_alone_is_sync" else np.isin(number, number[idle & waiting]))
    copied = moving if mistake == "copies_in_left_out" else moving | during(timeline.copies_in)
    first = copied if mistake == "transfer_before_data" else np.zeros_like(data)
    masks = [compute, communication, idle & data & ~first, idle & (first | (~data & copied))]
    rest = idle & ~masks[2] & ~masks[3]
    masks += [rest & waited, rest & ~waited]
    if mistake == "data_while_busy":
        masks[NAMES.index("data")] = data
    if mistake == "transfer_while_busy":
        masks[NAMES.index("transfer")] = copied & ~data
    steps = 1 if mistake == "of_all_steps" else timeline.steps
    times = {name: float(lengths[mask].sum()) / steps for name, mask in zip(NAMES, masks, strict=True)}
    if mistake == "overlaps_twice":
        times["compute"] = sum(end - begin for begin, end in timeline.kernels) / steps
    return times


def _all(timeline: TimelineCase) -> list[Sequence[Span]]:
    return [
        timeline.kernels,
        timeline.collectives,
        timeline.copies_in,
        timeline.copies_out,
        timeline.waits,
        *timeline.regions.values(),
    ]
