"""The constants of convolutions on a V100 and a T4, and how good they are where a table of others is left out.

The convolutions of DeepBench's table are left out by halves of its shapes (both cards, types and passes of a shape at
once), by kinds of window, and by cards. Not here: the table, and what is made of the errors (`held_out`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks import leave_out
from benchmarks.measured import fitting
from benchmarks.measured.fitting import Constant, attribute, entry
from vgpu.device import convolution_cost

SPLITS = ("half left out", "window left out", "card left out")


@dataclass(frozen=True)
class Timed:
    """A convolution that a table has: who it is left out with, what the card took, and what it takes here."""

    shape: str
    window: str
    gpu: str
    measured: float
    price: Callable[[], float]


def constants() -> list[Constant]:
    """Those fitted to the table, each with what one would say without it."""
    cost = convolution_cost
    known = [
        # F(2 x 2, 3 x 3) saves a factor of 2.25, F(4 x 4, 3 x 3) one of 4.
        entry(cost.WINOGRAD_GAIN, "cuda cores", 2.0, "gain of Winograd"),
        entry(cost.WINOGRAD_GAIN, "cuda cores weight", 4.0, "gain of Winograd, filters"),
        entry(cost.WINOGRAD_CHANNELS, "cuda cores", 32.0, "channels of Winograd"),
        entry(cost.WINOGRAD_CHANNELS, "cuda cores weight", 64.0, "channels of Winograd, filters"),
        attribute(cost, "STRIDED_INPUT_RATIO", 0.5),
    ]
    known += [
        entry(cost.WEIGHT_RATIO, kernels, 1.0, f"gradient of filters, {kernels}")
        for kernels in ("cuda cores", "cuda cores 1 x 1", "turing")
    ]
    known.append(entry(cost.FILL_SECONDS, "cuda cores", 1e-6, "a tile's wait, cuda cores"))
    return known


def errors(rows: Sequence[Timed]) -> Mapping[str, leave_out.Array]:
    """By what was left out: the error of each row, as the logarithm of measured over predicted."""
    fit = fitting.Fit(
        [row.measured for row in rows], lambda chosen: [rows[index].price() for index in chosen], constants()
    )
    parts = {
        "half left out": list(leave_out.halves(leave_out.by(row.shape for row in rows))),
        "window left out": leave_out.by(row.window for row in rows),
        "card left out": leave_out.by(row.gpu for row in rows),
    }
    found = {
        name: leave_out.errors(parts[name], len(rows), lambda known, asked: fit.errors(fit.fitted_to(known), asked))
        for name in SPLITS
    }
    return {"nothing fitted": fit.errors(fit.priors, range(len(rows))), **found}


def ratio(error: float) -> float:
    """Measured over predicted."""
    return round(math.exp(error), 4)
