"""Feedback for a whole class at once: each platform's form gives each student theirs, and nobody another's."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradebook import text_files
from gradebook.export import delivery, mail
from gradebook.export.book import Book
from grader.cli import app
from tests.gradebook.conftest import SmallClass


def grade(small: SmallClass, roster: str, *students: str) -> Path:
    for student in students:
        small.hands_in(student)
    (small.submissions.parent / "roster.csv").write_text(roster)
    small.grade(roster=small.submissions.parent / "roster.csv")
    return small.out


def export(folder: Path, form: str, out: Path, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["export", "feedback", str(folder), "--as", form, "--out", str(out)])
    assert done.exit_code == code, done.output
    return done.output


MOODLE = "Identifier,Full name,Email address,Grade,Last modified (grade)\n"


def test_moodle_finds_each_participant_by_the_name_of_the_file(small_class: SmallClass, tmp_path: Path) -> None:
    roster = MOODLE + 'Participant 7,Ada_Lovelace/x,a@x.edu,,\nTeilnehmer/in 8,"Müller, Zoë",z@x.edu,,\n'
    folder = grade(small_class, roster, "a@x.edu")
    export(folder, "moodle", tmp_path / "f.zip")
    with zipfile.ZipFile(tmp_path / "f.zip") as archive:
        # As `explode('_', NAME, 5)` in Moodle's importziplib.php takes them apart.
        parts = {tuple(name.split("_", 4)[1:]): archive.read(name).decode() for name in archive.namelist()}
    assert set(parts) == {(number, "assignfeedback", "file", "feedback.html") for number in "78"}
    assert "Ada_Lovelace/x" in parts["7", "assignfeedback", "file", "feedback.html"]


def test_whose_feedback_is_no_result_yet_is_named(small_class: SmallClass, tmp_path: Path) -> None:
    folder = grade(small_class, "student,name\nada,Ada\nbob,Bob\n", "ada", "mallory")
    said = export(folder, "folders", tmp_path / "f")
    assert "note: no score yet, and their feedback says so: bob" in said
    small_class.hands_in("bob")
    shutil.rmtree(small_class.submissions / "mallory")
    small_class.grade(roster=tmp_path / "roster.csv")
    assert "no score yet" not in export(folder, "folders", tmp_path / "f")


def test_gradescope_looks_results_up_by_address_or_sid(small_class: SmallClass, tmp_path: Path) -> None:
    roster = "Name,SID,Email\nAda,S1,ada@x.edu\nBob,S2,family@x.edu\nCat,S3,family@x.edu\n"
    folder = grade(small_class, roster, "S1", "S2")
    export(folder, "gradescope", tmp_path / "f.zip")
    root = tmp_path / "autograder"
    with zipfile.ZipFile(tmp_path / "f.zip") as archive:
        archive.extractall(root / "source")

    def looked_up(**user: str) -> dict[str, object]:
        (root / "submission_metadata.json").write_text(json.dumps({"users": [user]}))
        script = root / "source" / "run_autograder"
        subprocess.run([sys.executable, str(script)], check=True, env={"AUTOGRADER_ROOT": str(root)})
        result: dict[str, object] = json.loads((root / "results" / "results.json").read_text())
        return result

    expected = {path.stem: json.loads(path.read_text()) for path in (folder / "exports" / "gradescope").glob("*.json")}
    assert looked_up(email="ADA@x.edu ") == expected["ada@x.edu"]
    assert looked_up(email="family@x.edu", sid="S2") == expected["S2"]
    assert looked_up(email="family@x.edu") == looked_up(email="eve@x.edu")
    assert looked_up(email="eve@x.edu")["tests"] == []

    # A group's submission has one result on Gradescope, which all of its members read.
    CliRunner().invoke(app, ["review", str(folder), "--hold-back", "S2", "talk first"])
    export(folder, "gradescope", tmp_path / "held.zip")
    with zipfile.ZipFile(tmp_path / "held.zip") as archive:
        archive.extractall(root / "source")
    assert looked_up(email="ada@x.edu") == expected["ada@x.edu"]
    assert looked_up(email="ada@x.edu", sid="S2") == looked_up(email="eve@x.edu") == looked_up(sid="S2")


def test_each_login_on_github_has_a_file(small_class: SmallClass, tmp_path: Path) -> None:
    folder = grade(small_class, "username,first_name,last_name\nada-l,Ada,L\n../x,Eve,E\n", "ada-l")
    said = export(folder, "github", tmp_path / "target")
    assert "not in it: ../x (Eve E) (no name on GitHub can be so)" in said
    assert "target/deliver.sh ORG PREFIX shows what it would send, and sends it with --send" in said
    assert sorted(path.name for path in (tmp_path / "target").iterdir()) == ["ada-l.md", "deliver.sh"]
    script = tmp_path / "target" / "deliver.sh"
    shown = subprocess.run([str(script), "org", "lab1"], check=True, capture_output=True, text=True)
    assert shown.stdout == "would open an issue in org/lab1-ada-l\n"
    gh = tmp_path / "bin" / "gh"
    gh.parent.mkdir()
    gh.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    gh.chmod(0o755)
    for _ in range(2):
        environment = {"PATH": f"{gh.parent}:/usr/bin:/bin"}
        subprocess.run([str(script), "org", "lab1", "--send"], check=True, env=environment)
    assert (tmp_path / "calls").read_text().count("issue create --repo org/lab1-ada-l") == 1
    CliRunner().invoke(app, ["review", str(folder), "--override", "ada-l", "lab1.memory", "1.5", "asked in person"])
    (tmp_path / "target" / "left.md").write_text("of a student who has left\n")
    export(folder, "github", tmp_path / "target")
    shown = subprocess.run([str(script), "org", "lab1"], check=True, capture_output=True, text=True)
    assert shown.stdout == "would open an issue in org/lab1-ada-l, again: the feedback has changed\n"
    gh.write_text("#!/bin/sh\nexit 1\n")
    refused = subprocess.run([str(script), "org", "lab1", "--send"], env=environment, capture_output=True, text=True)
    assert (refused.returncode, refused.stderr) == (3, "not sent: org/lab1-ada-l\n")


def test_a_folder_for_each_student(small_class: SmallClass, tmp_path: Path) -> None:
    folder = grade(small_class, "student,name\nada,Ada\na/b,Bob\n", "ada", "zed")
    assert "not in it: zed (not in the roster)" in export(folder, "folders", tmp_path / "target")
    index = json.loads((tmp_path / "target" / "students.json").read_text())
    names = {row["student"]: name for name, row in index.items()}
    assert re.fullmatch(r"a_b-[0-9a-f]{8}", names["a/b"])
    for student, word in (("ada", "Ada"), ("a/b", "Bob")):
        for suffix in ("html", "md"):
            assert word in (tmp_path / "target" / names[student] / f"feedback.{suffix}").read_text()
    for name in ("left", "own"):
        (tmp_path / "target" / name).mkdir()
        (tmp_path / "target" / name / "feedback.md").write_text("of a student who has left\n")
    (tmp_path / "target" / "own" / "notes.txt").write_text("mine\n")
    export(folder, "folders", tmp_path / "target")
    assert not (tmp_path / "target" / "left").exists()
    assert [path.name for path in (tmp_path / "target" / "own").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("form", "message"),
    [("moodle", "grading worksheet"), ("gradescope", "column Email or SID"), ("github", "github_username")],
)
def test_a_form_that_reaches_nobody_says_what_is_missing(
    small_class: SmallClass, tmp_path: Path, form: str, message: str
) -> None:
    folder = grade(small_class, "student,name\nada,Ada\n", "ada")
    assert message in export(folder, form, tmp_path / "target", code=2)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("form", ["moodle", "gradescope", "github", "folders"])
def test_feedback_is_never_written_among_other_files(small_class: SmallClass, form: str) -> None:
    """In the folder of submissions it would be part of what is graded next."""
    roster = "Identifier,github_username,name,Email\nParticipant 7,ada-l,Ada,ada@x.edu\n"
    folder = grade(small_class, roster, "ada-l")
    before = sorted(small_class.submissions.rglob("*"))
    assert "name" in export(folder, form, small_class.submissions, code=2)
    file = small_class.submissions.parent / "roster.csv"
    text = file.read_text()
    export(folder, form, file, code=2)
    assert sorted(small_class.submissions.rglob("*")) == before
    assert file.read_text() == text
    target = small_class.submissions.parent / "target"
    for _ in range(2):
        export(folder, form, target)


def test_what_two_students_share_reaches_neither_and_long_names_stay_files(
    small_class: SmallClass, tmp_path: Path
) -> None:
    roster = "Identifier,Full name,github_username\n"
    roster += f"Participant 7,{'李' * 200},Ada-L\nParticipant 8,Bob,ada-l\nParticipant 9,Cat,cat_corp\n"
    folder = grade(small_class, roster, "Ada-L")
    said = export(folder, "github", tmp_path / "target")
    assert f"not in it: Participant 7 ({'李' * 60}...), Participant 8 (Bob) (shares the name on" in said
    assert sorted(path.name for path in (tmp_path / "target").iterdir()) == ["cat_corp.md", "deliver.sh"]
    export(folder, "moodle", tmp_path / "f.zip")
    with zipfile.ZipFile(tmp_path / "f.zip") as archive:
        assert all(len(name.encode()) < 255 for name in archive.namelist())
        assert {name.split("_", 4)[1] for name in archive.namelist()} == set("789")


@pytest.mark.parametrize(("mask", "text", "script"), [(0o077, 0o600, 0o700), (0o002, 0o664, 0o775)])
def test_files_are_for_whom_the_umask_says(
    small_class: SmallClass, tmp_path: Path, mask: int, text: int, script: int
) -> None:
    folder = grade(small_class, "username,email\nAda,a@x.edu\n", "ada")
    before = os.umask(mask)
    try:
        export(folder, "github", tmp_path / "target")
    finally:
        os.umask(before)
    modes = {path.suffix: path.stat().st_mode & 0o777 for path in (tmp_path / "target").iterdir() if path.is_file()}
    assert (modes[".md"], modes[".sh"]) == (text, script)


@pytest.mark.parametrize("form", ["github", "folders"])
def test_a_command_that_was_stopped_midway_goes_on(
    small_class: SmallClass, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    folder = grade(small_class, "student,github_username\nada,ada-l\nbob,bob-l\n", "ada", "bob")
    write = text_files.write_file
    for count in range(3):
        written: list[Path] = []

        def stopped(path: Path, content: str | bytes, *, written: list[Path] = written, most: int = count) -> Path:
            if len(written) == most:
                raise KeyboardInterrupt
            written.append(path)
            return write(path, content)

        target, view = tmp_path / f"{form}{count}", Book.open(folder).view
        monkeypatch.setattr(delivery, "write_file", stopped)
        with pytest.raises(KeyboardInterrupt):
            delivery.write(view, folder / "exports", form, target)  # type: ignore[arg-type]
        monkeypatch.setattr(delivery, "write_file", write)
        export(folder, form, target)
        whole = {path.relative_to(target): path.read_bytes() for path in target.rglob("*") if path.is_file()}
        export(folder, form, tmp_path / "whole")
        assert whole == {
            path.relative_to(tmp_path / "whole"): path.read_bytes()
            for path in (tmp_path / "whole").rglob("*")
            if path.is_file()
        }
        shutil.rmtree(tmp_path / "whole")


HOSTILE = (
    'O"Neil, "Q"', "A;B", "Müller, Zoë", "N" * 300, "=HYPERLINK(1)", "-Smith", "\u05e9\u05dc\u05d5\u05dd",
    "\U0001f600", "Same Name", "Same Name", "a/b", "../../x", "'quoted'", "con", "a_9_assignfeedback_file_x", "a\tb",
    "@ada", "",
)  # fmt: skip


def test_by_every_way_each_student_gets_their_own(small_class: SmallClass, tmp_path: Path) -> None:
    """Whatever students are called: as each platform reads the files, and nobody gets another's."""
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["Identifier", "Full name", "Email address", "github_username", "ID number"])
    overrides = ""
    for number, name in enumerate(HOSTILE, start=10):
        row = [f"Participant {number}", name, f"u{number}@x.edu", f"gh-{number}", f"00{number}"]
        writer.writerow(row)
        overrides += (
            f'[[override]]\nstudent = "{row[2]}"\ncriterion = "lab1.memory"\npoints = 1\nreason = "own{number}."\n'
        )
    small_class.out.mkdir()
    (small_class.out / "overrides.toml").write_text(overrides)
    numbers = range(10, 10 + len(HOSTILE))
    folder = grade(small_class, table.getvalue(), *(f"u{number}@x.edu" for number in numbers))
    for form in ("moodle", "gradescope", "github", "folders"):
        assert "not in it" not in export(folder, form, tmp_path / form)

    received: dict[str, dict[int, str]] = {"moodle": {}, "gradescope": {}, "github": {}, "folders": {}, "mail": {}}
    with zipfile.ZipFile(tmp_path / "moodle") as archive:
        for name in archive.namelist():
            received["moodle"][int(name.split("_", 4)[1])] = archive.read(name).decode()
    with zipfile.ZipFile(tmp_path / "gradescope") as archive:
        for number in numbers:
            for handle in (f"u{number}@x.edu", f"00{number}"):
                name = f"results/{hashlib.sha256(handle.encode()).hexdigest()}.json"
                received["gradescope"][number] = archive.read(name).decode()
    for number in numbers:
        received["github"][number] = (tmp_path / "github" / f"gh-{number}.md").read_text()
    for name, row in json.loads((tmp_path / "folders" / "students.json").read_text()).items():
        number = int(row["student"].removeprefix("Participant "))
        received["folders"][number] = (tmp_path / "folders" / name / "feedback.html").read_text()
    for letter in mail.letters(Book.open(folder).view, folder)[0]:
        received["mail"][int(letter.address[1:3])] = letter.page.decode()
    for way, pages in received.items():
        assert sorted(pages) == list(numbers), way
        for number, page in pages.items():
            assert set(re.findall(r"own\d+\.", page)) == {f"own{number}."}, (way, number)
