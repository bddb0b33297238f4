"""Vectors to add, and what the probe returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray

from grader.kernels.shared.cases import Dtype, Layout, Observed

if TYPE_CHECKING:
    from gradebox.run.input_generator import InputGenerator


class Case(TypedDict):
    """One call of `vector_add`, of the first elements of both vectors."""

    shape: list[int]
    dtype: Dtype
    layout: Layout


class Inputs(TypedDict):
    """What the probe `vector_add` is given."""

    cases: list[Case]
    x: NDArray[np.float32]
    y: NDArray[np.float32]


class Run(Observed):
    """What the probe `vector_add` returns for each case."""

    unchanged: bool
    """Whether the operands are what they were."""


class Runs(TypedDict):
    """What the probe `vector_add` returns."""

    runs: list[Run]


def lengths_types_and_shapes(generator: InputGenerator) -> Inputs:
    """Odd and even, one element and none, in both types, as views and with several sides."""
    cases: list[Case] = [
        {"shape": [generator.odd(4801, 5501)], "dtype": "float32", "layout": "plain"},
        {"shape": [generator.odd(801, 1201)], "dtype": "float32", "layout": "view"},
        {"shape": [generator.integer(2, 9), generator.odd(33, 99)], "dtype": "float16", "layout": "plain"},
        {"shape": [generator.odd(201, 399)], "dtype": "float16", "layout": "view"},
        {"shape": [8192], "dtype": "float16", "layout": "view"},
        {"shape": [1], "dtype": "float32", "layout": "plain"},
        {"shape": [0], "dtype": "float32", "layout": "plain"},
        {"shape": [3, generator.odd(5, 9), 7], "dtype": "float32", "layout": "plain"},
    ]
    return {"cases": cases, "x": generator.normal(8192), "y": generator.normal(8192)}


def long_vectors(generator: InputGenerator) -> Inputs:
    """Long enough that what a program wastes shows; the same for all checks that count."""
    generator = generator.shared("kernels.add.counted")
    cases: list[Case] = [{"shape": [generator.odd(40_001, 60_001)], "dtype": "float32", "layout": "plain"}]
    return {"cases": cases, "x": generator.normal(60_001), "y": generator.normal(60_001)}
