"""The three decorators a check is written with; their docstrings are the manual.

@criterion("lab1.benchmark")
class Benchmark:
    def test_returns_result(self, submission, generator): ...

    @requires("returns_result")
    def test_warmed_up(self, submission): ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, TypeVar

_Class = TypeVar("_Class", bound=type)
_Function = TypeVar("_Function", bound=Callable[..., object])
_PREFIX = "test_"
GIVEN = ("submission", "generator", "without")
"""What a check may take."""


def criterion(
    criterion_id: str, *, early: bool = False, timeline: bool | Mapping[str, str] = False
) -> Callable[[_Class], _Class]:
    """Bind a class of checks to the criterion whose folder it is in.

    The method `test_warmed_up` of a class bound to `lab1.benchmark` is the check `lab1.benchmark.warmed_up`; its points
    and its title are in `criterion.toml`. It may take `submission` (`gradebox.run.submission.Submission`) and
    `generator`, which draws its inputs (`gradebox.run.input_generator.InputGenerator`). One that `builds_on` others
    takes `without` as well.

    Where several sandboxes share the work, an `early` criterion is begun before the others: one whose checks take
    longest, so that no sandbox is left alone with it at the end, or wait for processes of theirs, during which another
    has the processor.

    Next to failed checks of a criterion with a `timeline` is what ran on the simulated device, and what ran there
    in a run of the course's own, where the check asked for one. Where it did not, `timeline` may name the probe that is
    then asked: `{"lab1.basics.product": "lab1.basics.right_product"}` says which one launches, without any code of a
    submission, what a right answer to the first launches. It takes the same inputs, and what it returns is not read.
    """

    def bind(cls: _Class) -> _Class:
        cls.__criterion__ = criterion_id  # type: ignore[attr-defined]
        cls.__early__ = early  # type: ignore[attr-defined]
        cls.__timeline__ = bool(timeline)  # type: ignore[attr-defined]
        cls.__expected__ = tuple(timeline.items()) if isinstance(timeline, Mapping) else ()  # type: ignore[attr-defined]
        return cls

    return bind


def requires(*checks: str) -> Callable[[_Function], _Function]:
    """Name the checks this one builds on; where one of them has no answer, this one is reported as blocked by it.

    A wrong answer does not block, since more can be asked of code that runs; see `builds_on`.

    A name without dots means a check of the same criterion; `lab1.benchmark.returns_result` names one of another.
    Use it only where the check could not say anything new, so that one mistake is reported once.
    """

    def bind(function: _Function) -> _Function:
        function.__requires__ = checks  # type: ignore[attr-defined]
        return function

    return bind


def builds_on(*checks: str) -> Callable[[_Function], _Function]:
    """Name checks of the same criterion whose mistakes make this one fail as well, and take `without`.

    `without` is empty at first. If the check fails then, and checks that it builds on have failed with a wrong answer,
    it is run again as a control experiment: `without` holds their names, and the check leaves out of its inputs, or of
    what it compares, what they are about. If it passes, its failure follows from theirs (`gradebox.run.deductions`).
    If it fails again, there is another mistake, which this second failure shows, and it is charged.
    """

    def bind(function: _Function) -> _Function:
        function.__builds_on__ = checks  # type: ignore[attr-defined]
        return function

    return bind


@dataclass(frozen=True)
class CheckFunction:
    """A check as it is written."""

    id: str
    requires: tuple[str, ...]
    """Ids of the checks that it builds on."""
    cls: type
    name: str
    """Of the method."""
    takes: tuple[str, ...]
    """Which of `GIVEN` it wants."""
    title: str = ""
    """What it requires, in words; `criterion.toml` says it."""
    early: bool = False
    """Whether its criterion is begun before others."""
    builds_on: tuple[str, ...] = ()
    """Ids of the checks whose mistakes make it fail as well."""
    timeline: bool = False
    """Whether a picture of the device's work is next to it where it fails."""
    expected_timelines: tuple[tuple[str, str], ...] = ()
    """Of probes, those of the course's own that show next to it what was expected."""

    @property
    def function(self) -> FunctionType:
        """What is called, as it is written."""
        function: FunctionType = inspect.unwrap(vars(self.cls)[self.name])
        return function

    @property
    def place(self) -> str:
        """File and line where it is written."""
        code = self.function.__code__
        return f"{code.co_filename}:{code.co_firstlineno}"

    def run(self, **arguments: Any) -> None:
        """Ask it. Raises what `gradebox.run.assertions` has for what is not as it should be."""
        getattr(self.cls(), self.name)(**{name: arguments[name] for name in self.takes})


def functions(module: ModuleType) -> Iterator[CheckFunction]:
    """The checks that a module defines, in its order."""
    for cls in list(vars(module).values()):
        if not isinstance(cls, type) or cls.__module__ != module.__name__:
            continue
        bound: str | None = getattr(cls, "__criterion__", None)
        for name, function in vars(cls).items():
            if bound is None or not name.startswith(_PREFIX) or not callable(function):
                continue
            names: tuple[str, ...] = getattr(function, "__requires__", ())
            yield CheckFunction(
                id=f"{bound}.{name.removeprefix(_PREFIX)}",
                requires=tuple(required if "." in required else f"{bound}.{required}" for required in names),
                cls=cls,
                name=name,
                takes=tuple(inspect.signature(function).parameters)[1:],
                early=getattr(cls, "__early__", False),
                timeline=getattr(cls, "__timeline__", False),
                expected_timelines=getattr(cls, "__expected__", ()),
                builds_on=tuple(f"{bound}.{base}" for base in getattr(function, "__builds_on__", ())),
            )
