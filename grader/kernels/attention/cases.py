"""Queries, keys and values for attention, and what the probes return."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray

from grader.kernels.shared.cases import Activity, Dtype, Observed

if TYPE_CHECKING:
    from gradebox.run.input_generator import InputGenerator

LONG, WIDTH = 512, 32
"""Of the attention whose operations are counted: with tiles of 128, as large as they come, a causal mask leaves 10 of
16 tiles."""


class Case(TypedDict):
    """One call of `flash_attention`, of the first elements of the operands in each direction."""

    batch: int
    heads: int
    length: int
    width: int
    dtype: Dtype
    causal: bool
    factor: float
    """Of the queries."""
    transposed: bool
    """Whether operands are views with other strides."""
    summed: bool
    """Whether the output is summed, so that its gradient is 1 everywhere."""
    backward: bool
    """Whether there is a backward pass."""


class Operands(TypedDict):
    """Query, key, value, and the gradient of the output."""

    q: NDArray[np.float32]
    k: NDArray[np.float32]
    v: NDArray[np.float32]
    gradient: NDArray[np.float32]


class Inputs(Operands):
    """What the probe `attend` is given."""

    cases: list[Case]


class Run(TypedDict, total=False):
    """What the probe `attend` returns for each case; what is about gradients only if they were asked for."""

    forward: Observed
    unchanged: bool
    """Whether the operands are what they were."""
    backward: Activity
    no_gradients: str
    """Why there are none."""
    d_query: NDArray[np.float64]
    d_key: NDArray[np.float64]
    d_value: NDArray[np.float64]


class Runs(TypedDict):
    """What the probe `attend` returns."""

    runs: list[Run]


class MemoryInputs(TypedDict):
    """What the probe `memory` is given."""

    length: int
    width: int
    causal: bool


class Memory(TypedDict):
    """What the probe `memory` returns."""

    added_bytes: int
    flops: float
    """Of all products that the device computed."""
    copied_bytes: int
    """From the device to the host."""


def _case(length: int, *, batch: int = 1, heads: int = 1, width: int = 16, dtype: Dtype = "float32",
          causal: bool = False, factor: float = 1.0, transposed: bool = False, summed: bool = False,
          backward: bool = True) -> Case:  # fmt: skip
    return {
        "batch": batch, "heads": heads, "length": length, "width": width, "dtype": dtype, "causal": causal,
        "factor": factor, "transposed": transposed, "summed": summed, "backward": backward,
    }  # fmt: skip


def _inputs(generator: InputGenerator, cases: list[Case], *shape: int) -> Inputs:
    return {"cases": cases, "q": generator.normal(*shape), "k": generator.normal(*shape), "v": generator.normal(*shape),
            "gradient": generator.normal(*shape)}  # fmt: skip


def lengths_types_and_masks(generator: InputGenerator) -> Inputs:
    """Lengths below and above a tile, both types, masks, views, large scores; both passes are judged of these calls."""
    generator = generator.shared("kernels.attention.values")
    short, long = generator.odd(5, 15), generator.odd(131, 147)
    cases = [
        _case(long, causal=True),
        _case(generator.odd(65, 99), batch=2, heads=2, width=32, transposed=True),
        _case(generator.odd(65, 99), width=64, dtype="float16", causal=True, transposed=True),
        _case(short, heads=2, causal=generator.integer(0, 1) == 1, summed=True),
        _case(64, width=128, factor=100.0, backward=False),
        _case(128, causal=True, heads=2, dtype="float16", backward=False),
        _case(1, causal=True),
    ]
    return _inputs(generator, cases, 2, 2, 147, 128)


def long_sequences(generator: InputGenerator) -> Inputs:
    """An odd length, and a long one without and with a mask; the same for all checks that count."""
    generator = generator.shared("kernels.attention.counted")
    cases = [
        _case(generator.odd(67, 99), heads=2, causal=True),
        _case(LONG, width=WIDTH),
        _case(LONG, width=WIDTH, causal=True),
    ]
    return _inputs(generator, cases, 1, 2, LONG, WIDTH)


def one_long_head(generator: InputGenerator) -> MemoryInputs:
    """So long that all scores together would stand out among what is allocated."""
    return {"length": generator.odd(1001, 1101), "width": 16, "causal": False}
