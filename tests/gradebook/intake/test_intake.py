"""What a class handed in: which submissions there are, whose they are, and where the labs lie in them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gradebook.intake import handed_in, roster_files
from gradebook.intake.accepted_files import Refused
from gradebook.intake.collect import Intake, Store
from gradebook.intake.handed_in import IntakeError, find
from gradebook.intake.repositories import CouldNotFetch, not_taken
from gradebook.results import Student
from gradebook.settings import IntakeLimits, Settings
from gradebox.sandbox import Sandbox, SubmissionError
from tests.gradebook.intake.downloads import LAB, Downloads
from tests.gradebook.synthetic import make_class

Take = Callable[..., dict[str, Student]]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


@pytest.fixture
def take(tmp_path: Path, source: Path) -> Take:
    """Take everything in `source` in."""

    def take_all(roster: str = "", settings: Settings | None = None, where: Path = source) -> dict[str, Student]:
        known = None
        if roster:
            (tmp_path / "roster.csv").write_text(roster)
            known = roster_files.load(tmp_path / "roster.csv")
        intake = Intake(settings or Settings(), known, Store(tmp_path / "store"), tmp_path / "room", None)
        return {student.student: student for student in intake.take_all(where, lambda name: None)}

    return take_all


def lab(folder: Path, name: str = "lab1_gpu_basics") -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "benchmark.py").write_text("print(1)\n")
    return folder


def packed(folder: Path, kind: str = "zip") -> Path:
    """The folder as an archive of the same name."""
    archive = Path(shutil.make_archive(str(folder), kind, folder))
    shutil.rmtree(folder)
    return archive


@pytest.mark.parametrize(
    "where", [".", "labs", "my labs", "my labs/labs", "course/labs"], ids=["top", "labs", "wrapper", "both", "checkout"]
)
@pytest.mark.parametrize("kind", ["folder", "zip", "gztar"])
def test_the_labs_are_found_where_students_leave_them(take: Take, source: Path, where: str, kind: str) -> None:
    lab(source / "ada" / where)
    if kind != "folder":
        packed(source / "ada", kind)
    assert take()["ada"].status == "taken"


@pytest.mark.parametrize("name", ["lab1_gpu_basics", "lab1-gpu-basics"])
def test_both_trees_are_accepted_and_have_the_same_content(take: Take, source: Path, name: str) -> None:
    lab(source / "ada", name)
    lab(source / "bob")
    students = take()
    assert students["ada"].content == students["bob"].content


def test_content_is_named_as_a_grading_alone_names_it(take: Take, source: Path, tmp_path: Path) -> None:
    lab(source / "ada", "lab1-gpu-basics")
    (source / "ada" / "notes.txt").symlink_to("lab1-gpu-basics/benchmark.py")
    content = take()["ada"].content
    assert content is not None
    for folder in (source / "ada", Store(tmp_path / "store").path(content)):
        sandbox = Sandbox(folder)
        assert sandbox.submission_sha256 == content
        sandbox.close()


def test_a_folder_labs_goes_before_its_neighbours(take: Take, source: Path) -> None:
    lab(source / "ada" / "labs")
    lab(source / "ada" / "solutions")
    assert take()["ada"].status == "taken"


def test_labs_in_two_places_are_refused(take: Take, source: Path) -> None:
    lab(source / "ada" / "old")
    lab(source / "ada" / "new")
    ada = take()["ada"]
    assert (ada.status, "holds labs in several folders, 'new', 'old'" in ada.reason) == ("undecided", True)


def test_a_folder_without_labs_is_refused(take: Take, source: Path) -> None:
    (source / "ada").mkdir()
    (source / "ada" / "benchmark.py").touch()
    (source / "bob").mkdir()
    assert take()["ada"].reason.startswith("holds no lab, only 'benchmark.py': hand in the lab's folder")
    assert take()["bob"].reason.startswith("holds no lab, nothing at all: hand in the lab's folder")


def test_an_archive_in_a_folder_is_unpacked(take: Take, source: Path) -> None:
    packed(lab(source / "Ada Lovelace_17_assignsubmission_file_" / "labs"))
    assert take()["Ada Lovelace_17"].status == "taken"


def test_too_many_files_in_a_folder_are_refused(take: Take, source: Path) -> None:
    folder = lab(source / "ada")
    (folder / "a.py").touch()
    assert "more than 1 files" in take(settings=Settings(limits=IntakeLimits(files=1)))["ada"].reason


def test_a_name_with_control_characters_is_refused_in_a_folder_too(take: Take, source: Path) -> None:
    (lab(source / "ada") / "a\nb.py").touch()
    assert "control characters" in take()["ada"].reason


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("ada.zip", "ada"),
        ("lovelaceada_17_4711_labs.zip", "lovelaceada_17"),
        ("lovelaceada_LATE_17_4711_labs-1.zip", "lovelaceada_17"),
        ("Ada Lovelace_17_assignsubmission_file_my_labs.zip", "Ada Lovelace_17"),
        ("Ada Lovelace_17_assignsubmission_file_x_7_assignsubmission_file_y.zip", "Ada Lovelace_17"),
        ("Ada Lovelace_17_assignsubmission_file_x_7_8_y.zip", "Ada Lovelace_17"),
        ("Ada Lovelace_17_assignsubmission_file_\n.zip", "Ada Lovelace_17"),
        ("lovelaceada_17_4711_x_7_assignsubmission_file_y.zip", "lovelaceada_17"),
        ("lovelaceada_17_4711_\n.zip", "lovelaceada_17"),
        ("student_17.zip", "student_17"),
    ],
)
def test_the_names_that_learning_platforms_give_say_who_it_was(source: Path, name: str, key: str) -> None:
    (source / name).touch()
    assert [submission.key for submission in find(source)] == [key]


def test_what_a_platform_names_but_is_no_archive_is_refused_and_not_overlooked(take: Take, source: Path) -> None:
    (source / "lovelaceada_17_4711_report.pdf").write_bytes(b"%PDF")
    (source / "grading sheet.csv").touch()
    students = take()
    assert list(students) == ["lovelaceada_17"]
    assert "neither a zip nor a tar file" in students["lovelaceada_17"].reason


@pytest.mark.parametrize(
    ("name", "roster"),
    [
        ("lovelaceada_17_4711_labs", 'Student,ID,SIS Login ID\n"Lovelace, Ada",17,ada\n'),
        (
            "Ada Lovelace_17_assignsubmission_file_labs",
            "Identifier,Full name,student\nParticipant 17,Ada Lovelace,ada\n",
        ),
        ("Ada", "student\nada\n"),
    ],
    ids=["Canvas", "Moodle", "by hand"],
)
def test_a_roster_says_whose_submission_it_is(take: Take, source: Path, name: str, roster: str) -> None:
    packed(lab(source / name))
    students = take(roster)
    assert list(students) == ["ada"]
    assert students["ada"].status == "taken"


@pytest.mark.parametrize(
    "name",
    [
        "Ada Lovelace_17_assignsubmission_file_Bob_7_assignsubmission_file_labs",
        "lovelaceada_17_4711_Bob_7_assignsubmission_file_labs",
    ],
    ids=["Moodle", "Canvas"],
)
def test_what_a_student_calls_a_file_makes_it_nobody_elses(take: Take, source: Path, name: str) -> None:
    packed(lab(source / name))
    students = take("ID,student\n17,ada\n7,bob\n")
    assert {key: student.status for key, student in students.items()} == {"ada": "taken", "bob": "missing"}


def test_the_only_folder_of_a_class_is_a_student_and_no_wrapper(take: Take, source: Path) -> None:
    inner = source / "Ada Lovelace_17_assignsubmission_file_" / "Bob_7_assignsubmission_file_labs"
    packed(lab(inner))
    students = take("ID,student\n17,ada\n7,bob\n", where=packed(source))
    assert {key: student.status for key, student in students.items()} == {"ada": "taken", "bob": "missing"}


def test_a_name_for_people_is_printable_and_utf_8(source: Path) -> None:
    (source / "M\udcfcller_17_assignsubmission_file_.zip").touch()
    (source / "a\x1b[2J\nbob: 20 points\u202e.zip").touch()
    assert sorted(submission.key for submission in find(source)) == [
        "M\\udcfcller_17",
        "a\\x1b[2J\\nbob: 20 points\\u202e",
    ]


def test_handing_in_twice_is_refused(take: Take, source: Path) -> None:
    packed(lab(source / "ada"))
    folder = lab(source / "ada")
    assert take()["ada"].status == "taken", "it was unpacked next to the archive"
    (folder / "lab1_gpu_basics" / "more.py").write_text("x = 1\n")
    assert take()["ada"].reason == "handed in more than once: ada, ada.zip; keep one of them"


def test_the_archive_of_a_whole_class_is_taken_apart(take: Take, source: Path) -> None:
    packed(lab(source / "ada"))
    lab(source / "bob")
    assert list(take(where=packed(source))) == ["ada", "bob"]


def test_times_of_files_count_only_where_the_class_says_so(take: Take, source: Path) -> None:
    archive = packed(lab(source / "ada"))
    os.utime(archive, (1772366400, 1772366400))
    assert take()["ada"].submitted_at is None
    assert take(settings=Settings(times_of_files=True))["ada"].submitted_at == datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_a_made_up_class_can_be_taken_in_whatever_tricks_it_tries(take: Take, tmp_path: Path) -> None:
    made = make_class(tmp_path / "class", 24)
    students = take(where=tmp_path / "class" / "submissions")
    assert [(submission.student, students[submission.student].reason) for submission in made] == [
        (submission.student, "") for submission in made
    ]
    assert students["student-001"].content == students["student-002"].content
    assert len({student.content for student in students.values()}) == 23


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda source: None, "holds no submissions"),
        (lambda source: lab(source), "is one submission; name the folder above it"),
        (lambda source: source.rmdir(), "there are no submissions at"),
    ],
    ids=["empty", "one submission", "nothing"],
)
def test_a_source_that_is_none_is_one_line(
    take: Take, source: Path, prepare: Callable[[Path], object], message: str
) -> None:
    prepare(source)
    with pytest.raises(IntakeError, match=message):
        take()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "list.csv",
            "student,repository\nada,\n",
            "line 2: ada has no repository; write its address, or remove the row",
        ),
        (
            "list.csv",
            "student,repository\nada,https://x.org/o/r/tree/final\n",
            "address, https://x.org/o/r, and 'final' i",
        ),
        (
            "list.csv",
            "student,repository\nada,https://x.org/o/r/-/blob/a/b.py\n",
            "repository's address, https://x.org/o/r",
        ),
        (
            "list.csv",
            "student,repository\nada,git clone git@x.org:o/r.git r\n",
            "write the address alone: git@x.org:o/r.",
        ),
        (
            "list.csv",
            "student,repository\nada,https://x.org/r or my other one\n",
            "has spaces in it; write one address",
        ),
        ("list.csv", "student,repository\n", "has no row below its titles"),
        ("list.toml", "[[submission]]\nstudent = 'ada'\naddress = 'x'\n", "unknown key 'address'"),
        ("list.toml", "submission = 1\n", r"write each submission as \[\[submission\]\]"),
    ],
)
def test_a_list_that_makes_no_sense_is_one_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(IntakeError, match=message):
        find(tmp_path / name)


def test_a_folder_above_the_submissions_and_one_of_sections_are_named(downloads: Downloads) -> None:
    roster = "student,name\nada,Ada Lovelace\nbob,Bob Ross\ncat,Cat C\ndan,Dan D\n"
    downloads.put(f"A/ada/{LAB}/benchmark.py")
    downloads.put(f"A/Bob Ross/{LAB}/benchmark.py")
    with pytest.raises(
        IntakeError, match=r"source/A has the work of several students \(bob, ada\).*: name that folder"
    ):
        downloads.take(roster=roster)
    downloads.put(f"dan/{LAB}/benchmark.py")
    with pytest.raises(
        IntakeError, match=r"next to it: if these are older ones, move A out of .*source; else put what"
    ):
        downloads.take(roster=roster)
    shutil.rmtree(downloads.folder / "dan")
    downloads.pack("B/cat.zip", {f"{LAB}/benchmark.py": b"1"})
    downloads.pack("B/dand_LATE_17_4711_labs.zip", {f"{LAB}/benchmark.py": b"1"})
    downloads.put(f"B/dan/{LAB}/benchmark.py")
    with pytest.raises(IntakeError, match=r"neither is B\. Put what is in these folders into one folder"):
        downloads.take(roster=roster)
    assert downloads.take()["A"].status == "undecided", "without a roster nobody knows who is who"


def test_a_folder_of_files_that_are_called_as_students_is_named(downloads: Downloads) -> None:
    roster = "student,name\nada,Ada Lovelace\nbob,Bob Ross\ncat,Cat C\n"
    downloads.put("walks/ada_walks.py")
    downloads.put("walks/Ross walks.py")
    with pytest.raises(IntakeError, match=r"source/walks has the work of several students \(ada, bob\)"):
        downloads.take(roster=roster)
    downloads.put("walks/helper.py")
    assert downloads.take(roster=roster)["walks"].status == "taken"


def test_an_archive_of_several_students_is_no_submission(downloads: Downloads) -> None:
    downloads.pack("drive-download-001.zip", {f"Lab 1/{name}/{LAB}/benchmark.py": b"1" for name in ("ada", "bob")})
    with pytest.raises(IntakeError, match=r"drive-download-001 has the work of several students \(ada, bob\)"):
        downloads.take(roster="student\nada\nbob\n")


def test_repositories_of_another_assignment_are_named(downloads: Downloads) -> None:
    roster = "student,github_username\ns1,ada-l\ns2,bob\ns3,Cat\ns4,dan-s\n"
    for name in ("walks-ada-l", "walks-bob", "walks-cat"):
        downloads.put(f"{name}/lab1_gpu_basics/benchmark.py")
    downloads.take(roster=roster)
    assert downloads.intake.notices == []
    for name in ("walks-extra-dan-s", "walks-2025-bob"):
        downloads.put(f"{name}/lab1_gpu_basics/benchmark.py")
    downloads.put("2025-walks-dan-s/lab1_gpu_basics/benchmark.py")
    students = downloads.take(roster=roster)
    assert (students["s4"].status, students["s2"].status) == ("taken", "taken"), "each has one that may be of this"
    assert {"walks-2025-bob", "walks-extra-dan-s"} <= students.keys(), "they are nobody's"
    assert downloads.intake.notices == [
        "walks-2025-bob, walks-extra-dan-s: most are called 'walks-' and a login, and what is behind 'walks-' there "
        "is no login of the roster, so that it is nobody's",
        "2025-walks-dan-s: by the name perhaps another assignment's, because most begin with 'walks-'. Move away what "
        "is",
    ]


def test_a_login_that_ends_as_another_is_another_student(downloads: Downloads) -> None:
    roster = "student,github_username\n1,smith\n2,john-smith\n3,wei\n4,bob-ross\n5,ross\n"
    for name in ("lab1-john-smith", "lab1-mary-smith", "lab1-wei", "lab1-bob-ross"):
        downloads.put(f"{name}/lab1_gpu_basics/benchmark.py")
    students = downloads.take(roster=roster)
    assert {key: student.status for key, student in students.items()} == {
        "1": "missing", "2": "taken", "3": "taken", "4": "taken", "5": "missing", "lab1-mary-smith": "taken",
    }  # fmt: skip


def test_repositories_may_be_what_githubs_download_zip_gives(downloads: Downloads) -> None:
    roster = "student,github_username\nada,ada-l\nbob,bobr\nchen,chenw\ndana,dana-s\nemmy,emmyn\nida,main\n"
    commit = "3f2a9c1be04d5f6a7b8c9d0e1f2a3b4c5d6e7f80"
    labels = ("ada-l-main", "bobr-master (1)", f"chenw-{commit}", "emmyn-my-branch", "nobody-main")
    for name in (*(f"lab1-{label}" for label in labels), "ORG-lab1-dana-s-1a2b3c4"):
        downloads.pack(f"{name}.zip", {f"repository/{LAB}/benchmark.py": b"1"})
    students = downloads.take(roster=roster)
    assert {key for key, student in students.items() if student.status == "taken"} == {
        "ada", "bob", "chen", "dana", "lab1-emmyn-my-branch", "lab1-nobody-main",
    }  # fmt: skip
    assert students["ida"].status == "missing", "her login is the name of a branch"


def test_a_file_that_only_has_a_students_name_does_not_stand_beside_the_students_own(downloads: Downloads) -> None:
    for name in ("ada", "Ada Lovelace", "bob"):
        downloads.put(f"{name}/lab1_gpu_basics/benchmark.py", name.encode())
    students = downloads.take(roster="student,name\nada,Ada Lovelace\nbob,Bob\n")
    assert (students["ada"].status, students["ada"].reason) == ("taken", "")
    # It is a stranger: with Ada's row of the roster, files for platforms would have two scores of hers.
    assert (students["Ada Lovelace"].status, students["Ada Lovelace"].columns) == ("taken", {})
    assert downloads.intake.notices == [
        "Ada Lovelace only has the name of ada, who handed in ada as well, so it is nobody's and does not count for "
        "ada: remove one of them"
    ]
    assert students["bob"].status == "taken"


def test_a_lab_of_another_course_is_named(downloads: Downloads) -> None:
    downloads.put("ada/lab77_sorting/sort.py")
    downloads.put("bob/labs/lab77-sorting/sort.py")
    said = "this class grades lab1_gpu_basics, which is not in the submission: it has lab77_sorting"
    assert {student.reason for student in downloads.take().values()} == {said}


def test_an_archive_that_lost_its_suffix_is_a_submission(tmp_path: Path) -> None:
    (tmp_path / "ada").write_bytes(b"PK\x03\x04")
    (tmp_path / "notes").write_text("who is ill")
    assert [(thing.key, thing.kind) for thing in handed_in.find(tmp_path)] == [("ada", "archive")]
    assert handed_in.passed_over(tmp_path) == ["notes"]


def test_a_right_that_is_missing_here_gives_nobody_a_zero() -> None:
    """Root may read everything, so the error is made by hand."""
    for cause, kind in ((PermissionError(13, "Permission denied"), CouldNotFetch), (OSError(5, "x"), Refused)):
        try:
            try:
                raise cause
            except OSError:
                raise SubmissionError("walks.py cannot be read") from None
        except SubmissionError as error:
            made = not_taken(error)
        assert type(made) is kind
        assert ("chmod -R u+rX" in str(made)) == (kind is CouldNotFetch)


def test_one_students_name_next_to_anothers_number_is_nobodys(downloads: Downloads) -> None:
    for name in ("Chen Wei 2026013", "2026013_Dana Scully", "20260016_Fritz_Lang"):
        downloads.put(f"{name}/lab1_gpu_basics/benchmark.py")
    roster = "student,name\n2026013,Chen Wei\n2026014,Dana Scully\n2026016,Fritz Lang\n"
    students = downloads.take(roster=roster)
    assert {key: student.status for key, student in students.items()} == {
        "2026013": "taken", "2026014": "missing", "2026016": "taken", "2026013_Dana Scully": "taken",
    }  # fmt: skip
    assert downloads.intake.notices == [
        "2026013_Dana Scully: several students may be meant by this name ('2026013', '2026014'), so that it is "
        "nobody's: rename it to the one whose it is"
    ]


def test_letters_and_digits_in_full_width_are_the_same(downloads: Downloads) -> None:
    for name in ("2026011", "\uff12\uff10\uff12\uff16\uff10\uff11\uff12", "Emmy Noether", "\u738b \u4f1f"):
        downloads.put(f"{name}/lab1_gpu_basics/benchmark.py")
    rows = (
        "\uff12\uff10\uff12\uff16\uff10\uff11\uff11,Ada Lovelace\n2026012,Bob Ross\n"
        "2026013,\u738b\u3000\u4f1f\n2026015,\uff25\uff4d\uff4d\uff59 Noether\n"
    )
    students = downloads.take(roster=f"student,name\n{rows}")
    assert [student.status for student in students.values()] == ["taken"] * 4


def test_folders_of_namesakes_are_named_together(downloads: Downloads) -> None:
    rows = "".join(f"u{number:02},Wei Zhang\n" for number in range(9))
    for number in range(9):
        downloads.put(f"Wei Zhang ({number})/lab1_gpu_basics/benchmark.py")
    students = downloads.take(roster=f"student,name\n{rows}x,Ada Lee\ny,Ada Lee\n")
    assert not any(student.columns for student in students.values() if student.content)
    assert downloads.intake.notices == [
        "Wei Zhang (0), Wei Zhang (1), Wei Zhang (2), Wei Zhang (3), Wei Zhang (4) and 4 more: several students may "
        "be meant by this name ('u00', 'u01', 'u02', 'u03', 'u04' and 4 more), so that they are nobody's: rename each "
        "to the one whose it is"
    ]
    downloads.put("Ada Lee/lab1_gpu_basics/benchmark.py")
    downloads.take(roster=f"student,name\n{rows}x,Ada Lee\ny,Ada Lee\n")
    assert downloads.intake.notices[0] == (
        "Ada Lee: several students may be meant by this name ('x', 'y'), so that it is nobody's: rename it to the one "
        "whose it is"
    )
