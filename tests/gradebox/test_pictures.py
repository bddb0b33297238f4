"""What is next to a failed check: the right data, drawn so that nobody needs colour, and nothing of it executed."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from gradebox.report import html
from gradebox.report.document import from_document, to_document
from gradebox.report.drawing import draw
from gradebox.run.assertions import CheckFailed, picturing, recognising, require, require_arrays_close
from gradebox.run.grade import CheckReport, Circumstances, Grade, Outcome, grade
from gradebox.run.pictures import MOST_MARKS, Picture, bars, curve, timeline
from gradebox.run.probe_cache import ProbeCache
from gradebox.run.submission import Submission
from gradebox.sandbox import Limits, RankReply, Reply, Request
from gradebox.sandbox.devices import Device
from grader import course

CHECK = "lab1.benchmark.warmed_up"
ROWS = [
    ["host", 0.0, 5e-6, "aten::mm"],
    ["stream 0", 6e-6, 1e-3, "aten::mm"],
    ["stream 1", 2e-3, 1e-3, "nccl:all_reduce"],
]
HOSTILE = "</title><script>alert(1)</script>"


def picture_of(actual: Any, expected: Any) -> Picture:
    with pytest.raises(CheckFailed) as error:
        require_arrays_close(actual, expected, rtol=1e-6, what="the losses")
    picture = error.value.picture
    assert picture is not None
    return picture


def graded(picture: Picture | None, *, outcome: Outcome = Outcome.FAILED) -> Grade:
    rubric, labs = course().select("1")
    report = CheckReport(outcome, "it differs", picture=picture)
    here = Circumstances(
        submission="s",
        submission_sha256="0" * 64,
        device="d",
        simulated=True,
        isolation="namespaces",
        seed=1,
        seconds=1.0,
    )
    reports = {
        check.id: replace(report, picture=picture)
        for lab in labs
        for criterion in lab.criteria
        for check in criterion.checks
    }
    return grade(rubric, labs, reports, here)


def parsed(picture: Picture) -> ET.Element:
    return ET.fromstring(str(draw(picture)))


def test_arrays_that_differ_are_drawn_with_the_place_where_they_differ_most() -> None:
    expected = np.linspace(0, 1, 10_000)
    actual = expected.copy()
    actual[7_777] = 5
    picture = picture_of(actual, expected)
    yours, theirs = picture.panels
    assert (yours.title, theirs.title) == ("yours", "expected")
    assert len(yours.marks) <= MOST_MARKS
    assert {mark.at: mark.size for mark in yours.marks}[7777] == 5
    assert [mark.at for mark in yours.marks] == [mark.at for mark in theirs.marks]


@pytest.mark.parametrize(
    ("actual", "expected"),
    [([1.0, 2.0], [1.0, 3.0]), ([1.0, float("nan"), 2.0], [1.0, 1.0, 2.0]), ([1j, 2, 3], [1j, 2, 4j])],
)  # fmt: skip
def test_where_a_picture_says_no_more_than_words_there_is_none(actual: Any, expected: Any) -> None:
    assert curve("x", np.asarray(actual), np.asarray(expected)) is None


def test_a_picture_given_around_a_check_stands_beside_its_words_and_survives_a_cause() -> None:
    picture = bars("peak", "MiB", [("forward", 3.0)], [("forward", 2.0)])
    with pytest.raises(CheckFailed) as error, recognising(lambda: None), picturing(lambda: picture):
        require(False, "no")
    assert error.value.picture is picture


def test_rows_of_a_device_that_are_none_are_left_out() -> None:
    nonsense: list[Any] = [["host", "x", 1.0, "a"], [], ["host", 0.0, float("inf"), "a"], {"a": 1}, ["host", 0, 1, 2]]
    picture = timeline([("yours", [*ROWS, *nonsense]), ("expected", nonsense)])
    assert picture is not None
    assert [(panel.title, len(panel.marks)) for panel in picture.panels] == [("yours", 3)]
    assert timeline([("yours", nonsense)]) is None


def test_a_check_shows_what_ran_for_the_submission_beside_a_run_of_the_course() -> None:
    probe_cache = ProbeCache()
    for student, rows in ((True, ROWS), (False, ROWS[:2])):
        call = probe_cache.call(Request("lab1.x.y", student=student), CHECK)
        call.reply = Reply("ok", (RankReply("ok"),), 0.1, shown=(rows,))
    probe_cache.call(Request("lab1.x.z"), "lab1.benchmark.other").reply = Reply("ok", (RankReply("ok"),), 0.1)
    picture = probe_cache.timeline(CHECK)
    assert picture is not None
    assert [(panel.title, len(panel.marks)) for panel in picture.panels] == [("yours", 3), ("expected", 2)]
    assert probe_cache.timeline("lab1.benchmark.other") is None


class Machine:
    """A sandbox on which each probe shows rows of its own."""

    limits = Limits()

    def __init__(self, rows: dict[str, list[Any]], *, kind: Literal["ok", "probe_error"] = "ok") -> None:
        self.rows, self.kind, self.asked = rows, kind, list[Request]()

    def run(self, request: Request) -> Reply:
        self.asked.append(request)
        kind = "ok" if request.student else self.kind
        return Reply(kind, (RankReply(kind, {}),), 0.1, shown=(self.rows[request.probe],))


def beside(machine: Any, *probes: str) -> list[str]:
    """The titles of the panels next to a check that has asked these probes, and failed."""
    probe_cache = ProbeCache()
    submission = Submission(Device("vgpu:T4", "virtual T4", simulated=True), machine, probe_cache, CHECK)
    for probe in probes:
        submission.probe(probe, {"student": not probe.endswith("reference"), "conditions": [{"factor": 2.0}]}, size=3)
    submission.run_expected({"lab1.x.product": "lab1.x_reference.product"})
    picture = probe_cache.timeline(CHECK)
    return [] if picture is None else [panel.title for panel in picture.panels]


def test_a_check_that_failed_has_the_course_do_what_was_last_asked() -> None:
    machine = Machine({"lab1.x.product": ROWS, "lab1.x_reference.product": ROWS[:2]})
    assert beside(machine, "lab1.x.product") == ["yours", "expected"]
    yours, ours = machine.asked
    assert (ours.params, ours.device, ours.conditions) == (yours.params, yours.device, yours.conditions)
    assert (yours.student, ours.student) == (True, False)


def test_the_course_does_nothing_where_a_run_of_its_own_was_asked_or_nothing_could_be_drawn() -> None:
    rows = {
        "lab1.x.product": ROWS,
        "lab1.x.other": ROWS,
        "lab1.x.reference": ROWS[:2],
        "lab1.x_reference.product": ROWS[:2],
    }
    for probes, titles in (
        (("lab1.x.product", "lab1.x.reference"), ["yours", "expected"]),
        (("lab1.x.product", "lab1.x.other"), ["yours"]),
        ((), []),
    ):
        machine = Machine(rows)
        assert beside(machine, *probes) == titles
        assert len(machine.asked) == len(probes)
    nothing = Machine({"lab1.x.product": []})
    assert beside(nothing, "lab1.x.product") == []
    assert len(nothing.asked) == 1


def test_a_run_of_the_course_that_comes_to_nothing_is_not_drawn() -> None:
    machine = Machine({"lab1.x.product": ROWS, "lab1.x_reference.product": ROWS[:2]}, kind="probe_error")
    assert beside(machine, "lab1.x.product") == ["yours"]
    assert len(machine.asked) == 2


@pytest.mark.parametrize(
    "picture",
    [
        timeline([("yours", ROWS), ("expected", ROWS[:2])]),
        bars("peak", "MiB", [("forward", 3.0), ("step", 0.0)], [("forward", 2.0), ("step", 1.0)]),
        curve("loss", np.asarray([1.0, 2.0, 3.0]), np.asarray([1.0, 2.0, 2.5])),
    ],
    ids=lambda picture: picture.kind,
)
def test_a_drawing_is_well_formed_says_in_words_what_it_shows_and_survives_the_report(picture: Picture) -> None:
    figure = parsed(picture)
    drawing = figure.find("svg")
    assert drawing is not None
    assert drawing.get("role") == "img"
    label = drawing.get("aria-label") or ""
    assert "yours" in label
    assert any(character.isdigit() for character in label)
    kinds = {part for element in drawing.iter() for part in (element.get("class") or "").split()}
    assert {"seen", "wanted"} <= kinds  # told apart by more than colour: filled or full, and outlined or dashed
    whole = graded(picture)
    again = from_document(to_document(whole))
    assert again == from_document(to_document(again))
    assert next(check for check in again.checks if check.id == CHECK).picture == picture
    assert '<figure class="picture">' in html.render(whole)


def test_nothing_that_a_submission_names_reaches_the_page_as_markup() -> None:
    hostile = timeline([(HOSTILE, [["host", 0.0, 1.0, HOSTILE], [HOSTILE, 1.0, 1.0, HOSTILE]])])
    assert hostile is not None
    parsed(hostile)
    for picture in (hostile, bars(HOSTILE, HOSTILE, [(HOSTILE, 1.0)], [(HOSTILE, 2.0)])):
        assert "<script" not in html.render(graded(picture))


def test_a_check_that_passed_shows_nothing_and_a_page_full_of_pictures_stays_small() -> None:
    most = timeline([("yours", ROWS * 27), ("expected", ROWS * 27)])
    assert "<figure" not in html.render(graded(most, outcome=Outcome.PASSED))
    page = html.render(graded(most))
    assert len(re.findall("<figure", page)) > 20
    assert len(page.encode()) < 1_000_000
