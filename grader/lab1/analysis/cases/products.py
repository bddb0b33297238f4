"""Made-up times of products, from which a crossover, a bound and a share of the peak follow: how they are drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradebox.run.input_generator import InputGenerator
from gradebox.sandbox import Request
from grader.lab1.analysis.cases import BoundCall, Bounds, Comparison, Crossover, PeakShares, Reached
from grader.lab1.shared.cases.values import NOT_GIVEN
from grader.shared.cases import every_value
from grader.shared.dimensions import Case, Dimension, Space

# --- find_crossover ---------------------------------------------------------------------------------------------------


def _speedups(request: Request) -> Iterator[Case]:
    for rows in request.params["cases"]:
        ordered = sorted(rows)
        yield {"sizes": [row[0] for row in rows], "speedups": [cpu / gpu for _, cpu, gpu in ordered]}


def _order(case: Case) -> str | None:
    sizes = list(case["sizes"])
    if len(sizes) < 2:
        return None
    return {True: "ascending"}.get(sizes == sorted(sizes), "descending" if sizes == sorted(sizes)[::-1] else "mixed")


def _wins(case: Case) -> str | None:
    faster = [ratio > 1 for ratio in case["speedups"]]
    if not faster:
        return None
    if len(set(faster)) == 1:
        return "always" if faster[0] else "never"
    if not faster[-1]:
        return None
    return "from one on" if faster == sorted(faster) else "a lucky one"


def _how_many(case: Case) -> str:
    return ("none", "one")[len(case["sizes"])] if len(case["sizes"]) < 2 else "several"


CROSSOVER = Space(
    probes=(Crossover.probe,),
    cases=_speedups,
    dimensions=(
        Dimension("sizes", ("none", "one", "several"), _how_many),
        Dimension("order", ("ascending", "descending", "mixed"), _order),
        Dimension("faster", ("never", "always", "from one on", "a lucky one"), _wins),
        Dimension("as fast", ("none", "one"), lambda case: "one" if 1.0 in case["speedups"] else "none"),
    ),
    apart={
        **{(f"sizes={few}", "order=*"): "there is no order" for few in ("none", "one")},
        ("sizes=none", "faster=*"): "nothing was measured",
        ("sizes=none", "as fast=one"): "nothing was measured",
        ("sizes=one", "faster=from one on"): "that takes several",
        ("sizes=one", "faster=a lucky one"): "that takes several",
        ("faster=always", "as fast=one"): "none is as fast there",
    },
)


def crossover_cases(generator: InputGenerator) -> list[list[Comparison]]:
    """Comparisons for `find_crossover`; none at all in one of the cases."""
    cases: list[list[Comparison]] = []
    for wins in _outcomes(generator):
        sizes = sorted(generator.odd(10 + 400 * i, 380 + 400 * i) for i in range(len(wins)))
        rows: list[Comparison] = []
        for size, win in zip(sizes, wins, strict=True):
            gpu = generator.log_uniform(1e-5, 1e-2)
            ratio = generator.log_uniform(1.001, 40)
            # As fast as the CPU is not faster.
            rows.append([size, gpu * ratio if win else gpu / generator.shuffled((1.0, ratio))[0], gpu])
        order = generator.shuffled(list(range(len(rows))))
        cases.append([rows[index] for index in order])
    cases.insert(generator.integer(0, len(cases)), [])
    for row in every_value(generator, CROSSOVER.values({"sizes": ("one", "several")}), 3, _can_be_measured):
        case = _measured(generator, row)
        cases.insert(generator.integer(0, len(cases)), case)
    return cases


def _can_be_measured(row: Mapping[str, str]) -> bool:
    """One size has no order, and no lucky one below a slower one; and none is as fast if all are faster."""
    several = row["sizes"] == "several" or (row["order"] == "ascending" and row["faster"] in ("always", "never"))
    return several and not (row["as fast"] == "one" and row["faster"] == "always")


def _measured(generator: InputGenerator, row: Mapping[str, str]) -> list[Comparison]:
    count = 1 if row["sizes"] == "one" else generator.integer(3, 5)
    first = generator.integer(1, count - 1) if count > 1 else 0
    faster = {
        "never": [False] * count,
        "always": [True] * count,
        "from one on": [index >= first for index in range(count)],
        "a lucky one": [index in (0, count - 1) for index in range(count)],
    }[row["faster"]]
    sizes = sorted(generator.odd(10 + 400 * index, 380 + 400 * index) for index in range(count))
    lost = [index for index in range(count) if not faster[index]]
    equal = generator.shuffled(lost)[0] if row["as fast"] == "one" else None
    case: list[Comparison] = []
    for index, size in enumerate(sizes):
        gpu, ratio = generator.log_uniform(1e-5, 1e-2), generator.log_uniform(1.01, 40)
        case.append([float(size), gpu * ratio if faster[index] else gpu if index == equal else gpu / ratio, gpu])
    return {
        "ascending": case,
        "descending": case[::-1],
        "mixed": [*case[1::2], *case[::2]],
    }[row["order"]]


def _outcomes(generator: InputGenerator) -> list[list[int]]:
    """For each case whether the GPU is faster, from the smallest size to the largest; nothing tells the next case."""

    def row(value: int, least: int) -> list[int]:
        return [value] * generator.integer(least, 3)

    lucky = [[*row(0, 0), *row(1, 1), *row(0, 1), *row(1, 1)] for _ in range(3)]
    rising = [[*row(0, 1), *row(1, 1)] for _ in range(3)]
    return generator.shuffled([*lucky, *rising, row(1, 2), row(0, 2), [*row(0, 0), *row(1, 1), *row(0, 1)]])


# --- classify_bound ---------------------------------------------------------------------------------------------------

_USUAL_BYTES = 4
LIMITS = ("launch", "memory", "compute")
_TIES = (("launch", "memory"), ("launch", "compute"), ("memory", "compute"), LIMITS)
_SIZES = {"small": (1, 63), "usual": (64, 8192), "large": (10**5, 10**6)}


@dataclass(frozen=True)
class BoundCase:
    """A call of `classify_bound`, and the seconds of the three limits that its arguments were made of."""

    call: BoundCall
    limits: Mapping[str, float]


def _limits(request: Request) -> Iterator[Case]:
    for case in request.params["cases"]:
        size, element = case["size"], case.get("bytes_per_element", 4)
        took = {
            "launch": case["launch_seconds"],
            "memory": 3 * size**2 * element / case["bandwidth_bytes_per_second"],
            "compute": 2 * size**3 / case["peak_tflops"] / 1e12,
        }
        longest = max(took.values())
        equal = [name for name, value in took.items() if abs(value / longest - 1) < 1e-9]
        yield {**case, "answer": equal[0], "equal": len(equal)}


BOUNDS = Space(
    probes=(Bounds.probe,),
    cases=_limits,
    dimensions=(
        Dimension("answer", LIMITS, lambda case: str(case["answer"])),
        Dimension(
            "bytes_per_element",
            (NOT_GIVEN, "1", "2", "4", "8"),
            lambda case: str(case.get("bytes_per_element", NOT_GIVEN)),
        ),
        Dimension(
            "size",
            tuple(_SIZES),
            lambda case: "small" if case["size"] < 64 else "usual" if case["size"] < 10**5 else "large",
        ),
        Dimension("equally long", ("none", "two", "three"), lambda case: ("none", "two", "three")[case["equal"] - 1]),
    ),
    apart={
        ("answer=compute", "equally long=two"): "the first of equal ones is taken",
        **{(f"answer={name}", "equally long=three"): "then it is the launch" for name in ("memory", "compute")},
        **{
            (f"equally long={how}", f"{name}={value}"): "equal to the last bit are only limits of such figures"
            for how in ("two", "three")
            for name, value in (
                ("size", "small"),
                ("size", "large"),
                ("bytes_per_element", NOT_GIVEN),
                ("bytes_per_element", "1"),
            )
        },
    },
)


def bound_cases(generator: InputGenerator) -> list[BoundCase]:
    """Calls of `classify_bound` in any order, and two whose arguments are hardly usual."""
    cases: list[BoundCase] = []
    rows = every_value(generator, BOUNDS.values({"equally long": ()}), 5)
    for row in generator.shuffled([*rows, *({"answer": answer} for answer in LIMITS)]):
        answer, size = row["answer"], generator.integer(*_SIZES[row.get("size", "usual")])
        size_of_element = row.get("bytes_per_element", "")
        element = int(size_of_element) if size_of_element.isdigit() else 2 ** generator.integer(1, 3)
        rest = [generator.log_uniform(1e-6, 1e-3) for _ in range(2)]
        longest = max(rest) * generator.uniform(1.2, 1.8)  # close, so that a wrong factor of 2 or 3 shows
        names = [name for name in LIMITS if name != answer]
        took = {answer: longest, names[0]: rest[0], names[1]: rest[1]}
        call: BoundCall = {
            "size": size,
            "peak_tflops": 2 * size**3 / took["compute"] / 1e12,
            "bandwidth_bytes_per_second": 3 * size**2 * element / took["memory"],
            "launch_seconds": took["launch"],
        }
        if size_of_element == NOT_GIVEN:
            call["bandwidth_bytes_per_second"] *= _USUAL_BYTES / element
        else:
            call["bytes_per_element"] = element
        cases.append(BoundCase(call, took))
    for tied in _TIES:
        case = _tied(generator, tied)
        cases.insert(generator.integer(0, len(cases)), case)
    least: BoundCall = {**usual_bound(), "size": 1, "bytes_per_element": 1}  # makes sense, still
    cases.append(BoundCase(least, {"launch": 5e-6, "memory": 3 / 3e11, "compute": 2 / 8e12}))
    slow: BoundCall = {
        **usual_bound(), "peak_tflops": 0.25, "bandwidth_bytes_per_second": 0.5, "bytes_per_element": 4,
    }  # fmt: skip
    took = {"launch": 5e-6, "memory": 12 * 512**2 / 0.5, "compute": 2 * 512**3 / 0.25e12}
    return [*cases, BoundCase(slow, took)]


def usual_bound() -> BoundCall:
    """Arguments that make sense."""
    return {"size": 512, "peak_tflops": 8.0, "bandwidth_bytes_per_second": 3e11, "launch_seconds": 5e-6}


def _tied(generator: InputGenerator, tied: Sequence[str]) -> BoundCase:
    """Arguments of `classify_bound` for which exactly these limits are equal and longest.

    The fives of the size cancel those of 10^12, so that all three are powers of two: equal to the last bit whatever
    the order of the divisions, and with fractions, too.
    """
    size, element, peak = (
        625 * 2 ** generator.integer(0, 3),
        2 ** generator.integer(1, 3),
        2.0 ** generator.integer(-1, 8),
    )
    compute = 2 * (size / 625) ** 3 / (peak * 2**12)
    bandwidth = 3 * size**2 * element / compute
    shorter = 2.0 ** -generator.integer(1, 3)
    took = {name: compute if name in tied else compute * shorter for name in LIMITS}
    call: BoundCall = {
        "size": size,
        "peak_tflops": peak / (took["compute"] / compute),
        "bandwidth_bytes_per_second": bandwidth / (took["memory"] / compute),
        "launch_seconds": took["launch"],
        "bytes_per_element": element,
    }
    return BoundCase(call, took)


# --- peak_share -------------------------------------------------------------------------------------------------------


def _share(case: Case) -> str:
    ratio = 2 * case["size"] ** 3 / case["seconds"] / case["peak_tflops"] / 1e12
    return "1" if abs(ratio - 1) < 1e-9 else "below 1" if ratio < 1 else "above 1"


PEAK_SHARE = Space(
    probes=(PeakShares.probe,),
    cases=lambda request: request.params["cases"],
    dimensions=(Dimension("share", ("below 1", "1", "above 1"), _share),),
)


def peak_share_cases(generator: InputGenerator) -> list[tuple[Reached, float]]:
    """Products, each with the share of the peak that its seconds were made of."""
    cases: list[tuple[Reached, float]] = []
    # A data sheet may promise less than there is: then it is more than 1.
    for low, high in generator.shuffled([(0.05, 0.95)] * 3 + [(1.0, 1.0), (1.02, 1.1), (1.2, 3.0)]):
        size, share = generator.odd(101, 4097), generator.uniform(low, high)
        peak = generator.uniform(5, 900) if cases else generator.uniform(0.2, 0.9)  # a T4 has 0.25 in float64
        case: Reached = {"size": size, "seconds": 2 * size**3 / (share * peak * 1e12), "peak_tflops": peak}
        cases.append((case, share))
    return cases


SPACES: tuple[Space, ...] = (CROSSOVER, BOUNDS, PEAK_SHARE)
