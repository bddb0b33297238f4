"""What the probes of several criteria are given and return."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

Dtype = Literal["float32", "float16"]
Layout = Literal["plain", "view", "transposed"]
"""How an operand lies in memory: alone, in a wider tensor, or with its strides exchanged."""


class Race(TypedDict):
    """Two programs of one launch at the same element, which nothing orders (`vgpu.Race`)."""

    argument: str
    element: int
    programs: list[int]
    accesses: list[str]


class Launch(TypedDict):
    """What one launch of a Triton kernel did (`vgpu.torch_integration.compiled.watching.KernelRun`)."""

    name: str
    programs: int
    memory_bytes: int
    read_bytes: int
    written_bytes: int
    flops: float
    tf32: bool
    strayed: int
    races: list[Race]


class Activity(TypedDict):
    """What a call did on the device."""

    runs: list[Launch]
    """One for each launch of a Triton kernel; empty on a real GPU, which does not count."""
    kernels: list[str]
    """Names of all that a virtual GPU did."""


class Observed(Activity):
    """What a call returned, and what it did on the way."""

    output: Any
    """In float64: a tensor in the probe, an array in the check."""
    dtype: str
    shape: list[int]
    contiguous: bool
    seconds: float
    """Of the longest kernel of a virtual GPU."""


class Refusals(TypedDict):
    """By call, the name of the error that it raised; empty if it raised none."""

    calls: dict[str, str]
    """Those that make no sense."""
    sensible: dict[str, str]
    """Neighbours of these that do."""


class TritonErrors(TypedDict):
    """Whether Triton works on a machine at all."""

    errors: dict[str, str]
    """By dtype, what went wrong; empty if nothing did."""
