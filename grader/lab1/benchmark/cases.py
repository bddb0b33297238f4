"""What the probes of Lab 1's benchmark are given and return, in what their cases differ, and how they are drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict, cast

from gradebox.run.input_generator import InputGenerator
from gradebox.sandbox import Request
from gradebox.sandbox.devices import Device
from gradebox.sandbox.probe_types import ProbeInputs
from grader.lab1.shared.cases.plots import PicturesReply
from grader.lab1.shared.cases.products import Call, ProductCount, Result
from grader.lab1.shared.cases.values import DTYPES, NOT_GIVEN
from grader.shared.cases import every_value, one_and_its_opposite
from grader.shared.dimensions import Case, Dimension, Space


class Described(TypedDict):
    """An `Environment` that a submission returned: each field may be anything that JSON can say."""

    python: object
    torch: object
    cuda: object
    driver: object
    device: object
    device_name: object
    memory_bytes: object
    compute_capability: object
    profiler: object
    simulated: object


@dataclass(frozen=True, kw_only=True)
class EnvironmentReply:
    """What `check_environment` says, and what the probe's process finds by itself."""

    described: list[Described]
    endings: list[str]
    """How each call ended that must be refused."""
    without_pynvml: Described
    without_driver: Described
    """What it says on a machine with NVIDIA's library, whose driver is not loaded."""
    python: str
    torch: str
    cuda: str | None
    driver: str | None
    profiler: bool
    device_name: str | None
    processor: str
    memory_bytes: int | None
    capability: list[int] | None


@dataclass(frozen=True, kw_only=True)
class DescribeEnvironment(ProbeInputs[EnvironmentReply], probe="lab1.benchmark.environment"):
    """Calls of `check_environment`."""

    devices: list[str | None]
    """None: it is called without a device."""
    refused: list[str]
    """Devices that do not exist."""


@dataclass(frozen=True, kw_only=True)
class EndingsReply:
    """How calls ended, each with the name of its exception; "" if it returned."""

    endings: list[str]


@dataclass(frozen=True, kw_only=True)
class RefusedProducts(ProbeInputs[EndingsReply], probe="lab1.benchmark.refused_products"):
    """Calls of `benchmark_matmul` that make no sense."""

    cases: list[Call]


class CompareCall(TypedDict, total=False):
    """Arguments of one call of `compare_cpu_gpu`, which is given those that are there."""

    sizes: list[int]
    dtype: str
    device: str
    iterations: int
    cpu_iterations: int


class ComparisonRow(TypedDict):
    """A `Comparison` that a submission returned."""

    size: object
    cpu: Result
    gpu: Result
    speedup: object


@dataclass(frozen=True, kw_only=True)
class CompareReply:
    """What each call returned, and the products that ran in all of them."""

    rows: list[list[ComparisonRow]]
    products: list[ProductCount]
    endings: list[str]
    """How each call ended that must be refused."""


@dataclass(frozen=True, kw_only=True)
class Compare(ProbeInputs[CompareReply], probe="lab1.benchmark.compare"):
    """Calls of `compare_cpu_gpu`, and calls that make no sense."""

    calls: list[CompareCall]
    refused: list[CompareCall] = field(default_factory=list)


Measured = tuple[float, float, float]
"""Of one comparison: size, CPU seconds, GPU seconds."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkPictures(ProbeInputs[PicturesReply], probe="lab1.benchmark.pictures"):
    """The benchmark program; then `plot_speedup` of made-up comparisons."""

    command: list[str]
    """The program's arguments."""
    plots: list[list[Measured]]


# --- in what cases differ, and how they are drawn ---------------------------------------------------------------------


def _described(request: Request) -> Iterator[Case]:
    machine = "without a GPU" if request.device == "cpu" else "with a GPU"
    for device in request.params["devices"]:
        yield {"device": NOT_GIVEN if device is None else device, "machine": machine}


ENVIRONMENT = Space(
    probes=(DescribeEnvironment.probe,),
    cases=_described,
    dimensions=(
        Dimension("device", (NOT_GIVEN, "cuda", "cpu"), lambda case: str(case["device"])),
        Dimension("machine", ("with a GPU", "without a GPU"), lambda case: str(case["machine"])),
    ),
    apart={("device=cuda", "machine=without a GPU"): "that is refused"},
)


def _nonsense(case: Case) -> Case:
    argument, value = next((name, case[name]) for name in ("warmup", "iterations", "size") if case.get(name, 1) < 1)
    return {"argument": argument, "value": value, "device": case.get("device", "cuda")}


REFUSED = Space(
    probes=(RefusedProducts.probe,),
    cases=lambda request: map(_nonsense, request.params["cases"]),
    dimensions=(
        Dimension("argument", ("size", "iterations", "warmup"), lambda case: str(case["argument"])),
        Dimension("value", ("0", "negative"), lambda case: "0" if case["value"] == 0 else "negative"),
        Dimension("device", ("cpu", "cuda", "cuda:0"), lambda case: str(case["device"])),
    ),
    apart={("argument=warmup", "value=0"): "no warm-up is allowed"},
)


def refused_products(generator: InputGenerator) -> list[Call]:
    """Calls of `benchmark_matmul` that make no sense."""
    size = generator.odd(33, 99)
    cases: list[Call] = [
        {"size": 0},
        {"size": -size},
        {"size": size, "iterations": 0},
        {"size": size, "iterations": -generator.integer(1, 9)},
        {"size": size, "iterations": 5, "warmup": -generator.integer(1, 9)},
    ]
    for row in every_value(generator, REFUSED.values(), 2, REFUSED.allows):
        value = 0 if row["value"] == "0" else -generator.integer(1, 9)
        cases.append(cast("Call", {"device": row["device"], "size": size, row["argument"]: value}))
    return cases


def _sizes(case: Case) -> str | None:
    sizes = case.get("sizes")
    if sizes is None:
        return NOT_GIVEN
    if len(sizes) == 1:
        return "one"
    return "ascending" if list(sizes) == sorted(sizes) else "in another order"


def _count(name: str) -> Dimension:
    return Dimension(
        name,
        (NOT_GIVEN, "1", "some"),
        lambda case: NOT_GIVEN if name not in case else "1" if case[name] == 1 else "some",
    )


_SIZES = ("one", "ascending", "in another order")
_DEFAULT = "the sizes by default are compared once, with nothing else: they take long"
COMPARED = Space(
    probes=(Compare.probe,),
    cases=lambda request: request.params["calls"],
    dimensions=(
        Dimension("dtype", DTYPES, lambda case: case.get("dtype", NOT_GIVEN)),
        Dimension("device", (NOT_GIVEN, "cuda:0"), lambda case: case.get("device", NOT_GIVEN)),
        Dimension("sizes", (NOT_GIVEN, *_SIZES), _sizes),
        _count("iterations"),
        _count("cpu_iterations"),
    ),
    apart={
        ("sizes=not given", "dtype=float16"): _DEFAULT,
        ("sizes=not given", "dtype=bfloat16"): _DEFAULT,
        ("sizes=not given", "dtype=float64"): _DEFAULT,
        ("sizes=not given", "device=cuda:0"): _DEFAULT,
        ("sizes=not given", "iterations=1"): _DEFAULT,
        ("sizes=not given", "iterations=some"): _DEFAULT,
        ("sizes=not given", "cpu_iterations=1"): _DEFAULT,
        ("sizes=not given", "cpu_iterations=some"): _DEFAULT,
    },
)


def compare_calls(generator: InputGenerator, device: Device, sizes: Sequence[int]) -> list[CompareCall]:
    """Calls of `compare_cpu_gpu` with some of these sizes; the first one has them all."""
    calls: list[CompareCall] = [{"sizes": list(sizes), "iterations": generator.integer(8, 15), "cpu_iterations": 7}]
    # CPUs are very slow in 16 bits.
    dtypes = {} if device.simulated else {"dtype": (NOT_GIVEN, "float64")}
    rows = every_value(generator, COMPARED.values({"sizes": _SIZES, **dtypes}), 2)
    return [*calls, *(_compare_call(generator, row, sizes) for row in rows)]


def _compare_call(generator: InputGenerator, row: Mapping[str, str], sizes: Sequence[int]) -> CompareCall:
    """With two of these sizes or one, and of the other arguments those that are to be given."""
    two = sorted(generator.shuffled(sizes)[:2], reverse=row["sizes"] != "ascending")
    call: CompareCall = {"sizes": two[:1] if row["sizes"] == "one" else two}
    if row["dtype"] != NOT_GIVEN:
        call["dtype"] = row["dtype"]
    if row["device"] != NOT_GIVEN:
        call["device"] = row["device"]
    if row["iterations"] != NOT_GIVEN:
        call["iterations"] = 1 if row["iterations"] == "1" else generator.integer(6, 9)
    if row["cpu_iterations"] != NOT_GIVEN:
        call["cpu_iterations"] = 1 if row["cpu_iterations"] == "1" else generator.integer(6, 9)
    return call


def _comparisons(request: Request) -> Iterator[Case]:
    for rows in request.params["plots"]:
        yield {"sizes": [row[0] for row in rows], "speedups": [cpu / gpu for _, cpu, gpu in rows]}


SPEEDUP_PLOTS = Space(
    probes=(BenchmarkPictures.probe,),
    cases=_comparisons,
    dimensions=(
        Dimension("sizes", ("two or three", "more"), lambda case: "more" if len(case["sizes"]) > 3 else "two or three"),
        Dimension(
            "order",
            ("another", "ascending"),
            lambda case: "ascending" if list(case["sizes"]) == sorted(case["sizes"]) else "another",
        ),
        Dimension(
            "speedups",
            ("above 1", "on both sides"),
            lambda case: "above 1" if min(case["speedups"]) > 1 else "on both sides",
        ),
    ),
)


def made_up_comparisons(generator: InputGenerator) -> list[list[Measured]]:
    """The comparisons of two plots."""
    plots = []
    for how in one_and_its_opposite(generator, SPEEDUP_PLOTS.values()):
        count = generator.integer(4, 6) if how["sizes"] == "more" else generator.integer(2, 3)
        rows: list[Measured] = []
        for index in range(count):
            gpu = generator.log_uniform(1e-5, 1e-2)
            lost = how["speedups"] == "on both sides" and index % 2 == 0
            ratio = generator.log_uniform(0.1, 0.9) if lost else generator.log_uniform(1.1, 60)
            rows.append((float(generator.odd(100 + 500 * index, 500 + 500 * index)), gpu * ratio, gpu))
        if how["order"] == "another":
            rows = [rows[-1], *generator.shuffled(rows[:-1])]
        plots.append(rows)
    return plots


SPACES: tuple[Space, ...] = (ENVIRONMENT, REFUSED, COMPARED, SPEEDUP_PLOTS)
