"""What every command does: it refuses an option given twice, of which only the last would count, and says that it was
stopped."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gradebook.__main__ import app
from gradebook.cli.demo import COURSE
from gradebook.export.book import Book
from gradebook.results import GradebookError
from grader.cli import app as grader_app
from tests.gradebook.conftest import SmallClass


@pytest.mark.parametrize(
    "arguments",
    [
        [
            "review",
            "OUT",
            *("--override", "ada", "lab1.walks", "5", "x"),
            *("--override", "bob", "lab1.walks", "6", "y"),
        ],
        ["review", "OUT", "--hold-back", "ada", "x", "--hold-back", "bob", "x"],
        ["class", "OUT", "--regrade", "ada", "--regrade", "bob"],
        ["class", "OUT", "--lab=1", "--lab=2"],
        ["export", "feedback", "OUT", "--as", "folders", "--as", "moodle"],
        ["export", "canvas", "OUT", "--course", "1", "--course", "2"],
        ["mail", "OUT", "--server", "a:25", "--server", "b:25"],
    ],
    ids=" ".join,
)
def test_only_the_last_would_count(arguments: list[str], tmp_path: Path) -> None:
    run = CliRunner().invoke(app, [str(tmp_path) if part == "OUT" else part for part in arguments])
    assert run.exit_code == 2
    assert "is given more than once" in " ".join(run.output.split())


@pytest.mark.parametrize(
    "arguments", [["class", "OUT", "--out", ""], ["class", ""], ["review", "--", ""]], ids=" ".join
)
def test_a_path_that_is_empty_is_not_this_folder(arguments: list[str], tmp_path: Path) -> None:
    run = CliRunner().invoke(app, [str(tmp_path) if part == "OUT" else part for part in arguments])
    assert run.exit_code == 2
    assert "is empty; perhaps a variable of the shell is not set" in " ".join(run.output.split())


@pytest.mark.parametrize(
    "arguments", [["mail", "OUT", "--only", "ada", "--only", "bob"], ["manual", "requests", "OUT", "--all", "--all"]]
)
def test_lists_and_switches_may_be_repeated(arguments: list[str], tmp_path: Path) -> None:
    run = CliRunner().invoke(app, [str(tmp_path) if part == "OUT" else part for part in arguments])
    assert "there is no gradebook" in run.output


def test_a_command_that_is_stopped_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(folder: Path) -> Book:
        raise KeyboardInterrupt

    monkeypatch.setattr(Book, "open", stopped)
    run = CliRunner().invoke(app, ["manual", "list", str(tmp_path)])
    assert (run.exit_code, run.output) == (130, "stopped before the end: give the same command again\n")


def test_a_home_folder_is_found_behind_an_equals_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "spring").mkdir()
    for arguments in (["review", "~/spring"], ["class", "--out=~/spring"]):
        run = CliRunner().invoke(app, ["--course", str(COURSE), *arguments])
        assert f"there is no gradebook in {tmp_path / 'spring'}" in " ".join(run.output.split())


def test_a_file_in_the_place_of_a_folder_is_named(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    small_class.grade()
    exports, out = small_class.out / "exports", str(small_class.out)
    shutil.rmtree(exports)
    exports.write_text("")
    for arguments in (["export", "class", out], ["export", "feedback", out, "--out", f"{exports}/new"]):
        run = CliRunner().invoke(grader_app, arguments)
        said = " ".join(run.output.split())
        assert (run.exit_code, f"{exports}" in said, "a file is where a folder must be" in said) == (2, True, True), (
            said
        )
    with pytest.raises(GradebookError, match="a file is where a folder must be"):
        small_class.grade(out=exports)


def test_the_list_names_marks_that_count_for_nothing(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    small_class.grade()
    manual = small_class.out / "manual_grading"
    (manual / "marks").mkdir(parents=True)
    (manual / "rubric.toml").write_text('[[criterion]]\nid = "discussion"\ntitle = "Discussion"\npoints = 6\n')
    mark = 'content = ""\nadjust = 0\ndone = true\nby = "Ana"\nat = 2026-03-01T10:00:00+00:00\n'
    (manual / "marks" / "x.toml").write_text(f'unit = "student bob"\n[[mark]]\ncriterion = "figures"\n{mark}')
    run = CliRunner().invoke(grader_app, ["manual", "list", str(small_class.out)])
    said = " ".join(run.output.split())
    assert "has no criterion 'figures', for which 1 submission has marks" in said
    assert "marks for whom the class does not have, so they count for nothing: student bob" in said
    assert "write unit" not in said
    (manual / "marks" / "y.toml").write_text(f'unit = "ada"\n[[mark]]\ncriterion = "discussion"\n{mark}')
    run = CliRunner().invoke(grader_app, ["manual", "list", str(small_class.out)])
    assert "nothing: ada, student bob. For 'ada' write unit = 'student ada'. A" in " ".join(run.output.split())


@pytest.fixture
def others_class(small_class: SmallClass, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallClass]:
    """A graded class in a folder that we may only read, also as root."""
    small_class.hands_in("ada")
    small_class.grade()
    small_class.out.chmod(0o500)
    can_access, connect = os.access, sqlite3.connect

    def access(path: Path, mode: int) -> bool:
        return not (mode == os.W_OK and Path(path) == small_class.out) and can_access(path, mode)

    def connected(path: object, **options: Any) -> Any:
        assert "immutable=1" in str(path) or "mode=ro" in str(path)
        return connect(str(path), **options)

    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr(sqlite3, "connect", connected)
    yield small_class
    small_class.out.chmod(0o700)


def test_a_class_can_be_read_by_people_who_may_not_write(others_class: SmallClass) -> None:
    before = sorted(path.name for path in others_class.out.iterdir())
    for arguments in (["review"], ["mail"], ["manual", "requests"]):
        run = CliRunner().invoke(grader_app, [*arguments, str(others_class.out)])
        assert "error" not in run.output, run.output
    assert sorted(path.name for path in others_class.out.iterdir()) == before


def test_a_disk_without_locks_is_no_other_run(small_class: SmallClass, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    small_class.hands_in("ada")
    small_class.grade()
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(GradebookError, match=r"No locks available\. Its disk, perhaps one of a network"):
        small_class.grade()
    run = CliRunner().invoke(grader_app, ["export", "class", str(small_class.out)])
    assert (run.exit_code, ".decisions.lock: No locks available. Its disk" in " ".join(run.output.split())) == (2, True)
