"""Work and places on the roofline to ask for, and what the probes return."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from gradebox.run.input_generator import InputGenerator


class WorkCase(TypedDict):
    """One call of a function such as `vector_add_work`, by its name and its arguments."""

    name: str
    sizes: dict[str, int]


class Work(TypedDict):
    """A `labkit.results.KernelWork` of a student."""

    flops: float
    bytes: float


class Works(TypedDict):
    """What the probe `works` returns, for each case."""

    works: list[Work]


class PlaceCase(TypedDict):
    """One call of `place`: the work of a kernel, its time, and the device's two roofs."""

    flops: float
    bytes: int
    seconds: float
    peak_flops: float
    bytes_per_second: float


class PlaceInputs(TypedDict):
    """What the probe `places` is given."""

    cases: list[PlaceCase]
    nonsense: list[PlaceCase]
    """Each has a value that no kernel and no device can have."""


class Place(TypedDict):
    """A `labkit.results.KernelPlace` of a student."""

    kernel: str
    flops: float
    bytes: float
    seconds: float
    intensity: float
    achieved_flops: float
    attainable_flops: float
    bound: str


class Places(TypedDict):
    """What the probe `places` returns."""

    places: list[Place]
    errors: list[str]
    """How each of the nonsensical calls ended."""


def work_of_each_kernel(generator: InputGenerator) -> list[WorkCase]:
    """Each of the four functions, with elements of two and of four bytes; attention without and with a mask."""
    first, second = generator.shuffled([2, 4])
    attention = {
        "batch": generator.integer(2, 4), "heads": generator.integer(2, 4), "length": generator.odd(51, 99),
        "head_dim": 64, "element_bytes": second,
    }  # fmt: skip
    vectors = {"count": generator.odd(101, 999), "element_bytes": first}
    rows = {"rows": generator.odd(11, 99), "columns": generator.odd(101, 999), "element_bytes": second}
    matrices = {
        "m": generator.odd(11, 99),
        "n": generator.odd(101, 199),
        "k": generator.odd(201, 299),
        "element_bytes": first,
    }
    return [
        {"name": "vector_add_work", "sizes": vectors},
        {"name": "softmax_work", "sizes": rows},
        {"name": "matmul_work", "sizes": matrices},
        {"name": "attention_work", "sizes": {**attention, "causal": False}},
        {"name": "attention_work", "sizes": {**attention, "causal": True}},
    ]


def places_around_the_ridge(generator: InputGenerator) -> PlaceInputs:
    """Intensities below the ridge, on it and above it; and calls that make no sense."""
    ridge = float(generator.integer(8, 64))
    peak, bandwidth = ridge * 2.0**37, 2.0**37
    moved = 2 ** generator.integer(20, 24)
    cases: list[PlaceCase] = [
        {
            "flops": moved * intensity,
            "bytes": moved,
            "seconds": generator.uniform(1e-4, 1e-3),
            "peak_flops": peak,
            "bytes_per_second": bandwidth,
        }
        for intensity in generator.shuffled([ridge / 4, ridge, 2 * ridge])
    ]
    first = cases[0]
    nonsense: list[PlaceCase] = [
        {**first, "seconds": 0}, {**first, "bytes": 0}, {**first, "peak_flops": 0}, {**first, "bytes_per_second": 0},
        {**first, "seconds": -1.0},
    ]  # fmt: skip
    return {"cases": cases, "nonsense": nonsense}
