"""The two decorators a check is written with; their docstrings are the manual.

@criterion("lab1.benchmark")
class TestBenchmark:
    def test_returns_result(self, submission): ...

    @requires("returns_result")
    def test_warmed_up(self, submission): ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Class = TypeVar("_Class", bound=type)
_Function = TypeVar("_Function", bound=Callable[..., object])


def criterion(criterion_id: str) -> Callable[[_Class], _Class]:
    """Bind a class of checks to one criterion of `rubric.toml`.

    The method `test_warmed_up` of a class bound to `lab1.benchmark` is the check `lab1.benchmark.warmed_up`; its points
    stand in the rubric.
    """

    def bind(cls: _Class) -> _Class:
        cls.__criterion__ = criterion_id  # type: ignore[attr-defined]
        return cls

    return bind


def requires(*checks: str) -> Callable[[_Function], _Function]:
    """Name the checks this one builds on; when one of them has not passed, this one is reported as blocked by it.

    A name without dots means a check of the same criterion; `lab1.benchmark.returns_result` names one of another.
    Use it only where the check could not say anything new, so that one mistake is reported once.
    """

    def bind(function: _Function) -> _Function:
        function.__requires__ = checks  # type: ignore[attr-defined]
        return function

    return bind
