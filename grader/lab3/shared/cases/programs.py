"""Programs that start ranks, and what they leave behind."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradebox.sandbox.probe_types import ProbeInputs


@dataclass(frozen=True, kw_only=True)
class ProgramReply:
    """What a program left behind."""

    exit_code: object
    """Of torchrun None, if its ranks waited for each other without end."""
    json: dict[str, str]
    """Text of each file, by its name."""
    pictures: dict[str, dict[str, float]]
    """Size and colours of each, by its name (`grader.shared.probes.support`)."""
    drawn: list[int] = field(default_factory=list)
    """Points of data in each figure that was drawn in the program's own process."""
    words: list[list[str]] = field(default_factory=list)
    """Of each such figure."""
    loopback_bytes: int | None = None
    """Bytes that the program's processes sent each other; None if nobody counts them."""


@dataclass(frozen=True, kw_only=True)
class SpawnReply(ProgramReply):
    """What a program that starts its ranks itself left behind."""

    children_seconds: float
    """Processor time of its processes."""


@dataclass(frozen=True, kw_only=True)
class Program(ProbeInputs[SpawnReply], probe="lab3.shared.launch.program"):
    """A program that starts ranks by itself."""

    module: str
    argv: list[str]


@dataclass(frozen=True, kw_only=True)
class TorchrunReply(ProgramReply):
    """What a program left behind that torchrun started."""

    tail: str
    """The first error that a rank reported, or the end of the log."""
    by_others: list[str]
    """What the ranks other than 0 left behind: files, and tables under any title."""


@dataclass(frozen=True, kw_only=True)
class Torchrun(ProbeInputs[TorchrunReply], probe="lab3.shared.launch.torchrun"):
    """A program under torchrun, with one rank on each of so many machines."""

    module: str
    machines: int
    argv: list[str]


_PROGRAM = "a program that is given a command line"
WITHOUT = {Program.probe: _PROGRAM, Torchrun.probe: _PROGRAM}
