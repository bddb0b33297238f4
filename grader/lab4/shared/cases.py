"""What probes of several criteria of Lab 4 are given and return: refusals, programs and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gradebox.sandbox.probe_types import ProbeInputs
from grader.shared.dimensions import Dimension

Fields: TypeAlias = Mapping[str, object]
"""The fields of a result that a submission returned, which may be anything that JSON has."""
Criterion: TypeAlias = Literal["checkpointing", "attention", "oom", "analysis"]
PlotKind: TypeAlias = Literal["checkpointing", "attention", "memory"]


@dataclass(frozen=True, kw_only=True)
class RefusalsReply:
    """By criterion and call, the name of the error that it raised; None if it raised none."""

    calls: Mapping[str, Mapping[str, str | None]]
    """Calls that make no sense."""
    sensible: Mapping[str, Mapping[str, str | None]]
    """Their neighbours that make sense."""


@dataclass(frozen=True, kw_only=True)
class Refusals(ProbeInputs[RefusalsReply], probe="lab4.shared.refusals"):
    """Call each function with arguments that make no sense; those of all criteria in one request."""

    below: int
    """A number below 0."""
    word: str
    """The name of nothing."""
    interval: int
    """Of checkpoints, where there are none."""


@dataclass(frozen=True, kw_only=True)
class ProgramReply:
    """What a program left behind."""

    exit_code: object
    json: Mapping[str, str]
    """The text of each file, by name."""
    pictures: Mapping[str, Mapping[str, float]]
    """What each picture looks like, by name (`grader.shared.probes.support.describe_files`)."""
    drawn: list[int]
    """Points of data in each figure."""
    printed: str = ""
    words: list[list[str]] = field(default_factory=list)
    """All that is written in each figure."""


@dataclass(frozen=True, kw_only=True)
class Program(ProbeInputs[ProgramReply], probe="lab4.shared.program"):
    """Run a program of the lab."""

    module: str
    command_line: list[str]


@dataclass(frozen=True, kw_only=True)
class ShownAxes:
    """What one pair of axes shows, in the units of its data."""

    lines: list[list[list[float]]]
    """The points of each line."""
    marks: list[list[float]]
    bars: list[list[float]]
    """Left, right, bottom and top of each."""
    scales: list[str]
    """Of x and y."""
    labels: list[str]
    """Of x and y, and the title."""
    shares_y: bool
    """Whether other axes have the same y axis."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a figure shows."""

    axes: list[ShownAxes]
    legend: list[str]
    texts: list[str]


@dataclass(frozen=True, kw_only=True)
class PlotsReply:
    """What a plot function did."""

    is_its_path: bool
    """Whether it returned the path it was given."""
    is_picture: bool
    """Whether there is a PNG file at that path."""
    shown: Shown
    """What people see."""
    drawn: Shown
    """With what is drawn and not seen: outside of the limits of the axes, covered, or without ink."""
    refused: str | None
    """The error with a path that cannot be written."""


@dataclass(frozen=True, kw_only=True)
class Plots(ProbeInputs[PlotsReply], probe="lab4.shared.plots"):
    """Draw made-up results, and draw them again to a path that cannot be written."""

    kind: PlotKind
    rows: Sequence[Fields]
    """The fields of each result."""


def flag(name: str, of: str) -> Dimension:
    """A flag of the case; if the case does not have it, it is no."""
    return Dimension(name, ("no", "yes"), lambda case: "yes" if case.get(of) else "no")


def segments(every: int | None, layers: int) -> str:
    """How a checkpoint interval cuts a model."""
    if every is None:
        return "none"
    if every == 1 or every >= layers:
        return "each block" if every == 1 else "one segment"
    return "short last" if layers % every else "equal"


SEGMENTS = ("none", "each block", "short last", "equal", "one segment")

WITHOUT = {
    Refusals.probe: "each function with each argument that makes no sense, all of them in every grading",
    Plots.probe: "rows of made-up results, each of which must be seen in the picture",
    Program.probe: "a program that is given a command line",
}
