"""Inputs of `conclude`: made-up results of which something follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from gradebox.run.input_generator import InputGenerator
from gradebox.sandbox import Request
from gradebox.sandbox.probe_types import ProbeInputs
from grader.lab2.shared.cases import NOT_GIVEN, PRECISIONS
from grader.shared.cases import every_value
from grader.shared.dimensions import Case as SpaceCase
from grader.shared.dimensions import Dimension, Space


@dataclass(frozen=True)
class Result:
    """A result of one precision."""

    dtype: str
    step_seconds: float
    peak_bytes: int | None
    accuracy: float


@dataclass(frozen=True)
class Case:
    """One call of `conclude`."""

    results: list[Result]
    accuracy_loss: float | None = None
    """An argument; None: not given."""


@dataclass(frozen=True)
class Recommendation:
    """What follows from some results."""

    recommended: str
    fastest: str


class Conclusions(TypedDict):
    """`PrecisionConclusions` that a submission returned: each field may be anything that JSON can say."""

    speedups: object
    memory_ratios: object
    accuracy_differences: object
    fastest: object
    recommended: object
    needs_loss_scaling: object


@dataclass(frozen=True)
class ConcludeReply:
    """What each call returned."""

    answers: list[Conclusions]


@dataclass(frozen=True)
class Conclude(ProbeInputs[ConcludeReply], probe="lab2.comparison.measuring.conclude"):
    """Calls of `conclude`."""

    cases: list[Case]


# --- results that somebody thought of ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Profile:
    """What follows, and from what: seconds and lost accuracy against float32."""

    follows: Recommendation
    float16: float
    """Seconds in float16; in float32 they are 1."""
    bfloat16: float
    """In bfloat16."""
    lost_float16: float = 0.001
    lost_bfloat16: float = 0.001
    accuracy_loss: float | None = None


def _profiles(generator: InputGenerator) -> list[_Profile]:
    """A name is the precision that is recommended and fastest; of two, the first is recommended and not the fastest."""
    quick = generator.uniform(0.15, 0.5)
    float16, bfloat16, float32 = (Recommendation(name, name) for name in ("float16", "bfloat16", "float32"))
    bfloat16_not_float16 = Recommendation("bfloat16", "float16")
    float16_not_bfloat16 = Recommendation("float16", "bfloat16")
    float32_not_bfloat16 = Recommendation("float32", "bfloat16")
    return [
        # A GPU with fast float16 only: bfloat16 brings nothing.
        _Profile(float16, quick, generator.uniform(0.95, 1.1)),
        # Equally fast to within 5 %: the one without a scaler.
        _Profile(bfloat16_not_float16, quick, quick * generator.uniform(1.01, 1.04)),
        _Profile(bfloat16, quick * generator.uniform(1.01, 1.04), quick),
        _Profile(bfloat16, quick * generator.uniform(1.1, 1.5), quick),
        _Profile(float16, quick, quick * generator.uniform(1.07, 1.3)),
        # A launch-bound model: casts cost more than they save.
        _Profile(float32, generator.uniform(1.1, 1.6), generator.uniform(1.1, 1.6)),
        # The fastest one loses too much.
        _Profile(float16_not_bfloat16, quick * 1.5, quick, lost_bfloat16=generator.uniform(0.012, 0.1)),
        _Profile(bfloat16_not_float16, quick, quick * 1.5, lost_float16=generator.uniform(0.02, 0.5)),
        _Profile(float32_not_bfloat16, quick * 1.2, quick, lost_float16=0.3, lost_bfloat16=0.02),
        # Better than float32 is no loss; and a stricter limit.
        _Profile(bfloat16, quick * 1.3, quick, lost_bfloat16=-0.02),
        _Profile(
            float16_not_bfloat16, quick * 1.3, quick, lost_bfloat16=0.006, lost_float16=0.002, accuracy_loss=0.004
        ),
        # Nothing may be lost, and something is that might by default.
        _Profile(float16_not_bfloat16, quick * 1.3, quick, lost_bfloat16=0.006, lost_float16=-0.001, accuracy_loss=0.0),
    ]


def made_up(generator: InputGenerator) -> list[tuple[Case, Recommendation]]:
    """Cases with what follows from them: whose outcome is known by construction, and those at a limit."""
    cases = [(_of_profile(generator, profile), profile.follows) for profile in generator.shuffled(_profiles(generator))]
    case, follows = cases[generator.integer(0, len(cases) - 1)]
    on_cpu = [replace(result, peak_bytes=None) for result in case.results]  # whose peaks nobody counts
    return [*cases, (replace(case, results=on_cpu), follows), *_edges(generator)]


def _of_profile(generator: InputGenerator, profile: _Profile) -> Case:
    times = {"float32": 1.0, "float16": profile.float16, "bfloat16": profile.bfloat16}
    losses = {"float32": 0.0, "float16": profile.lost_float16, "bfloat16": profile.lost_bfloat16}
    base_seconds, base_peak = generator.log_uniform(1e-4, 1.0), generator.integer(10**7, 10**10)
    base_accuracy = generator.uniform(0.7, 0.97)
    results = []
    for name in PRECISIONS:
        peak = int(base_peak * (1.0 if name == "float32" else generator.uniform(0.45, 1.2)))
        results.append(Result(name, base_seconds * times[name], peak, base_accuracy - losses[name]))
    return Case([results[index] for index in generator.shuffled([0, 1, 2])], profile.accuracy_loss)


def _edges(generator: InputGenerator) -> list[tuple[Case, Recommendation]]:
    """Ties, limits that are just reached, and fewer results."""
    took, peak = generator.log_uniform(1e-4, 1.0), generator.integer(10**7, 10**10)
    tie = generator.shuffled(["float16", "bfloat16", "float32"])
    equal = {name: Result(name, took, peak, 0.75) for name in PRECISIONS}
    # As much is lost as may be lost; and these numbers have no rounding.
    limit = Case([Result("bfloat16", took / 2, peak, 0.5), equal["float32"]], 0.25)
    one_unknown = Case(
        [Result("float16", took / 2, None, 0.75), equal["float32"], Result("bfloat16", took * 2, peak, 0.75)]
    )
    return [
        # Equally fast: the first of the results, and the first by preference.
        (Case([equal[name] for name in tie]), Recommendation("bfloat16", tie[0])),
        (limit, Recommendation("bfloat16", "bfloat16")),
        (one_unknown, Recommendation("float16", "float16")),
        (Case([equal["float32"]]), Recommendation("float32", "float32")),
    ]


# --- results in which everything meets everything else ----------------------------------------------------------------


def _drawn(request: Request) -> Iterator[SpaceCase]:
    for case in request.params["cases"]:
        results, limit = case["results"], case["accuracy_loss"]
        times = {result["dtype"]: result["step_seconds"] for result in results}
        right = {result["dtype"]: result["accuracy"] for result in results}
        lost = [name for name in right if right[name] - right["float32"] < -(0.01 if limit is None else limit)]
        yield {
            "rows": "all" if len(results) == 3 else ", ".join(sorted(times)),
            "float32": _place([result["dtype"] for result in results]),
            "fastest": min(times, key=times.__getitem__) if len(set(times.values())) == len(times) else None,
            "others": _others([took / min(times.values()) for took in times.values()]),
            "lossy": "both" if len(lost) == 2 else lost[0] if lost else "none",
            "accuracy_loss": {None: NOT_GIVEN, 0: "0"}.get(limit, "given"),
            "peaks": _peaks([result["dtype"] for result in results if result["peak_bytes"] is None], len(results)),
        }


def _place(names: Sequence[str]) -> str | None:
    return "first" if names[0] == "float32" else "last" if names[-1] == "float32" else None


def _others(slower: list[float]) -> str | None:
    """How far those that are not the fastest are behind it."""
    behind = sorted(ratio for ratio in slower if ratio > 1)
    if not behind:
        return None
    return "within 5 %" if behind[-1] < 1.05 else "slower" if behind[0] > 1.05 else None


def _peaks(unknown: list[str], results: int) -> str:
    if not unknown:
        return "known"
    return "none" if len(unknown) == results else "float32's unknown" if "float32" in unknown else "another unknown"


def _field(name: str, *values: str) -> Dimension:
    return Dimension(name, values, lambda case: case[name])


_NOT_THERE = "it is not among the results"
CONCLUDED = Space(
    probes=(Conclude.probe,),
    cases=_drawn,
    dimensions=(
        _field("rows", "float32", "float16, float32", "bfloat16, float32", "all"),
        _field("float32", "first", "last"),
        _field("fastest", *PRECISIONS),
        _field("others", "within 5 %", "slower"),
        _field("lossy", "none", "float16", "bfloat16", "both"),
        _field("accuracy_loss", NOT_GIVEN, "0", "given"),
        _field("peaks", "known", "none", "float32's unknown", "another unknown"),
    ),
    apart={
        ("rows=float32", "float32=last"): "there is one",
        ("rows=float32", "fastest=float16"): _NOT_THERE,
        ("rows=float32", "fastest=bfloat16"): _NOT_THERE,
        ("rows=float32", "others=*"): _NOT_THERE,
        ("rows=float32", "lossy=float16"): _NOT_THERE,
        ("rows=float32", "lossy=bfloat16"): _NOT_THERE,
        ("rows=float32", "lossy=both"): _NOT_THERE,
        ("rows=float32", "peaks=float32's unknown"): "then none is known",
        ("rows=float32", "peaks=another unknown"): _NOT_THERE,
        ("rows=float16, float32", "fastest=bfloat16"): _NOT_THERE,
        ("rows=float16, float32", "lossy=bfloat16"): _NOT_THERE,
        ("rows=float16, float32", "lossy=both"): _NOT_THERE,
        ("rows=bfloat16, float32", "fastest=float16"): _NOT_THERE,
        ("rows=bfloat16, float32", "lossy=float16"): _NOT_THERE,
        ("rows=bfloat16, float32", "lossy=both"): _NOT_THERE,
    },
)


def _allowed(row: Mapping[str, str]) -> bool:
    """As `CONCLUDED` says; float32 alone is drawn with one value of each thing that it does not have."""
    if row["rows"] == "float32":
        only = {"float32": "first", "fastest": "float32", "others": "slower", "lossy": "none"}
        return row["peaks"] in ("known", "none") and all(row[name] == value for name, value in only.items())
    return CONCLUDED.allows(row)


def crossed(generator: InputGenerator) -> list[Case]:
    """Cases in which whatever results may be meets everything else; no two steps are near the limit of 5 %."""
    return [_crossed(generator, row) for row in every_value(generator, CONCLUDED.values(), 4, _allowed)]


def _crossed(generator: InputGenerator, row: Mapping[str, str]) -> Case:
    names = list(PRECISIONS) if row["rows"] == "all" else row["rows"].split(", ")
    took, peak = generator.log_uniform(1e-4, 1.0), generator.integer(10**7, 10**10)
    near = row["others"] == "within 5 %"
    slower = generator.shuffled(
        [
            generator.uniform(1.01, 1.04) if near else generator.uniform(1.1, 1.4),
            1.045 if near else generator.uniform(1.8, 3),
        ]
    )
    times = {name: took * (1.0 if name == row["fastest"] else slower.pop()) for name in names}
    limit = {NOT_GIVEN: None, "0": 0.0, "given": 0.05}[row["accuracy_loss"]]
    may_be_lost = 0.01 if limit is None else limit
    results = []
    for name in generator.shuffled([name for name in names if name != "float32"]):
        is_lossy = row["lossy"] in (name, "both")
        lost = may_be_lost + generator.log_uniform(0.002, 0.1) if is_lossy else -generator.uniform(0.0, 0.02)
        results.append(Result(name, times[name], generator.integer(10**7, 10**10), 0.875 - lost))
    place = 0 if row["float32"] == "first" else len(results)
    results.insert(place, Result("float32", times["float32"], peak, 0.875))
    unknown = {"none": range(len(results)), "float32's unknown": [place], "another unknown": [int(place == 0)]}
    for index in unknown.get(row["peaks"], []):
        results[index] = replace(results[index], peak_bytes=None)
    return Case(results, limit)


SPACES = (CONCLUDED,)
