"""Calls of `benchmark_matmul`: what crosses the border to their probe and back, and in what they differ.

`drawn.py` draws them. Lab 1's criteria `benchmark` and `measurements` both ask for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Required, TypedDict

from gradebox.sandbox import Request
from gradebox.sandbox.probe_types import ProbeInputs
from grader.lab1.shared.cases.values import DTYPES, NOT_GIVEN
from grader.shared.dimensions import Case, Dimension, Space


class Call(TypedDict, total=False):
    """Arguments of one call of `benchmark_matmul`, which is given those that are there, and two words to the probe."""

    size: Required[int]
    iterations: int
    dtype: str
    device: str
    warmup: int
    as_object: bool
    """For the probe: the device is handed over as a `torch.device`."""
    busy: int
    """For the probe: so many products of the call's size are queued before it, whatever `busy_products` says."""


class Result(TypedDict):
    """A `MatmulResult` that a submission returned: each field may be anything that JSON can say."""

    device: object
    dtype: object
    size: object
    iterations: object
    seconds: object
    tflops: object


class ProductCount(TypedDict):
    """How often one product ran."""

    device: str
    dtype: str
    flops: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What one call of `benchmark_matmul` returned, and what ran meanwhile."""

    result: Result
    products: list[ProductCount]
    own_seconds: list[float] = field(default_factory=list)
    """On a real GPU, if the probe was asked for it: seconds per product as the course measured them."""
    host_seconds: float = 0.0
    """On a real GPU: what its host takes for a product that costs the device nothing."""
    tf32: bool = False
    elapsed_seconds: float = math.inf
    """From the call to its end, by the host's clock."""
    idle_at_start: bool | None = None
    """Whether the device was idle when the first timed product was launched; None if nobody knows."""


@dataclass(frozen=True, kw_only=True)
class MatmulReply:
    """What was observed of each call."""

    calls: list[Observation]


@dataclass(frozen=True, kw_only=True)
class Matmul(ProbeInputs[MatmulReply], probe="lab1.shared.benchmark.matmul"):
    """Calls of `benchmark_matmul`, one after the other."""

    calls: list[Call]
    warm: bool = False
    """Use the device before the first call, so that only the student's own mistakes cost time."""
    busy_products: int = 0
    """Before each call, queue this many products of the call's size without waiting for them."""
    with_own_seconds: bool = False
    """Also measure each product independently, around the student's call (real GPU only)."""


NAMES = ("cuda", "cuda as an object", "cuda:0", "cuda:0 as an object")
"""How one and the same GPU may be named in a call."""


def call_of(name: str, size: int, iterations: int | None = None) -> Call:
    """A call on the GPU of one of these names, with the iterations that are given by default unless some are named."""
    call: Call = {"size": size}
    device, _, as_object = name.partition(" as ")
    if iterations is not None:
        call["iterations"] = iterations
    if device != "cuda":
        call["device"] = device
    if as_object:
        call["as_object"] = True
    return call


class Hiccup(TypedDict):
    """A run of products that take `factor` times as long: `count` from the `first` on, after the warm-up."""

    first: int
    count: int
    factor: float


def _calls(request: Request) -> Iterator[Case]:
    """Calls on a GPU, with what their request says for all of them."""
    params = request.params
    disturbed = {condition["stage"] for condition in request.conditions if "stage" in condition}  # the first call's: 1
    for stage, call in enumerate(params["calls"], 1):
        if call.get("device") != "cpu":
            busy = call.get("busy", params["busy_products"])
            yield {**call, "busy": busy, "disturbed": stage in disturbed}


def _dtype(case: Case) -> str | None:
    name = case.get("dtype", NOT_GIVEN)
    return name if name in DTYPES else None


def _name(case: Case) -> str:
    return f"{case.get('device', 'cuda')}{' as an object' * bool(case.get('as_object'))}"


def _iterations(case: Case) -> str:
    count = case.get("iterations")
    if count is None:
        return NOT_GIVEN
    if count < 5:
        return "1" if count == 1 else "a few"
    return "no fives" if count % 5 else "fives"


def _warmup(case: Case) -> str:
    return NOT_GIVEN if "warmup" not in case else "some" if case["warmup"] else "0"


_DOZENS = "five measurements at least can bear two disturbed ones"
PRODUCTS = Space(
    probes=(Matmul.probe,),
    cases=_calls,
    dimensions=(
        Dimension("dtype", DTYPES, _dtype),
        Dimension("GPU", NAMES, _name),
        Dimension("size", ("some hundreds", "more"), lambda case: "some hundreds" if case["size"] < 1000 else "more"),
        Dimension("iterations", (NOT_GIVEN, "1", "a few", "fives", "no fives"), _iterations),
        Dimension("warmup", (NOT_GIVEN, "0", "some"), _warmup),
        Dimension("before", ("idle", "busy"), lambda case: "busy" if case["busy"] else "idle"),
        Dimension("disturbed", ("no", "yes"), lambda case: "yes" if case["disturbed"] else "no"),
    ),
    apart={
        ("iterations=1", "disturbed=yes"): _DOZENS,
        ("iterations=a few", "disturbed=yes"): _DOZENS,
    },
)
SPACES: tuple[Space, ...] = (PRODUCTS,)
WITHOUT: dict[str, str] = {
    "lab1.shared.launches.matmul": "our own products, without the submission, for a picture",
}
