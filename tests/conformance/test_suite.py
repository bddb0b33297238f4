"""The suite itself: every program names its source, and there are enough of them."""

from __future__ import annotations

from tests.conformance.programs import all_test_functions

_MEASURES_THE_SUITE = "test_suite"
LEAST_PROGRAMS = 120


def _programs() -> dict[str, object]:
    return {
        name: next((mark.args[0] for mark in getattr(function, "pytestmark", []) if mark.name == "program"), None)
        for name, function in all_test_functions().items()
        if not name.startswith(_MEASURES_THE_SUITE)
    }


def test_every_program_names_the_source_of_its_expectation() -> None:
    without = [name for name, program in _programs().items() if len(getattr(program, "source", "")) < 10]
    assert without == []


def test_there_are_enough_programs() -> None:
    assert len(_programs()) >= LEAST_PROGRAMS
