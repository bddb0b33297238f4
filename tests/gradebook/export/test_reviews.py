"""What waits for a person: when it is open, when it is settled, and what is kept of an instructor's own files."""

import tomllib
from decimal import Decimal
from pathlib import Path

import pytest

import grader
from gradebook.export import decisions, review_list, reviews, view
from gradebook.export.reviews import ReviewError
from gradebook.results import ClassResult
from gradebox.run import overrides
from gradebox.run.endings import COURSE_IS_WRONG
from gradebox.run.grade import CheckReport, IntegrityNote, Outcome
from gradebox.run.overrides import Override, OverrideError
from tests.gradebook.export.classes import HOSTILE, a_class, graded, student

UNSURE = CheckReport(Outcome.NEEDS_REVIEW, "cannot tell")
PEAK, WARM = "lab1.memory.peak_equals_reference", "lab1.benchmark.warmed_up"
NOTE = IntegrityNote("open", "/etc/passwd", "benchmark.py:3", WARM)


def some_class(*checks: str, notes: tuple[IntegrityNote, ...] = (), content: str = "ada") -> ClassResult:
    made = graded(dict.fromkeys(checks, UNSURE), student=content, notes=notes)
    return a_class([student("ada", made), student("bob", graded({}))])


def view_of(result: ClassResult, folder: Path) -> view.View:
    return view.of(result, reviews.load(folder))


def test_undecided_checks_and_notes_are_open() -> None:
    items = view.of(some_class(PEAK, notes=(NOTE,))).open
    assert [(item.criterion, item.kind) for item in items] == [("lab1.memory", "check"), ("lab1.benchmark", "note")]


def test_what_was_accepted_stays_so_in_the_next_run(tmp_path: Path) -> None:
    result = some_class(PEAK, notes=(NOTE,))
    decisions.accept(view_of(result, tmp_path), tmp_path, "ada", "lab1.memory")
    assert [item.criterion for item in view_of(result, tmp_path).open] == ["lab1.benchmark"]
    decisions.accept(view_of(result, tmp_path), tmp_path, "ada", decisions.ALL)
    assert view_of(result, tmp_path).open == ()


def test_a_mistake_of_the_course_gives_no_score_until_somebody_decides(tmp_path: Path) -> None:
    """A regrade with a broken check must not send 0 points to a platform."""
    broken = CheckReport(Outcome.NEEDS_REVIEW, "the check itself failed at checks.py:7: NameError: x", COURSE_IS_WRONG)
    result = a_class([student("ada", graded({PEAK: broken})), student("bob", graded({}))])
    ada, bob = view_of(result, tmp_path).lines
    assert (ada.result.status, ada.result.score, ada.grade, ada.decided) == ("could_not_grade", None, None, False)
    assert f"{PEAK}: the check itself failed at checks.py:7" in ada.result.reason
    assert bob.decided
    assert view_of(result, tmp_path).for_platforms == (bob,)
    decisions.accept(view_of(result, tmp_path), tmp_path, "ada", "lab1.memory")
    assert [line.decided for line in view_of(result, tmp_path).lines] == [True, True]
    given = Override("ada", "lab1.memory", Decimal(5), "measured by hand")
    made = graded({PEAK: broken}, overrides=[given])
    assert view.of(a_class([student("ada", made)])).lines[0].decided


def test_other_files_of_the_student_are_open_again(tmp_path: Path) -> None:
    decisions.accept(view_of(some_class(PEAK), tmp_path), tmp_path, "ada", "lab1.memory")
    assert len(view_of(some_class(PEAK, content="ada, later"), tmp_path).open) == 1


def test_something_new_in_an_accepted_criterion_is_open(tmp_path: Path) -> None:
    decisions.accept(view_of(some_class(PEAK), tmp_path), tmp_path, "ada", "lab1.memory")
    later = some_class(PEAK, "lab1.memory.every_stage_present")
    assert [item.check for item in view_of(later, tmp_path).open] == ["lab1.memory.every_stage_present"]


def test_an_override_settles_its_criterion() -> None:
    override = Override("ada", "lab1.benchmark", Decimal(4), "looked at it")
    made = graded({WARM: UNSURE}, notes=[NOTE], overrides=[override])
    assert view.of(a_class([student("ada", made)])).open == ()


def test_accepting_nothing_is_refused_with_what_is_open(tmp_path: Path) -> None:
    with pytest.raises(ReviewError, match=r"nothing is open in lab1\.analysis of ada; open is lab1\.memory"):
        decisions.accept(view_of(some_class(PEAK), tmp_path), tmp_path, "ada", "lab1.analysis")
    with pytest.raises(ReviewError, match="there is no student 'ad' in this class"):
        decisions.accept(view_of(some_class(PEAK), tmp_path), tmp_path, "ad", "lab1.memory")


def test_any_key_can_be_written_down(tmp_path: Path) -> None:
    key = f'{HOSTILE}\n"""\\ \x7f ü'
    result = a_class([student(key, graded({PEAK: UNSURE}))])
    decisions.accept(view_of(result, tmp_path), tmp_path, key, "lab1.memory")
    assert view_of(result, tmp_path).open == ()
    assert tomllib.loads((tmp_path / reviews.FILE).read_text())["accepted"][0]["student"] == key


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[accepted", "not valid TOML"),
        ("[accepted]\n", "write each accepted as \\[\\[accepted\\]\\], with two brackets"),
        ('[[accepted]]\nstudent = "ada"\n', "lacks the key 'submission_sha256'"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / reviews.FILE).write_text(text)
    with pytest.raises(ReviewError, match=message):
        reviews.load(tmp_path)


OWN = """# My notes on the class.
[[override]]
student = "bob"          # resubmitted
criterion = "lab1.analysis"
points = 3
reason = "late but right"

# Now for Ada.
[[override]]
student = "ada"
points = 1               # first try
criterion = "lab1.memory"
reason = "half of it"

# The end.
"""


def give(file: Path, criterion: str = "lab1.memory", points: str = "4.5", reason: str = 'a "better" look') -> Override:
    return decisions.override(file, grader.course().rubric, "ada", criterion, points, reason)


def test_an_override_makes_the_file(tmp_path: Path) -> None:
    override = give(tmp_path / "new" / "overrides.toml")
    assert overrides.load(tmp_path / "new" / "overrides.toml", grader.course().rubric) == (override,)
    assert override == Override("ada", "lab1.memory", Decimal("4.5"), 'a "better" look', at=override.at)


def test_an_override_is_changed_in_its_place_and_comments_stay(tmp_path: Path) -> None:
    file = tmp_path / "overrides.toml"
    file.write_text(OWN)
    override = give(file)
    before, after = OWN.splitlines(), file.read_text().splitlines()
    decided = ["points = 4.5", 'reason = "a \\"better\\" look"', f"at = {override.at and override.at.isoformat()}"]
    assert [line for line in after if line not in before] == decided
    assert [line for line in before if line not in after] == [
        "points = 1               # first try",
        'reason = "half of it"',
    ]
    assert override in overrides.load(file, grader.course().rubric)


def test_an_override_is_added_after_the_others(tmp_path: Path) -> None:
    file = tmp_path / "overrides.toml"
    file.write_text(OWN.rstrip())
    give(file, "lab1.benchmark")
    assert file.read_text().startswith(OWN.rstrip())
    assert len(overrides.load(file, grader.course().rubric)) == 3


@pytest.mark.parametrize(
    ("criterion", "points", "reason", "message"),
    [
        ("lab1.memory", "6", "x", "gives 0 to 5$"),
        ("lab1.memory", "NaN", "x", "is no number"),
        ("lab1.memory", "half", "x", "is no number"),
        ("lab1.nothing", "1", "x", "no criterion"),
        ("lab1.memory", "1", "  ", "reason is empty"),
    ],
)
def test_an_override_that_makes_no_sense_changes_nothing(
    tmp_path: Path, criterion: str, points: str, reason: str, message: str
) -> None:
    file = tmp_path / "overrides.toml"
    file.write_text(OWN)
    with pytest.raises(OverrideError, match=message) as raised:
        give(file, criterion, points, reason)
    assert "toml:" not in str(raised.value)  # no line of a file has that
    assert file.read_text() == OWN
    assert [path.name for path in tmp_path.iterdir()] == ["overrides.toml"]


def test_a_file_that_cannot_be_edited_safely_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "overrides.toml"
    text = '[[override]]\nstudent = "ada"\ncriterion = "lab1.memory"\npoints = 1\nreason = """two\nlines"""\n'
    file.write_text(text)
    with pytest.raises(OverrideError):
        give(file)
    assert file.read_text() == text


def test_the_list_says_where_to_look_and_what_to_do() -> None:
    text = review_list.text(view.of(some_class(PEAK, notes=(NOTE, NOTE))), Path("DIR"))
    assert f"needs review: {PEAK}: cannot tell" in text
    assert text.count("note open: /etc/passwd at benchmark.py:3") == 1
    assert "gpulabs review DIR --accept ada lab1.memory" in text
    assert "gpulabs review DIR --rerun ada" in text


def test_a_refused_submission_waits_for_a_person_until_it_is_accepted(tmp_path: Path) -> None:
    refused = student("eve", None, status="refused", reason="holds no lab", score=Decimal(0))
    result = a_class([student("ada", graded({})), refused])
    text = review_list.text(view_of(result, tmp_path), tmp_path)
    assert "refused: holds no lab" in text
    assert "--rerun eve" not in text
    assert "--override eve" not in text
    decisions.accept(view_of(result, tmp_path), tmp_path, "eve", decisions.ALL)
    assert view_of(result, tmp_path).open == ()
    again = a_class([student("eve", None, status="refused", reason="holds a link", score=Decimal(0))])
    assert [item.detail for item in view_of(again, tmp_path).open] == ["holds a link"]


def test_nothing_is_open_is_not_said_of_what_was_not_graded() -> None:
    waiting = a_class([student("ada", graded({})), student("eve", None, status="waiting")])
    text = review_list.text(view.of(waiting), Path("DIR"))
    assert text == "1 submission is not graded yet: go on with gpulabs class --out DIR"


def test_the_list_cannot_move_the_cursor() -> None:
    note = IntegrityNote("open", "\x1b[2J\x9b31m/etc/passwd", "", WARM)
    text = review_list.text(view.of(some_class(notes=(note,))), Path("DIR"))
    assert "\x1b" not in text
    assert "\x9b" not in text


def test_a_grading_that_broke_down_is_open(tmp_path: Path) -> None:
    rows = [student("ada", graded({}))]
    rows += [student(key, None, status="could_not_grade", reason="checks.py:3: no syntax") for key in ("bob", "cleo")]
    text = review_list.text(view.of(a_class(rows)), tmp_path)
    assert "could not be graded; remove the reason, then:\n  bob, cleo: checks.py:3: no syntax\n" in text
    assert "--regrade STUDENT" in text
    assert "nothing is open" not in text
