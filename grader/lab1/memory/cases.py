"""What the probes of Lab 1's memory profile are given and return, and how their cases are drawn."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Required, TypedDict

from gradebox.run.input_generator import InputGenerator
from gradebox.sandbox.probe_types import ProbeInputs
from grader.lab1.shared.cases.plots import PicturesReply
from grader.lab1.shared.cases.values import GPU, NOT_GIVEN
from grader.shared.cases import every_value, one_and_its_opposite
from grader.shared.dimensions import Case, Dimension, Space
from labkit.results import STAGES

_ROOM = {"kept": (0.2, 2.0), "forward": (0.2, 2.0), "backward": (1.0, 2.5)}
"""Bytes that the network takes beyond what shapes tell, as parts of its parameters: several times the tolerance wide.
The backward pass takes enough for the peak to lie above what is held before it."""
_ALIGNMENT_BYTES = 512
"""The caching allocator rounds every block up to this."""


class Network(TypedDict, total=False):
    """A fully connected network and a batch for it, and how its profile is asked for."""

    widths: Required[list[int]]
    batch: Required[int]
    room: Required[list[int]]
    """Bytes that one of its layers keeps from the forward to the backward pass, and takes for a moment in either."""
    dtype: str
    """Of parameters and inputs; float32 by default."""
    indexed: bool
    """Whether the GPU is named with its index."""


class Stage(TypedDict):
    """A `StageMemory` that a submission returned: each field may be anything that JSON can say."""

    stage: object
    allocated_bytes: object
    reserved_bytes: object
    peak_bytes: object


class Profile(TypedDict):
    """A `MemoryProfile` that a submission returned."""

    device: object
    dtype: object
    stages: list[Stage]


@dataclass(frozen=True, kw_only=True)
class ProfilesReply:
    """The profile of each network."""

    profiles: list[Profile]


@dataclass(frozen=True, kw_only=True)
class ProfileSteps(ProbeInputs[ProfilesReply], probe="lab1.memory.profiles.steps"):
    """`profile_training_memory` of networks, one after the other."""

    runs: list[Network]
    kept: int
    """Bytes that somebody else holds meanwhile."""
    freed: int
    """Bytes that somebody else held before."""


@dataclass(frozen=True, kw_only=True)
class DefaultProfileReply:
    """The profile of the lab's own model."""

    profile: Profile
    product_flops: int
    """Of the matrix products that ran."""


@dataclass(frozen=True, kw_only=True)
class DefaultProfile(ProbeInputs[DefaultProfileReply], probe="lab1.memory.profiles.by_default"):
    """`profile_training_memory` as the document calls it: with no arguments."""


@dataclass(frozen=True, kw_only=True)
class PrecisionsReply:
    """The profiles of each network."""

    profiles: list[list[Profile]]
    endings: list[str]
    """How `profile_training_memory` and `compare_precisions` ended on a CPU."""
    indexed: str
    """How `profile_training_memory` ended on a GPU that was named with its index."""


@dataclass(frozen=True, kw_only=True)
class ComparePrecisions(ProbeInputs[PrecisionsReply], probe="lab1.memory.profiles.precisions"):
    """`compare_precisions` of each network."""

    networks: list[Network]
    kept: int
    freed: int


class StageBytes(TypedDict):
    """The figures of one stage, as the course measured or made them up."""

    stage: str
    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int


MISTAKES = (
    "graph_kept",
    "not_cast",
    "batch_let_go",
    "output_let_go",
    "loss_in_float32",
    "gradients_kept",
    "cache_kept",
    "model_kept",
)
"""Of a training step, in words that `probes/reference_steps.py` understands."""
FIGURES = ("allocated_bytes", "reserved_bytes", "peak_bytes")


@dataclass(frozen=True, kw_only=True)
class ReferenceStepsReply:
    """For each implementation of Adam and each network, the stages."""

    stages: list[list[list[StageBytes]]]


@dataclass(frozen=True, kw_only=True)
class ReferenceSteps(ProbeInputs[ReferenceStepsReply], probe="lab1.memory.reference_steps.measured"):
    """The same steps, measured by the course without a submission."""

    runs: list[Network]
    kept: int
    freed: int
    mistake: str = ""
    """One that the steps are to make, of `MISTAKES`."""


class MadeUpProfile(TypedDict):
    """A profile whose figures are made up."""

    dtype: str
    stages: list[StageBytes]


@dataclass(frozen=True, kw_only=True)
class MemoryPictures(ProbeInputs[PicturesReply], probe="lab1.memory.profiles.pictures"):
    """The memory program; then `plot_memory` of made-up profiles."""

    plots: list[list[MadeUpProfile]]


# --- in what cases differ, and how they are drawn ---------------------------------------------------------------------

_NETWORK = Dimension("network", ("deep", "wide"), lambda case: "deep" if case["batch"] < 3000 else "wide")
MEMORY = Space(
    probes=(ProfileSteps.probe,),
    cases=lambda request: request.params["runs"],
    dimensions=(
        _NETWORK,
        GPU,
        Dimension("dtype", (NOT_GIVEN, "float16", "bfloat16"), lambda case: case.get("dtype", NOT_GIVEN)),
    ),
)
PRECISIONS = Space(
    probes=(ComparePrecisions.probe,),
    cases=lambda request: request.params["networks"],
    dimensions=(_NETWORK, GPU),
)


def steps(generator: InputGenerator) -> ProfileSteps:
    """Some steps, and what others hold on the device: the same for all checks of one grading, so run once.

    The first is in float32.
    """
    generator = generator.shared("lab1.memory")
    rows = every_value(generator, MEMORY.values(), 3)
    rows.sort(key=lambda row: row["dtype"] != NOT_GIVEN)
    runs = [_network(generator, row) for row in rows]
    return ProfileSteps(runs=runs, **_others(generator))


def comparisons(generator: InputGenerator) -> ComparePrecisions:
    """Networks whose precisions are compared."""
    networks = [_network(generator, row) for row in one_and_its_opposite(generator, PRECISIONS.values())]
    return ComparePrecisions(networks=networks, **_others(generator))


def _network(generator: InputGenerator, row: Mapping[str, str]) -> Network:
    """A network of which the parameters weigh most, or, if it is wide, batch and output."""
    network = deep_network(generator) if row["network"] == "deep" else _wide_network(generator)
    if row["GPU"] == "cuda:0":
        network["indexed"] = True
    if row.get("dtype", NOT_GIVEN) != NOT_GIVEN:
        network["dtype"] = row["dtype"]
    return network


def _others(generator: InputGenerator) -> dict[str, int]:
    return {"kept": generator.integer(20, 60) * 2**20, "freed": generator.integer(100, 300) * 2**20}


def deep_network(generator: InputGenerator) -> Network:
    """A fully connected network large enough that library workspaces do not matter, of odd and random widths."""
    # Two that are alike within the tolerances are rare: bytes seen in one grading are no answer in the next.
    scale = generator.uniform(1.0, 1.5)
    widths = [generator.odd(int(1401 * scale), int(1801 * scale)) for _ in range(generator.integer(4, 6))]
    widths = [*widths, generator.odd(11, 99)]
    room = [
        round(generator.uniform(*_ROOM[part]) * parameter_bytes(widths)) for part in ("kept", "forward", "backward")
    ]
    return {"widths": widths, "batch": generator.odd(901, 2101), "room": room}


def _wide_network(generator: InputGenerator) -> Network:
    widths = [
        generator.odd(1801, 2501),
        *(generator.odd(151, 251) for _ in range(generator.integer(1, 2))),
        generator.odd(1501, 2001),
    ]
    batch = generator.odd(4001, 6001)
    room = [round(generator.uniform(0.2, 0.6) * 4 * batch * widths[0]) for _ in range(3)]
    return {"widths": widths, "batch": batch, "room": room}


def parameter_bytes(widths: Sequence[int], bytes_per_element: int = 4) -> int:
    """Bytes of weights and biases, each tensor rounded up as the caching allocator does."""
    elements = [count for before, after in itertools.pairwise(widths) for count in (before * after, after)]
    return sum(-(-count * bytes_per_element // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for count in elements)


def _first_stage(case: Case) -> str:
    return "something" if case["profiles"][0]["stages"][0]["reserved_bytes"] else "nothing"


MEMORY_PLOTS = Space(
    probes=(MemoryPictures.probe,),
    cases=lambda request: ({"profiles": profiles} for profiles in request.params["plots"]),
    dimensions=(
        Dimension("profiles", ("1", "several"), lambda case: "1" if len(case["profiles"]) == 1 else "several"),
        Dimension("at first", ("something", "nothing"), _first_stage),
    ),
)


def made_up_profiles(generator: InputGenerator) -> list[list[MadeUpProfile]]:
    """For each of two plots profiles whose figures are all different."""
    plots = []
    for how in one_and_its_opposite(generator, MEMORY_PLOTS.values()):
        dtypes = ("float32", "float16", "bfloat16") if how["profiles"] == "several" else ("float32",)
        profiles: list[MadeUpProfile] = []
        for dtype in dtypes:
            stages = [_made_up_stage(generator, stage) for stage in STAGES]
            if how["at first"] == "nothing":  # as on a GPU that nobody else uses
                stages[0] = {"stage": STAGES[0], "allocated_bytes": 0, "reserved_bytes": 0, "peak_bytes": 0}
            profiles.append({"dtype": dtype, "stages": stages})
        plots.append(profiles)
    return plots


def _made_up_stage(generator: InputGenerator, stage: str) -> StageBytes:
    allocated, reserved, peak = (generator.integer(10**6, 9 * 10**8) for _ in FIGURES)
    return {"stage": stage, "allocated_bytes": allocated, "reserved_bytes": reserved, "peak_bytes": peak}


SPACES: tuple[Space, ...] = (MEMORY, PRECISIONS, MEMORY_PLOTS)
WITHOUT: dict[str, str] = {ReferenceSteps.probe: "our own steps, without the submission"}
