"""Pushes: GitHub's word about when commits came decides, not the times that students can write into them."""

from __future__ import annotations

import csv
import io
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradebook.cli.exporting import export_app
from gradebook.intake import handed_in, times
from gradebook.intake.collect import Intake, Store
from gradebook.intake.times import Times, TimesError
from gradebook.results import Student
from gradebook.settings import Settings
from tests.gradebook.intake.test_repositories import DEADLINE, Repository, text_of


class Class:
    """One student's repository, and a table of its pushes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repository = Repository(folder / "source" / "lab1-ada")
        self.rows: list[tuple[str, str, str]] = []
        self.notices: list[str] = []

    def pushes(self, commit: str, day: int, branch: str = "refs/heads/main") -> None:
        self.rows.append((commit, f"2026-03-{day:02}T10:00:00Z" if day else "2026-02-28T10:00:00Z", branch))

    def take(self, deadline: datetime = DEADLINE) -> Student:
        text = "repository,commit,pushed_at,branch\n"
        text += "".join(f"https://github.com/org/lab1-ada.git,{','.join(row)}\n" for row in self.rows)
        (self.folder / "pushes.csv").write_text(text)
        known = times.load(self.folder / "pushes.csv", None, None) if self.rows else Times()
        return self.taken(known, deadline)

    def taken(self, known: Times, deadline: datetime = DEADLINE) -> Student:
        settings, store = Settings(deadline=deadline), Store(self.folder / "store")
        intake = Intake(settings, None, store, self.folder / "room", None, known_times=known)
        (student,) = intake.take_all(self.folder / "source", lambda name: None)
        self.notices = intake.notices
        return student


@pytest.fixture
def graded(tmp_path: Path) -> Class:
    return Class(tmp_path)


def moment(day: int) -> datetime:
    return datetime(2026, 3, day, 10, tzinfo=UTC) if day else datetime(2026, 2, 28, 10, tzinfo=UTC)


def test_a_commit_that_was_dated_back_counts_from_its_push(graded: Class) -> None:
    first = graded.repository.commit("first", 1)
    graded.pushes(first, 0)
    forged = graded.repository.commit("forged", 1)
    graded.pushes(forged, 5)
    student = graded.take()
    assert (text_of(graded.folder, student), student.submitted_at) == ("first", moment(0))
    assert "pushed at 2026-02-28 10:00 UTC, by the server's clock; " in student.reason
    assert "1 later one came after the deadline and was not graded" in student.reason
    assert graded.notices[-1] == "times of submission: 1 by pushes as the server recorded them"
    graded.rows.clear()
    assert text_of(graded.folder, graded.take()) == "forged", "without GitHub's word the commit's own time counts"
    assert "1 by the commits' own times (which students can set; " in graded.notices[-1]


@pytest.mark.night
def test_work_of_a_later_assignment_makes_nothing_late(graded: Class) -> None:
    """By every push, and by the last one alone, which brought what does not count."""
    first = graded.repository.commit("first", 1)
    later = graded.repository.commit("of the next lab", 9)
    graded.pushes(later, 9)
    graded.pushes(first, 1)
    assert graded.take().submitted_at == moment(1)
    student = graded.taken(Times({"lab1-ada": moment(9)}, is_last_push=True))
    assert student.submitted_at == datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert any(
        "brought commits that are not graded, so the graded commit's own time counts" in n for n in graded.notices
    )
    student = graded.taken(Times({"lab1-ada": moment(9)}))
    assert student.submitted_at == moment(9), "a table of hand-ins is the instructor's word"


def test_a_last_push_may_have_been_to_another_branch(graded: Class) -> None:
    graded.repository.commit("first", 1)
    last = Times({"lab1-ada": moment(9)}, is_last_push=True)
    assert graded.taken(last).submitted_at == moment(9), "there is no other branch"
    graded.repository.git("checkout", "-q", "-b", "feedback")
    graded.repository.commit("a program's", 9)
    graded.repository.git("checkout", "-q", "main")
    assert graded.taken(last).submitted_at == datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert "the last push, of 2026-03-09 10:00 UTC, may have brought commits that are not graded" in graded.notices[-2]
    in_time = Times({"lab1-ada": moment(0)}, is_last_push=True)
    assert graded.taken(in_time).submitted_at == moment(0)


def test_commits_count_from_the_push_that_brought_them(graded: Class) -> None:
    """Of a branch that was merged, from the push of that branch's name only."""
    old = graded.repository.commit("old", 1)
    graded.repository.commit("between", 2)
    tip = graded.repository.commit("tip", 3)
    graded.pushes(old, 4, "refs/heads/other")
    graded.pushes(tip, 6)
    graded.pushes("0" * 40, 7)
    student = graded.take()
    assert (text_of(graded.folder, student), student.submitted_at) == ("tip", moment(6))
    student = graded.take(datetime(2026, 3, 8, tzinfo=UTC))
    assert (text_of(graded.folder, student), student.submitted_at) == ("tip", moment(6))


def test_what_a_later_push_replaced_is_named(graded: Class) -> None:
    lost = graded.repository.commit("lost", 1)
    graded.repository.git("commit", "--amend", "--message", "other")
    graded.repository.git("reflog", "expire", "--expire=now", "--all")
    graded.repository.git("gc", "--prune=now", "--quiet")
    graded.pushes(lost, 0)
    graded.pushes(graded.repository.git("rev-parse", "HEAD"), 6)
    student = graded.take()
    assert student.submitted_at == moment(6)
    said = f"commit {lost[:10]}, which was pushed in time, at 2026-02-28 10:00 UTC, is not in the repository any more"
    assert said in student.reason


def test_a_table_without_whole_commits_is_refused(tmp_path: Path) -> None:
    head, time = f"repository,commit,pushed_at\norg/a,{40 * 'a'},2026-03-01T10:00Z\n", "2026-03-01T10:00Z"
    for row, message in (
        (f"org/b,abc123,{time}", "line 3: commit 'abc123' is no whole commit, of 40 digits"),
        (f",{40 * 'b'},{time}", "line 3: repository is empty"),
    ):
        (tmp_path / "pushes.csv").write_text(f"{head}{row}\n")
        with pytest.raises(TimesError, match=message):
            times.load(tmp_path / "pushes.csv", None, None)


# --- asking GitHub ----------------------------------------------------------------------------------------------------

GH = """#!/bin/sh
case "$3 $4" in
  *repos/org/lab1-ada/activity*) cat "$(dirname "$0")/ada.json";;
  *nothing*) echo '[]';;
  *no-list*) echo '{"message": "x"}';;
  *logged-out*) echo "To get started with GitHub CLI, please run:  gh auth login" >&2; exit 4;;
  *) echo "gh: Not Found (HTTP 404)" >&2; exit 1;;
esac
"""


@pytest.fixture
def gh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for GitHub's program, which knows one repository, in two pages."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "gh").write_text(GH)
    (folder / "gh").chmod(0o755)
    page = [{"id": 1, "before": "0" * 40, "after": "a" * 40, "ref": "refs/heads/main", "activity_type": "push",
             "timestamp": "2026-03-01T09:00:00Z", "actor": {"login": "ada"}}]  # fmt: skip
    older = [page[0] | {"after": "b" * 40, "activity_type": "branch_creation", "timestamp": "2026-02-01T09:00:00Z"}]
    (folder / "ada.json").write_text(json.dumps(page) + json.dumps(older))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return folder


def asked(*arguments: str, code: int) -> str:
    done = CliRunner().invoke(export_app, ["github-pushes", *arguments])
    assert done.exit_code == code, done.output
    return done.output


def test_github_is_asked_by_its_own_program(gh: Path, tmp_path: Path) -> None:
    for name in ("lab1-ada", "lab1-bob"):
        Repository(tmp_path / "repositories" / name)
    said = asked("repositories", "--org", "org", code=3)
    assert "missing: org/lab1-bob: gh: Not Found (HTTP 404)" in said
    assert 'wrote 2 pushes to pushes.csv: submitted = "pushes.csv"' in said
    first, second = csv.DictReader(io.StringIO((tmp_path / "pushes.csv").read_text()))
    assert (first["repository"], first["commit"], first["pushed_at"]) == (
        "org/lab1-ada",
        "a" * 40,
        "2026-03-01T09:00:00Z",
    )
    assert second["kind"] == "branch_creation"
    known = times.load(tmp_path / "pushes.csv", None, None)
    assert [push.commit for push in known.pushes["lab1-ada"]] == ["a" * 40, "b" * 40]


@pytest.mark.parametrize(
    ("address", "options", "message"),
    [
        ("https://github.com/org/lab1-ada", (), "wrote 2 pushes"),
        ("git@github.com:org/lab1-ada.git", (), "wrote 2 pushes"),
        ("lab1-ada.git", (), "whose is lab1-ada on GitHub? Say it with --org"),
        ("https://git.example.edu/x/lab1-ada.git", ("--org", "org"), "lab1-ada.git: it is not on GitHub"),
        ("https://github.com/org/logged-out", (), "gh is not logged in: run gh auth login"),
        ("https://github.com/org/--help", (), "it is no name of a repository"),
        ("https://github.com/org/unknown", (), "HTTP 404). Correct the name or --org; or log gh in as somebody who"),
        ("https://github.com/org/nothing", (), "missing: org/nothing: GitHub recorded no push"),
        ("https://github.com/org/no-list", (), "what GitHub answered is no list of activities"),
        ("https://github.com/org/no-list", (), "there is no push to write, so pushes.csv is not written"),
        ("https://github.com/org/lab1-ada", ("--out", "bin"), "error: bin: Is a directory"),
    ],
)
def test_a_list_of_addresses_names_repositories(
    gh: Path, tmp_path: Path, address: str, options: tuple[str, ...], message: str
) -> None:
    (tmp_path / "list.csv").write_text(f"student,repository\nada,{address}\n")
    assert message in asked("list.csv", *options, code=0 if message.startswith("wrote") else 2)


def test_without_githubs_program_it_says_where_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "list.csv").write_text("student,repository\nada,https://github.com/org/lab1-ada\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "gh is not installed: get it from https://cli.github.com" in asked(str(tmp_path / "list.csv"), code=2)


def test_submissions_may_be_called_as_labs_are(tmp_path: Path) -> None:
    """A classroom names repositories by assignment and login, and unpacks them without `.git`."""
    for name in ("lab1-ada", "lab1-bob"):
        (tmp_path / "unpacked" / name / "lab1_gpu_basics").mkdir(parents=True)
        Repository(tmp_path / "cloned" / name)
        (tmp_path / "submission" / name / name).mkdir(parents=True)
    assert [thing.key for thing in handed_in.find(tmp_path / "unpacked")] == ["lab1-ada", "lab1-bob"]
    assert [thing.kind for thing in handed_in.find(tmp_path / "cloned")] == ["repository"] * 2
    with pytest.raises(handed_in.IntakeError, match="submission is one submission; name the folder above it"):
        handed_in.find(tmp_path / "submission")
