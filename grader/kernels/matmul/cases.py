"""Matrices and tiles for the product, and what the probes return."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray

from grader.kernels.shared.cases import Dtype, Layout, Observed
from grader.shared.readings import Launch

if TYPE_CHECKING:
    from gradebox.run.input_generator import InputGenerator


class Tiles(TypedDict):
    """The size of tiles: rows and columns of the result, and elements along the inner side."""

    m: int
    n: int
    k: int


class Case(TypedDict):
    """One call of `matmul`, of the first [m, k] and [k, n] elements of the operands."""

    m: int
    n: int
    k: int
    dtype: Dtype
    left: Layout
    right: Layout
    tiles: Tiles | None
    """None: the student's function chooses."""


class Inputs(TypedDict):
    """What the probe `matmul` is given."""

    cases: list[Case]
    a: NDArray[np.float32]
    b: NDArray[np.float32]


class Runs(TypedDict):
    """What the probe `matmul` returns."""

    runs: list[Observed]


class TimingInputs(TypedDict):
    """What the probe `timings` is given."""

    sizes: list[int]
    """m, n and k."""
    candidates: list[Tiles]
    dtype: Dtype


class TimingRow(TypedDict):
    """One `labkit.results.TileTiming` of a student."""

    tiles: Tiles
    seconds: float


class Timings(TypedDict):
    """What the probe `timings` returns."""

    rows: list[TimingRow]
    device_seconds: list[float]
    """Of each candidate, from the device's timeline."""
    flops: float | None
    """Of products that the device computed in `time_tiles`; None on a real GPU."""


class ChoiceInputs(TypedDict):
    """What the probe `choice` is given."""

    sizes: list[list[int]]
    """m, n and k of each product."""
    dtype: Dtype


class ChoiceRun(TypedDict):
    """What `matmul` does with one size when no tiles are named."""

    first: list[Launch]
    """Launches of the first product."""
    second: list[Launch]
    """The same of the second."""
    seconds: float
    """Of the second."""
    each: list[float]
    """With each of the student's TILES."""
    launches: list[list[Launch]]
    """The same."""


class Choice(TypedDict):
    """What the probe `choice` returns."""

    tiles: list[Tiles]
    runs: list[ChoiceRun]


SMALL: Tiles = {"m": 16, "n": 16, "k": 32}


def _case(m: int, n: int, k: int, *, dtype: Dtype = "float32", left: Layout = "plain", right: Layout = "plain",
          tiles: Tiles | None = None) -> Case:  # fmt: skip
    return {"m": m, "n": n, "k": k, "dtype": dtype, "left": left, "right": right, "tiles": tiles}


def sizes_types_and_strides(generator: InputGenerator) -> Inputs:
    """Sides that no tile fits, both types, views and transposed operands, and a long inner side."""
    tiles: Tiles = {"m": 32, "n": 64, "k": 16}
    cases = [
        _case(generator.odd(33, 65), generator.odd(67, 99), generator.odd(35, 61), tiles=tiles),
        _case(generator.odd(17, 31), 32, 64, left="transposed", tiles=tiles),
        _case(32, generator.odd(17, 31), 33, right="transposed", tiles=SMALL),
        _case(20, 24, generator.odd(41, 63), dtype="float16", left="view", tiles=tiles),
        _case(40, 17, 31, dtype="float16", right="view", tiles=SMALL),
        _case(generator.odd(3, 9), 1, generator.odd(3, 9)),
        _case(16, 16, generator.odd(1901, 2047), dtype="float16", tiles={"m": 16, "n": 16, "k": 16}),
    ]
    return {"cases": cases, "a": generator.normal(99, 2047), "b": generator.normal(2047, 99)}


def sides_with_and_without_a_rest(generator: InputGenerator) -> Inputs:
    """One product whose sides no tiles fit, and two that they do; the same for all checks that count."""
    generator = generator.shared("kernels.matmul.counted")
    some: list[Tiles] = [{"m": 32, "n": 64, "k": 32}, {"m": 64, "n": 16, "k": 64}]
    first, other = generator.shuffled(some)
    cases = [
        _case(generator.odd(67, 95), generator.odd(35, 61), generator.odd(35, 61), tiles=first),
        _case(128, 128, 128, tiles=first),
        _case(128, 64, 128, tiles=other),
    ]
    return {"cases": cases, "a": generator.normal(128, 128), "b": generator.normal(128, 128)}


def tiles_to_time(generator: InputGenerator, *, simulated: bool) -> TimingInputs:
    """A small product on a simulated device, which tells exact times, and a large one on a real card."""
    candidates: list[Tiles] = [SMALL, {"m": 32, "n": 32, "k": 64}, {"m": 64, "n": 64, "k": 64}]
    return {
        "sizes": [128, 128, 64] if simulated else [2048, 2048, 2048],
        "candidates": generator.shuffled(candidates),
        "dtype": "float32",
    }


def sizes_to_choose_for(generator: InputGenerator) -> ChoiceInputs:
    """Two that differ in the inner side only, and one for which large tiles are faster."""
    inner = generator.shuffled([32, 64])
    # In float16 a T4 takes 3.1 microseconds for the last one with tiles of 32 x 32, and 2.5 with larger ones.
    return {"sizes": [[128, 64, inner[0]], [128, 64, inner[1]], [256, 512, 128]], "dtype": "float16"}
