"""Matrices for the softmax, and what the probe returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray

from grader.kernels.shared.cases import Dtype, Layout, Observed

if TYPE_CHECKING:
    from gradebox.run.input_generator import InputGenerator


class Case(TypedDict):
    """One call of `softmax`, of the first rows and columns of the values times `factor` plus `shift`."""

    rows: int
    columns: int
    dtype: Dtype
    layout: Layout
    factor: float
    shift: float
    hidden: int
    """So many columns, from the first on, are minus infinity."""


class Inputs(TypedDict):
    """What the probe `softmax` is given."""

    cases: list[Case]
    x: NDArray[np.float32]


class Run(Observed):
    """What the probe `softmax` returns for each case."""

    unchanged: bool
    """Whether the matrix is what it was."""


class Runs(TypedDict):
    """What the probe `softmax` returns."""

    runs: list[Run]


def _case(rows: int, columns: int, *, factor: float = 1.0, shift: float = 0.0, hidden: int = 0,
          dtype: Dtype = "float32", layout: Layout = "plain") -> Case:  # fmt: skip
    return {"rows": rows, "columns": columns, "dtype": dtype, "layout": layout, "factor": factor, "shift": shift,
            "hidden": hidden}  # fmt: skip


def widths_types_and_sizes(generator: InputGenerator) -> Inputs:
    """Rows of any width, of large values, of values far from zero, and with columns that are minus infinity."""
    cases: list[Case] = [
        _case(generator.odd(5, 9), generator.odd(101, 499)),
        _case(generator.odd(5, 9), generator.odd(101, 499), layout="view"),
        _case(3, generator.odd(601, 999), factor=100.0),
        # If a zero beyond the row is the largest, nothing of the row is left.
        _case(3, generator.odd(261, 399), shift=-generator.uniform(250, 350)),
        # If minus ten thousand beyond the row, or a hundred thousand, is the largest.
        _case(3, generator.odd(261, 399), factor=4.0, shift=-generator.uniform(2e5, 4e5)),
        _case(4, generator.odd(41, 99), factor=-100.0, dtype="float16"),
        _case(3, 256, hidden=generator.integer(3, 250), layout="view"),
        _case(3, generator.odd(2051, 4001), dtype="float16"),
        _case(3, generator.odd(41, 99), dtype="float16", layout="view"),
        _case(5, 1),
    ]
    return {"cases": cases, "x": generator.normal(9, 4001)}


def many_columns(generator: InputGenerator) -> Inputs:
    """A matrix large enough that what a program wastes shows; the same for all checks that count."""
    generator = generator.shared("kernels.softmax.counted")
    cases = [_case(generator.integer(21, 29), generator.odd(1301, 1901))]
    return {"cases": cases, "x": generator.normal(29, 1901)}
