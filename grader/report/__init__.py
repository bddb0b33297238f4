"""Show a grade: in the terminal, as JSON, and as one self-contained page. Only reads a `Grade`; never changes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grader.grade import Grade
from grader.report import html, terminal
from grader.report.document import to_json


def write(grade: Grade, folder: Path) -> list[Path]:
    """Write `grade.json` and `grade.html` into `folder`, whole or not at all, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        _replace(folder / "grade.json", to_json(grade)),
        _replace(folder / "grade.html", html.render(grade)),
    ]


def show(grade: Grade, isolation: Sequence[str], paths: Sequence[Path]) -> None:
    """Print the grade for people."""
    terminal.show(grade, isolation, paths)


def _replace(path: Path, text: str) -> Path:
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    return draft.replace(path)
