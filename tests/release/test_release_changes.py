"""What students read of a change in a lab: which function, and whether they must only read again or change a call."""

from __future__ import annotations

import pytest

from grader.release.changes import render

BEFORE = '''"""A lab."""


class Trainer:
    def step(self, batch: int) -> float:
        """Make one step."""
        # TODO(task 5.1): make it.
        raise NotImplementedError("Task 5.1 is open")


def load(path: str) -> int:
    """Given."""
    return 1
'''
NAME = "labs/lab5_production/trainer.py"


def entry(before: str | None, now: str | None) -> str:
    """The line on the one file."""
    files = [{NAME: text.encode()} if text is not None else {"other": b""} for text in (before, now)]
    text = render("", *files, title="Release 2")
    (line,) = [line for line in text.splitlines() if line.startswith("- `trainer.py`")]
    return line.removeprefix("- `trainer.py`: ")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Make one step.", "Make one step, in seconds.", "`Trainer.step`, its description or steps; read them again"),
        ("): make it.", "): 1. make it.", "`Trainer.step`, its description or steps; read them again"),
        ("batch: int)", "batch: int, scale: float)", "`Trainer.step`, its parameters or result"),
        ("-> float", "-> int", "`Trainer.step`, its parameters or result"),
    ],
)
def test_a_change_of_a_task_says_what_it_is_about(old: str, new: str, said: str) -> None:
    assert entry(BEFORE, BEFORE.replace(old, new)) == f"{said} (task 5.1)"


def test_given_code_that_changed_is_named() -> None:
    assert entry(BEFORE, BEFORE.replace("return 1", "return 2")) == "`load`"


def test_functions_come_and_go() -> None:
    assert entry(BEFORE, BEFORE.replace("def load", "def read")) == "`load`, no longer needed, `read`, new"


def test_whole_files_come_and_go() -> None:
    assert entry(None, BEFORE) == "new"
    assert entry(BEFORE, None) == "no longer needed; remove it"
