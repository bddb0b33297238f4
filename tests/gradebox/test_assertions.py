"""What a failing check says: what was seen, what was expected, how far off."""

import math
from typing import Any

import numpy as np
import pytest

from gradebox.run.assertions import (
    Cause,
    CheckFailed,
    NeedsReview,
    number,
    numbers,
    positive,
    recognising,
    require_arrays_close,
    require_between,
    require_close,
    require_equal,
    seconds,
    shown,
)
from gradebox.run.submission import Seen


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "3", True, [1.0]])
def test_only_a_finite_number_is_a_number(value: object) -> None:
    with pytest.raises(CheckFailed, match="seconds must be a finite number"):
        number(value, "seconds")


def test_nan_is_close_to_nothing() -> None:
    with pytest.raises(CheckFailed):
        require_close(math.nan, 1.0, relative=0.5, what="loss")
    with pytest.raises(CheckFailed, match="1 of 2 values differ"):
        require_arrays_close([1.0, math.nan], [1.0, 2.0], rtol=1e9, what="weights")


def test_a_large_factor_is_spelt_out() -> None:
    with pytest.raises(CheckFailed, match=r"saw 40 ms, expected between 3 ms and 4 ms \(10 times too large\)"):
        require_between(0.04, 0.003, 0.004, what="time", show=seconds)


def test_the_first_differing_element_is_named() -> None:
    expected = np.zeros((2, 3))
    observed = expected.copy()
    observed[1, 2] = 0.5
    with pytest.raises(CheckFailed, match=r"1 of 6 values differ; the first is at \[1, 2\]: saw 0.5, expected 0"):
        require_arrays_close(observed, expected, rtol=1e-6, what="gradient")


def test_shapes_must_agree_without_broadcasting() -> None:
    with pytest.raises(CheckFailed, match=r"shape \(1,\), expected \(3,\)"):
        require_arrays_close([1.0], [1.0, 1.0, 1.0], rtol=0.1, what="gradient")


def test_true_is_not_one() -> None:
    with pytest.raises(CheckFailed):
        require_equal(True, 1, what="count")


@pytest.mark.parametrize(("value", "text"), [(2.0, "2 s"), (0.00321, "3.21 ms"), (5e-6, "5 µs"), (2.5e-8, "25 ns")])
def test_durations_are_shown_in_a_fitting_unit(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("observed", "expected", "shown"),
    [
        (37.94365668105985, 0.37943656681059845, r"saw 37.9437, expected 0.379437 \(100 times too large\)"),
        (1778760.0, 1443420, "saw 1,778,760, expected 1,443,420"),
        (4.497e4, 4.716e10, r"saw 44,970, expected 47,160,000,000 \(1,050,000 times too small\)"),
        (65536.0, 65504.0, "saw 65,536, expected 65,504"),
        (1.0000000001, 1.0, "saw 1.0000000001, expected 1"),
        (5, 4, "saw 5, expected 4"),
    ],
)
def test_numbers_are_shown_in_the_digits_that_tell_them_apart(observed: float, expected: float, shown: str) -> None:
    with pytest.raises(CheckFailed, match=shown):
        require_close(observed, expected, relative=1e-12, what="it")


def test_a_tolerance_is_told_where_it_says_something() -> None:
    with pytest.raises(CheckFailed, match=r"expected 2 within 10 %$"):
        require_close(2.5, 2.0, relative=0.1, what="it")


@pytest.mark.parametrize("value", [0, 0.0, -1.0, None, "1", math.nan])
def test_what_is_divided_by_is_above_zero(value: object) -> None:
    with pytest.raises(CheckFailed, match=r"gpu\.seconds must be"):
        positive(value, "gpu.seconds")


@pytest.mark.parametrize("values", [None, "12", {"0": 1.0, "1": 2.0}, [1.0], [1.0, 2.0, 3.0], [1.0, None], ["1", "2"]])
def test_only_so_many_numbers_are_numbers(values: object) -> None:
    with pytest.raises(CheckFailed, match="losses"):
        numbers(values, 2, "losses")
    assert numbers([1, 2.5], 2, "losses") == [1.0, 2.5]


@pytest.mark.parametrize(
    "value", ["A" * 7_000_000, ["A"] * 1_000_000, {"A" * 10_000: "A" * 10_000}, [10**5000]], ids=type
)
def test_a_value_without_end_is_cut_short_in_every_message(value: object) -> None:
    with pytest.raises(CheckFailed) as equal:
        require_equal(value, 1, what="find_bottleneck()")
    with pytest.raises(CheckFailed) as size:
        number(value, "seconds")
    with pytest.raises(CheckFailed) as array:
        require_arrays_close([value], [1.0], rtol=0.1, what="weights")  # type: ignore[list-item]
    for failed in (equal, size, array):
        assert len(failed.value.message) <= 1000
        assert len(str(failed.value)) <= 1000


@pytest.mark.parametrize("kind", [CheckFailed, NeedsReview])
def test_no_message_is_longer_than_a_page(kind: type[CheckFailed] | type[NeedsReview]) -> None:
    assert len(kind("A" * 7_000_000).message) <= 2010
    assert kind("short").message == "short"


def test_a_list_without_end_is_shown_by_its_kind() -> None:
    endless: list[object] = []
    for _ in range(100_000):
        endless = [endless]
    assert shown(endless) == "list too large to show"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.array([1 + 2j, 3 - 7j]), "complex numbers, and real ones are expected"),
        (["1", " 3 "], "texts"),
        (np.array(["1", "3"]), "texts"),
        ([True, True], "truth values"),
        ([[1.0], [2.0, 3.0]], "setting an array element"),
        ([1.0, None], "not all of them"),
    ],
)
def test_what_is_no_number_is_never_taken_for_one(values: Any, reason: str) -> None:
    with pytest.raises(CheckFailed, match=f"these are not \\(2,\\) numbers \\({reason}"):
        require_arrays_close(values, [1.0, 3.0], rtol=1.0, atol=10.0, what="x")


@pytest.mark.parametrize(
    ("expected", "words"), [([1.0, 3.0], "a list of 2 numbers"), ([[1.0]], r"numbers of shape \(1, 1\)")]
)
def test_an_object_that_cannot_be_sent_is_named_by_its_type(expected: Any, words: str) -> None:
    with pytest.raises(CheckFailed, match=rf"x: saw '<generator>', expected {words}"):
        require_arrays_close("<generator>", expected, rtol=1.0, what="x")


def test_complex_numbers_agree_where_they_are_expected() -> None:
    require_arrays_close(np.array([1 + 2j, 3]), [1 + 2j, 3], rtol=1e-9, what="roots")
    require_arrays_close([1.0, 2.0], np.array([1 + 0j, 2]), rtol=1e-9, what="roots")
    with pytest.raises(CheckFailed, match="1 of 2 values differ"):
        require_arrays_close(np.array([1 + 2j, 3]), [1 - 2j, 3], rtol=1e-9, what="roots")


def test_an_array_that_stood_in_a_dictionary_is_compared_as_it_is() -> None:
    reply = Seen({"c": {"coef": "c/coef"}}, {"c/coef": np.array([1.0, 2.0])})
    require_arrays_close(reply.c["coef"], [1.0, 2.0], rtol=1e-9, what="coef")
    with pytest.raises(AttributeError, match="did not report 'cc'; did you mean 'c'"):
        reply.cc  # noqa: B018


def test_an_array_of_one_number_without_a_shape_is_a_number() -> None:
    assert number(np.array(2.5), "x") == 2.5
    assert numbers(np.array([1.0, 3.0]), 2, "x") == [1.0, 3.0]
    with pytest.raises(CheckFailed, match="an array of float64 with shape"):
        number(np.array([1.0, 2.0]), "x")


def test_what_nothing_can_equal_is_a_mistake_of_the_check() -> None:
    with pytest.raises(ValueError, match="NaN is expected"):
        require_arrays_close([1.0], [float("nan")], rtol=1.0, what="x")
    with pytest.raises(TypeError, match="tuples become lists"):
        require_equal([1, 2], (1, 2), what="x")


MISTAKE = Cause("late", "Wait first.", mistake="Nobody waits")


def test_a_recognised_mistake_keeps_how_the_code_ended() -> None:
    ended = CheckFailed("your code raised ValueError", "look", answered=False, evidence="ValueError file.py:3")
    with pytest.raises(CheckFailed) as caught, recognising(lambda: MISTAKE):
        raise ended
    assert (caught.value.cause, caught.value.hint) == (MISTAKE, "Wait first.")
    assert (caught.value.answered, caught.value.evidence) == (False, "ValueError file.py:3")


def test_what_fails_while_a_mistake_is_looked_for_does_not_hide_the_failure() -> None:
    def look() -> Cause:
        raise CheckFailed("something else is wrong as well")

    def look_at_wrong_values() -> Cause | None:
        return MISTAKE if {"a": 1}[len(None)] else None  # type: ignore[arg-type, index]

    for search in (look, look_at_wrong_values):
        with pytest.raises(CheckFailed, match="saw 1, expected 2"), recognising(search):
            require_equal(1, 2, what="x")
    with pytest.raises(CheckFailed, match="expected 2") as caught, recognising(lambda: None):
        require_equal(1, 2, what="x", hint=MISTAKE)
    assert caught.value.cause == MISTAKE
