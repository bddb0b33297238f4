"""The typed border between checks and probes: dataclasses arrive as dataclasses, with their arrays, on both sides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
import pytest

from gradebox.course import course as courses
from gradebox.run.grade import CheckResult
from gradebox.run.grading import run
from gradebox.run.request import GradingRequest
from gradebox.sandbox.devices import CPU, Device
from gradebox.sandbox.probe_types import Array, ProbeInputs, build, holds_arrays, inputs_type
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
    reply = build(ProductReply, {"runs": "none", "pair": [1], "times": 3}, "it sent")
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
    text: list[str]

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
    return PowerReply(doubled, inputs.items[0].values, [inputs.items[0].values])
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
        require(repr(reply.text[0]) == "an array of float64 with shape (3,)", "an array in the place of a text")

    def test_power(self, submission):
        submission.probe(Power(items=[], factor=2.0))

"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CheckResult]:
    """The checks above, each with what became of it."""
    folder = tmp_path_factory.mktemp("course")
    course = courses.load(write_course(folder))
    package = course.folder.name
    write(
        course.folder,
        {
            "basics/numbers/cases.py": CASES,
            "basics/numbers/probes.py": PROBES.replace("basics_cases", f"{package}.basics.numbers.cases"),
            "basics/numbers/checks.py": CHECKS.replace("basics_cases", f"{package}.basics.numbers.cases"),
        },
    )
    rubric, labs = course.select("basics")
    grade = run(GradingRequest(course, write_submission(folder), rubric, labs, Device(CPU, "CPU"), seed=1))
    return {check.id.rpartition(".")[2]: check for check in grade.checks}


def test_dataclasses_with_arrays_cross_the_border_both_ways(results: dict[str, CheckResult]) -> None:
    assert (results["product"].outcome, results["product"].message) == ("passed", "")


def test_an_error_of_a_typed_probe_is_the_probes(results: dict[str, CheckResult]) -> None:
    assert "the probe basics.numbers.power itself failed: IndexError" in results["power"].message


def test_numpy_is_not_needed_for_a_type() -> None:
    assert np.asarray(build(Run, {"output": np.ones(2), "name": ""}, "it sent").output).sum() == 2
