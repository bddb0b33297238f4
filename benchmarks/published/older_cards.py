"""The constants of a V100, a T4 and an A100 fitted again to a part of others' tables, and the errors of the rest.

Convolutions have constants of their kernels, which both older cards share; products and layers have the share of each
card's peaks and memory that large kernels reach. Rows are left out by halves of the shapes (all cards, types and passes
of a shape at once), by kinds, and by cards. Not here: the tables, and what is made of the errors (`held_out`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import vgpu
from benchmarks import leave_out
from benchmarks.measured import fitting
from benchmarks.measured.fitting import Constant, attribute, entry
from vgpu.device import convolution_cost, cost
from vgpu.runtime.operations import traffic

SPLITS = ("half left out", "kind left out", "card left out")
# What of its data sheet a card reaches, as one would say without any figure.
_REACHED = 0.85
PRECISIONS = {"T4": ("float32", "float16"), "V100": ("float32", "float16"), "A100-80GB": ("tf32", "bfloat16")}
_MEMORY = "memory"


@dataclass(frozen=True)
class Timed:
    """A kernel that a table has: what it is left out with, what the card took, and what it takes here."""

    shape: str
    kind: str
    gpu: str
    measured: float
    price: Callable[[], float]


def of_convolutions() -> list[Constant]:
    """Those fitted to DeepBench's convolutions, each with what one would say without them."""
    of = convolution_cost
    known = [
        # F(2 x 2, 3 x 3) saves a factor of 2.25, F(4 x 4, 3 x 3) one of 4.
        entry(of.WINOGRAD_GAIN, "2 x 2", 2.25, "gain of Winograd, 2 x 2"),
        entry(of.WINOGRAD_GAIN, "4 x 4", 4.0, "gain of Winograd, 4 x 4"),
        entry(of.WINOGRAD_CHANNELS, "2 x 2", 32.0, "channels of Winograd, 2 x 2"),
        entry(of.WINOGRAD_CHANNELS, "4 x 4", 64.0, "channels of Winograd, 4 x 4"),
        attribute(of, "STRIDED_INPUT_RATIO", 0.5),
    ]
    known += [
        entry(of.WEIGHT_RATIO, kernels, 1.0, f"gradient of filters, {kernels}")
        for kernels in ("cuda cores", "cuda cores 1 x 1", "turing")
    ]
    known.append(entry(of.FILL_SECONDS, "cuda cores", 1e-6, "a tile's wait, cuda cores"))
    return known


def of_rows() -> list[Constant]:
    """Those of kernels that work on rows, fitted to Liger-Kernel's layers; each with what one would say without."""
    return [
        attribute(cost, "_ROWS_HOLD_HALF", 1.0),  # as much as the cache has
        attribute(cost, "_ROWS_FALL", 0.4),
        attribute(traffic, "_SELECT_CYCLES", 1.0),
        attribute(traffic, "_LOAD_CYCLES", 250.0),
    ]


class Cards:
    """What of its peaks and of its memory's bandwidth each card reaches, which a fit may change."""

    def __init__(self) -> None:
        self._reached: dict[str, dict[str, float]] = {}
        for gpu, precisions in PRECISIONS.items():
            spec = vgpu.get_spec(gpu)
            reached = {name: cost.attained_ratio(spec, name, tf32=name == "tf32") for name in precisions}
            self._reached[gpu] = {**reached, _MEMORY: spec.bandwidth_efficiency_ratio}

    def constants(self) -> list[Constant]:
        """All of them."""
        return [
            entry(reached, name, _REACHED, f"{gpu}: {name}")
            for gpu, reached in self._reached.items()
            for name in reached
        ]

    def spec(self, gpu: str) -> vgpu.Spec:
        """The card as the fit has it now."""
        spec, reached = vgpu.get_spec(gpu), self._reached.get(gpu)
        if reached is None:
            return spec
        clocks = {name: reached[name] / spec.product_efficiency_ratio for name in reached if name != _MEMORY}
        return replace(
            spec,
            bandwidth_efficiency_ratio=reached[_MEMORY],
            sustained_clock_ratio={**spec.sustained_clock_ratio, **clocks},
        )


def errors(rows: Sequence[Timed], known: Sequence[Constant]) -> Mapping[str, leave_out.Array]:
    """By what was left out: the error of each row, as the logarithm of measured over predicted."""
    fit = fitting.Fit([row.measured for row in rows], lambda chosen: [rows[index].price() for index in chosen], known)
    parts = {
        "half left out": list(leave_out.halves(leave_out.by(row.shape for row in rows))),
        "kind left out": leave_out.by(row.kind for row in rows),
        "card left out": leave_out.by(row.gpu for row in rows),
    }
    found = {
        name: leave_out.errors(parts[name], len(rows), lambda places, asked: fit.errors(fit.fitted_to(places), asked))
        for name in SPLITS
    }
    return {"nothing fitted": fit.errors(fit.priors, range(len(rows))), **found}


def ratio(error: float) -> float:
    """Measured over predicted."""
    return round(math.exp(error), 4)
