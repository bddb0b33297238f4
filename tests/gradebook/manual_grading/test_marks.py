"""What graders give: worth what comments are worth now, for the files that were read, and never over each other."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from gradebook.grading.manual_grading import ManualGradingError, comments, marks, rubric
from gradebook.grading.manual_grading.comments import Comment
from gradebook.grading.manual_grading.marks import ChangedMeanwhileError, Mark
from gradebook.grading.manual_grading.merging import ManualGrading
from gradebook.grading.manual_grading.rubric import Criterion
from tests.gradebook.manual_grading.conftest import AT, ManualClass

FULL = Criterion("discussion", "Discussion", Decimal(6))
ZERO = Criterion("figures", "Figures", Decimal(4), start="zero")
MARK = Mark(criterion="discussion", content="c", comments=("a",), by="Ana", at=AT)


def test_comments_deduct_from_all_points_or_add_to_none() -> None:
    known = {"a": Comment("a", "x", "t", Decimal("-1.5")), "b": Comment("b", "x", "t", Decimal(3))}
    assert marks.points(FULL, MARK, known) == Decimal("4.5")
    assert marks.points(ZERO, replace(MARK, comments=("b",), adjust=Decimal("0.5")), known) == Decimal("3.5")


def test_points_that_were_typed_stay_if_the_criterion_is_worth_more_and_comments_deduct_as_they_did() -> None:
    """Three of six points are no nine of twelve. An earlier version did not write what the criterion was worth."""
    known = {"a": Comment("a", "x", "t", Decimal(-1))}
    twelve = replace(FULL, points=Decimal(12))
    typed = replace(MARK, adjust=Decimal(-2), of=Decimal(6))
    assert [marks.points(one, typed, known) for one in (FULL, twelve)] == [3, 3]
    assert marks.points(twelve, replace(MARK, of=Decimal(6)), known) == 11
    assert marks.points(twelve, replace(typed, of=None), known) == 9
    assert marks.points(replace(ZERO, points=Decimal(12)), replace(typed, comments=(), adjust=Decimal(2)), known) == 2
    assert not marks.fits(replace(FULL, points=Decimal(2)), typed, known)


def test_no_mark_is_worth_less_than_nothing_or_more_than_all() -> None:
    known = {"a": Comment("a", "x", "t", Decimal(-9)), "b": Comment("b", "x", "t", Decimal(9))}
    assert marks.points(FULL, MARK, known) == 0
    assert marks.points(FULL, replace(MARK, comments=("b",)), known) == 6


def test_a_mark_is_read_back_as_it_was_given(tmp_path: Path) -> None:
    text = 'two lines:\n  "quotes", \\n, \'\'\', """ and é\t\x7f\nend\n'
    mark = replace(MARK, text=text, adjust=Decimal("-0.25"), of=Decimal("6.5"), done=True, revision=0)
    made = marks.change(tmp_path, "student Zoë/../x", mark)
    assert marks.load(tmp_path, "student Zoë/../x") == {"discussion": made}
    assert made.given == mark.given
    (file,) = (tmp_path / "manual_grading" / "marks").iterdir()
    assert text.split("\n")[0] in file.read_text().splitlines()  # a line of text is a line of the file, for git


def test_students_whose_names_differ_in_case_only_have_files_of_their_own(tmp_path: Path) -> None:
    for name in ("student ada", "student Ada"):
        marks.change(tmp_path, name, replace(MARK, text=name, revision=0))
    files = [path.name for path in (tmp_path / "manual_grading" / "marks").iterdir()]
    assert len({name.lower() for name in files}) == 2
    assert marks.load(tmp_path, "student Ada")["discussion"].text == "student Ada"


def test_who_saw_an_older_mark_cannot_write_over_a_newer_one(tmp_path: Path) -> None:
    mark = marks.change(tmp_path, "student ada", replace(MARK, revision=0))
    marks.change(tmp_path, "student ada", replace(mark, text="Ben's", by="Ben"))
    with pytest.raises(ChangedMeanwhileError, match="Ben has changed this"):
        marks.change(tmp_path, "student ada", replace(mark, text="Ana's"))
    assert marks.load(tmp_path, "student ada")["discussion"].text == "Ben's"


def _grade_many(folder: Path, name: str) -> None:
    for number in range(20):
        marks.change(folder, f"student {number}", replace(MARK, criterion=name, by=name, text=name, revision=0))


def test_processes_that_grade_at_once_lose_nothing(tmp_path: Path) -> None:
    names = ("ana", "ben", "cai")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_grade_many, args=(tmp_path, name)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    all_marks = marks.load_all(tmp_path)
    assert len(all_marks) == 20
    assert all({mark.text for mark in by_criterion.values()} == set(names) for by_criterion in all_marks.values())


def test_undo_takes_back_one_change_after_the_other(tmp_path: Path) -> None:
    first = marks.change(tmp_path, "student ada", replace(MARK, text="one", done=True, revision=0))
    marks.change(tmp_path, "student ada", replace(first, text="two"))
    undone = marks.undo(tmp_path, "student ada", "Ana")
    assert undone is not None
    assert (undone.text, undone.done) == ("one", True)
    undone = marks.undo(tmp_path, "student ada", "Ana")
    assert undone is not None
    assert (undone.text, undone.comments, undone.done) == ("", (), False)
    assert marks.undo(tmp_path, "student ada", "Ana") is None


def test_undo_takes_back_nothing_of_another_grader(tmp_path: Path) -> None:
    mark = marks.change(tmp_path, "student ada", replace(MARK, text="Ana's", revision=0))
    assert marks.undo(tmp_path, "student ada", "Ben") is None
    marks.change(tmp_path, "student ada", replace(mark, text="Ben's", by="Ben"))
    with pytest.raises(ChangedMeanwhileError, match="Ben has changed this since"):
        marks.undo(tmp_path, "student ada", "Ana")


def test_undo_after_the_machine_went_down_within_a_change(tmp_path: Path) -> None:
    first = marks.change(tmp_path, "student ada", replace(MARK, text="one", revision=0))
    (file,) = (tmp_path / "manual_grading" / "marks").iterdir()
    before = file.read_text()
    marks.change(tmp_path, "student ada", replace(first, text="two"))
    file.write_text(before)  # only the history had been written
    (history,) = (tmp_path / "manual_grading" / "history").iterdir()
    history.write_text(history.read_text() + '{"at": "2026')
    undone = marks.undo(tmp_path, "student ada", "Ana")
    assert undone is not None
    assert undone.text == ""


def test_a_mark_with_a_comment_that_is_gone_is_named(manual: ManualClass) -> None:
    manual.give("student ada", "discussion", comments=("k1",))
    with pytest.raises(ManualGradingError, match=r"'student ada' for discussion has the comment 'k1'.*comments\.toml"):
        ManualGrading.load(manual.folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("points = 6", "points = 0"), "points = 0: more than 0"),
        (("points = 6", "points = nan"), "rubric.toml"),
        (('id = "figures"', 'id = "discussion"'), "discussion stands twice"),
        (('id = "figures"', 'id = "Fig ures"'), "small letters"),
        (('start = "zero"', 'start = "none"'), "expected 'full' or 'zero'"),
        (('title = "Figures"', 'titel = "Figures"'), "did you mean 'title'"),
    ],
)
def test_a_rubric_with_a_mistake_is_refused_in_one_line(
    manual: ManualClass, change: tuple[str, str], words: str
) -> None:
    path = manual.folder / "manual_grading" / "rubric.toml"
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(ManualGradingError) as error:
        rubric.load(manual.folder)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_the_rubric_to_begin_with_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradebook.command_name._name", "gradebook --course walks")
    rubric.write_template(tmp_path)
    template = rubric.load(tmp_path)
    assert template is not None
    assert not template.released
    text = (tmp_path / "manual_grading" / "rubric.toml").read_text()
    assert "`gradebook --course walks manual grade FOLDER" in text, "it names another course's command"
    assert "GPU" not in text
    with pytest.raises(ManualGradingError, match="is there already"):
        rubric.write_template(tmp_path)


def test_a_comment_needs_a_text_and_sensible_points() -> None:
    for text, value in (("  ", "1"), ("x" * 5000, "1"), ("x", "1e9"), ("x", "NaN")):
        with pytest.raises(ManualGradingError):
            comments.added({}, "discussion", text, Decimal(value), "Ana")
