"""Small classes: submissions that hold next to nothing, graded by a judge that only pretends to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

import grader
from gradebook import versions
from gradebook.grade_class import grade_class
from gradebook.grading.description import ClassRequest
from gradebook.results import ClassResult
from gradebox.course.course import Course
from tests.gradebook.fakes import LOG, fake_engine


class SmallClass:
    """A folder of submissions and the gradebook that they are graded into."""

    def __init__(self, folder: Path) -> None:
        self.submissions = folder / "submissions"
        self.out = folder / "out"
        self.log = folder / "log"
        self.submissions.mkdir()

    def hands_in(self, student: str, text: str = "", behaviour: str = "") -> Path:
        """A folder with one lab, of which `text` makes the content."""
        lab = self.submissions / student / "lab1_gpu_basics"
        lab.mkdir(parents=True, exist_ok=True)
        (lab / "benchmark.py").write_text(f"# {text or student}\n")
        if behaviour:
            (lab / "behaviour.txt").write_text(behaviour)
        return lab.parent

    def grade(self, open_engine: Callable[..., object] = fake_engine, **options: object) -> ClassResult:
        console = options.pop("console", Console(quiet=True))
        request = {
            "course": grader.course(),
            "submissions": self.submissions,
            "out": self.out,
            "labs": (1,),
            "device": "vgpu",
            "seed": 7,
            **options,
        }
        return grade_class(ClassRequest(**request), open_engine, console)  # type: ignore[arg-type]

    @property
    def graded(self) -> list[str]:
        """What has been graded so far, by the judge's word: one line each, in order."""
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture(scope="session", autouse=True)
def own_code_is_read_once() -> Iterator[None]:
    """Our code does not change while tests run, and its digests were most of what grading a small class took."""
    read = versions.digests
    known: dict[str, str] = {}

    def digests(course: Course, root: Path | None = None) -> dict[str, str]:
        if root is not None or course is not grader.course():
            return read(course, root)
        if not known:
            known.update(read(course))
        return dict(known)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "digests", digests)
        yield


@pytest.fixture
def small_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallClass:
    small = SmallClass(tmp_path)
    monkeypatch.setenv(LOG, str(small.log))
    return small
