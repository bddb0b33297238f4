"""Downloads as learning platforms make them, with their real names: everything counts, or is named with a reason."""

from __future__ import annotations

import html
import os
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import grader
from gradebook.intake import roster as rosters
from gradebook.intake.collect import Intake, Store, Student
from gradebook.intake.handed_in import IntakeError, find
from gradebook.intake.lab_names import LabNames
from gradebook.settings import IntakeLimits, Settings
from tests.gradebook.conftest import SmallClass
from tests.gradebook.intake.test_archives import zipped

LAB = "lab1_gpu_basics"
CODE = b"print(1)\n"
CANVAS = "lovelaceada_17_4711_"
MOODLE = "Ada Lovelace_17_assignsubmission_"


class Downloads:
    """A folder of downloads, and what a class of some labs takes in of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "source"
        self.folder.mkdir()
        self._room = folder

    def put(self, name: str, content: bytes = CODE) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def pack(self, name: str, files: Mapping[str, bytes]) -> Path:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        return zipped(self.folder / name, dict(files))

    def take(self, *labs: int, roster: str = "", where: Path | None = None) -> dict[str, Student]:
        known = None
        if roster:
            (self._room / "roster.csv").write_text(roster)
            known = rosters.load(self._room / "roster.csv")
        names = LabNames.of(grader.course().rubric.labs, labs or (1,))
        self.intake = Intake(Settings(), known, Store(self._room / "store"), self._room / "room", None, names)
        return {one.student: one for one in self.intake.take_all(where or self.folder, lambda name: None)}

    def files(self, student: Student) -> dict[str, bytes]:
        assert student.content is not None, student.reason
        top = Store(self._room / "store").path(student.content)
        return {path.relative_to(top).as_posix(): path.read_bytes() for path in top.rglob("*") if path.is_file()}


@pytest.fixture
def downloads(tmp_path: Path) -> Downloads:
    return Downloads(tmp_path)


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


def test_attachments_that_contradict_each_other_are_refused(downloads: Downloads) -> None:
    downloads.pack("lovelaceada_17_4711_labs.zip", {f"{LAB}/benchmark.py": CODE, f"{LAB}/same.py": CODE})
    downloads.pack("lovelaceada_17_4712_labs-1.zip", {f"{LAB}/benchmark.py": b"2\n", f"{LAB}/same.py": CODE})
    reason = downloads.take()["lovelaceada_17"].reason
    assert reason == (
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
    assert (alone.status, words in alone.reason) == ("refused", True)
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
    assert [(one.student, one.status) for one in downloads.take().values()] == [(key, "taken")]


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


def test_online_text_alone_is_refused_and_not_overlooked(downloads: Downloads) -> None:
    downloads.put(f"{MOODLE}onlinetext_onlinetext.html", b"<p>I was ill</p>")
    student = downloads.take()["Ada Lovelace_17"]
    assert (student.status, "a person has to read it" in student.reason) == ("refused", True)


@pytest.mark.parametrize(
    "name", ["Zoe Mueller", "Zoë Müller", "Zoe\u0308 Mu\u0308ller", "Mueller", "Luedenscheidt", "Muller"]
)
def test_a_name_of_moodle_may_be_written_without_its_accents(downloads: Downloads, name: str) -> None:
    downloads.put(f"{name}_12346_assignsubmission_file_/{LAB}/benchmark.py")
    roster = "Identifier,Full name,student\nParticipant 12346,Zoë Müller-Lüdenscheidt,zoe\n"
    assert [(one.student, one.status) for one in downloads.take(roster=roster).values()] == [("zoe", "taken")]
    assert downloads.intake.notices == []


def test_a_number_of_moodle_with_another_name_is_said(downloads: Downloads) -> None:
    downloads.put(f"Team 9_12346_assignsubmission_file_/{LAB}/benchmark.py")
    students = downloads.take(roster="Identifier,Full name,student\nParticipant 12346,Zoë Müller,zoe\n")
    assert {one.student: one.status for one in students.values()} == {"Team 9_12346": "taken", "zoe": "missing"}
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
    assert {key: one.status for key, one in students.items()} == {
        "ada@example.edu": "taken", "1816": "taken", "bob@example.edu": "taken", "1818": "missing",
        "submission_600000002": "taken",
    }  # fmt: skip
    assert students["ada@example.edu"].submitted_at == datetime(2026, 4, 26, 17, 34, tzinfo=UTC)
    assert students["1816"].content == students["bob@example.edu"].content != students["ada@example.edu"].content
    assert exported.intake.passed_over == ["submission_700000003 of 1818 (in submission_metadata.yml, but not there)"]


def test_gradescopes_export_is_read_without_a_roster_and_as_a_zip(exported: Downloads) -> None:
    archive = Path(shutil.make_archive(str(exported.folder), "zip", exported.folder))
    assert sorted(exported.take(where=archive)) == ["1815", "1816", "bob@example.edu", "submission_600000002"]


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


# --- what is in it --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spelling",
    [
        *("lab1-gpu-basics", "Lab1", "lab 1", "Lab_01", "LAB1_GPU_Basics", "lab1_gpu_basics (1)"),
        *("lab1-gpu-basics-main", "GPU basics", "gpu_basics_final", "lab1.gpu"),
    ],
)
def test_other_spellings_of_a_labs_folder_are_that_lab(downloads: Downloads, spelling: str) -> None:
    downloads.pack("ada.zip", {f"{spelling}/benchmark.py": CODE})
    downloads.pack("bob.zip", {f"{LAB}/benchmark.py": CODE})
    students = downloads.take(1, 2)
    assert students["ada"].content == students["bob"].content
    assert (f"the folder {spelling!r} was taken as {LAB}" in students["ada"].reason) == (spelling != "lab1-gpu-basics")


def test_a_lab_that_is_spelt_right_goes_before_another_spelling(downloads: Downloads) -> None:
    downloads.put(f"ada/{LAB}/benchmark.py")
    downloads.put("ada/lab1 old/benchmark.py", b"old")
    student = downloads.take()["ada"]
    assert downloads.files(student)[f"{LAB}/benchmark.py"] == CODE


def test_two_spellings_of_one_lab_are_refused(downloads: Downloads) -> None:
    downloads.put("ada/Lab 1/benchmark.py")
    downloads.put("ada/Lab1/benchmark.py")
    assert downloads.take()["ada"].reason == (
        "holds both 'Lab 1' and 'Lab1' for one lab; keep one of them, called lab1_gpu_basics"
    )


def test_archives_in_archives_are_unpacked(downloads: Downloads, tmp_path: Path) -> None:
    inner = zipped(tmp_path / "lab1.zip", {f"{LAB}/benchmark.py": CODE}).read_bytes()
    other = zipped(tmp_path / "lab2.zip", {"lab2_mixed_precision/amp.py": CODE}).read_bytes()
    middle = zipped(tmp_path / "middle.zip", {"hw/lab1.zip": inner, "hw/lab2.zip": other}).read_bytes()
    downloads.pack(f"{CANVAS}all.zip", {"middle.zip": middle})
    student = downloads.take(1, 2)["lovelaceada_17"]
    assert sorted(downloads.files(student)) == [f"{LAB}/benchmark.py", "lab2_mixed_precision/amp.py"]


def test_every_archive_without_a_lab_is_named(downloads: Downloads, tmp_path: Path) -> None:
    inner = zipped(tmp_path / "essay.zip", {"essay.txt": b""}).read_bytes()
    downloads.pack("ada.zip", {"essay.zip": inner})
    assert downloads.take()["ada"].reason == (
        "'essay.zip' holds no lab, only 'essay.txt': hand in the lab's folder, as lab1_gpu_basics, with all that is in "
        "it; 'ada.zip' holds no lab"
    )


def test_archives_without_end_are_refused(downloads: Downloads, tmp_path: Path) -> None:
    content = zipped(tmp_path / "0.zip", {f"{LAB}/benchmark.py": CODE}).read_bytes()
    for number in range(1, 6):
        content = zipped(tmp_path / f"{number}.zip", {f"{number - 1}.zip": content}).read_bytes()
    downloads.put("ada.zip", content)
    assert downloads.take()["ada"].status == "refused"


def test_a_bomb_in_an_archive_is_refused(downloads: Downloads, tmp_path: Path) -> None:
    bomb = zipped(tmp_path / "bomb.zip", {"labs/bomb": bytes(65 * 2**20)}).read_bytes()
    downloads.pack("ada.zip", {"bomb.zip": bomb})
    assert "is larger than 64 MiB" in downloads.take()["ada"].reason


def test_an_archive_beside_the_labs_is_named(downloads: Downloads) -> None:
    downloads.put(f"ada/{LAB}/benchmark.py")
    downloads.put("ada/lab2.zip", b"PK")
    student = downloads.take()["ada"]
    assert (student.status, student.reason) == (
        "taken",
        "nothing reads these files, so that they do not count: 'lab2.zip' (an archive, which stays packed)",
    )


UNREAD = "nothing reads these files, so that they do not count: "


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("lab1.ipynb", "a notebook"),
        (f"{LAB}/lab1.ipynb", "a notebook"),
        ("notes/lab1.ipynb", "a notebook"),
        ("REPORT.md", "another report"),
        ("REPORT_final.md", "another report"),
        (f"{LAB}/lab1_report.md", "another report"),
        (f"{LAB}/results/REPORT.md", "another report"),
        ("report.docx", "a document"),
        ("report.PDF", "a document"),
        (f"{LAB}/report.pdf", "a document"),
        (f"{LAB}/notes.html", "a document"),
        (f"{LAB}/benchmark (1).py", "a copy"),
        (f"{LAB}/benchmark - Copy.py", "a copy"),
        (f"{LAB}/benchmark copy.py", "a copy"),
        (f"{LAB}/benchmark copy 2.py", "a copy"),
        (f"{LAB}/old.zip", "an archive, which stays packed"),
        (f"{LAB}/old.7z", "an archive, which stays packed"),
        ("lab2.rar", "an archive, which stays packed"),
    ],
)
@pytest.mark.parametrize("top", ["ada", "ada/homework", "ada/labs"])
def test_what_nothing_reads_is_named(downloads: Downloads, top: str, name: str, kind: str) -> None:
    for path in (f"{top}/{LAB}/benchmark.py", f"{top}/{LAB}/REPORT.md", f"{top}/{name}"):
        downloads.put(path)
    student = downloads.take(1, 2)["ada"]
    assert (student.status, student.reason) == ("taken", f"{UNREAD}{name!r} ({kind})")


def test_what_lies_outside_of_the_folder_with_the_labs_is_named_too(downloads: Downloads, tmp_path: Path) -> None:
    inner = zipped(tmp_path / "lab1.zip", {f"{LAB}/benchmark.py": CODE, f"{LAB}/REPORT.md": b""}).read_bytes()
    downloads.put(f"ada/homework/{LAB}/benchmark.py")
    downloads.put(f"ada/homework/{LAB}/REPORT.md")
    downloads.put("ada/report.pdf")
    downloads.put("bob/lab1.zip", inner)
    downloads.put("bob/report.pdf")
    students = downloads.take(1, 2)
    assert {one.reason for one in students.values()} == {f"{UNREAD}'report.pdf' (a document)"}


def test_many_unread_files_are_counted(downloads: Downloads) -> None:
    downloads.put(f"ada/{LAB}/benchmark.py")
    for number in range(10):
        downloads.put(f"ada/{LAB}/{number}.ipynb")
    reason = downloads.take()["ada"].reason
    assert reason.count("a notebook") == 6
    assert reason.endswith("(a notebook) and 4 more")


def test_a_tidy_submission_hears_nothing(downloads: Downloads) -> None:
    for name in (
        *("REPORT.md", "README.md", "benchmark.py", "reporting.py", "copy.py", "my_copy.py", "requirements.txt"),
        *("results/plot.png", "results/plot (1).png", "results/a.csv", "results/a.json", "results/trace.json.gz"),
        *("model.pt", ".ipynb_checkpoints/x.ipynb", ".hidden/x.pdf", "__pycache__/x.html", ".x.ipynb", "log.txt"),
        *("data/MNIST/raw/train-images-idx3-ubyte.gz",),
    ):
        downloads.put(f"ada/labs/{LAB}/{name}")
    for name in ("README.md", "notes.txt", ".hg/x.pdf", "__MACOSX/x.ipynb", ".venv/x.html"):
        downloads.put(f"ada/{name}")
    for name in ("labs/kernels_exercise/REPORT.md", "labs/lab5_production/REPORT.md", "grade-report/grade.html"):
        downloads.put(f"ada/{name}")
    assert downloads.take()["ada"].reason == ""


def test_the_courses_own_notebooks_are_not_named_in_its_whole_tree(downloads: Downloads) -> None:
    downloads.put(f"ada/labs/{LAB}/benchmark.py")
    downloads.put(f"ada/labs/{LAB}/REPORT.md")
    downloads.put("ada/notebooks/lab1.ipynb")
    assert downloads.take()["ada"].reason == f"{UNREAD}'notebooks/lab1.ipynb' (a notebook)"
    for name in ("gradebox/__init__.py", "labkit/__init__.py", "labkit/monitoring/page.html"):
        downloads.put(f"ada/{name}")
    assert downloads.take()["ada"].reason == ""
    downloads.put("ada/report/report.pdf")
    assert downloads.take()["ada"].reason == f"{UNREAD}'report/report.pdf' (a document)"


def test_a_submission_that_is_called_labs_is_ordinary(downloads: Downloads) -> None:
    downloads.put(f"labs/{LAB}/benchmark.py")
    assert downloads.take()["labs"].reason == ""


@pytest.mark.parametrize("name", [f"{LAB}/report.pdf", "report.pdf", f"{LAB}/REPORT_final.md"])
def test_a_report_that_is_not_read_as_one_is_said(downloads: Downloads, name: str) -> None:
    downloads.put(f"ada/{LAB}/benchmark.py")
    downloads.put(f"ada/{name}")
    said = f"; lab1_gpu_basics has no REPORT.md, and reports are read as REPORT.md only: write {name!r} as that"
    assert downloads.take()["ada"].reason.endswith(said)


def test_a_document_among_files_alone_does_not_count_as_part_of_the_lab(downloads: Downloads) -> None:
    downloads.put(f"{CANVAS}benchmark.py")
    downloads.put(f"{CANVAS[:-2]}2_report.pdf")
    student = downloads.take()["lovelaceada_17"]
    assert student.reason.split("; ")[:2] == [
        "'benchmark.py' counted as part of lab1_gpu_basics, the lab of this class",
        f"{UNREAD}'lab1_gpu_basics/report.pdf' (a document)",
    ]


BROKEN = b"PK\x03\x04 and no more"


@pytest.mark.parametrize("place", ["lovelaceada_17_{number}_{name}", f"{MOODLE}file/{{name}}", "ada/{name}"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (BROKEN, "'lab2.zip' does not count: it is damaged, or no archive at all"),
        (b"Rar!\x1a\x07\x00", "'lab2.zip' does not count: it is a RAR archive, whatever its name says"),
    ],
    ids=["damaged", "RAR"],
)
def test_of_several_attachments_the_damaged_one_is_named_and_the_others_count(
    downloads: Downloads, place: str, content: bytes, words: str
) -> None:
    downloads.pack(place.format(number=4711, name="lab1.zip"), {f"{LAB}/benchmark.py": CODE})
    downloads.put(place.format(number=4712, name="lab2.zip"), content)
    downloads.pack(place.format(number=4713, name="lab3.zip"), {"lab3_distributed/a.py": CODE})
    (student,) = downloads.take(1, 2, 3).values()
    assert sorted(downloads.files(student)) == [f"{LAB}/benchmark.py", "lab3_distributed/a.py"]
    assert student.reason.startswith(words)


def test_a_file_alone_counts_beside_a_damaged_archive(downloads: Downloads) -> None:
    downloads.put(f"{CANVAS}benchmark.py")
    downloads.put("lovelaceada_17_4712_rest.zip", BROKEN)
    student = downloads.take()["lovelaceada_17"]
    assert list(downloads.files(student)) == [f"{LAB}/benchmark.py"]
    assert "'rest.zip' does not count: it is damaged, or no archive at all" in student.reason


def test_attachments_of_which_none_can_be_read_are_refused_and_each_is_named(downloads: Downloads) -> None:
    downloads.put(f"{CANVAS}lab1.zip", BROKEN)
    downloads.put("lovelaceada_17_4712_lab2.zip", BROKEN)
    downloads.pack("lovelaceada_17_4713_essay.zip", {"essay.txt": b""})
    student = downloads.take(1, 2)["lovelaceada_17"]
    assert student.status == "refused"
    for words in ("'lab1.zip' is damaged", "'lab2.zip' is damaged", "'essay.zip' holds no lab, only 'essay.txt'"):
        assert words in student.reason


def test_a_damaged_attachment_is_named_to_the_student_and_to_the_instructor(small_class: SmallClass) -> None:
    zipped(small_class.submissions / f"{CANVAS}lab1.zip", {f"{LAB}/benchmark.py": CODE})
    (small_class.submissions / "lovelaceada_17_4712_rest.zip").write_bytes(BROKEN)
    (row,) = small_class.grade().students
    assert row.status == "graded"
    for name in ("class.html", "grades.csv", "feedback/lovelaceada_17.html", "feedback/lovelaceada_17.md"):
        text = html.unescape((small_class.out / "exports" / name).read_text().replace("\\", ""))
        assert "'rest.zip' does not count: it is damaged, or no archive at all" in text, name


def test_of_several_attachments_the_one_with_labs_in_two_places_is_named(downloads: Downloads) -> None:
    downloads.pack(f"{CANVAS}lab1.zip", {f"{LAB}/benchmark.py": CODE})
    downloads.pack("lovelaceada_17_4712_all.zip", {f"old/{LAB}/a.py": CODE, f"new/{LAB}/a.py": CODE})
    assert downloads.take()["lovelaceada_17"].reason.startswith("'all.zip' holds labs in several folders, 'new', 'old'")


@pytest.mark.parametrize("place", ["ada/{}.zip", "{}.zip"])
def test_archives_that_are_not_opened_are_not_said_to_hold_no_lab(
    downloads: Downloads, tmp_path: Path, place: str
) -> None:
    content = zipped(tmp_path / "0.zip", {f"{LAB}/benchmark.py": CODE}).read_bytes()
    for number in range(1, 4 if "/" in place else 5):
        content = zipped(tmp_path / f"{number}.zip", {f"{number - 1}.zip": content}).read_bytes()
    downloads.put(place.format("ada"), content)
    reason = downloads.take()["ada"].reason
    assert reason.endswith(
        "holds '0.zip', but archives in archives are opened only 3 deep: pack the labs' folders once, as one .zip"
    )
    assert "no lab" not in reason


@pytest.mark.parametrize("place", ["{}", f"{CANVAS}{{}}", f"{MOODLE}file/{{}}", "ada/{}"], ids=lambda place: place[:6])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("labs.7z", "is a .7z file, and such are not unpacked here: pack the labs as .zip or .tar.gz"),
        ("labs.RAR", "is a .rar file, and such are not unpacked here: pack the labs as .zip or .tar.gz"),
        ("lab1.ipynb", "is a notebook, and notebooks are not graded: hand in the lab's folder, as lab1_gpu_basics"),
    ],
)
def test_what_nothing_here_reads_is_named_with_what_to_do(
    downloads: Downloads, place: str, name: str, words: str
) -> None:
    downloads.put(place.format(name))
    (student,) = downloads.take().values()
    assert (student.status, f"{name!r}" in student.reason, words in student.reason) == ("refused", True, True)


def test_what_is_too_large_or_leads_elsewhere_is_named(downloads: Downloads) -> None:
    downloads.put(f"ada/{LAB}/benchmark.py")
    os.truncate(downloads.put(f"ada/{LAB}/results/model.pt"), 17 * 2**20)
    os.truncate(downloads.put(f"ada/{LAB}/.venv/torch.bin"), 17 * 2**20)
    (downloads.folder / "ada" / LAB / "data").symlink_to("/")
    (downloads.folder / "ada" / LAB / "passwd").symlink_to("/etc/passwd")
    (downloads.folder / "ada" / LAB / "same.py").symlink_to("benchmark.py")
    student = downloads.take()["ada"]
    assert sorted(downloads.files(student)) == [f"{LAB}/benchmark.py", f"{LAB}/same.py"]
    assert student.reason.split("; ") == [
        f"'{LAB}/data' is a link, and does not count",
        f"'{LAB}/passwd' is a link, and does not count",
        f"'{LAB}/results/model.pt' is larger than 16 MiB, and does not count",
    ]


def test_a_document_of_another_program_is_no_archive(downloads: Downloads) -> None:
    downloads.pack(f"{CANVAS}report.docx", {"word/document.xml": b""})
    reason = downloads.take()["lovelaceada_17"].reason
    assert reason == "'report.docx' is neither a zip nor a tar file; pack the labs as one of them"


def test_what_is_no_submission_is_named_too(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    (small_class.submissions / "notes.txt").touch()
    (small_class.submissions / ".DS_Store").touch()
    (small_class.submissions / "bob").symlink_to("ada")
    output = StringIO()
    small_class.grade(console=Console(file=output, width=200))
    assert "note: no submissions, so not graded: bob (a link), notes.txt" in output.getvalue()


def test_what_does_not_count_reaches_the_student_and_the_instructor(small_class: SmallClass) -> None:
    zipped(small_class.submissions / f"{CANVAS}labs.zip", {"Lab 1/benchmark.py": CODE})
    (small_class.submissions / "lovelaceada_17_text.html").write_text("<p>see the zip</p>")
    (row,) = small_class.grade().students
    assert row.status == "graded"
    for name in ("class.html", "grades.csv", "feedback/lovelaceada_17.html", "feedback/lovelaceada_17.md"):
        text = html.unescape((small_class.out / "exports" / name).read_text().replace("\\", ""))
        assert "a text was handed in, 'lovelaceada_17_text.html'" in text, name
        assert "the folder 'Lab 1' was taken as lab1_gpu_basics" in text, name


def test_limits_hold_for_all_pieces_together(downloads: Downloads, tmp_path: Path) -> None:
    for number in (1, 2):
        downloads.pack(f"lovelaceada_17_{number}_{number}.zip", {f"{LAB}/{number}.py": CODE})
    settings = Settings(limits=IntakeLimits(files=1))
    intake = Intake(settings, None, Store(tmp_path / "store"), tmp_path / "room", None)
    (student,) = intake.take_all(downloads.folder, lambda name: None)
    assert "more than 1 files" in student.reason


# --- encodings ------------------------------------------------------------------------------------------------------

ROSTER = "student;name\nmüller;Zoë Müller\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_rosters_are_read_as_spreadsheets_save_them(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "roster.csv").write_bytes(ROSTER.encode(encoding))
    (entry,) = rosters.load(tmp_path / "roster.csv").entries
    assert (entry.student, entry.name) == ("müller", "Zoë Müller")


@pytest.mark.parametrize(
    ("read", "error"), [(rosters.load, rosters.RosterError), (find, IntakeError)], ids=["roster", "list"]
)
def test_an_old_encoding_is_refused_with_the_remedy(
    tmp_path: Path, read: Callable[[Path], object], error: type[Exception]
) -> None:
    (tmp_path / "list.csv").write_bytes(ROSTER.encode("latin-1"))
    with pytest.raises(error, match=r"line 2: it is not UTF-8\. If 'müller;Zoë Müller' reads right, save"):
        read(tmp_path / "list.csv")


def test_nobody_in_a_roster_is_passed_over_who_lacks_the_key(tmp_path: Path) -> None:
    (tmp_path / "roster.csv").write_text('Student,ID,SIS Login ID\n"    Points Possible",,\nAda,1,ada\nBob,2,\n')
    assert [entry.student for entry in rosters.load(tmp_path / "roster.csv").entries] == ["ada", "2"]


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
