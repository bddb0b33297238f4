"""An instructor's overrides: what the file may say, and what becomes of the grade."""

from decimal import Decimal
from pathlib import Path

import pytest

import grader
from gradebox.common.exit_codes import ExitCode
from gradebox.report.document import to_document
from gradebox.report.html import render
from gradebox.run.grade import CheckReport, Circumstances, Grade, Outcome, grade
from gradebox.run.overrides import Override, OverrideError, load

ENTRY = '[[override]]\nstudent = "ada"\ncriterion = "lab1.analysis"\npoints = 4.5\nreason = "right, in other units"\n'


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "overrides.toml"
    path.write_text(text, encoding="utf-8")
    return path


def graded(*overrides: Override, **outcomes: Outcome) -> Grade:
    """Lab 1 with every check passed but those named (by the last part of their name)."""
    rubric = grader.course().rubric
    labs = rubric.select((1,))
    checks = [check.id for lab in labs for criterion in lab.criteria for check in criterion.checks]
    reports = {check: CheckReport(outcomes.get(check.rpartition(".")[2], Outcome.PASSED)) for check in checks}
    circumstances = Circumstances("ada", "0" * 64, "T4", True, "namespaces", 1, 1.0, overrides=overrides)
    return grade(rubric, labs, reports, circumstances)


def test_an_entry_is_read_exactly(tmp_path: Path) -> None:
    (override,) = load(written(tmp_path, ENTRY), grader.course().rubric)
    assert override == Override("ada", "lab1.analysis", Decimal("4.5"), "right, in other units")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("4.5", "5.5"), "gives 0 to 5: correct points, or remove the entry"),
        (("4.5", "-1"), "gives 0 to 5"),
        (("4.5", '"4.5"'), "is not a number"),
        (("4.5", "true"), "is not a number"),
        (("lab1.analysis", "lab1.nothing"), "no criterion 'lab1.nothing'"),
        (("right, in other units", " "), "reason is empty"),
        (('student = "ada"\n', ""), r"\[\[override\]\] lacks the key 'student'"),
        (("reason", "because"), "unknown key 'because'"),
        (("[[override]]", "[override]"), "two brackets"),
        (("[[override]]", "[[overide]]"), "unknown key 'overide'; did you mean 'override'"),
        (("[[override]]", "[[override"), "not valid TOML"),
    ],
)
def test_a_wrong_entry_is_refused_in_one_line(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(OverrideError, match=message):
        load(written(tmp_path, ENTRY.replace(*change)), grader.course().rubric)


def test_the_same_criterion_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OverrideError, match="stands twice"):
        load(written(tmp_path, ENTRY + ENTRY), grader.course().rubric)


def test_points_are_replaced_and_the_reason_is_in_every_report() -> None:
    before = graded(report_agrees_with_results=Outcome.FAILED)
    after = graded(
        Override("ada", "lab1.analysis", Decimal("4.5"), "right, in <other> units"),
        report_agrees_with_results=Outcome.FAILED,
    )
    assert (before.score, after.score) == (Decimal(19), Decimal("19.5"))
    criterion = after.labs[0].criteria[3]
    assert criterion.override is not None
    assert to_document(after)["labs"][0]["criteria"][3]["override"] == {
        "automatic_points": 4,
        "reason": "right, in <other> units",
    }
    assert "instead of 4: right, in &lt;other&gt; units" in render(after)


def test_an_override_settles_what_needed_review() -> None:
    assert graded(crossover_found=Outcome.NEEDS_REVIEW).exit_code is ExitCode.NEEDS_REVIEW
    settled = graded(Override("ada", "lab1.analysis", Decimal(5), "looked"), crossover_found=Outcome.NEEDS_REVIEW)
    assert settled.exit_code is ExitCode.PASSED


def test_points_can_be_taken_away() -> None:
    assert graded(Override("ada", "lab1.memory", Decimal(0), "copied")).score == Decimal(15)


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_a_file_in_another_encoding_is_refused_with_its_line(tmp_path: Path, start: bytes) -> None:
    path = tmp_path / "overrides.toml"
    path.write_bytes(start + b'[[override]]\nstudent = "ada"\nreason = "f\xfcr Ada"\n')
    with pytest.raises(
        OverrideError, match=r"overrides\.toml:3: it is not UTF-8\. If 'reason = \"für Ada\"' reads right"
    ):
        load(path, grader.course().rubric)
