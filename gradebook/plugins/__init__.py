"""Parts of a class that can be taken out: each a folder here, found by entry points, imported only when it is used.

An entry point of the group `gradebook.plugins` is called KIND.NAME:

| kind | its object | who uses it |
|---|---|---|
| `engine` | `engine(...) -> PluginEngine`; its parameters are options of the command line | `gpulabs class --on NAME` |
| `export`, `manual` | `command(host: Host)`, which returns the command as a function for Typer | `gpulabs KIND NAME` |

A removed folder leaves its entry points behind: a user of one gets one line that says what is missing. A
checkout that is not installed has none; then those of its `pyproject.toml` count. Not for what a plug-in does.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Protocol

from gradebook.grading.engine import OpenEngine
from gradebox.common.configuration import ROOT
from gradebox.course.course import Course

GROUP = "gradebook.plugins"


class PluginError(ValueError):
    """There is no such plug-in, or it cannot be used; the message is one line that says what to do."""


@dataclass(frozen=True)
class ClassRun:
    """What an engine must know of the run of a class before it grades anything."""

    course: Course
    out: Path
    """The folder of the class."""
    say: Callable[[str], None]
    """Takes lines about what the engine does."""


@dataclass(frozen=True)
class PluginEngine:
    """An engine with its options."""

    open: Callable[[ClassRun], OpenEngine]
    """Raises `EngineError` at once if something is missing, before anything is taken in."""
    elsewhere: bool = False
    """Whether other machines grade: then the class has to name a device, and as many gradings run as they take."""


class Fail(Protocol):
    """Prints an error."""

    def __call__(self, error: object, code: int = 1) -> Exception:
        """The exception to raise, which ends the command with this exit code."""
        ...


class Echo(Protocol):
    """Prints a line."""

    def __call__(self, text: object = "", *, err: bool = False) -> None: ...


@dataclass(frozen=True)
class Host:
    """What the command line lends to the commands of plug-ins."""

    course: Callable[[], Course]
    echo: Echo
    put: Callable[[str | bytes, Path | None], None]
    """Writes a file, or to the terminal, and says so."""
    fail: Fail


Engine = Callable[..., PluginEngine]
Command = Callable[[Host], Callable[..., None]]


def names(kind: str) -> list[str]:
    """The plug-ins of a kind that are here; imports none of them."""
    start = f"{kind}."
    points = (name for name, point in _entry_points().items() if name.startswith(start) and _is_here(point))
    return sorted(name.removeprefix(start) for name in points)


def is_known(kind: str, name: str) -> bool:
    """Whether there is such a plug-in, be it here or taken out."""
    return f"{kind}.{name}" in _entry_points()


def engine(name: str) -> Engine:
    """An engine, imported. Raises `PluginError`."""
    if not is_known("engine", name):
        raise PluginError(f"--on {name}: expected {' or '.join(['local', *names('engine')])}")
    factory: Engine = _loaded("engine", name)
    return factory


def command(group: str, name: str) -> Command:
    """A command, imported. Raises `PluginError`."""
    factory: Command = _loaded(group, name)
    return factory


def _loaded(kind: str, name: str) -> Any:
    point = _entry_points()[f"{kind}.{name}"]
    if not _is_here(point):
        raise PluginError(f"{name} needs the plug-in {_package(point)}, which is not here: install the project again")
    return point.load()


def _is_here(point: EntryPoint) -> bool:
    """Whether the plug-in's code is there: `find_spec` imports what is above it, and not itself."""
    try:
        spec = importlib.util.find_spec(_package(point))
    except ModuleNotFoundError:
        return False
    return spec is not None and spec.origin is not None  # a folder that holds only caches has no origin


def _package(point: EntryPoint) -> str:
    """The package of a plug-in, in which the module that it names lies."""
    return ".".join(point.module.split(".")[:3])


@functools.cache
def _entry_points() -> Mapping[str, EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP) or _of_checkout()}


def _of_checkout() -> list[EntryPoint]:
    """Those of a checkout that nobody has installed."""
    try:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
        return [EntryPoint(name, value, GROUP) for name, value in project["entry-points"][GROUP].items()]
    except (OSError, ValueError, KeyError):
        return []
