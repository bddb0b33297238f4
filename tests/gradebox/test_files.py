"""Folders that somebody else has prepared: links, pipes and giants instead of a report, or among the labs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import grader
from gradebox.common import files
from gradebox.report import progress, save, write
from gradebox.run.grade import Circumstances, grade

GPULABS = str(Path(sys.executable).with_name("gpulabs"))
COURSE = grader.course().rubric
HERE = Circumstances("ada", "0" * 64, "T4", True, "namespaces", 1, 1.0)
GRADE = grade(COURSE, COURSE.labs[:1], {}, HERE)


def test_a_link_in_the_place_of_a_report_is_replaced_and_what_it_leads_to_is_not(tmp_path: Path) -> None:
    other, folder = tmp_path / "other.py", tmp_path / "grade-report"
    other.write_text("somebody else's work")
    folder.mkdir()
    for name in ("grade.json", "grade.html", "progress.json", ".grade.json.draft", ".grade.html.draft"):
        (folder / name).symlink_to(other)
    paths = write(GRADE, folder)
    save(GRADE, folder)
    assert other.read_text() == "somebody else's work"
    assert not paths[0].is_symlink()


def test_a_report_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "grade-report").symlink_to(tmp_path / "theirs")
    for action in (write, save):
        with pytest.raises(OSError, match="it is a link"):
            action(GRADE, tmp_path / "grade-report")
    assert list((tmp_path / "theirs").iterdir()) == []


@pytest.mark.parametrize("kind", ["pipe", "link", "giant", "folder"])
def test_only_regular_files_of_a_reasonable_size_are_read(kind: str, tmp_path: Path) -> None:
    path, real = tmp_path / "progress.json", tmp_path / "real"
    real.write_text("{}")
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to(real)
        case "folder":
            path.mkdir()
        case "giant":
            with path.open("wb") as file:
                file.truncate(files.MAX_BYTES + 1)
    with pytest.raises(OSError, match=r".+"):
        files.read_text(path)
    assert progress.read(tmp_path, GRADE) == progress.Earlier()
    assert files.read_text(real) == "{}"


@pytest.mark.parametrize(
    "place", ["grade-report/grade.json", "grade-report/progress.json", "labs/lab1_gpu_basics/zz.py"]
)
def test_next_does_not_wait_for_a_pipe(place: str, tmp_path: Path) -> None:
    lab = tmp_path / "labs" / "lab1_gpu_basics"
    lab.mkdir(parents=True)
    (lab / "benchmark.py").write_text("x = 1\n")
    (tmp_path / place).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / place)
    done = subprocess.run(
        [GPULABS, "next"], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_what_is_written_has_the_rights_of_an_ordinary_file(tmp_path: Path) -> None:
    (tmp_path / "beside").touch()
    written = files.replace(tmp_path / "new", "text")
    assert written.stat().st_mode == (tmp_path / "beside").stat().st_mode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beside", "new"]
