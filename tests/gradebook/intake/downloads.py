"""Downloads that tests put together, and what a class takes in of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import grader
from gradebook.intake import roster_files
from gradebook.intake.collect import Intake, Store
from gradebook.intake.lab_folders import LabNames
from gradebook.results import Student
from gradebook.settings import Settings
from tests.gradebook.intake.test_archives import zipped

LAB = "lab1_gpu_basics"
CODE = b"print(1)\n"
CANVAS = "lovelaceada_17_4711_"
MOODLE = "Ada Lovelace_17_assignsubmission_"


class Downloads:
    """A folder of downloads, and what a class of some labs takes in of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "source"
        self.folder.mkdir()
        self._room = folder

    def put(self, name: str, content: bytes = CODE) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def pack(self, name: str, files: Mapping[str, bytes]) -> Path:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        return zipped(self.folder / name, dict(files))

    def take(self, *labs: int, roster: str = "", teams: bool = False, where: Path | None = None) -> dict[str, Student]:
        """`teams`: whether the roster says who works together, too."""
        known = None
        if roster:
            file = self._room / "roster.csv"
            file.write_text(roster)
            known = roster_files.load(file, file if teams else None)
        names = LabNames.of(grader.course().rubric.labs, labs or (1,))
        self.intake = Intake(Settings(), known, Store(self._room / "store"), self._room / "room", None, names)
        return {student.student: student for student in self.intake.take_all(where or self.folder, lambda name: None)}

    def files(self, student: Student) -> dict[str, bytes]:
        assert student.content is not None, student.reason
        top = Store(self._room / "store").path(student.content)
        return {path.relative_to(top).as_posix(): path.read_bytes() for path in top.rglob("*") if path.is_file()}
