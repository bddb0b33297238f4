"""What the probes of several criteria are given and return."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from grader.shared.readings import Launch

Dtype = Literal["float32", "float16"]
Layout = Literal["plain", "view", "transposed"]
"""How an operand lies in memory: alone, in a wider tensor, or with its strides exchanged."""


class Activity(TypedDict):
    """What a call did on the device, by the virtual GPU's own record."""

    runs: list[Launch]
    """One for each launch of a Triton kernel; empty on a real GPU, which does not count."""
    library_flops: float
    """Of products that libraries computed, not these kernels."""
    kernels: list[str]
    """Names of all that a virtual GPU did."""
    copied_bytes: int
    """From the device to the host."""
    largest_elements: int
    """Of the largest tensor that any kernel was given."""


class Observed(Activity):
    """What a call returned, and what it did on the way."""

    output: Any
    """In float64: a tensor in the probe, an array in the check."""
    dtype: str
    shape: list[int]
    contiguous: bool
    seconds: float
    """Of the longest kernel of a virtual GPU."""


class Refusals(Activity):
    """By call, the name of the error that it raised; empty if it raised none. And what the sensible ones did."""

    calls: dict[str, str]
    """Those that make no sense."""
    sensible: dict[str, str]
    """Neighbours of these that do."""


class TritonErrors(TypedDict):
    """Whether Triton works on a machine at all."""

    errors: dict[str, str]
    """By dtype, what went wrong; empty if nothing did."""
