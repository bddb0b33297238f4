"""The typed border between checks and probes: dataclasses arrive as dataclasses, with their arrays, on both sides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import numpy as np
import pytest
from numpy.typing import NDArray

from gradebox.course import course as courses
from gradebox.run.grade import CheckResult, Outcome
from gradebox.run.grading import run
from gradebox.run.request import GradingRequest
from gradebox.sandbox.devices import CPU, Device
from gradebox.sandbox.probe_types import Array, ProbeInputs, build, holds_arrays, inputs_type, misfit
from tests.gradebox.small_course import write, write_course, write_submission

pytestmark = pytest.mark.usefixtures("_courses_are_forgotten")


class Case(TypedDict):
    """A case as a dictionary."""

    shape: list[int]


@dataclass(frozen=True)
class Run:
    """What one run gave."""

    output: Array
    name: str


@dataclass(frozen=True)
class ProductReply:
    """What the probe below returns."""

    runs: list[Run]
    pair: tuple[int, float]
    note: str | None = None
    times: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Product(ProbeInputs[ProductReply], probe="basics.numbers.product"):
    """What it is given."""

    cases: list[Case]
    left: Array
    options: Run | None = None


def product(student: object, inputs: Product) -> ProductReply:
    """Stands for a probe."""
    return ProductReply([], (1, inputs.left))


def test_dataclasses_are_built_from_plain_values() -> None:
    values = {"runs": [{"output": 1.0, "name": "a"}], "pair": [1, 2.0], "times": {"all": 3.0}}
    assert build(ProductReply, values, "it sent") == ProductReply([Run(1.0, "a")], (1, 2.0), None, {"all": 3.0})
    inputs = build(Product, {"cases": [{"shape": [1]}], "left": 2, "options": {"output": 3, "name": ""}}, "it sent")
    assert inputs == Product([{"shape": [1]}], 2, Run(3, ""))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"runs": []}, "it sent no 'pair', which ProductReply has"),
        ({"runs": [], "pairs": [1, 2]}, "it sent 'pairs', which ProductReply does not have; did you mean 'pair'?"),
        ({"runs": [{"name": "a"}], "pair": [1, 2]}, "it sent no 'output', which Run has"),
    ],
)
def test_a_field_too_many_or_too_few_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(AttributeError) as caught:
        build(ProductReply, values, "it sent")
    assert str(caught.value) == message


def test_what_does_not_fit_is_left_as_it_is_for_the_check_to_judge() -> None:
    reply: Any = build(ProductReply, {"runs": "none", "pair": [1], "times": 3}, "it sent")
    assert (reply.runs, reply.pair, reply.times) == ("none", [1], 3)


def test_types_say_where_arrays_may_be() -> None:
    assert [holds_arrays(kind) for kind in (Array, list[Run], dict[str, Array], Case, int | None, list[Case])] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_a_probe_names_its_inputs_and_its_reply() -> None:
    assert inputs_type(product) is Product
    assert inputs_type(lambda student, *, left: left) is None
    assert Product.probe == "basics.numbers.product"
    assert Product.reply_type() is ProductReply


NOTES = """
title = "Notes"
points = 2

[checks.wrong_type]
points = 2
title = "Reply as declared"
"""
NOTES_CHECKS = """
from gradebox.course.criterion import criterion
import numpy as np
from basics_cases import Item, Power

@criterion("basics.notes")
class Notes:
    def test_wrong_type(self, submission):
        submission.probe(Power(items=[Item(np.ones(1), "a")], factor=0.0))
"""
CASES = """
from __future__ import annotations
from dataclasses import dataclass
from gradebox.sandbox.probe_types import Array, ProbeInputs

@dataclass(frozen=True)
class Item:
    values: Array
    name: str

@dataclass(frozen=True)
class PowerReply:
    doubled: list[Item]
    whole: Array
    text: list[object]
    count: int

@dataclass(frozen=True)
class Power(ProbeInputs[PowerReply], probe="basics.numbers.power"):
    items: list[Item]
    factor: float
"""
PROBES = """
from __future__ import annotations
from basics_cases import Item, Power, PowerReply

def power(student, inputs: Power) -> PowerReply:
    doubled = [Item(item.values * inputs.factor, item.name) for item in inputs.items]
    count = 1 if inputs.factor else "one"
    return PowerReply(doubled, inputs.items[0].values, [inputs.items[0].values], count)
"""
CHECKS = """
from gradebox.run.assertions import require, require_equal
from gradebox.course.criterion import criterion
import numpy as np
from basics_cases import Item, Power

@criterion("basics.numbers")
class Numbers:
    def test_product(self, submission):
        reply = submission.probe(Power(items=[Item(np.arange(3.0), "a"), Item(np.ones(1), "b")], factor=2.0))
        require_equal([item.name for item in reply.doubled], ["a", "b"], what="names")
        require(reply.doubled[0].values.tolist() == [0, 2, 4], "arrays inside")
        require(reply.whole.tolist() == [0, 1, 2], "an array")
        require(repr(reply.text[0]) == "an array of float64 with shape (3,)", "an array instead of a text")

    def test_power(self, submission):
        submission.probe(Power(items=[], factor=2.0))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CheckResult]:
    """The checks above, each with what became of it."""
    folder = tmp_path_factory.mktemp("course")
    made = write_course(folder)
    package = made.name
    write(
        made,
        {
            "basics/notes/criterion.toml": NOTES,
            "basics/notes/checks.py": NOTES_CHECKS.replace("basics_cases", f"{package}.basics.numbers.cases"),
            "basics/numbers/cases.py": CASES,
            "basics/numbers/probes.py": PROBES.replace("basics_cases", f"{package}.basics.numbers.cases"),
            "basics/numbers/checks.py": CHECKS.replace("basics_cases", f"{package}.basics.numbers.cases"),
        },
    )
    course = courses.load(made)
    rubric, labs = course.select("basics")
    grade = run(GradingRequest(course, write_submission(folder), rubric, labs, Device(CPU, "CPU"), seed=1))
    return {check.id.rpartition(".")[2]: check for check in grade.checks}


def test_dataclasses_with_arrays_cross_the_border_both_ways(results: dict[str, CheckResult]) -> None:
    assert (results["product"].outcome, results["product"].message) == ("passed", "")


def test_an_error_of_a_typed_probe_is_the_probes(results: dict[str, CheckResult]) -> None:
    assert "the probe basics.numbers.power itself failed: IndexError" in results["power"].message


def test_a_reply_that_is_not_of_its_type_is_for_a_person_to_judge(results: dict[str, CheckResult]) -> None:
    assert results["wrong_type"].outcome is Outcome.NEEDS_REVIEW
    assert "count is not a whole number but str" in results["wrong_type"].message


def test_numpy_is_not_needed_for_a_type() -> None:
    assert np.asarray(build(Run, {"output": np.ones(2), "name": ""}, "it sent").output).sum() == 2


@dataclass(frozen=True)
class _Row:
    label: str
    counts: list[int]


class _Fields(TypedDict):
    """A table with names that are known."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class _Whole:
    returned: object
    array: Array
    rows: list[_Row]
    fields: _Fields
    pair: tuple[int, str]
    by_name: dict[str, float | None]
    exact: NDArray[np.float32]
    mode: Literal["train", "eval"] = "train"


def _fitting() -> dict[str, Any]:
    """What a `_Whole` may look like when it arrives."""
    return {
        "returned": "anything",
        "array": np.ones(2),
        "rows": [{"label": "a", "counts": [1, 2]}],
        "fields": {"seconds": 1, "more": "is not looked at"},
        "pair": [1, "b"],
        "by_name": {"x": None, "y": 2.5},
        "exact": np.ones(2, dtype=np.float32),
        "mode": "eval",
    }


def test_what_fits_its_types_has_no_misfit() -> None:
    assert misfit(_Whole, _fitting(), _fitting()) is None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"rows": "none"}, "rows is not a list but str"),
        ({"rows": [[]]}, "rows.0 is not _Row but list"),
        ({"rows": [{"label": 1, "counts": []}]}, "rows.0.label is not a text but int"),
        ({"rows": [{"label": "a", "counts": [True]}]}, "rows.0.counts.0 is not a whole number but bool"),
        ({"fields": {"seconds": "1"}}, "fields.seconds is not a number but str"),
        ({"pair": [1]}, "pair is not 2 values but list"),
        ({"by_name": {"x": "y"}}, "by_name.x is not float or NoneType but str"),
        ({"exact": 1.0}, "exact is not an array but float"),
        ({"mode": "both"}, "mode is not 'train' or 'eval' but str"),
    ],
)
def test_what_does_not_fit_is_named_by_its_place(change: dict[str, Any], problem: str) -> None:
    reply = _fitting() | change
    assert misfit(_Whole, reply, reply) == problem
