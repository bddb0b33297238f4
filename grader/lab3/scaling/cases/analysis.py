"""Measurements that are made up, what they differ in, and how they are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from gradebox.sandbox.probe_types import ProbeInputs
from grader.shared.dimensions import Case, Dimension, Space

if TYPE_CHECKING:
    from gradebox.run.input_generator import InputGenerator
    from gradebox.sandbox import Request

KINDS = ("strong", "weak")


class Profile(TypedDict):
    """A `StepProfile` as plain values: seconds of each rank."""

    data_seconds: list[float]
    compute_seconds: list[float]
    communication_seconds: list[float]


class Point(TypedDict):
    """A `ScalingPoint` as plain values."""

    device: str
    backend: str
    kind: str
    world_size: int
    batch_size: int
    step_seconds: float
    samples_per_second: float
    profile: Profile


@dataclass(frozen=True, kw_only=True)
class RatiosReply:
    """What `speedup` and `efficiency` returned."""

    answers: dict[str, dict[str, object]]
    """By name of the function, and by world size."""
    refused: list[bool]
    """Whether each raised a ValueError, because only the other kind was measured on one process."""


@dataclass(frozen=True, kw_only=True)
class Ratios(ProbeInputs[RatiosReply], probe="lab3.scaling.analysis.ratios"):
    """Made-up measurements, to be compared for one kind of scaling."""

    points: list[Point]
    kind: str


@dataclass(frozen=True, kw_only=True)
class Plot:
    """What `plot_scaling` drew."""

    returned_path: bool
    """Whether it returned the path that it was given."""
    written: bool
    drawn: list[list[list[float]]]
    """The points of each line, group of markers or group of bars that can be seen."""
    visible: list[list[list[float]]]
    """Those of these points that are within the limits of the axes."""
    labels: list[str]
    """What a legend calls each of them."""


@dataclass(frozen=True, kw_only=True)
class PlottedReply:
    """A plot of all points, and one of those of the first point's kind."""

    plots: list[Plot]


@dataclass(frozen=True, kw_only=True)
class Plotted(ProbeInputs[PlottedReply], probe="lab3.scaling.analysis.plotted"):
    """Made-up measurements."""

    points: list[Point]


@dataclass(frozen=True, kw_only=True)
class SharesReply:
    """What `communication_share` and `split_step` returned for each profile."""

    shares: list[object]
    parts: list[dict[str, object]]
    order: list[list[object]]
    """The names of the parts, in their order."""


@dataclass(frozen=True, kw_only=True)
class Shares(ProbeInputs[SharesReply], probe="lab3.scaling.analysis.shares"):
    """Made-up profiles."""

    profiles: list[Profile]


@dataclass(frozen=True, kw_only=True)
class BottlenecksReply:
    """What `name_bottleneck` returned for each profile."""

    names: list[object]


@dataclass(frozen=True, kw_only=True)
class Bottlenecks(ProbeInputs[BottlenecksReply], probe="lab3.scaling.analysis.bottlenecks"):
    """Made-up profiles, each with a threshold; None: none is given."""

    profiles: list[Profile]
    thresholds: list[float | None]


def _answers(request: Request) -> Iterator[Case]:
    for function in ("speedup", "efficiency"):
        for alone in ("measured", "of the other kind only"):
            yield {"kind": request.params["kind"], "function": function, "alone": alone}


def profiles_of(request: Request) -> Iterator[Case]:
    """A case for each profile of a request."""
    thresholds = request.params.get("thresholds") or [None] * len(request.params["profiles"])
    for profile, threshold in zip(request.params["profiles"], thresholds, strict=True):
        yield {"profile": profile, "threshold": threshold}


def _ranks(case: Case) -> str:
    ranks = len(case["profile"]["data_seconds"])
    return "one" if ranks == 1 else "two" if ranks == 2 else "more"


def _waiting(case: Case) -> str:
    seconds = case["profile"]["communication_seconds"]
    return "yes" if max(seconds) > min(seconds) + 1e-12 else "no"


def _least(case: Case) -> str:
    profile = case["profile"]
    seconds = profile["communication_seconds"]
    work = [data + compute for data, compute in zip(profile["data_seconds"], profile["compute_seconds"], strict=True)]
    return "another rank's" if seconds[work.index(max(work))] > min(seconds) + 1e-12 else "the slowest rank's"


RANKS = Dimension("ranks", ("one", "two", "more"), _ranks)
KIND = Dimension("kind", KINDS, lambda case: str(case["kind"]))
SPACES = (
    Space(
        probes=(Ratios.probe,),
        cases=_answers,
        dimensions=(
            KIND,
            Dimension("function", ("speedup", "efficiency"), lambda case: str(case["function"])),
            Dimension("one process", ("measured", "of the other kind only"), lambda case: str(case["alone"])),
        ),
    ),
    Space(
        probes=(Shares.probe,),
        cases=profiles_of,
        dimensions=(
            Dimension("ranks", ("one", "several"), lambda case: "one" if _ranks(case) == "one" else "several"),
            Dimension("some wait", ("no", "yes"), _waiting),
            Dimension("least communication", ("the slowest rank's", "another rank's"), _least),
        ),
        apart={
            ("ranks=one", "some wait=yes"): "one rank waits for nobody",
            ("ranks=one", "least communication=another rank's"): "there is no other rank",
            ("some wait=no", "least communication=another rank's"): "all ranks communicate for as long",
        },
    ),
)
WITHOUT = {Plotted.probe: "the points of `ratios`, of both kinds and of one"}


def profile(generator: InputGenerator, *, ranks: int, communication: float, data: float, imbalance: float) -> Profile:
    """A step of which these shares are lost, and the rest is computation; of several ranks one, not the first, is the
    slow one.

    What the other ranks wait for it looks like communication.
    """
    step = generator.log_uniform(1e-3, 1.0)
    compute = step * (1 - communication - data - imbalance)
    if ranks == 1:
        return {
            "data_seconds": [step * data],
            "compute_seconds": [compute],
            "communication_seconds": [step * communication],
        }
    slow = generator.integer(1, ranks - 1)
    # The slowest rank has `imbalance` more than the mean, so the others have less.
    extra = [-imbalance * step / (ranks - 1)] * ranks
    extra[slow] = imbalance * step
    computes = [compute + each for each in extra]
    return {
        "data_seconds": [step * data] * ranks,
        "compute_seconds": computes,
        "communication_seconds": [step - step * data - each for each in computes],
    }


def uneven_profile(generator: InputGenerator, *, ranks: int, communication: float) -> Profile:
    """A step whose ranks differ in data and in compute, of which this share is communication proper."""
    work = [(generator.uniform(0.1, 1.0), generator.uniform(0.1, 1.0)) for _ in range(ranks)]
    scale = generator.log_uniform(1e-3, 1.0)
    slowest = max(data + compute for data, compute in work)
    step = slowest / (1 - communication)
    return {
        "data_seconds": [scale * data for data, _ in work],
        "compute_seconds": [scale * compute for _, compute in work],
        "communication_seconds": [scale * (step - data - compute) for data, compute in work],
    }


def loose_profile(generator: InputGenerator, *, ranks: int) -> Profile:
    """A step as it is measured: the medians of its ranks do not add up to one length, and a rank that is not the
    slowest spends least on communication."""
    made = uneven_profile(generator, ranks=ranks, communication=generator.uniform(0.2, 0.5))
    seconds = made["communication_seconds"]
    slowest = seconds.index(min(seconds))
    other = generator.shuffled([rank for rank in range(ranks) if rank != slowest])[0]
    seconds[other] = generator.uniform(0.4, 0.8) * seconds[slowest]
    return made


def _point(kind: str, size: int, batch: int, seconds: float, shares: Profile) -> Point:
    return {
        "device": "cuda",
        "backend": "nccl",
        "kind": kind,
        "world_size": size,
        "batch_size": batch,
        "step_seconds": seconds,
        "samples_per_second": batch / seconds,
        "profile": shares,
    }


def points(generator: InputGenerator) -> tuple[list[Point], dict[str, dict[int, float]]]:
    """Measurements of both kinds on 1 to 12 processes, shuffled, and the speedups that were put into them.

    Of neither kind is the one on one process the first or the last, or the slowest.
    """
    generator = generator.shared("lab3.points")
    made: list[Point] = []
    ratios: dict[str, dict[int, float]] = {}
    for kind in KINDS:
        alone, batch = generator.log_uniform(1e-3, 1.0), 8 * generator.integer(4, 40)
        sizes = (generator.integer(2, 3), generator.integer(4, 6), generator.integer(8, 12))
        ratios[kind] = {1: 1.0} | {size: size * generator.uniform(0.4, 0.95) for size in sizes}
        ratios[kind][sizes[0]] = generator.uniform(0.5, 0.9)  # two processes can be slower than one
        ratios[kind][sizes[1]] = sizes[1] * generator.uniform(1.03, 1.2)  # and some more than so many times as fast
        for size, ratio in ratios[kind].items():
            work = batch if kind == "strong" else batch * size
            took = alone / ratio * work / batch
            shares = profile(generator, ranks=max(2, size), communication=0.1, data=0.05, imbalance=0.05)
            made.append(_point(kind, size, work, took, shares))
    order = generator.shuffled(list(range(len(made))))
    while any(
        [made[n]["world_size"] for n in order if made[n]["kind"] == kind][end] == 1
        for kind in ratios
        for end in (0, -1)
    ):
        order = generator.shuffled(order)
    return [made[index] for index in order], ratios
