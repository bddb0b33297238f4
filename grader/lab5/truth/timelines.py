"""Made-up timelines, and the judge's own account of where their time goes: on a grid of moments, in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradebox.run.input_generator import InputGenerator

NAMES = ("compute", "communication", "data", "transfer", "sync", "launch")
GRID_SECONDS = 1e-6
"""Edges of what runs on the device fall on every other moment of the grid, those of waits between them: none touch."""
_LENGTH = 4000


def timeline(generator: InputGenerator) -> dict[str, Any]:
    """Intervals of all kinds in a window, unsorted, overlapping, some of them reaching beyond the window."""
    offset = 2 * generator.integer(10_000, 90_000)

    def spans(count: int, shortest: int, longest: int, odd: int = 0) -> list[list[float]]:
        starts = [2 * generator.integer(-200, _LENGTH // 2) + odd for _ in range(count)]
        lengths = [2 * generator.integer(shortest, longest) for _ in range(count)]
        return [
            [(offset + start) * GRID_SECONDS, (offset + start + length) * GRID_SECONDS]
            for start, length in zip(starts, lengths, strict=True)
        ]

    return {
        "start": offset * GRID_SECONDS,
        "stop": (offset + _LENGTH) * GRID_SECONDS,
        "steps": generator.integer(2, 7),
        "kernels": spans(12, 10, 60),
        "collectives": spans(3, 40, 100),
        "copies_in": spans(4, 20, 60),
        "copies_out": spans(2, 5, 10, odd=1),
        "waits": spans(4, 2, 20, odd=1),
        "regions": {"data": spans(3, 30, 120), "transfer": spans(3, 20, 50), "forward": spans(3, 50, 300)},
    }


def wait_inside(generator: InputGenerator, region: str) -> dict[str, Any]:
    """One gap between two kernels, longer than a region in it, and a wait in the middle of that region.

    The wait is the region's, and the rest of the gap nobody's: random intervals seldom show that apart.
    """
    edges = [0, 2 * generator.integer(50, 200)]
    for _ in range(4):
        edges.append(edges[-1] + 2 * generator.integer(50, 200))
    offset = 2 * generator.integer(10_000, 90_000)
    marks = [(offset + edge) * GRID_SECONDS for edge in edges]
    wait = [marks[2] + 9 * GRID_SECONDS, marks[2] + 2 * generator.integer(10, 40) * GRID_SECONDS]
    return {
        "start": marks[0],
        "stop": marks[5],
        "steps": generator.integer(2, 7),
        "kernels": [marks[:2], marks[4:]],
        "collectives": [],
        "copies_in": [],
        "copies_out": [],
        "waits": [wait],
        "regions": {"data": [], "transfer": [], region: [marks[2:4]]},
    }


def nothing_ran(generator: InputGenerator, *, waited: bool) -> dict[str, Any]:
    """One gap from start to stop, in which the host waits for a moment, or never."""
    given = wait_inside(generator, "data")
    begin = given["start"] + 9 * GRID_SECONDS
    waits = [[begin, begin + 6 * GRID_SECONDS]] if waited else []
    return {**given, "kernels": [], "waits": waits, "regions": {"data": [], "transfer": []}}


def account(given: Mapping[str, Any]) -> dict[str, float]:
    """Seconds per step of each of `NAMES`, moment by moment."""
    start, stop = given["start"], given["stop"]
    edges = [start, stop, *(edge for spans in _all(given) for span in spans for edge in span)]
    cuts = np.unique(np.clip(np.asarray(edges, dtype=np.float64), start, stop))
    lengths, middles = np.diff(cuts), (cuts[1:] + cuts[:-1]) / 2

    def during(spans: Sequence[Sequence[float]]) -> Any:
        inside = np.zeros(len(middles), dtype=bool)
        for begin, end in spans:
            inside |= (begin < middles) & (middles < end)
        return inside

    data, moving = during(given["regions"]["data"]), during(given["regions"]["transfer"])
    compute = during(given["kernels"])
    communication = during(given.get("collectives", ())) & ~compute
    idle = ~compute & ~communication
    waiting = during([*given["waits"], *given["copies_out"]]) & ~data & ~moving
    number = np.cumsum(np.concatenate(([0], np.diff(idle.astype(int)) != 0)))  # of the gap, or of what lies between
    waited = idle & np.isin(number, number[idle & waiting])
    masks = [compute, communication, idle & data]
    masks.append(idle & ~data & (moving | during(given["copies_in"])))
    rest = idle & ~masks[2] & ~masks[3]
    masks += [rest & waited, rest & ~waited]
    return {name: float(lengths[mask].sum()) / given["steps"] for name, mask in zip(NAMES, masks, strict=True)}


def _all(given: Mapping[str, Any]) -> list[Sequence[Sequence[float]]]:
    names = ("kernels", "collectives", "copies_in", "copies_out", "waits")
    return [given[name] for name in names if name in given] + list(given["regions"].values())


def device_time(generator: InputGenerator, **shares: float) -> dict[str, float]:
    """A made-up step with these shares of it; what is left is computing."""
    step = generator.log_uniform(1e-3, 1.0)
    shares = {name: shares.get(name, 0.0) for name in NAMES[1:]}
    shares["compute"] = 1 - sum(shares.values())
    return {f"{name}_seconds": share * step for name, share in shares.items()}
