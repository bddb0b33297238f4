"""Files as systems and platforms leave them: UTF-16, Git LFS, Blackboard, Brightspace, Moodle in other languages."""

from __future__ import annotations

import csv
import io
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

import grader
from gradebook import moodle_words, settings
from gradebook.export import moodle, view
from gradebook.intake import encodings, roster_files
from gradebook.intake.collect import Intake, Store
from gradebook.intake.handed_in import IntakeError
from gradebook.intake.lab_folders import LabNames
from gradebook.intake.not_counted import NOTHING_ELSE
from gradebook.intake.pieces import copy_of
from gradebook.results import Student
from gradebook.roster import MoodleId, is_team
from gradebook.settings import Settings
from gradebox.course.course import load
from tests.gradebook.conftest import SmallClass
from tests.gradebook.intake.downloads import CODE, LAB, Downloads

ROOT = Path(__file__).parents[3]
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 12345\n"


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("benchmark.docx", b"PK\x03\x04", "'lab1_gpu_basics/benchmark.docx' (a document)"),
        ("benchmark.ipynb", b"{}", "'lab1_gpu_basics/benchmark.ipynb' (a notebook)"),
        ("benchmark.py", b"{\\rtf1 x}", "'lab1_gpu_basics/benchmark.py' is no text but an RTF document"),
        ("benchmark.py", b"", "'lab1_gpu_basics/benchmark.py' is empty, so perhaps never saved"),
    ],
)
def test_a_lab_in_which_nothing_can_be_graded_waits_for_a_person(
    downloads: Downloads, name: str, content: bytes, what: str
) -> None:
    downloads.put(f"ada/{LAB}/README.md")
    downloads.put(f"ada/{LAB}/{name}", content)
    downloads.put(f"bob/{LAB}/{name}", content)
    downloads.put(f"bob/{LAB}/profiler.py")
    downloads.put(f"cleo/{LAB}/README.md")
    students = downloads.take()
    assert students["ada"].status == "undecided"
    assert what in students["ada"].reason
    assert students["ada"].reason.endswith(NOTHING_ELSE)
    assert what in students["bob"].reason
    assert [students[key].status for key in ("bob", "cleo")] == ["taken", "taken"]


def test_pointers_of_git_lfs_are_named(downloads: Downloads) -> None:
    downloads.put(f"ada/{LAB}/benchmark.py")
    for name in ("memory.json", "memory.png"):
        downloads.put(f"ada/{LAB}/results/{name}", POINTER)
    downloads.put(f"ada/{LAB}/notes.txt", b"about " + POINTER)
    reason = downloads.take()["ada"].reason
    assert f"'{LAB}/results/memory.json', '{LAB}/results/memory.png' are pointers of Git LFS, not the files" in reason
    assert "notes" not in reason
    assert encodings.pointers(()) == []


def test_a_merge_that_was_not_finished_is_named(downloads: Downloads) -> None:
    sides = "x = 1\n<<<<<<< HEAD\nx = 2\n=======\nx = 3\n>>>>>>> theirs\n"
    downloads.put(f"ada/{LAB}/benchmark.py", sides.encode())
    downloads.put(f"ada/{LAB}/profiler.py", sides.replace("\n", "\r\n").encode())
    downloads.put(f"ada/{LAB}/REPORT.md", b"Title\n=======\n\n<<<<<<< is no mark alone\n")
    reason = downloads.take()["ada"].reason
    assert f"a merge was not finished ('{LAB}/benchmark.py', line 2, '{LAB}/profiler.py', line 2): choose" in reason
    assert "REPORT" not in reason


@pytest.mark.parametrize("folder", ["Lab 1", LAB])
@pytest.mark.parametrize("inside", [f"{LAB}/benchmark.py", "benchmark.py", f"labs/{LAB}/benchmark.py"])
def test_an_archive_alone_in_the_labs_folder_is_unpacked(downloads: Downloads, folder: str, inside: str) -> None:
    downloads.pack(f"ada/{folder}/labs.zip", {inside: CODE})
    assert list(downloads.files(downloads.take()["ada"])) == [f"{LAB}/benchmark.py"]


@pytest.mark.parametrize("left", ["", "__pycache__/benchmark.cpython-312.pyc"])
def test_a_lab_without_files_is_refused_with_a_reason(downloads: Downloads, left: str) -> None:
    (downloads.put(f"ada/{LAB}/x").parent / "x").unlink()
    if left:
        downloads.put(f"ada/{LAB}/{left}")
    student = downloads.take()["ada"]
    assert student.status == "refused"
    assert student.reason == "holds no file in lab1_gpu_basics: hand in all that is in it"


def test_other_labs_than_the_class_grades_are_named(downloads: Downloads) -> None:
    downloads.put("ada/lab2_mixed_precision/train.py")
    said = "this class grades lab1_gpu_basics, which is not in the submission: it has lab2_mixed_precision"
    assert said in downloads.take(1)["ada"].reason
    assert "this class grades lab1_gpu_basics and lab3_distributed" in downloads.take(1, 3)["ada"].reason
    assert downloads.take(1, 2)["ada"].reason == "", "labs that somebody has not begun are no news"


def test_an_archive_of_one_submission_is_no_class(downloads: Downloads, tmp_path: Path) -> None:
    archive = downloads.pack("ada.zip", {f"{LAB}/benchmark.py": CODE})
    with pytest.raises(IntakeError, match=r"ada\.zip is one submission; put it into a folder with the others"):
        downloads.take(where=archive)


def test_attachments_handed_in_one_by_one_lie_where_the_lab_reads_them(downloads: Downloads) -> None:
    """In `results`, where programs write: a learning platform has no folders."""
    prefix = "lovelaceada_17_"
    for number, name in enumerate(("benchmark.py", "benchmark.json", "memory.png", "REPORT.md")):
        downloads.put(f"{prefix}{number}_{name}", f"{name}\n".encode())
    names = LabNames.of(grader.course().rubric.labs, (1,), grader.course().folder)
    store = Store(downloads.folder.parent / "store")
    intake = Intake(Settings(), None, store, downloads.folder.parent / "room", None, names)
    (student,) = intake.take_all(downloads.folder, lambda name: None)
    assert student.content is not None
    top = store.path(student.content)
    assert sorted(path.relative_to(top / LAB).as_posix() for path in top.rglob("*") if path.is_file()) == [
        "REPORT.md", "benchmark.py", "results/benchmark.json", "results/memory.png",
    ]  # fmt: skip
    assert "counted as part of lab1_gpu_basics" in student.reason
    assert "nothing reads" not in student.reason


@pytest.mark.parametrize("name", ["~$notes.docx", "._profiler.py", "._REPORT.md"])
def test_what_systems_and_office_leave_behind_is_no_news(downloads: Downloads, name: str) -> None:
    downloads.put(f"ada/{LAB}/profiler.py")
    downloads.put(f"ada/{LAB}/{name}", b"\0\5\26\7 \0")
    assert downloads.take()["ada"].reason == ""


# --- Blackboard and Brightspace ---------------------------------------------------------------------------------------

INFO = (
    "Name: Ada Lovelace ({login})\nAssignment: Lab_1\nDate Submitted: Sunday, March 1, 2026 11:59:00 PM CET\n"
    "Current Grade: Needs Grading\n\nSubmission Field:\n{text}\n\nComments:\nThere are no student comments.\n\n"
    "Files:\n\tOriginal filename: lab1.zip\n"
)
NO_TEXT = "There is no student submission text data for this assignment."


def blackboard(downloads: Downloads, login: str, when: str, content: bytes = CODE, text: str = NO_TEXT) -> None:
    head = f"Lab_1_{login}_attempt_{when}"
    downloads.put(f"{head}.txt", INFO.format(login=login, text=text).encode())
    if content:
        downloads.pack(f"{head}_lab1.zip", {f"{LAB}/benchmark.py": content})


def test_blackboards_download_is_read_and_the_last_attempt_counts(downloads: Downloads) -> None:
    blackboard(downloads, "al_001", "2026-03-01-20-00-00", b"first = 1\n")
    blackboard(downloads, "al_001", "2026-03-02-09-30-00", b"second = 2\n")
    blackboard(downloads, "001", "2026-03-01-21-00-00", b"bob = 1\n")
    blackboard(downloads, "zoe", "2026-03-01-22-00-00", b"", text="https://example.edu/mine")
    students = take(downloads, "Username,First Name,Last Name\nal_001,Ada,Lovelace\n001,Bob,Ross\nzoe,Zoë,Müller\n")
    assert set(students) == {"al_001", "001", "zoe"}, students
    assert downloads.files(students["al_001"]) == {f"{LAB}/benchmark.py": b"second = 2\n"}
    assert downloads.files(students["001"]) == {f"{LAB}/benchmark.py": b"bob = 1\n"}
    assert students["al_001"].submitted_at == datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
    assert (students["zoe"].status, "a text was handed in" in students["zoe"].reason) == ("undecided", True)
    assert downloads.intake.passed_over == ["Lab_1_al_001_attempt_2026-03-01-20-00-00_lab1.zip (an earlier attempt)"]


def test_a_last_attempt_that_cannot_be_graded_waits_for_a_person_if_one_came_before(downloads: Downloads) -> None:
    """Nobody says of it that it counts, nor that files are lacking."""
    blackboard(downloads, "al_001", "2026-03-01-20-00-00", b"first = 1\n")
    downloads.put("Lab_1_al_001_attempt_2026-03-02-09-30-00_labs.rar", b"Rar!")
    blackboard(downloads, "zoe", "2026-03-01-22-00-00", b"", text="I had no time")
    downloads.put("Lab_1_zoe_attempt_2026-03-02-09-30-00_labs.rar", b"Rar!")
    students = take(downloads, "Username,First Name,Last Name\nal_001,Ada,Lovelace\nzoe,Zoë,Müller\n")
    ada = students["al_001"]
    assert (ada.status, students["zoe"].status) == ("undecided", "refused")
    assert ada.reason.startswith("'labs.rar' is a .rar file")
    assert ada.reason.endswith("; an earlier attempt, of 2026-03-01 20:00 UTC, may count instead")
    name = "Lab_1_al_001_attempt_2026-03-01-20-00-00_lab1.zip"
    assert [text for text in downloads.intake.notices if "attempt" in text] == [
        f"al_001: the last attempt cannot be graded, and {name} came before it. If that one should count, remove what "
        "came later from the submissions and run the command again"
    ]


@pytest.mark.parametrize(("deadline", "is_named"), [("2026-03-01T23:59", True), ("2026-03-01T19:00", False)])
def test_a_late_attempt_that_counts_instead_of_one_in_time_is_named(
    downloads: Downloads, deadline: str, is_named: bool
) -> None:
    blackboard(downloads, "al_001", "2026-03-01-20-00-00", b"first = 1\n")
    blackboard(downloads, "al_001", "2026-03-02-09-30-00", b"second = 2\n")
    blackboard(downloads, "bob", "2026-03-01-18-00-00")
    blackboard(downloads, "bob", "2026-03-01-18-30-00", b"last = 2\n")
    config = settings.parse(f'timezone = "UTC"\ndeadline = {deadline}:00\n', Path("class.toml"))
    take(downloads, "Username,First Name,Last Name\nal_001,Ada,Lovelace\nbob,Bob,Ross\n", config)
    named = [text for text in downloads.intake.notices if "was in time" in text]
    assert [text.split(",")[0] for text in named] == ["al_001: the last attempt"] * is_named


def test_files_that_only_an_earlier_attempt_has_are_named(downloads: Downloads) -> None:
    for day, names in ((1, ("benchmark.py", "analysis.py", "lab1.zip")), (2, ("benchmark.py", "lab2.zip"))):
        for name in names:
            downloads.put(f"Lab_1_al_001_attempt_2026-03-0{day}-20-00-00_{name}")
    downloads.take(roster="student\nal_001\n")
    (said,) = [text for text in downloads.intake.notices if "the last attempt counts alone" in text]
    assert said.startswith(
        "al_001: the last attempt counts alone, and an earlier one had files that it lacks: analysis.py."
    )


def test_an_attempt_without_files_is_refused_and_named(downloads: Downloads) -> None:
    """Blackboard's own file says whose it is, by login or by name."""
    blackboard(downloads, "al_001", "2026-03-01-20-00-00", b"")
    (student,) = take(downloads, "Email,First Name,Last Name\na@x.edu,Ada,Lovelace\n").values()
    assert (student.student, student.status) == ("a@x.edu", "refused")
    assert student.reason.startswith("an attempt without a file was handed in, 'Lab_1_al_001_attempt_2026-03-01")


def test_blackboards_files_without_a_roster_are_never_mixed(downloads: Downloads) -> None:
    for login in ("x_1", "y_1"):
        downloads.pack(f"Lab_{login}_attempt_2026-03-01-20-00-00_l.zip", {f"{LAB}/benchmark.py": login.encode()})
    assert set(downloads.take()) == {"Lab_x_1", "Lab_y_1"}


def test_brightspaces_download_is_read_and_the_last_attempt_counts(downloads: Downloads) -> None:
    for folder, text in (
        ("7-41 - Ada Lovelace - Feb 28, 2026 1159 PM", "old"), ("7-42 - Ada Lovelace - Mar 1, 2026 1201 AM", "new"),
        ("8-43 - Bob Ross- Mar 12, 2026 9.05 AM", "bob"),
    ):  # fmt: skip
        downloads.pack(f"{folder}/lab1.zip", {f"{LAB}/benchmark.py": text.encode()})
    downloads.put("index.html", b"<html></html>")
    head = "OrgDefinedId,Username,Last Name,First Name,Email\n"
    students = take(downloads, f"{head}#11,#al,Lovelace,Ada,a\n#12,#br,Ross,Bob,b\n")
    assert {key: downloads.files(student)[f"{LAB}/benchmark.py"] for key, student in students.items()} == {
        "al": b"new", "br": b"bob",
    }  # fmt: skip
    assert students["al"].submitted_at == datetime(2026, 3, 1, 0, 1, tzinfo=UTC)
    assert students["br"].submitted_at == datetime(2026, 3, 12, 9, 5, tzinfo=UTC)
    assert downloads.intake.passed_over == ["7-41 - Ada Lovelace - Feb 28, 2026 1159 PM (an earlier attempt)"]


def take(downloads: Downloads, roster: str, config: Settings | None = None) -> dict[str, Student]:
    folder = downloads.folder.parent
    (folder / "roster.csv").write_text(roster)
    config = config or Settings(deadline=datetime(2026, 3, 1, tzinfo=UTC))
    names = LabNames.of(grader.course().rubric.labs, (1,))
    known = roster_files.load(folder / "roster.csv")
    downloads.intake = Intake(config, known, Store(folder / "store"), folder / "room", None, names)
    return {student.student: student for student in downloads.intake.take_all(downloads.folder, lambda name: None)}


# --- Moodle's worksheet -----------------------------------------------------------------------------------------------

GERMAN = [
    *("ID", "Vollständiger Name", "E-Mail-Adresse", "Status", "Bewertung", "Beste Bewertung"),
    *("Bewertung kann geändert werden", "Zuletzt geändert (Abgabe)", "Zuletzt geändert (Bewertung)"),
    "Feedback als Kommentar",
]


def test_moodles_worksheet_in_german_is_read_and_written_back(small_class: SmallClass) -> None:
    rows = [
        *(["Teilnehmer/in 7", "Ada Lovelace", "ada@x.edu", "Zur Bewertung abgegeben", "", "20,00", "Ja"],),
        *(["Teilnehmer/in 8", "Bob Ross", "bob@x.edu", "Keine Abgabe", "", "20,00", "Ja"],),
    ]
    times = (["Sonntag, 1. März 2026, 23:59", "-", ""], ["-", "-", ""])
    text = io.StringIO()
    csv.writer(text).writerows([GERMAN, *(row + time for row, time in zip(rows, times, strict=True))])
    roster = small_class.submissions.parent / "roster.csv"
    roster.write_text(text.getvalue(), encoding="utf-8-sig")
    folder = small_class.submissions / "Ada Lovelace_7_assignsubmission_file" / LAB
    folder.mkdir(parents=True)
    (folder / "benchmark.py").write_text("x = 1\n")
    result = small_class.grade(roster=roster)
    ada, bob = result.students
    assert (ada.name, ada.status, bob.status) == ("Ada Lovelace", "graded", "missing")
    assert ada.score is not None
    sheet = moodle.worksheet(view.of(result))
    assert sheet is not None
    written = list(csv.DictReader(io.StringIO(sheet)))
    assert list(written[0]) == GERMAN
    assert written[0]["ID"] == "Teilnehmer/in 7"
    assert float(written[0]["Bewertung"]) == float(ada.score)
    assert written[0]["Feedback als Kommentar"]
    assert written[0]["Zuletzt geändert (Abgabe)"] == "Sonntag, 1. März 2026, 23:59"


TITLES = ("Identifier", "Full name", "Email address", "Grade", "Maximum Grade", "Last modified (submission)",
          "Last modified (grade)", "Feedback comments")  # fmt: skip


@pytest.mark.parametrize("language", sorted(moodle_words._LANGUAGES))
def test_titles_of_a_language_are_taken_back_to_themselves(language: str, tmp_path: Path) -> None:
    """Those that it has now and those that it had; a worksheet is read, and goes back as it came."""
    words = moodle_words._LANGUAGES[language]
    for place in (0, -1):
        titles = [words[title][place] for title in TITLES]
        person = [f"{words['participant'][place]} 7", "Ada Lovelace", "ada@x.edu", "", "3,00", "-", "-", ""]
        file = tmp_path / "roster.csv"
        file.write_text("\t".join([*titles, "Status"]) + "\n" + "\t".join([*person, "x"]) + "\n")
        roster = roster_files.load(file)
        (entry,) = roster.entries
        assert (entry.name, entry.columns["Maximum Grade"], entry.student) == ("Ada Lovelace", "3,00", person[0])
        assert roster.identified(MoodleId("7")) == [entry]
        header = [title for title in entry.columns if title != moodle_words.OWN_TITLES]
        assert moodle_words.as_moodle_wrote(header, [entry.columns]) == [*titles, "Status"]
        if language != "en":
            assert moodle_words.as_moodle_wrote(["Username"], [entry.columns]) == [words["Username"][0]]


def test_words_of_moodle_for_no_group_name_no_team(tmp_path: Path) -> None:
    for words in moodle_words._LANGUAGES.values():
        assert all(not is_team(word) for word in words["no_group"])
    (tmp_path / "roster.csv").write_text("student,name\nada,Ada Lovelace\n")
    roster = roster_files.load(tmp_path / "roster.csv")
    assert [entry.student for entry in roster.named("Groupe par d\u00e9faut-Ada Lovelace")] == ["ada"]


def test_a_worksheet_in_an_unknown_language_says_which_are_read(tmp_path: Path) -> None:
    (tmp_path / "roster.csv").write_text("Azonosító,Teljes név,E-mail cím\nRésztvevő 7,Ada,ada@x.edu\n")
    page = "docs/platforms/moodle.md"
    with pytest.raises(roster_files.RosterError, match=f"A worksheet of Moodle's .* 22 languages; .* {page} lists"):
        roster_files.load(tmp_path / "roster.csv")
    sentence = re.search(r"reads the worksheet in 22 languages .*?: (.*?)\.", (ROOT / page).read_text(), re.DOTALL)
    assert sentence is not None
    assert sorted(re.split(r", | and ", " ".join(sentence[1].split()))) == sorted(moodle_words.LANGUAGES)


def test_a_course_without_reports_asks_for_none(tmp_path: Path) -> None:
    """And each lab of this one has its report."""
    assert LabNames.of(grader.course().rubric.labs, (), grader.course().folder).unreported == ()
    for name in ("walks.py", "notes.pdf"):
        (tmp_path / "ada" / "lab1_walks" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "ada" / "lab1_walks" / name).write_text("x = 1\n")
    walks = load(ROOT / "examples" / "courses" / "random_walks")
    _, remarks = copy_of(tmp_path / "ada", tmp_path / "work", LabNames.of(walks.rubric.labs, (1,), walks.folder))
    assert remarks == ("nothing reads these files, so that they do not count: 'lab1_walks/notes.pdf' (a document)",)


def test_a_folder_may_be_called_as_the_archive_it_came_in(downloads: Downloads) -> None:
    downloads.put(f"bob.zip/{LAB}/benchmark.py")
    taken = downloads.take(roster="student\nbob\n")
    assert taken["bob"].content is not None


def test_a_repository_in_an_archive_is_named(downloads: Downloads) -> None:
    downloads.pack("ada.zip", {f"{LAB}/benchmark.py": b"x = 1", ".git/HEAD": b"ref: refs/heads/main"})
    downloads.pack("bob.zip", {"clone/.git/HEAD": b"ref: refs/heads/main", "clone/.git/config": b""})
    downloads.pack("cleo.zip", {f"{LAB}/benchmark.py": b"x = 1", f"{LAB}/.gitignore": b""})
    taken = downloads.take()
    assert "its .git folder is not read, so it is no matter what is committed" in taken["ada"].reason
    assert "'bob.zip' holds a repository's .git folder alone, without its files" in taken["bob"].reason
    assert taken["cleo"].reason == ""


def test_empty_code_is_named(downloads: Downloads) -> None:
    for name, data in (("a.py", b""), ("b.py", b" \n\n"), ("__init__.py", b""), ("c.py", b"x = 1"), ("d.csv", b"")):
        downloads.put(f"ada/{LAB}/{name}", data)
    reason = downloads.take()["ada"].reason
    assert f"'{LAB}/a.py', '{LAB}/b.py' are empty, so perhaps never saved, or damaged by the upload" in reason
    assert "__init__" not in reason
    assert "d.csv" not in reason


EDX = "[1]Weeks 1 and 2, [2]Random walks, [1]Lab 1"


def test_the_folder_of_an_edx_download_has_one_submission_for_each_login(downloads: Downloads) -> None:
    for name in ("[1] - ada - benchmark.py", "[1] - bob-r - benchmark.py"):
        downloads.put(f"{EDX}/{name}", name.encode())
    downloads.put(f"{EDX}/[1] - ada - prompt_0.txt", b"see the file")
    downloads.put(f"{EDX}/[1] - dana - prompt_0.txt", b"I could not do it")
    roster = "student\nada\nbob-r\ndana\n"
    with pytest.raises(IntakeError, match=r"has the work of several students \(ada, bob-r, dana\).*: name that folder"):
        downloads.take(roster=roster)
    students = downloads.take(roster=roster, where=downloads.folder / EDX)
    assert downloads.files(students["ada"]) == {f"{LAB}/benchmark.py": b"[1] - ada - benchmark.py"}
    assert downloads.files(students["bob-r"]) == {f"{LAB}/benchmark.py": b"[1] - bob-r - benchmark.py"}
    assert "a text was handed in" in students["dana"].reason


def test_files_that_are_called_as_nobody_are_named_with_what_to_do(downloads: Downloads) -> None:
    downloads.put("123456_walks.py")
    with pytest.raises(IntakeError, match=r"only '123456_walks\.py'\. Put what each .* in the roster"):
        downloads.take(roster="student\n654321\n")


def test_files_of_a_plus_have_lost_their_names_and_are_named_for_what_they_are(downloads: Downloads) -> None:
    downloads.put("11_file1_submission1", b"def walk():\n    return 1\n")
    downloads.put("11_file1_submission2", b"def walk():\n    return 2\n")
    downloads.put("22+33_file1_submission1", b"%PDF-1.7\n")
    downloads.put("44_file1_submission10", b'{"cells": []}')
    downloads.put("44_file2_submission10", b"We compare two ways.\n")
    downloads.put("info.csv", b"StudentID\n11\n")
    downloads.pack("labs.zip", {f"{LAB}/benchmark.py": b"x = 1"}).rename(downloads.folder / "55+66_file1_submission1")
    students = downloads.take(roster="student\n" + "".join(f"{number}{number}\n" for number in range(1, 7)))
    assert {key: student.status for key, student in students.items()} == {
        **dict.fromkeys(("11", "22", "33", "44"), "undecided"), "55": "taken", "66": "taken",
    }  # fmt: skip
    assert "'11_file1_submission2' is Python code whose name the platform has dropped" in students["11"].reason
    assert "submission1" not in students["11"].reason
    assert "is a PDF" in students["33"].reason
    assert "is a notebook" in students["44"].reason
    assert "is a text" in students["44"].reason
    assert downloads.files(students["66"]) == {f"{LAB}/benchmark.py": b"x = 1"}
