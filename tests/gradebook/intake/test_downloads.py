"""Downloads as learning platforms make them, with their real names: everything counts, or is named with a reason."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

import grader
from gradebook.intake import platforms, roster_files
from gradebook.intake.collect import Intake, Store
from gradebook.intake.handed_in import IntakeError
from gradebook.intake.lab_folders import LabNames
from gradebook.settings import Settings
from tests.gradebook.conftest import SmallClass
from tests.gradebook.intake.downloads import CANVAS, CODE, LAB, MOODLE, Downloads

# --- Canvas ---------------------------------------------------------------------------------------------------------


def test_attachments_of_canvas_are_one_submission(downloads: Downloads) -> None:
    downloads.pack("lovelaceada_17_4711_lab1.zip", {f"{LAB}/benchmark.py": CODE})
    downloads.pack("lovelaceada_17_4712_lab2.zip", {"lab2_mixed_precision/amp.py": CODE})
    students = downloads.take(1, 2)
    assert list(students) == ["lovelaceada_17"]
    assert sorted(downloads.files(students["lovelaceada_17"])) == [
        "lab1_gpu_basics/benchmark.py",
        "lab2_mixed_precision/amp.py",
    ]
    assert students["lovelaceada_17"].reason == ""


@pytest.mark.parametrize(("kind", "ending"), [("gztar", "gz"), ("bztar", "bz2"), ("xztar", "xz")])
def test_a_number_of_canvas_inside_an_archives_ending_is_no_other_ending(
    downloads: Downloads, kind: str, ending: str, tmp_path: Path
) -> None:
    (tmp_path / "aside" / LAB).mkdir(parents=True)
    (tmp_path / "aside" / LAB / "benchmark.py").write_bytes(CODE)
    packed = shutil.make_archive(str(tmp_path / "packed"), kind, tmp_path / "aside", LAB)
    shutil.move(packed, downloads.put(f"lovelaceada_17_4711_lab.tar-1.{ending}"))
    student = downloads.take()["lovelaceada_17"]
    assert list(downloads.files(student)) == [f"{LAB}/benchmark.py"]
    assert student.reason == ""


def test_of_attachments_that_contradict_each_other_none_is_chosen(downloads: Downloads) -> None:
    downloads.pack("lovelaceada_17_4711_labs.zip", {f"{LAB}/benchmark.py": CODE, f"{LAB}/same.py": CODE})
    downloads.pack("lovelaceada_17_4712_labs-1.zip", {f"{LAB}/benchmark.py": b"2\n", f"{LAB}/same.py": CODE})
    ada = downloads.take()["lovelaceada_17"]
    assert ada.status == "undecided"
    assert ada.reason == (
        "'labs.zip' and 'labs-1.zip' both hold 'lab1_gpu_basics/benchmark.py', and differ; hand in one of them"
    )


def test_files_alone_are_the_lab_of_a_class_of_one(downloads: Downloads) -> None:
    for number, name in enumerate(("benchmark.py", "profiler-1.py", "REPORT.md")):
        downloads.put(f"lovelaceada_17_{4711 + number}_{name}", name.encode())
    student = downloads.take()["lovelaceada_17"]
    assert downloads.files(student) == {
        f"{LAB}/benchmark.py": b"benchmark.py",
        f"{LAB}/profiler.py": b"profiler-1.py",
        f"{LAB}/REPORT.md": b"REPORT.md",
    }
    assert "counted as part of lab1_gpu_basics" in student.reason


def test_files_alone_do_not_say_which_of_several_labs_they_are(downloads: Downloads) -> None:
    downloads.put(f"{CANVAS}benchmark.py")
    student = downloads.take(1, 2)["lovelaceada_17"]
    assert (student.status, student.reason) == (
        "refused",
        "'benchmark.py' is a file alone: put it into its lab's folder, as lab1_gpu_basics, and pack that",
    )


def test_a_report_beside_the_archive_counts_and_another_one_does_not_replace_it(downloads: Downloads) -> None:
    downloads.pack(f"{CANVAS}labs.zip", {f"{LAB}/benchmark.py": CODE, f"{LAB}/REPORT.md": b"old"})
    downloads.put("lovelaceada_17_4712_REPORT.md", b"new")
    downloads.put("lovelaceada_17_4713_plot.png", b"\x89PNG")
    student = downloads.take()["lovelaceada_17"]
    files = downloads.files(student)
    assert (files[f"{LAB}/REPORT.md"], files[f"{LAB}/plot.png"]) == (b"old", b"\x89PNG")
    assert "'REPORT.md' does not count: it differs from 'lab1_gpu_basics/REPORT.md' in 'labs.zip'" in student.reason


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("lovelaceada_17_text.html", b"<p>see the zip</p>", "a text was handed in, 'lovelaceada_17_text.html'"),
        (
            "lovelaceada_LATE_17_link.html",
            b'<meta http-equiv="refresh" content="0;url=https://example.edu/ada?a=1&amp;b=2">',
            "a link was handed in, 'lovelaceada_LATE_17_link.html' to https://example.edu/ada?a=1&b=2, and links are",
        ),
    ],
)
def test_texts_and_links_of_canvas_are_named(downloads: Downloads, name: str, content: bytes, words: str) -> None:
    downloads.put(name, content)
    alone = downloads.take()["lovelaceada_17"]
    assert (alone.status, words in alone.reason) == ("undecided", True)
    downloads.pack(f"{CANVAS}labs.zip", {f"{LAB}/benchmark.py": CODE})
    beside = downloads.take()["lovelaceada_17"]
    assert (beside.status, words in beside.reason) == ("taken", True)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("lovelaceada_LATE_17_4711_labs.zip", "lovelaceada_17"),
        ("o_brienada_17_4711_labs.zip", "o_brienada_17"),
        ("projectgroup3_17_4711_labs.zip", "projectgroup3_17"),
        ("anon_Xy7Zq_4711_labs.zip", "anon_Xy7Zq"),
        ("LATE_anon_Xy7Zq_4711_labs.zip", "anon_Xy7Zq"),
        ("lovelaceada_17_4711_x_9_8_y.zip", "lovelaceada_17"),
        ("Participant_17_assignsubmission_file_labs.zip", "Participant_17"),
        ("Team 1_45_assignsubmission_file_labs.zip", "Team 1_45"),
        ("Default group_assignsubmission_file_labs.zip", "Default group"),
    ],
)
def test_groups_and_the_anonymous_are_recognised(downloads: Downloads, name: str, key: str) -> None:
    downloads.pack(name, {f"{LAB}/benchmark.py": CODE})
    assert [(student.student, student.status) for student in downloads.take().values()] == [(key, "taken")]


def test_late_is_said_where_nothing_else_says_when(downloads: Downloads) -> None:
    downloads.pack("lovelaceada_LATE_17_4711_labs.zip", {f"{LAB}/benchmark.py": CODE})
    assert downloads.take()["lovelaceada_17"].reason == "Canvas marked it as late"
    roster = "student,ID,submitted_at\nada,17,2026-03-01T10:00:00+01:00\n"
    assert downloads.take(roster=roster)["ada"].reason == ""


# --- Moodle ---------------------------------------------------------------------------------------------------------


def test_file_and_online_text_of_moodle_are_one_submission(downloads: Downloads) -> None:
    downloads.pack(f"{MOODLE}file/labs.zip", {f"{LAB}/benchmark.py": CODE})
    downloads.put(f"{MOODLE}onlinetext/onlinetext.html", b"<p>I was ill</p>")
    student = downloads.take(roster="Identifier,Full name,student\nParticipant 17,Ada Lovelace,ada\n")["ada"]
    assert (student.status, list(downloads.files(student))) == ("taken", [f"{LAB}/benchmark.py"])
    assert "a text was handed in, 'Ada Lovelace_17_assignsubmission_onlinetext'" in student.reason


def test_online_text_alone_waits_for_a_person(downloads: Downloads) -> None:
    downloads.put(f"{MOODLE}onlinetext_onlinetext.html", b"<p>I was ill</p>")
    student = downloads.take()["Ada Lovelace_17"]
    assert (student.status, "a person has to read it" in student.reason) == ("undecided", True)


@pytest.mark.parametrize(
    "name", ["Zoe Mueller", "Zoë Müller", "Zoe\u0308 Mu\u0308ller", "Mueller", "Luedenscheidt", "Muller"]
)
def test_a_name_of_moodle_may_be_written_without_its_accents(downloads: Downloads, name: str) -> None:
    downloads.put(f"{name}_12346_assignsubmission_file_/{LAB}/benchmark.py")
    roster = "Identifier,Full name,student\nParticipant 12346,Zoë Müller-Lüdenscheidt,zoe\n"
    assert [(student.student, student.status) for student in downloads.take(roster=roster).values()] == [
        ("zoe", "taken")
    ]
    assert downloads.intake.notices == []


def test_a_number_of_moodle_with_another_name_is_said(downloads: Downloads) -> None:
    downloads.put(f"Team 9_12346_assignsubmission_file_/{LAB}/benchmark.py")
    students = downloads.take(roster="Identifier,Full name,student\nParticipant 12346,Zoë Müller,zoe\n")
    assert {student.student: student.status for student in students.values()} == {
        "Team 9_12346": "taken",
        "zoe": "missing",
    }
    assert downloads.intake.notices == [
        "Team 9_12346: its number is zoe's in the roster, who has another name there (Zoë Müller); it is taken for a "
        "group's, and is nobody's: rename it to 'zoe' if it is theirs, or say who is in the group with teams in "
        "class.toml"
    ]


@pytest.mark.parametrize("name", ["Zoë Müller", "Zoe\u0308 Mu\u0308ller"])
def test_a_name_is_found_however_its_accents_are_coded(downloads: Downloads, name: str) -> None:
    downloads.put(f"{name}/{LAB}/benchmark.py")
    assert list(downloads.take(roster="student,name\nzoe,Zoë Müller\n")) == ["zoe"]


# --- Gradescope -----------------------------------------------------------------------------------------------------

METADATA = """submission_409194023:
  :submitters:
  - :name: Ada Lovelace
    :sid: '1815'
    :email: ada@example.edu
  :created_at: 2026-04-26 17:34:00.861687000 Z
  :score: 2.0
  :results:
    output: |-
      :submitters:
      - :name: Eve
      submission_500000001:
        :submitters:
        - :sid: eve
submission_500000001:
  :submitters:
  - :name: 'Zoë O''Brien'
    :sid: 1816
    :email: zoe@example.edu
  - :name: "Bob \\"B\\""
    :sid:
    :email: bob@example.edu
submission_600000002:
  :submitters: []
submission_700000003:
  :submitters:
  - :name: Carl
    :sid: '1818'
    :email: carl@example.edu
"""


@pytest.fixture
def exported(downloads: Downloads) -> Downloads:
    top = "assignment_8046601_export"
    downloads.put(f"{top}/submission_metadata.yml", METADATA.encode())
    for name in ("409194023", "500000001", "600000002"):
        downloads.put(f"{top}/submission_{name}/{LAB}/benchmark.py", name.encode())
    return downloads


def test_gradescopes_export_says_whose_and_when(exported: Downloads) -> None:
    roster = "SID,Name,Email\n1815,Ada Lovelace,ada@example.edu\n1816,Zoë,\n1817,Bob,bob@example.edu\n1818,Carl,\n"
    students = exported.take(roster=roster)
    assert {key: student.status for key, student in students.items()} == {
        "ada@example.edu": "taken", "1816": "taken", "bob@example.edu": "taken", "1818": "could_not_fetch",
        "submission_600000002": "taken",
    }  # fmt: skip
    assert students["ada@example.edu"].submitted_at == datetime(2026, 4, 26, 17, 34, tzinfo=UTC)
    assert students["1816"].content == students["bob@example.edu"].content != students["ada@example.edu"].content
    said = "submission_700000003 is in the platform's list, and not in this download: download it again"
    assert students["1818"].reason == said
    assert exported.intake.passed_over == []


def test_gradescopes_export_is_read_without_a_roster_and_as_a_zip(exported: Downloads) -> None:
    archive = Path(shutil.make_archive(str(exported.folder), "zip", exported.folder))
    students = ["1815", "1816", "1818", "bob@example.edu", "submission_600000002"]
    assert sorted(exported.take(where=archive)) == students


def test_flat_files_of_gradescope_are_the_lab_of_a_class_of_one(downloads: Downloads) -> None:
    downloads.put("submission_metadata.yml", METADATA.encode())
    downloads.put("submission_409194023/benchmark.py")
    downloads.put("submission_409194023/results/benchmark.json", b"{}")
    student = downloads.take()["1815"]
    assert sorted(downloads.files(student)) == [f"{LAB}/benchmark.py", f"{LAB}/results/benchmark.json"]


def test_an_export_that_names_nobody_is_one_line(downloads: Downloads) -> None:
    downloads.put("submission_metadata.yml", b"--- {}\n")
    with pytest.raises(IntakeError, match="names no submission; export the submissions from Gradescope again"):
        downloads.take()


# --- encodings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ada.pdf", "ada.docx", "Ada Lovelace.py"])
def test_a_file_with_a_students_name_that_is_no_submission_is_refused_and_no_silent_zero(
    downloads: Downloads, name: str
) -> None:
    for other in (name, "solution.pdf", "ada.csv"):
        downloads.put(other)
    downloads.put(f"bob/{LAB}/benchmark.py")
    students = downloads.take(roster="student,name\nada,Ada Lovelace\nbob,Bob\neve,Eve\n")
    assert {key: row.status for key, row in students.items()} == {"ada": "refused", "bob": "taken", "eve": "missing"}
    assert students["ada"].reason.startswith(f"handed in '{name}' alone, which is no folder, archive or repository")


@pytest.mark.parametrize("cell", ["yesterday", "03/01/2026 10:00", "2026-03-01"])
def test_a_time_in_gradescopes_export_that_is_none_is_refused(downloads: Downloads, cell: str) -> None:
    downloads.put("submission_1/benchmark.py")
    people = "submission_1:\n  :submitters:\n  - :name: Ada\n    :sid: '17'\n"
    downloads.put("submission_metadata.yml", f"---\n{people}  :created_at: {cell}\n".encode())
    with pytest.raises(IntakeError, match=f"submission_metadata.yml, line 6: '{cell}' is no time as Gradescope writes"):
        downloads.take()
    for empty in ("", "~"):
        downloads.put("submission_metadata.yml", f"---\n{people}  :created_at: {empty}\n".encode())
        assert downloads.take()["17"].submitted_at is None


def test_nobody_in_a_roster_is_passed_over_who_lacks_the_key(tmp_path: Path) -> None:
    (tmp_path / "roster.csv").write_text('Student,ID,SIS Login ID\n"    Points Possible",,\nAda,1,ada\nBob,2,\n')
    assert [entry.student for entry in roster_files.load(tmp_path / "roster.csv").entries] == ["ada", "2"]


def test_a_byte_order_mark_costs_no_settings(tmp_path: Path, small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    (tmp_path / "class.toml").write_text('title = "Lab 1"\n', encoding="utf-8-sig")
    assert small_class.grade(configuration=tmp_path / "class.toml").title == "Lab 1"


def test_the_times_of_a_download_that_is_packed_are_those_of_what_is_in_it(tmp_path: Path) -> None:
    """Otherwise all of a class would be late by as long as the download is old."""
    download = Downloads(tmp_path)
    source = download.put(f"Ada Lovelace_17_assignsubmission_file_/{LAB}/benchmark.py")
    handed_in = datetime(2026, 3, 1, 20, 0, tzinfo=UTC).timestamp()
    os.utime(source, (handed_in, handed_in))
    for form in ("zip", "gztar"):
        archive = Path(shutil.make_archive(str(tmp_path / form), form, download.folder))
        names = LabNames.of(grader.course().rubric.labs, (1,))
        settings = Settings(times_of_files=True)
        intake = Intake(settings, None, Store(tmp_path / f"store of {form}"), tmp_path / "room", None, names)
        (student,) = intake.take_all(archive, lambda name: None)
        assert student.submitted_at == datetime(2026, 3, 1, 20, 0, tzinfo=UTC), form


@pytest.mark.parametrize("suffix", ["zip", "gztar"])
def test_without_a_title_the_columns_have_the_archives_name_without_its_suffix(
    small_class: SmallClass, tmp_path: Path, suffix: str
) -> None:
    small_class.hands_in("ada")
    small_class.hands_in("bob")
    packed = shutil.make_archive(str(tmp_path / "CS101-GPU Lab 1-4242"), suffix, small_class.submissions)
    assert small_class.grade(submissions=Path(packed)).title == "CS101-GPU Lab 1-4242"
    header = (small_class.out / "exports" / "moodle-grades.csv").read_text().splitlines()[0]
    assert header == "ID number,CS101-GPU Lab 1-4242,CS101-GPU Lab 1-4242 (feedback)"


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("group_3_58_9003_labs.zip", ("3", "group_3")),
        ("group_3_LATE_58_9003_labs.zip", ("58",)),
        ("lovelaceada_58_9003_my_17_3_x.zip", ("58",)),
        ("lovelaceada_58_9003_17_x.zip", ("58", "lovelaceada_58")),
        ("dan_999_9001_lab1_5_222_7_x.zip", ("999",)),
    ],
)
def test_a_group_of_canvas_may_end_in_a_number(name: str, numbers: tuple[str, ...]) -> None:
    mark = platforms.mark(name)
    assert mark is not None
    assert mark.handles == numbers


@pytest.mark.parametrize("roster", [None, "student,name\nada,Ada Lovelace\n"])
def test_canvas_s_test_student_is_left_out_whatever_the_roster(downloads: Downloads, roster: str | None) -> None:
    downloads.pack("studenttest_113_9099_lab1.zip", {f"{LAB}/benchmark.py": CODE})
    downloads.pack("lovelaceada_17_4711_labs.zip", {f"{LAB}/benchmark.py": CODE})
    students = downloads.take(roster=roster)
    assert not any("test" in student for student in students)
    assert downloads.intake.notices[0] == "the Test Student of Canvas: studenttest_113_9099_lab1.zip is left out"


def test_a_student_of_that_name_is_graded(downloads: Downloads) -> None:
    downloads.pack("studenttest_113_9099_lab1.zip", {f"{LAB}/benchmark.py": CODE})
    assert "studenttest_113" in downloads.take(roster="student,name\ntest,Test Student\n")
