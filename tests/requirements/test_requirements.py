"""Every sentence that binds a student is asked for by a check, or a reason says why none asks.

The other direction, too: no check asks for what no sentence requires.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import grader
from tests.requirements import entries, sentences

LABS = [lab.id for lab in grader.course().all_labs]
SOURCE = '''
def task(a: int) -> int:
    """Do it. Twice:

    - once; e.g. now,
      and so on
    - then again. At the end!

    Args:
        a: what; None: nothing.
            It is small.

    Raises:
        ValueError: `a` is not.

    Source: somebody. Nobody.
    """
    # TODO(task 1.1): all of it
    # --- solution: task 1.1 ---
    return a
    # --- end ---


def given() -> None:
    """Does not bind."""
'''


@pytest.mark.parametrize("lab", LABS)
def test_every_sentence_is_asked_for_or_a_reason_says_why_not(lab: str) -> None:
    assert list(entries.problems(lab)) == []


def test_sentences_are_those_of_what_students_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "lab1_x"
    folder.mkdir()
    (folder / "file.py").write_text(SOURCE)
    (folder / "README.md").write_text(
        "# Lab 1: x\n\nRead it.\n\n    code. Code\n\n## Task 1.1: it (`x.py`)\n\n1. Do.\n2. See.\n"
    )
    monkeypatch.setattr(sentences, "SOLUTIONS", tmp_path)
    assert sentences.of_lab("lab1_x") == {
        "file.task": [
            "Do it.", "Twice:", "once; e.g. now, and so on", "then again.", "At the end!", "a: what; None: nothing.",
            "It is small.", "ValueError: `a` is not.",
        ],
        "README: Lab 1: x": ["Read it."],
        "README: Task 1.1": ["Do.", "See."],
    }  # fmt: skip


def test_a_sentence_that_changes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    unchanged = sentences.of_lab
    _, tables = entries.load("lab1")
    where, text = next((where, text) for where, table in tables.items() for text in table)

    def changed(package: str, also: tuple[str, ...] = ()) -> dict[str, list[str]]:
        texts = unchanged(package, also)
        return {
            **texts,
            where: [re.sub("$", " Or not.", sentence) if sentence == text else sentence for sentence in texts[where]],
        }

    monkeypatch.setattr(sentences, "of_lab", changed)
    assert list(entries.problems("lab1")) == [
        f"[{where}] has no entry: {text} Or not.",
        f"[{where}] nothing says this any more: {text}",
    ]
