"""How ranks meet: by file, by TCP or by the environment, with a device or without, on machines that hold fewer GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradebox.sandbox.probe_types import ProbeInputs
from grader.shared.dimensions import Case, Dimension, Space

if TYPE_CHECKING:
    from gradebox.run.input_generator import InputGenerator
    from gradebox.sandbox import Request


@dataclass(frozen=True, kw_only=True)
class JoinReply:
    """What one rank observed."""

    place: list[int]
    """Rank and world size of the process group."""
    sum: float
    """Of ones, over the ranks."""
    left: bool
    """Whether there was no group any more after `cleanup`."""


@dataclass(frozen=True, kw_only=True)
class Join(ProbeInputs[JoinReply], probe="lab3.setup.joining.join"):
    """Ranks meet once, with the arguments of the document."""


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """How ranks meet once."""

    way: str
    """"file", "tcp" or "environment"."""
    device: str | None
    """The argument; None: none is given."""
    local: list[int] | None = None
    """LOCAL_RANK of each rank, if the environment has it."""
    gpus: int | None = None
    """How many GPUs can be seen, if not all of them."""
    machine: int | None = None
    """LOCAL_WORLD_SIZE, if not all ranks are on this machine."""


@dataclass(frozen=True, kw_only=True)
class MeetingReply(JoinReply):
    """What one rank observed, by the arguments of `setup`, too."""

    device: object
    """As `setup` returned it."""
    current: int | None
    """The current GPU."""
    backend: str


@dataclass(frozen=True, kw_only=True)
class SetupReply:
    """What one rank observed."""

    meetings: list[MeetingReply]
    left_alone: str
    """The error of `cleanup` without a process group; empty if there was none."""
    refused: dict[str, bool]
    """Whether `setup` raised a ValueError, for each thing that it must not accept."""
    gpus: int
    """Of this machine."""
    waited: float | None = None
    """Seconds that rank 0 waited for one that did not come, until its collective raised an error."""
    patience: float = 0.0
    """For how many seconds that meeting's process group waits; 0 if there was no such meeting."""


@dataclass(frozen=True, kw_only=True)
class Setup(ProbeInputs[SetupReply], probe="lab3.setup.joining.setup"):
    """Meetings, one after the other."""

    kind: str
    """Of the machine's devices."""
    meetings: list[Meeting]
    patience: float = 0.0
    """Timeout of a last meeting, in which rank 1 does not come to a collective; 0: there is none."""


WAYS = ("file", "tcp", "environment")


def _meetings(request: Request) -> Iterator[Case]:
    machine = 0 if request.device == "cpu" else request.ranks
    for meeting in request.params["meetings"]:
        gpus, here = meeting["gpus"], meeting["machine"]
        yield {
            **meeting,
            "gpus": machine if gpus is None else gpus,
            "here": request.ranks if here is None else here,
        }


def _gpus(case: Case) -> str:
    return "none" if case["gpus"] == 0 else "too few" if case["gpus"] < case["here"] else "one for each"


SPACES = (
    Space(
        probes=(Setup.probe,),
        cases=_meetings,
        dimensions=(
            Dimension("meets by", WAYS, lambda case: str(case["way"])),
            Dimension("device", ("cpu", "cuda", "None"), lambda case: str(case["device"])),
            Dimension("LOCAL_RANK", ("no", "yes"), lambda case: "no" if case["local"] is None else "yes"),
            Dimension("GPUs", ("none", "too few", "one for each"), _gpus),
        ),
        apart={
            ("device=cuda", "GPUs=none"): "there is nothing to compute on",
            ("device=cpu", "GPUs=too few"): "GPUs are not asked for",
        },
    ),
)


def without_gpus(generator: InputGenerator) -> list[Meeting]:
    """A meeting by each way on a machine without GPUs."""
    return [
        Meeting(way=way, local=local, device=device)
        for way, local, device in zip(
            generator.shuffled(WAYS),
            generator.shuffled([None, None, [1, 0]]),
            generator.shuffled(["cpu", "cpu", None]),
            strict=True,
        )
    ]


def with_devices(generator: InputGenerator, *, simulated: bool) -> list[Meeting]:
    """A meeting for each device that can be given, on this machine."""
    devices: list[tuple[str | None, int | None]] = [("cuda", None), ("cpu", None), (None, None)]
    if simulated:
        devices.append(("cuda", 1))
    swapped = [None, [1, 0]]
    ways, local = generator.shuffled(WAYS * 2), generator.shuffled(swapped * 2)
    return [
        Meeting(way=way, local=place, device=device, gpus=gpus)
        for way, place, (device, gpus) in zip(ways, local, generator.shuffled(devices), strict=False)
    ]


def by_environment(generator: InputGenerator, *, simulated: bool) -> list[Meeting]:
    """Two ranks that choose their device themselves: on a GPU each, and on one GPU for both."""
    swapped = [1, 0]
    places: list[tuple[list[int] | None, int | None, int | None]] = [
        (local, None, None) for local in generator.shuffled([None, swapped])
    ]
    if simulated:
        places += [(None, 1, None), (swapped, 1, None)]
        places.append(([0, 0], 1, 1))  # two machines, both full
    return [
        Meeting(way="environment", device=None, local=local, gpus=gpus, machine=machine)
        for local, gpus, machine in places
    ]


def three_on_two_gpus(generator: InputGenerator) -> Meeting:
    """Three ranks that take turns: 0, 1, and 0 again."""
    local = generator.shuffled([None, [2, 0, 1]])[0]
    return Meeting(way="environment", device=None, gpus=2, local=local)
