"""A check recognises a mistake, and the run charges it once."""

from __future__ import annotations

import pytest

from gradebox.run.assertions import Cause, CheckFailed, recognising, require, require_equal

CAUSE = Cause("late", "look at the clock", "lab1.time.clock")


def failure_of(error: type[Exception], call: object) -> CheckFailed:
    with pytest.raises(error) as caught:
        call()  # type: ignore[operator]
    assert isinstance(caught.value, CheckFailed)
    return caught.value


def test_a_hint_that_is_a_cause_is_shown_as_the_hint_and_names_the_mistake() -> None:
    failed = failure_of(CheckFailed, lambda: require(False, "too late", CAUSE))
    assert (failed.message, failed.hint, type(failed.hint)) == ("too late", "look at the clock", str)
    assert failed.cause is CAUSE


def test_comparisons_are_explained_where_they_fail_and_only_then() -> None:
    calls = []

    def look() -> Cause:
        calls.append(1)
        return CAUSE

    with recognising(look):
        require(True, "")
    assert not calls

    def fails() -> None:
        with recognising(look):
            require_equal(3, 4, what="hours", hint="count")

    failed = failure_of(CheckFailed, fails)
    assert (failed.message, failed.hint) == ("hours: saw 3, expected 4", "look at the clock")
    assert failed.cause is CAUSE


def test_what_is_not_recognised_keeps_its_hint_and_what_is_already_its_cause() -> None:
    def fails(hint: str, cause: Cause | None) -> CheckFailed:
        def call() -> None:
            with recognising(lambda: cause):
                require(False, "wrong", hint)

        return failure_of(CheckFailed, call)

    assert fails("count", None).cause is None
    assert fails("count", None).hint == "count"
    other = Cause("early", "wait")
    assert fails(other, CAUSE).cause is other
