"""Teams: one submission of several is graded once, and counts for each, in every export."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from gradebook.export.book import Book
from gradebook.grading.class_summary import GradebookError
from gradebook.intake import roster_files
from gradebook.intake.handed_in import IntakeError
from gradebook.results import ClassResult
from gradebook.roster import RosterError
from gradebox.report.document import points
from tests.gradebook.conftest import SmallClass
from tests.gradebook.intake.test_archives import zipped

ROSTER = "student,name,ID,team\nada,Ada,17,Team 1\nbob,bob,18,Team 1\ncarl,Carl,19,\neve,Eve,45,\n"
LAB = {"lab1_gpu_basics/benchmark.py": b"# together\n"}


class Course:
    """A class whose roster says who works together."""

    def __init__(self, small: SmallClass) -> None:
        self.small = small
        self.folder = small.submissions.parent

    def grade(self, roster: str = ROSTER, **files: str) -> ClassResult:
        (self.folder / "roster.csv").write_text(roster)
        for name, text in files.items():
            (self.folder / f"{name}.csv").write_text(text)
        if files:
            lines = [f'{name} = "{name}.csv"\n' for name in files]
            (self.folder / "class.toml").write_text("".join(lines))
            return self.small.grade(roster=self.folder / "roster.csv", configuration=self.folder / "class.toml")
        return self.small.grade(roster=self.folder / "roster.csv")

    def text(self, name: str) -> str:
        return (self.small.out / "exports" / name).read_text()


@pytest.fixture
def course(small_class: SmallClass) -> Course:
    return Course(small_class)


def statuses(result: ClassResult) -> dict[str, str]:
    return {row.student: row.status for row in result.students}


def test_a_team_of_which_everybody_hands_in_something_else_may_be_a_section(course: Course) -> None:
    for name in ("ada", "bob", "carl"):
        course.small.hands_in(name)
    said = StringIO()
    (course.folder / "roster.csv").write_text(ROSTER.replace("19,", "19,team 1"))
    course.small.grade(roster=course.folder / "roster.csv", console=Console(file=said, width=400))
    assert "members of one team handed in different work: Team 1. If these are sections" in said.getvalue()


@pytest.mark.parametrize(
    "name",
    ["Team 1_45_assignsubmission_file_labs.zip", "project_17_4711_labs.zip", "Team 1.zip", "bob.zip"],
    ids=["Moodle's group", "a member's ID in Canvas", "the team's name", "a member"],
)
def test_what_one_hands_in_counts_for_all(course: Course, name: str) -> None:
    zipped(course.small.submissions / name, LAB)
    result = course.grade()
    assert statuses(result) == {"ada": "graded", "bob": "graded", "carl": "missing", "eve": "missing"}
    ada, bob = result.students[:2]
    assert (ada.team, ada.teammates, bob.teammates) == ("Team 1", ("bob",), ("ada",))
    assert ada.grade is not None
    assert ada.score == bob.score
    assert len(course.small.graded) == 1


def test_a_groups_number_is_no_students(course: Course) -> None:
    zipped(course.small.submissions / "Team 9_45_assignsubmission_file_labs.zip", LAB)
    result = course.grade()
    assert statuses(result) == dict.fromkeys(("ada", "bob", "carl", "eve"), "missing") | {"Team 9_45": "graded"}
    assert all(row.withheld for row in result.students if row.status == "missing")


@pytest.mark.parametrize(("name", "said"), [("lovelaceada", False), ("projectgroup1", True)])
def test_what_may_be_a_groups_is_said(course: Course, name: str, said: bool) -> None:
    zipped(course.small.submissions / f"{name}_17_4711_labs.zip", LAB)
    (course.folder / "roster.csv").write_text('Student,ID,SIS Login ID\n"Lovelace, Ada",17,ada\n"B, Bob",18,bob\n')
    output = StringIO()
    result = course.small.grade(roster=course.folder / "roster.csv", console=Console(file=output, width=300))
    assert statuses(result) == {"ada": "graded", "bob": "missing"}
    assert ("note: ada handed in as 'projectgroup1'; if that is a group, say who is in it" in output.getvalue()) == said


def test_every_export_has_every_member(course: Course) -> None:
    zipped(course.small.submissions / "Team 1.zip", LAB)
    score = course.grade().students[0].score
    assert score
    for name in ("grades.csv", "canvas.csv", "moodle-grades.csv"):
        lines = [line for line in course.text(name).splitlines() if "ada" in line.lower() or "bob" in line]
        assert len(lines) == 2, name
        assert all(f",{points(score)}," in f"{line}," for line in lines), name
    assert "(Team 1)" in course.text("class.html")
    for member, other in (("ada", "bob"), ("bob", "Ada")):
        sentence = f"The work of the team Team 1: it is graded once, and counts for {other} as well."
        for name in (f"feedback/{member}.html", f"feedback/{member}.md", f"gradescope/{member}.json"):
            assert sentence in course.text(name), name


def test_an_override_by_a_teams_name_is_every_members(course: Course) -> None:
    zipped(course.small.submissions / "Team 1.zip", LAB)
    course.grade()
    said = Book.open(course.small.out).override("Team 1", "lab1.analysis", "2", "asked both")
    assert "Team 1 gets 2 points for lab1.analysis" in said
    Book.open(course.small.out).export()
    for member in ("ada", "bob"):
        assert "asked both" in course.text(f"feedback/{member}.md")
    with pytest.raises(ValueError, match="'Team 2': there is no such student"):
        Book.open(course.small.out).override("Team 2", "lab1.analysis", "2", "nobody")


def test_members_who_join_and_leave_share_from_the_next_run_on(course: Course) -> None:
    zipped(course.small.submissions / "ada.zip", LAB)
    assert statuses(course.grade())["bob"] == "graded"
    later = course.grade(ROSTER.replace("18,Team 1", "18,").replace("19,", "19,team 1"))
    assert statuses(later) == {"ada": "graded", "bob": "missing", "carl": "graded", "eve": "missing"}
    assert later.students[0].teammates == ("carl",)
    assert len(course.small.graded) == 1


def test_nobody_decides_for_a_team_of_whom_nobody_knows_which_files_count(course: Course) -> None:
    for name in ("ada", "bob"):
        zipped(
            course.small.submissions / f"{name}.zip",
            {f"{place}/lab1_gpu_basics/benchmark.py": place.encode() for place in "ab"},
        )
    ada, bob, *_ = course.grade().students
    assert [(row.status, row.score) for row in (ada, bob)] == [("refused", None)] * 2
    assert "'ada.zip' of ada holds labs in several folders, 'a', 'b'" in ada.reason


def test_who_left_a_team_hands_in_alone(course: Course) -> None:
    zipped(course.small.submissions / "ada.zip", LAB)
    zipped(course.small.submissions / "bob.zip", {"lab1_gpu_basics/benchmark.py": b"# alone\n"})
    ada, bob, *_ = course.grade(ROSTER.replace("18,Team 1", "18,")).students
    assert (ada.status, bob.status, bob.teammates) == ("graded", "graded", ())
    assert len(course.small.graded) == 2


def test_a_team_that_hands_in_twice_is_refused_unless_it_is_the_same(course: Course) -> None:
    for name in ("ada", "bob"):
        zipped(course.small.submissions / f"{name}.zip", LAB)
    assert statuses(course.grade())["ada"] == "graded"
    zipped(course.small.submissions / "bob.zip", {"lab1_gpu_basics/benchmark.py": b"# other\n"})
    ada, bob, *_ = course.grade().students
    assert ada.reason == bob.reason
    assert ada.reason == (
        "the team 'Team 1' handed in more than once, and not the same: ada.zip, bob.zip; keep one of them"
    )


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("bob/readme.txt", b"see Ada", "'bob' of bob does not count: it holds no lab, only 'readme.txt': hand in"),
        ("bob.zip", b"PK\x03\x04 and no more", "'bob.zip' of bob does not count: it is damaged, or no archive"),
        (
            "bbob_18_4712_lab1.zip",
            b"Rar!",
            "'bbob_18_4712_lab1.zip' of bob does not count: 'lab1.zip' is a RAR archive",
        ),
        ("bbob_18_text.html", b"see Ada", "'bbob_18_text.html' of bob does not count: a text was handed in"),
    ],
    ids=["no lab", "damaged", "Canvas's", "a text"],
)
@pytest.mark.parametrize("good", ["ada.zip", "lovelaceada_17_4711_lab1.zip", "Team 1.zip"])
def test_what_a_member_hands_in_that_cannot_be_graded_is_named_and_costs_the_team_nothing(
    course: Course, good: str, name: str, content: bytes, problem: str
) -> None:
    zipped(course.small.submissions / good, LAB)
    (course.small.submissions / name).parent.mkdir(exist_ok=True)
    (course.small.submissions / name).write_bytes(content)
    ada, bob, *_ = course.grade().students
    assert (ada.status, bob.status, len(course.small.graded)) == ("graded", "graded", 1)
    assert ada.reason == bob.reason
    assert ada.reason.startswith(problem)
    assert "of bob does not count" in course.text("feedback/ada.md").replace("\\", "")


def test_where_no_member_hands_in_a_lab_each_thing_is_named_with_whose_it_is(course: Course) -> None:
    (course.small.submissions / "ada.zip").write_bytes(b"PK\x03\x04 and no more")
    (course.small.submissions / "bob").mkdir()
    ada, bob, *_ = course.grade().students
    assert (ada.status, bob.status, ada.reason) == ("refused", "refused", bob.reason)
    assert ada.reason.startswith("'ada.zip' of ada is damaged, or no archive at all")
    assert "; 'bob' of bob holds no lab, nothing at all: hand in the lab's folder" in ada.reason


def test_what_a_member_hands_in_beside_the_same_lab_is_named_too(course: Course) -> None:
    zipped(course.small.submissions / "ada.zip", LAB)
    zipped(
        course.small.submissions / "bob.zip", {f"homework/{name}": text for name, text in LAB.items()} | {"a.pdf": b""}
    )
    ada, bob, *_ = course.grade().students
    assert (ada.status, ada.reason) == ("graded", bob.reason)
    assert ada.reason.startswith("of 'bob.zip' of bob: nothing reads these files, so that they do not count: 'a.pdf'")


@pytest.mark.parametrize(
    "groups",
    [
        "name,canvas_user_id,user_id,login_id,sections,group_name,canvas_group_id,group_id\n"
        "Ada,17,,,,Team 1,5,\nBob,18,,,,Team 1,5,\nZoe,99,,,,Team 2,6,\nCarl,19,,,,,,\n,,,,,Team 3,7,\n",
        "First name;Last name;ID number;Groups\nAda;L;17;Team 1\nBob;B;18;Team 1\nZoe;Z;99;Team 2\n",
        "Team,member1,Member 2\nTeam 1,17,Bob\nTeam 2,99,\n",
        "Name,Team\nAda,Team 1\nBob,Team 1\nZoe,Team 2\n",
    ],
    ids=["Canvas", "Moodle", "a row for each team", "names alone"],
)
def test_a_platforms_list_says_who_works_together(course: Course, groups: str) -> None:
    zipped(course.small.submissions / "ada.zip", LAB)
    result = course.grade("student,ID,name\nada,17,Ada\nbob,18,Bob\ncarl,19,Carl\n", teams=groups)
    assert statuses(result) == {"ada": "graded", "bob": "graded", "carl": "missing"}
    assert roster_files.load(course.folder / "roster.csv", course.folder / "teams.csv").strangers in {("99",), ("Zoe",)}


@pytest.mark.parametrize(
    ("roster", "groups", "message"),
    [
        (ROSTER, "student,team\nada,x\n", r"both .* and .* say who works together; keep one of them"),
        ("student\nada\n", "student\nada\n", "that names teams, only student; the first line has the titles, so call"),
        ("student\nada\n", "who,team\nada,x\n", "identifies students, only who, team; the first line has"),
        ("student\nada\n", "student,Nick,team\nada,A,x\n,Bob,x\n", "line 3: it has the team 'x' and names nobody"),
        ("student\nada\n", "student,team\nada,x\nada,y\n", "line 3: ada is in 'x' and in 'y'; keep one"),
    ],
)
def test_a_list_that_makes_no_sense_is_one_line(course: Course, roster: str, groups: str, message: str) -> None:
    course.small.hands_in("ada")
    with pytest.raises(RosterError, match=message) as error:
        course.grade(roster, teams=groups)
    assert "\n" not in str(error.value)


def test_teams_need_a_roster(course: Course) -> None:
    course.small.hands_in("ada")
    (course.folder / "class.toml").write_text('teams = "teams.csv"\n')
    with pytest.raises(IntakeError, match="teams needs a roster"):
        course.small.grade(configuration=course.folder / "class.toml")


def test_other_teams_need_the_submissions(course: Course) -> None:
    course.small.hands_in("ada")
    course.grade("student\nada\n", teams="student,team\nada,x\n")
    (course.folder / "class.toml").write_text("")
    with pytest.raises(GradebookError, match="teams decides how submissions are taken in"):
        course.small.grade(submissions=None, configuration=course.folder / "class.toml")


def test_points_given_to_a_team_are_every_members(course: Course) -> None:
    zipped(course.small.submissions / "ada.zip", LAB)
    override = '[[override]]\nstudent = "{}"\ncriterion = "lab1.memory"\npoints = 1.5\nreason = "by hand"\n'
    (course.small.out).mkdir()
    (course.small.out / "overrides.toml").write_text(override.format("Team 1"))
    for row in course.grade().students[:2]:
        assert row.grade is not None
        (memory,) = [criterion for lab in row.grade.labs for criterion in lab.criteria if criterion.id == "lab1.memory"]
        assert (memory.points, memory.override is not None) == (1.5, True)
    (course.small.out / "overrides.toml").write_text(override.format("Team 2"))
    with pytest.raises(ValueError, match="for 'Team 2': there is no such student"):
        course.grade()


def test_who_handed_in_together_is_not_similar(course: Course, tmp_path: Path) -> None:
    from gradebook.cli.integrity import _submissions

    zipped(course.small.submissions / "ada.zip", LAB)
    zipped(course.small.submissions / "carl.zip", LAB)
    course.grade()
    taken, refused, _ = _submissions(course.small.out, tmp_path)
    assert (sorted(taken), refused) == (["ada", "carl"], [])


def test_a_time_in_one_members_row_is_the_teams(tmp_path: Path) -> None:
    """Platforms say it of who pressed the button only."""
    (tmp_path / "roster.csv").write_text(
        "student,team,submitted_at\nada,one,\nbob,One,2026-03-02T10:00Z\ncem,,\ndee,two,\n"
    )
    times = {
        entry.student: entry.submitted_at is not None for entry in roster_files.load(tmp_path / "roster.csv").entries
    }
    assert times == {"ada": True, "bob": True, "cem": False, "dee": False}


def test_another_team_in_a_later_run_is_named(course: Course) -> None:
    course.small.hands_in("Team 1")
    course.small.hands_in("eve")

    def said(roster: str) -> str:
        screen = StringIO()
        (course.folder / "roster.csv").write_text(roster)
        course.small.grade(roster=course.folder / "roster.csv", console=Console(file=screen, width=1000))
        return screen.getvalue()

    assert "in the run before" not in said(ROSTER) + said(ROSTER)
    moved = ROSTER.replace("Carl,19,", "Carl,19,Team 1").replace("bob,18,Team 1", "bob,18,")
    text = said(moved)
    assert "note: carl: in the team Team 1 now, and in no team in the run before; other work counts" not in text
    assert "note: carl: in the team Team 1 now, and in no team in the run before\n" in text, "had nothing of his own"
    assert "note: bob: in no team now, and in the team Team 1 in the run before" in text
    text = said(moved.replace("Eve,45,", "Eve,45,Team 1"))
    assert "eve: in the team Team 1 now" in text


@pytest.mark.parametrize("cell", ["-", "--", "\u2013", "None", "n/a", "NaN", "No team", "?", "#N/A"])
def test_what_people_write_for_who_works_alone_is_no_team(tmp_path: Path, cell: str) -> None:
    (tmp_path / "roster.csv").write_text(f"student,name,team\nada,Ada,{cell}\nbob,Bob,{cell}\ncat,Cat,0\ndan,Dan,A-1\n")
    assert [entry.team for entry in roster_files.load(tmp_path / "roster.csv").entries] == ["", "", "0", "A-1"]
    (tmp_path / "people.csv").write_text("student,name\nada,Ada\nbob,Bob\ncat,Cat\ndan,Dan\n")
    entries = roster_files.load(tmp_path / "people.csv", tmp_path / "roster.csv").entries
    assert [entry.team for entry in entries] == ["", "", "0", "A-1"]
