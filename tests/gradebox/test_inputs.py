"""What a check hands to a probe arrives as it was, and so does what the probe returns; what cannot travel is named."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gradebox.course import course as courses
from gradebox.run.encode_inputs import apart
from gradebox.run.grade import CheckResult
from gradebox.run.grading import run
from gradebox.run.request import GradingRequest
from gradebox.run.submission import Seen
from gradebox.sandbox.devices import CPU, Device
from tests.gradebox.small_course import write_course, write_submission

pytestmark = pytest.mark.usefixtures("_courses_are_forgotten")


@dataclass
class Point:
    x: float
    y: np.float32


def test_numpy_numbers_become_pythons() -> None:
    plain, arrays = apart(
        {"n": np.int64(4), "x": np.float32(0.5), "yes": np.bool_(True), "at": Point(1.0, np.float32(2))}
    )
    assert (plain, arrays) == ({"n": 4, "x": 0.5, "yes": True, "at": {"x": 1.0, "y": 2.0}}, {})
    assert [type(value) for value in plain.values()] == [int, float, bool, dict]


def test_arrays_are_taken_out_wherever_they_stand() -> None:
    vector, matrix = np.arange(3), np.zeros((2, 2), dtype=">f4")
    plain, arrays = apart({"image": vector, "rows": [vector, {"inner": matrix}], "n": 1})
    assert plain == {"rows": ["rows/0", {"inner": "rows/1/inner"}], "n": 1}
    assert list(arrays) == ["image", "rows/0", "rows/1/inner"]
    assert arrays["rows/1/inner"].dtype == np.dtype("<f4")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (datetime.date(2026, 1, 2), "the argument days is a date; a probe can be sent numbers, texts"),
        ([1, {2}], "the argument days, at 1, is a set; a probe"),
        ({"mon": {3: 1}}, "the argument days, at mon, has the key 3; a probe"),
        (np.array(["a"]), "the argument days is an array of <U1, which does not travel: send its .tolist()"),
        ([np.array([1j])], "the argument days, at 0, is an array of complex128, which does not travel: send it as ano"),
        (np.array(["2026-01-02"], dtype="M8[D]"), "the argument days is an array of datetime64[D], which does not"),
    ],
)
def test_what_cannot_be_sent_is_named(value: Any, said: str) -> None:
    with pytest.raises(TypeError) as caught:
        apart({"other": 1, "days": value})
    assert str(caught.value).startswith(said)


def test_an_array_in_a_list_is_no_number_and_no_text() -> None:
    reply = Seen({"rows": ["rows/0", 1], "name": "name"}, {"rows/0": np.zeros((2, 3))})
    assert reply["rows/0"].shape == (2, 3)
    assert repr(reply.rows) == "[an array of float64 with shape (2, 3), 1]"
    assert reply.whole("rows")[0].shape == (2, 3)
    assert reply.name == "name"


PROBES = """\
import numpy as np
import numpy.ma


def given(student, *, rows, image, table):
    return {
        "types": [type(one).__name__ for one in (*rows, image, table["inner"])],
        "sum": sum(float(one.sum()) for one in rows),
        "rows": rows,
    }


def odd(student):
    return {
        "complex": np.array([[1 + 2j, 3]]),
        "scalar": np.array(1j),
        "none": np.zeros((0, 2), dtype=complex),
        "long": np.arange(3, dtype=np.longdouble),
        "big_endian": np.arange(3, dtype=">i2"),
        "texts": np.array([["a", "bc"]]),
        "date": np.array("2026-01-02", dtype="M8[D]"),
        "objects": np.array([1, "x", None], dtype=object),
        "masked": np.ma.masked_array([1.5, 2.5], mask=[False, True]),
        "transposed": np.arange(6.0).reshape(2, 3).T,
    }


def bare(student):
    return 3


def product(student, *, left, right):
    return {"result": left * right}
"""
CHECKS = """\
import numpy as np
from gradebox.run.assertions import require, require_equal
from gradebox.course.criterion import criterion


@criterion("basics.numbers")
class Numbers:
    def test_product(self, submission, generator):
        rows = [generator.rng.integers(0, 9, size=3) for _ in range(2)]
        seen = submission.probe("basics.numbers.given", rows=rows, image=rows[0], table={"inner": rows[1]})
        require_equal(seen.types, ["ndarray"] * 4, what="types")
        require_equal(seen.sum, float(sum(row.sum() for row in rows)), what="sum")
        require(all((one == two).all() for one, two in zip(seen.whole("rows"), rows)), "rows are others")

    def test_power(self, submission):
        seen = submission.probe("basics.numbers.odd")
        require((seen.complex == [[1 + 2j, 3]]).all() and seen.complex.shape == (1, 2), "complex")
        require(seen.scalar == 1j and seen.scalar.shape == (), "scalar")
        require(seen.none.shape == (0, 2) and seen.none.dtype == complex, "none")
        require(seen.long.tolist() == [0, 1, 2] and seen.long.dtype == float, "long")
        require(seen.big_endian.tolist() == [0, 1, 2], "big endian")
        require_equal(seen.texts, [["a", "bc"]], what="texts")
        require_equal(seen.date, "2026-01-02", what="date")
        require_equal(seen.objects, [1, "x", None], what="objects")
        require_equal(seen.masked, [1.5, None], what="masked")
        require(seen.transposed.tolist() == [[0, 3], [1, 4], [2, 5]], "transposed")
"""
NOTES = """\
from gradebox.course.criterion import criterion


@criterion("basics.notes")
class Notes:
    def test_noted(self, submission):
        submission.probe("basics.numbers.bare")
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CheckResult]:
    """The checks above, each with what became of it."""
    folder = tmp_path_factory.mktemp("course")
    course = courses.load(write_course(folder))
    (course.folder / "basics/numbers/probes.py").write_text(PROBES)
    (course.folder / "basics/numbers/checks.py").write_text(CHECKS)
    (course.folder / "basics/notes/checks.py").write_text(NOTES)
    rubric, labs = course.select("basics")
    grade = run(GradingRequest(course, write_submission(folder), rubric, labs, Device(CPU, "CPU"), seed=1))
    return {check.id.rpartition(".")[2]: check for check in grade.checks}


def test_arrays_arrive_in_a_probe_where_they_stood_and_come_back(results: dict[str, CheckResult]) -> None:
    assert (results["product"].outcome, results["product"].message) == ("passed", "")


def test_what_a_probe_returns_keeps_its_meaning(results: dict[str, CheckResult]) -> None:
    assert (results["power"].outcome, results["power"].message) == ("passed", "")


def test_a_probe_that_returns_no_dictionary_is_named(results: dict[str, CheckResult]) -> None:
    problem = "TypeError: a probe must return a dictionary, and this one returned int"
    assert results["noted"].message == f"the probe basics.numbers.bare itself failed: {problem}"
    assert "a mistake of the course, not of the submission" in results["noted"].hint
