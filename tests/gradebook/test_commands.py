"""What every command does: it refuses an option given twice, of which only the last would count, and says that it was
stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradebook.__main__ import app
from gradebook.export.book import Book


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
