"""Made-up memory profiles, steps whose operations are known, and lists of operations: how they are drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gradebox.run.input_generator import InputGenerator
from gradebox.sandbox import Request
from grader.lab1.analysis.cases import Bottlenecks, Named, ProfileOnGpu, Slowest
from grader.lab1.shared.cases.values import GPU, NOT_GIVEN
from grader.shared.cases import every_value, one_and_its_opposite
from grader.shared.dimensions import Case, Dimension, Space
from labkit.results import STAGES

# --- find_bottleneck --------------------------------------------------------------------------------------------------


def _profiles(request: Request) -> Iterator[Case]:
    for peaks in request.params["peaks"]:
        largest = [place for place, peak in enumerate(peaks) if peak == max(peaks)]
        yield {"winner": largest[0], "equal": len(largest) > 1, "count": len(peaks)}


def _place(case: Case) -> str:
    return {0: "first", case["count"] - 1: "last"}.get(case["winner"], "between")


BOTTLENECK = Space(
    probes=(Bottlenecks.probe,),
    cases=_profiles,
    dimensions=(
        Dimension("stage", ("first", "between", "last"), _place),
        Dimension("equal ones", ("none", "later"), lambda case: "later" if case["equal"] else "none"),
    ),
    apart={("stage=last", "equal ones=later"): "none comes later"},
)


def bottleneck_profiles(generator: InputGenerator) -> Bottlenecks:
    """Profiles of each of which one stage needs most, and never holds most."""
    count = len(STAGES)
    drawn = every_value(generator, BOTTLENECK.values(), 4, BOTTLENECK.allows)
    places = {"first": [0], "between": range(1, count - 1), "last": [count - 1]}
    winners = [generator.shuffled(places[row["stage"]])[0] for row in drawn]
    peaks = [[generator.integer(10**6, 5 * 10**8) for _ in STAGES] for _ in winners]
    for row, winner, how in zip(peaks, winners, drawn, strict=True):
        row[winner] = max(row) + generator.integer(10**6, 10**8)
        if how["equal ones"] == "later":  # of equal ones the first
            for later in range(winner + 1, count):
                row[later] = generator.shuffled((row[later], row[winner]))[0]
            row[-1] = row[winner]
    allocated = [[generator.integer(10**5, peak) for peak in row] for row in peaks]
    for held, winner in zip(allocated, winners, strict=True):
        held[winner] = max(size for stage, size in enumerate(held) if stage != winner) // 2
    reserved = [[max(row) + generator.integer(10**6, 10**8) for _ in row] for row in peaks]
    return Bottlenecks(peaks=peaks, allocated=allocated, reserved=reserved)


# --- profile_operations and slowest -----------------------------------------------------------------------------------

ONE, MANY = "sin", "tanh"
PREFIX = "aten::"
WITHOUT_KERNEL = (
    "detach",
    "diagonal",
    "expand",
    "permute",
    "select",
    "slice",
    "squeeze",
    "transpose",
    "unfold",
    "unsqueeze",
    "view",
)
"""None of them calls another one of them."""
OPERATIONS = Space(
    probes=(ProfileOnGpu.probe,),
    cases=lambda request: [request.params],
    dimensions=(
        Dimension("slowest", ("mm", "exp"), lambda case: "mm" if case["size"] > 500 else "exp"),
        Dimension("steps", ("1", "several"), lambda case: "1" if case["steps"] == 1 else "several"),
        Dimension("warmup", ("0", "some"), lambda case: "some" if case["warmup"] else "0"),
        GPU,
    ),
)


@dataclass(frozen=True)
class ProfileCase:
    """A step whose operations are known."""

    inputs: ProfileOnGpu
    slowest: str
    paces: Mapping[str, float]
    """How many times as long each kind of kernel takes on a virtual GPU, which no data sheet says."""


def profile_cases(generator: InputGenerator, *, simulated: bool) -> Iterator[ProfileCase]:
    """Two steps: one long kernel beside many launches, and many short kernels beside one product."""
    # On a real card no pace makes the product longer, so its size does: on the fastest it then takes twice as long as
    # all else.
    larger = 1 if simulated else 2
    cases: dict[str, tuple[int, dict[str, int]]] = {
        "mm": (larger * generator.integer(1000, 1200), {"mm": 1, "exp": generator.integer(4, 5)}),
        "exp": (generator.integer(88, 104), {"exp": generator.integer(30, 60), "mm": 1}),
    }
    for row in one_and_its_opposite(generator, OPERATIONS.values()):
        slowest = row["slowest"]
        (size, repeats), steps = cases[slowest], generator.integer(3, 7) if row["steps"] == "several" else 1
        longer = round(generator.uniform(1.6, 4.0), 3)  # the longest stays the longest
        shorter = round(generator.uniform(1.2, longer), 3)
        paces = {PREFIX + name: longer if name == slowest else shorter for name in repeats}
        beside, beside_paces = _one_and_many(generator)
        warmup = generator.integer(1, 4) if row["warmup"] == "some" else 0
        without_kernel = {name: generator.integer(1, 3) for name in generator.shuffled(WITHOUT_KERNEL)[:4]}
        inputs = ProfileOnGpu(
            size=size,
            repeats=repeats,
            beside=beside,
            without_kernel=without_kernel,
            steps=steps,
            warmup=warmup,
            indexed=row["GPU"] == "cuda:0",
        )
        yield ProfileCase(inputs, slowest, {**paces, **beside_paces})


def _one_and_many(generator: InputGenerator) -> tuple[dict[str, int], dict[str, float]]:
    """Two operations alike, how often they are called and how slow they are.

    One long kernel takes the device longer than many short ones; their launches take the host so much longer that both
    times together tell the other order.
    """
    calls, pace = generator.integer(8, 14), generator.uniform(2.0, 4.0)
    shorter = generator.uniform(0.4, 0.8) * pace / calls
    return {ONE: 1, MANY: calls}, {PREFIX + ONE: round(pace, 3), PREFIX + MANY: round(shorter, 4)}


def _lists(request: Request) -> Iterator[Case]:
    for rows, count in zip(request.params["cases"], request.params["counts"], strict=True):
        launching = sum(row[2] > 0 for row in rows)
        yield {"rows": len(rows), "launching": launching, "count": count}


def _requested(case: Case) -> str:
    count, rows = case["count"], case["rows"]
    if count is None:
        return NOT_GIVEN
    return "1" if count == 1 else "some" if count < rows else "all" if count == rows else "more"


SLOWEST = Space(
    probes=(Slowest.probe,),
    cases=_lists,
    dimensions=(
        Dimension("on", ("GPU", "CPU"), lambda case: "GPU" if case["launching"] else "CPU"),
        Dimension("count", (NOT_GIVEN, "1", "some", "all", "more"), _requested),
        Dimension("launching", ("all", "some"), lambda case: "some" if 0 < case["launching"] < case["rows"] else "all"),
    ),
    apart={
        ("on=CPU", "launching=some"): "nothing launches on a CPU",
        ("launching=some", "count=all"): "what launches nothing has no order of its own at the end of the list",
        ("launching=some", "count=more"): "what launches nothing has no order of its own at the end of the list",
    },
)


def made_up_operations(generator: InputGenerator) -> tuple[list[list[Named]], list[int | None]]:
    """Lists of operations, of a GPU and of a CPU, and how many of each are asked for."""
    lists: list[list[Named]] = []
    counts: list[int | None] = []
    for row in every_value(generator, SLOWEST.values(), 3, SLOWEST.allows):
        length = generator.integer(7, 11)
        launching = length if row["launching"] == "all" else 6
        # Of a GPU most operations may launch nothing; the host's times tell another order.
        device = [generator.log_uniform(1e-6, 1e-1) if row["on"] == "GPU" else 0.0 for _ in range(launching)]
        device = generator.shuffled([*device, *[0.0] * (length - launching)])
        lists.append([(f"{PREFIX}op{i}", generator.log_uniform(1e-6, 1e-1), took) for i, took in enumerate(device)])
        few, all_, more = generator.integer(2, 6), len(device), len(device) + generator.integer(1, 9)
        counts.append({NOT_GIVEN: None, "1": 1, "some": few, "all": all_, "more": more}[row["count"]])
    return lists, counts


SPACES: tuple[Space, ...] = (BOTTLENECK, OPERATIONS, SLOWEST)
