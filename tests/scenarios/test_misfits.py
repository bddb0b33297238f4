"""A function that raises, has other parameters or returns something else fails its checks by its own name.

Nobody else is blamed: no check needs review, and none says that the machine, the grader or the staff is at fault.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradebox.run.grade import Outcome
from tests.scenarios.asking import Turn
from tests.scenarios.grading import Bench, Graded
from tests.scenarios.misfits import WAYS, Function, functions, misfit, packages
from tests.scenarios.reuse import REFERENCE, code_of

_BLAMED = ("itself failed", "course staff", "the sandbox failed", "busy")
"""In messages and hints that are about somebody else."""


def _cases() -> Iterator[object]:
    """By day one way for Lab 1, which is one grading. By night every function in every way, everywhere."""
    for number, (lab, package) in enumerate(packages().items()):
        first, *_ = every = functions(package)
        way = next(way for way in (*WAYS[number % len(WAYS) :], *WAYS) if misfit(first, way) is not None)
        by_day = () if lab == "lab1" else pytest.mark.night
        yield pytest.param(lab, first, (way,), id=f"{lab}-{first}-{way}", marks=by_day)
        for function in every:
            yield pytest.param(lab, function, WAYS, id=f"{lab}-{function}", marks=pytest.mark.night)


@pytest.mark.parametrize(("lab", "function", "ways"), list(_cases()))
def test_a_function_that_does_not_fit_is_named_and_nobody_else_is(
    lab: str, function: Function, ways: tuple[str, ...], bench: Bench
) -> None:
    for way in ways:
        text = misfit(function, way)
        if text is None:
            continue
        graded = _graded(bench, lab, function, text)
        what = f"{function}, {way}\n{graded.problems}"
        failed = [check for check in graded.checks.values() if check.outcome is Outcome.FAILED]
        assert not graded.needs_review, what
        for check in graded.checks.values():
            assert not any(words in f"{check.message} {check.hint}" for words in _BLAMED), what
        if way == "raises":
            assert failed, what
        if failed and way != "hollow":  # there the message is about what the result must hold
            assert any(_names(function, check.message) for check in failed), what


@pytest.mark.night
def test_each_way_changes_the_function_and_leaves_the_file_readable() -> None:
    ways = set()
    for package in packages().values():
        for function in functions(package):
            original = (REFERENCE / function.file).read_text(encoding="utf-8")
            for way in WAYS:
                text = misfit(function, way)
                if text is not None:
                    compile(text, function.file, "exec")
                    assert text != original
                    ways.add(way)
    assert ways == set(WAYS)


def _names(function: Function, message: str) -> bool:
    """Whether a message says which function it is; a program is called by its module."""
    name = function.called.rpartition(".")[2]
    return (Path(function.file).stem if name == "main" else name) in message


def _graded(bench: Bench, lab: str, function: Function, text: str) -> Graded:
    shutil.rmtree(bench.folder)
    shutil.copytree(REFERENCE, bench.folder, ignore=shutil.ignore_patterns("__pycache__"))
    (bench.folder / function.file).write_text(text, encoding="utf-8")
    bench.asking.begin(Turn(code_of(bench.folder), cold=False))
    return bench.carry_out(bench.order(lab))
