"""Which of a student's code can take part in an answer, next to our own solutions (`code_dependencies.py`).

`make matrix WHOLE=1` asks every question of everybody.
"""

from __future__ import annotations

import functools
from pathlib import Path

import grader
from gradebox.authoring.code_dependencies import Code, DependencyGraph, Symbol
from tests.scenarios.build import ROOT

__all__ = ["REFERENCE", "Code", "Symbol", "code_of", "probe_file"]

REFERENCE = ROOT / "solutions"


def code_of(submission: Path) -> Code:
    """What reading tells of a submission."""
    return _reach().read(_files(submission))


def probe_file(module: str) -> Path:
    """Where the functions of `lab1.basics` are."""
    return _reach().probe_file(module)


@functools.cache
def _reach() -> DependencyGraph:
    return DependencyGraph(grader.course(), _files(REFERENCE))


def _files(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
