"""A zero waits for a person if something lies among the submissions that may be the student's."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from gradebook import spelt_names
from grader.cli import app
from tests.gradebook.conftest import SmallClass

ROSTER = "student,name\nada,Ada Lovelace\nbob,Bob Ross\nzoe,Zoë Müller\n"


def graded(small: SmallClass) -> dict[str, tuple[str, str]]:
    """Status and score of everybody, by what is exported."""
    roster = small.out.parent / "roster.csv"
    roster.write_text(ROSTER)
    small.hands_in("ada")
    small.hands_in("bob")
    small.grade(roster=roster)
    return exported(small)


def exported(small: SmallClass) -> dict[str, tuple[str, str]]:
    text = (small.out / "exports" / "grades.csv").read_text("utf-8-sig")
    return {row["student"]: (row["status"], row["score"]) for row in csv.DictReader(io.StringIO(text, newline=""))}


def reviewed(small: SmallClass, *decision: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["review", str(small.out), *decision])
    return done.exit_code, " ".join(done.output.split())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("zoe.zip.crdownload", "'zoe.zip.crdownload' is not downloaded to its end"),
        ("Zoë Müller.zip.part", "'Zoë Müller.zip.part' is not downloaded to its end"),
        (".zoe.zip.icloud", "'zoe.zip' is in iCloud, and not on this machine"),
        ("zoe.url", "'zoe.url' is a shortcut, without the work itself"),
        ("Zoë Müller.gdoc", "'Zoë Müller.gdoc' is a shortcut, without the work itself"),
        ("zoe_walks.py", "'zoe_walks.py' is among the submissions, and may be theirs"),
        ("Muller-Zoe.txt", "'Muller-Zoe.txt' is among the submissions, and may be theirs"),
    ],
)
def test_a_file_that_may_be_theirs(small_class: SmallClass, name: str, reason: str) -> None:
    (small_class.submissions / name).write_bytes(b"x")
    assert graded(small_class)["zoe"][1] == ""
    code, said = reviewed(small_class)
    assert (code, reason in said) == (3, True)


def test_a_link_is_no_reason_for_a_zero(small_class: SmallClass, tmp_path: Path) -> None:
    os.symlink(tmp_path, small_class.submissions / "zoe")
    assert graded(small_class)["zoe"] == ("could_not_fetch", "")
    assert "'zoe' is a link, and links are not followed" in reviewed(small_class)[1]


def test_files_of_nobody_leave_a_zero(small_class: SmallClass) -> None:
    for name in ("README.txt", "walks.py", "bob.zip.part", "zoe.csv"):
        (small_class.submissions / name).write_bytes(b"x")
    assert graded(small_class)["zoe"] == ("missing", "0")


@pytest.mark.parametrize("name", ["zoe (1)", "zoe (12)", "ZOE - Copy", "zoe copy 2", "zoe.zip"])
def test_a_second_download_is_its_students(small_class: SmallClass, name: str) -> None:
    small_class.hands_in("zoe")
    shutil.make_archive(str(small_class.submissions / name), "zip", small_class.submissions / "zoe")
    assert graded(small_class)["zoe"][0] == "graded"  # the same work twice is one
    shutil.rmtree(small_class.submissions / "zoe")
    assert set(graded(small_class)) == {"ada", "bob", "zoe"}
    small_class.hands_in("zoe", "another text")
    assert graded(small_class)["zoe"] == ("refused", "")
    code, said = reviewed(small_class)
    assert (code, "no score yet: handed in more than once" in said) == (3, True)
    assert reviewed(small_class, "--accept", "zoe", "handing-in")[0] == 0
    assert exported(small_class)["zoe"] == ("refused", "0")


def test_a_missing_tag_waits_for_a_decision(small_class: SmallClass) -> None:
    folder = small_class.hands_in("zoe")
    (folder.parent / "empty").mkdir()
    for where, commands in ((folder, ("add .", "commit -qm one", "tag Submission")), (folder.parent / "empty", ())):
        for arguments in ("init -q -b main", "config user.name z", "config user.email z@x.example", *commands):
            subprocess.run(["git", *arguments.split()], cwd=where, check=True)
    shutil.rmtree(folder.parent / "bob", ignore_errors=True)
    roster = small_class.out.parent / "roster.csv"
    roster.write_text(ROSTER + "empty,Emmy Empty\n")
    small_class.grade(roster=roster, commit="submission")
    results = exported(small_class)
    assert results["zoe"] == ("refused", "")
    assert results["empty"] == ("refused", "0")  # there is no work anywhere that could count
    assert "but a tag 'Submission'" in reviewed(small_class)[1]


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("Łukasz Żółć", "lukasz zolc"),
        ("Đặng Thị", "dang thi"),
        ("Søren", "soren"),
        ("Weiß", "weiss"),
        ("Ægir", "aegir"),
    ],
)
def test_letters_are_alike_in_suggestions_only(name: str, plain: str) -> None:
    assert spelt_names.in_plain_letters(name)[0] == plain
    assert spelt_names.have_a_word_in_common(plain, name)
    assert spelt_names.folded(name) != plain or name == "Weiß"


def test_a_folder_that_is_no_repository_is_a_wrong_address(small_class: SmallClass) -> None:
    folder, beside = small_class.hands_in("zoe"), small_class.out.parent
    (beside / "list.csv").write_text(f"student,repository\nzoe,{folder}\n")
    (beside / "class.toml").write_text('[git]\nprotocols = ["file"]\n')
    console = Console(file=io.StringIO(), width=400)
    small_class.grade(
        submissions=beside / "list.csv", configuration=beside / "class.toml", commit="v1", console=console
    )
    assert exported(small_class)["zoe"] == ("no_repository", "")
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"no repository at {folder}: the folder is none" in said
    assert "has no effect" not in said


def test_what_programs_wrote_is_not_all_that_was_handed_in(small_class: SmallClass) -> None:
    (small_class.submissions / "zoe" / "lab1_gpu_basics" / "results").mkdir(parents=True)
    (small_class.submissions / "zoe" / "lab1_gpu_basics" / "results" / "runs.txt").write_text("1")
    assert graded(small_class)["zoe"][0] == "graded"
    code, said = reviewed(small_class)
    assert (code, "has no code, only 'lab1_gpu_basics/results/runs.txt'" in said) == (3, True)
    result = small_class.grade(roster=small_class.out.parent / "roster.csv")
    (grade,) = (student.grade for student in result.students if student.student == "zoe")
    for criterion in (criterion.id for lab in grade.labs for criterion in lab.criteria if criterion.points):
        reviewed(small_class, "--override", "zoe", criterion, "0", "nothing there")
    assert exported(small_class)["zoe"] == ("graded", ""), "a 0 waits"
    assert reviewed(small_class, "--accept", "zoe", "handing-in")[0] == 0
    assert exported(small_class)["zoe"] == ("graded", "0")
