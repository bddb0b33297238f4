"""Tables for spreadsheets, Canvas and Moodle, as their documentation describes them."""

import csv
import io
from dataclasses import replace
from decimal import Decimal

import pytest

from gradebook.export import canvas, moodle, page, statistics, tables, view
from gradebook.results import ClassResult, LatePenalty, ManualCriterion, ManualResult, StudentResult
from gradebox.run.grade import CheckReport, Outcome
from gradebox.run.overrides import Override
from tests.docs.markdown import ROOT
from tests.gradebook.export.classes import HOSTILE, a_class, graded, student

FAILED = {"lab1.benchmark.warmed_up": CheckReport(Outcome.FAILED, HOSTILE)}
LATE = LatePenalty(seconds_late=90_000, points=Decimal(2), rule="10 % per day, 1 day")
CANVAS = {"Student": "Lovelace, Ada", "ID": "101", "SIS User ID": "S1", "SIS Login ID": "ada", "Section": "A"}
WORKSHEET = {
    "Identifier": "Participant 4711",
    "Full name": "Ada",
    "Email address": "ada@example.org",
    "Status": "Submitted for grading",
    "Grade": "",
    "Maximum Grade": "100.00",
    "Grade can be changed": "Yes",
    "Last modified (submission)": "Sunday, 1 March 2026, 9:15 PM",
    "Last modified (grade)": "-",
    "Feedback comments": "",
}


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def some_class(**more: str) -> view.View:
    rows = [
        student("ada", graded(FAILED), columns={**CANVAS, **more}, late=LATE),
        student("bob", None, status="waiting", score=None, columns={**CANVAS, "SIS Login ID": "bob"}),
        student("eve", None, status="missing", score=Decimal(0), columns={**CANVAS, "SIS Login ID": "eve"}),
    ]
    return view.of(a_class(rows))


def test_the_plain_table_has_a_line_for_everybody() -> None:
    rows = {row["student"]: row for row in read(tables.grades(some_class()))}
    assert (rows["ada"]["score"], rows["ada"]["before_penalty"], rows["ada"]["late_points"]) == ("17", "19", "2")
    assert (rows["ada"]["passed"], rows["ada"]["lab1.benchmark"], rows["ada"]["lab1.memory"]) == ("yes", "4", "5")
    assert (rows["bob"]["status"], rows["bob"]["score"]) == ("waiting", "")
    assert (rows["eve"]["score"], rows["eve"]["passed"]) == ("0", "no")


def test_the_plain_table_names_what_an_instructor_changed() -> None:
    override = Override("ada", "lab1.analysis", Decimal("4.5"), "right")
    result = a_class([student("ada", graded({}, overrides=[override]))])
    (row,) = read(tables.grades(view.of(result)))
    assert (row["overrides"], row["lab1.analysis"], row["score"]) == ("lab1.analysis", "4.5", "19.5")


def test_a_penalty_can_cost_the_pass() -> None:
    late = LatePenalty(seconds_late=1, points=Decimal(6), rule="30 % per day, 1 day")
    (row,) = read(tables.grades(view.of(a_class([student("ada", graded(FAILED), late=late)]))))
    assert (row["score"], row["passed"]) == ("13", "no")


def test_statistics_are_a_table_too() -> None:
    class_view = some_class()
    rows = {row["check"]: row for row in read(tables.checks(statistics.of(class_view)))}
    assert rows["lab1.benchmark.warmed_up"]["failed"] == "1"
    assert rows["lab1.benchmark.warmed_up"]["most_frequent_message"] == HOSTILE
    assert rows["lab1.benchmark.warmed_up"]["item_rest_correlation"] == ""


def test_canvas_gets_its_columns_in_its_order() -> None:
    header, possible, *students = csv.reader(io.StringIO(canvas.gradebook(some_class(), assignment_id=42), newline=""))
    assert header == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "GPU labs (42)"]
    assert possible == ["    Points Possible", "", "", "", "", "20"]
    assert students[0] == ["Lovelace, Ada", "101", "S1", "ada", "A", "17"]


def test_canvas_keeps_scores_of_students_without_one() -> None:
    # An empty cell would clear what Canvas has.
    rows = read(canvas.gradebook(some_class(), assignment_id=42))
    assert [row["SIS Login ID"] for row in rows[1:]] == ["ada", "eve"]
    assert all(row["GPU labs (42)"] for row in rows)


def test_who_is_not_in_the_roster_is_in_no_file_for_a_platform() -> None:
    # Canvas would offer to create them, and Moodle would find no key in their row.
    rows = [
        student("ada", graded({}), columns={**CANVAS, **WORKSHEET}),
        student("stranger", graded({})),
    ]
    class_view = view.of(a_class(rows))
    assert [line.student for line in class_view.strangers] == ["stranger"]
    for text in (canvas.gradebook(class_view), moodle.grade_import(class_view), moodle.worksheet(class_view)):
        assert text is not None
        assert "stranger" not in text
    assert "stranger" in tables.grades(class_view)


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("My Final Grade", "Canvas drops the column 'My Final Grade' and imports no grade, because 'Final Grade'"),
        ("Section", "Canvas takes the column 'Section' for one about students"),
        ("final project", "Canvas may drop the column 'final project', because 'final'"),
        ("The Finale", "because 'Final' is in titles"),
        ("GPU labs", ""),
    ],
)
def test_a_title_that_canvas_may_drop_is_named(title: str, words: str) -> None:
    result = replace(a_class([student("ada", graded({}), columns=CANVAS)]), title=title)
    notices = canvas.notices(view.of(result), None)
    assert len(notices) == bool(words)
    assert words in "".join(notices)
    own = replace(a_class([student("ada", graded({}), columns={"student": "ada"})]), title=title)
    assert canvas.notices(view.of(own), None) == (), "nobody uploads this to Canvas"


def test_people_grade_nothing_of_who_is_not_in_the_roster() -> None:
    by_hand = ManualResult(
        title="Talk",
        criteria=(ManualCriterion(id="talk", title="Talk", points=None, max_points=Decimal(5)),),
        released=False,
    )
    rows = [
        student("ada", graded({}), columns=CANVAS, manual=by_hand, teammates=("bob",)),
        student("bob", graded({}), columns=CANVAS, manual=by_hand, teammates=("ada",)),
        student("left", graded({}), manual=by_hand),
    ]
    class_view = view.of(a_class(rows))
    assert [line.student for line in class_view.to_read] == ["ada"]
    assert [line.student for line in class_view.by_hand_open] == ["ada", "bob"]


def test_who_left_the_roster_is_in_no_statistic_and_no_average() -> None:
    failed = {"lab1.memory.peak_equals_reference": CheckReport(Outcome.FAILED, "no")}
    rows = [student("ada", graded({}), columns=CANVAS), student("left", graded(failed))]
    class_view = view.of(a_class(rows))
    assert {row.submissions for row in statistics.of(class_view)} == {1}
    assert page.average(class_view, "lab1.memory") == 1
    shown = page.distribution(class_view)
    assert shown is not None
    assert shown.count == 1


def test_without_a_roster_everybody_is_in_the_files() -> None:
    class_view = view.of(a_class([student("ada", graded({})), student("bob", graded({}))]))
    assert class_view.strangers == ()
    assert [row["SIS Login ID"] for row in read(canvas.gradebook(class_view))[1:]] == ["ada", "bob"]


def test_canvas_column_is_that_of_its_own_export() -> None:
    assert "GPU labs (77)" in canvas.gradebook(some_class(**{"GPU labs (77)": "", "Other (78)": ""}))
    assert canvas.column(some_class(), None) == "GPU labs"


def test_canvas_finds_students_without_a_roster_by_their_login() -> None:
    rows = read(canvas.gradebook(view.of(a_class([student("ada", graded({}))]))))
    assert (rows[1]["Student"], rows[1]["SIS Login ID"]) == ("ada", "ada")


def test_a_name_on_github_is_no_login_of_canvas() -> None:
    github = student("ada-l", graded({}), name="Ada", columns={"username": "ada-l", "email": "ada@x.edu"})
    (_, row) = read(canvas.gradebook(view.of(a_class([github]))))
    assert (row["Student"], row["SIS Login ID"]) == ("Ada", "")


def test_a_roster_cannot_plant_formulas() -> None:
    class_view = some_class(Student='=HYPERLINK("http://example.org","x")', Section="@SUM(A1)")
    for text in (canvas.gradebook(class_view), tables.grades(class_view), moodle.grade_import(class_view)):
        for row in csv.reader(io.StringIO(text, newline="")):
            assert not any(cell.startswith(("=", "@", "+", "-")) for cell in row)


def moodle_class() -> ClassResult:
    rows = [
        student("Participant 4711", graded(FAILED), columns=WORKSHEET),
        student(
            "Participant 4712",
            None,
            status="waiting",
            score=None,
            columns={**WORKSHEET, "Identifier": "Participant 4712", "Grade": "7.00", "Feedback comments": "old"},
        ),
    ]
    return a_class(rows)


def test_moodles_import_names_students_grades_and_feedback() -> None:
    (row,) = read(moodle.grade_import(view.of(moodle_class())))
    assert list(row) == ["Full name", "Email address", "GPU labs", "GPU labs (feedback)"]
    assert (row["Email address"], row["GPU labs"]) == ("ada@example.org", "19")


def test_moodles_import_falls_back_on_the_key() -> None:
    (row,) = read(moodle.grade_import(view.of(a_class([student("a1", graded({}))]))))
    assert row["ID number"] == "a1"


def test_moodles_worksheet_comes_back_filled_in() -> None:
    text = moodle.worksheet(view.of(moodle_class()))
    assert text is not None
    first, second = read(text)
    assert list(first) == list(WORKSHEET)
    changed = {"Grade", "Feedback comments"}
    assert {name: first[name] for name in WORKSHEET if name not in changed} == {
        name: value for name, value in WORKSHEET.items() if name not in changed
    }
    assert first["Grade"] == "19"
    assert (second["Grade"], second["Feedback comments"]) == ("7.00", "old")


def test_moodles_comments_are_html_and_escaped() -> None:
    (row,) = read(moodle.grade_import(view.of(moodle_class())))
    assert "<br>" in row["GPU labs (feedback)"]
    assert "&lt;script&gt;" in row["GPU labs (feedback)"]
    assert "<script" not in row["GPU labs (feedback)"]


def test_another_maximum_in_moodle_is_pointed_out() -> None:
    (text,) = moodle.notices(view.of(moodle_class()))
    assert "a maximum of 100.00, this class has 20" in text


@pytest.mark.parametrize("title", ["Scale", "Skala"])
def test_an_assignment_on_a_scale_of_words_gets_no_points(title: str) -> None:
    """By what stands in the place of the maximum, in any language."""
    columns = {title if name == "Maximum Grade" else name: cell for name, cell in WORKSHEET.items()}
    columns |= {title: "Not yet satisfactory, Satisfactory", "Grade": "Satisfactory"}
    scaled = view.of(a_class([student("Participant 4711", graded(FAILED), columns=columns)]))
    assert moodle.worksheet(scaled) is None
    (text,) = moodle.notices(scaled)
    assert "on a scale (Not yet satisfactory, Satisfactory)" in text
    assert "set the type of its grade to Point" in text


def test_there_is_no_worksheet_without_moodles_roster() -> None:
    assert moodle.worksheet(some_class()) is None


def test_every_column_of_the_plain_table_is_explained() -> None:
    (header, *_) = csv.reader(io.StringIO(tables.grades(some_class())))
    explained = (ROOT / "docs" / "class-exports.md").read_text("utf-8").partition("## Columns of grades.csv")[2]
    assert [name for name in header if f"`{name}`" not in explained and not name.startswith("lab")] == []


@pytest.mark.parametrize(("title", "no"), [("Grade can be changed", "No"), ("Bewertung kann geändert werden", "Nein")])
def test_a_grade_that_moodle_has_locked_is_named(title: str, no: str) -> None:
    def locked(key: str, cell: str) -> StudentResult:
        columns = {
            "Identifier": f"Participant {key}",
            "Email address": f"{key}@uni.example",
            "Grade": "",
            "Last modified (grade)": "-",
        }
        return student(key, graded({}), columns={**columns, "Maximum Grade": "20.00", title: cell, "Note": "No"})

    (notice,) = moodle.notices(view.of(a_class([locked("17", "Yes"), locked("18", no)])))
    assert "Moodle says that these grades cannot be changed, and skips them: 18. Unlock them" in notice
    assert moodle.notices(view.of(a_class([locked("17", "Yes"), locked("18", "Yes")]))) == ()


def test_points_in_moodle_that_a_zero_replaces_are_named() -> None:
    columns = {**WORKSHEET, "Feedback comments": ""}
    rows = [
        student(key, None, status="missing", score=Decimal(0), columns={**columns, "Grade": cell})
        for key, cell in (("17", "4.00"), ("18", "0.00"), ("19", "-"), ("20", ""), ("21", "4,50"))
    ]
    rows.append(student("22", graded({}), columns={**columns, "Grade": "3.00"}))
    said = next(text for text in moodle.notices(view.of(a_class(rows))) if "Moodle has points" in text)
    assert "replaces them by 0: 17 4.00, 21 4,50. To keep them, excuse the student" in said
    held = student("17", None, status="excused", score=None, columns={**columns, "Grade": "4.00"})
    assert not any("Moodle has points" in text for text in moodle.notices(view.of(a_class([held]))))


def test_comments_that_somebody_typed_in_moodle_are_named_before_they_are_replaced() -> None:
    result = a_class([student("17", graded({}), columns={**WORKSHEET, "Feedback comments": "<p>see me</p>"})])
    assert "replaced if you upload moodle-worksheet.csv: 17. To" in " ".join(moodle.notices(view.of(result)))
    (ours,) = read(moodle.worksheet(view.of(result)) or "")
    again = a_class([student("17", graded({}), columns={**WORKSHEET, "Feedback comments": ours["Feedback comments"]})])
    assert not any("are replaced" in text for text in moodle.notices(view.of(again)))


def test_who_is_hidden_in_moodle_is_in_the_worksheet_only() -> None:
    columns = {"Identifier": "Participant 17", "Full name": "", "Email address": "", "Grade": "", "Maximum Grade": "20"}
    hidden = view.of(a_class([student("17", graded({}), columns=columns | {"Last modified (grade)": "-"})]))
    assert read(moodle.grade_import(hidden)) == [], "Moodle refuses a row that names nobody"
    assert "Participant 17" in (moodle.worksheet(hidden) or "")
    assert "in moodle-worksheet.csv and not in moodle-grades.csv: 17" in " ".join(moodle.notices(hidden))


def test_platforms_get_the_key_that_the_roster_has_now() -> None:
    """The class keeps the first one, under which decisions and marks are."""
    rows = [student("zoe", graded({}), columns={"student": "zoe2", "name": "Zoë"}), student("ada", graded({}))]
    rows[1] = replace(rows[1], columns={"student": "", "Email": "ada"})
    made = view.of(a_class(rows))
    assert [row["SIS Login ID"] for row in read(canvas.gradebook(made))[1:]] == ["ada", "zoe2"]
    assert [row["ID number"] for row in read(moodle.grade_import(made))] == ["ada", "zoe2"]


def test_who_lacks_what_moodle_knows_students_by_is_named() -> None:
    rows = [
        student(key, graded({}), columns={"student": key, "Email address": f"{key}@x.edu"}) for key in ("ada", "bob")
    ]
    rows.append(student("eve", graded({}), columns={"student": "eve", "Email address": ""}))
    made = view.of(a_class(rows))
    assert [row["Email address"] for row in read(moodle.grade_import(made))] == ["ada@x.edu", "bob@x.edu"]
    assert moodle.notices(made) == (
        "not in moodle-grades.csv, because the roster has nothing in Email address by which Moodle knows them: eve",
    )


def test_other_grades_in_moodle_are_named_before_they_are_replaced() -> None:
    rows = [
        student(key, graded({}), columns={**WORKSHEET, "Feedback comments": "", "Grade": cell})
        for key, cell in (("17", "7,50"), ("18", "20.00"), ("19", "-"), ("20", ""), ("21", "55 %"))
    ]
    said = [text for text in moodle.notices(view.of(a_class(rows))) if "has other grades" in text]
    assert [text.partition(". To")[0] for text in said] == [
        "Moodle has other grades of these students, which moodle-worksheet.csv replaces: "
        "17 7,50, now 20, 21 55 %, now 20"
    ]


@pytest.mark.parametrize(("cell", "said"), [("2,70", False), ("2.7", False), ("2,71", True), ("nan", True)])
def test_a_grade_in_moodle_with_a_comma_is_the_same_grade(cell: str, said: bool) -> None:
    """Not only where a binary fraction is the number."""
    row = student("17", graded({}), columns={**WORKSHEET, "Feedback comments": "", "Grade": cell})
    row = replace(row, score=Decimal("2.7"))
    notices = moodle.notices(view.of(replace(a_class([row]), max_score=Decimal("3.1"))))
    assert any("has other grades" in text for text in notices) == said


def test_a_maximum_in_moodle_with_a_comma_is_the_same_maximum() -> None:
    row = student("17", graded({}), columns={**WORKSHEET, "Maximum Grade": "3,10"})
    assert not any(
        "maximum" in text for text in moodle.notices(view.of(replace(a_class([row]), max_score=Decimal("3.1"))))
    )


def test_a_worksheet_with_another_title_is_named() -> None:
    columns = {("Id" if name == "Identifier" else name): cell for name, cell in WORKSHEET.items()}
    notices = moodle.notices(view.of(a_class([student("17", graded({}), columns=columns)])))
    assert "has no column Identifier, so there is no moodle-worksheet.csv: download the work" in " ".join(notices)


def test_other_grades_in_canvas_are_named_before_they_are_replaced() -> None:
    rows = [
        student(key, graded({}), columns={**CANVAS, "GPU labs (42)": cell})
        for key, cell in (("ada", "7,50"), ("bob", "20.00"), ("cy", ""), ("eve", "EX"))
    ]
    said = " ".join(canvas.notices(view.of(a_class(rows)), None))
    assert (
        "other grades in GPU labs (42), which canvas.csv replaces: ada 7,50, now 20, eve EX, now 20. To keep one"
        in said
    )
