"""Another course than this one can be graded: a folder with a rubric, checks and probes of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import three_questions
from benchmarks.other_graders import score
from gradebox.common.reading import ReadingError
from gradebox.course import course as courses
from gradebox.course import hints
from gradebox.course.course import CourseError
from gradebox.report.next_step import text
from gradebox.sandbox import Sandbox

ROOT = Path(__file__).parents[2]


def _submission(folder: Path, answers: dict[str, str]) -> Path:
    file = folder / three_questions.PLACE
    file.parent.mkdir(parents=True)
    file.write_text(three_questions.module(answers))
    return folder


def _gradebox(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "gradebox", *map(str, words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def _copy(folder: Path, name: str = "own_course") -> Path:
    """A small course that loads."""
    course = folder / name
    (course / "lab1" / "one").mkdir(parents=True)
    for place in (course, course / "lab1", course / "lab1" / "one"):
        (place / "__init__.py").touch()
    (course / "course.toml").write_text('title = "T"\nversion = "1"\npoints = 1\npass_percent = 50\nlabs = ["lab1"]\n')
    (course / "lab1" / "lab.toml").write_text('title = "L"\npackage = "lab1_own"\npoints = 1\ncriteria = ["one"]\n')
    (course / "lab1" / "one" / "criterion.toml").write_text(
        'title = "O"\npoints = 1\n[checks.right]\npoints = 1\ntitle = "Be right"\n'
    )
    return course


def test_answers_get_their_points_in_one_sandbox_after_the_other(tmp_path: Path) -> None:
    right, wrong = three_questions.QUESTIONS, three_questions.WRONG
    folders = [_submission(tmp_path / f"s{number}", answers) for number, answers in enumerate((right, wrong, right))]
    with Sandbox(folders[0], courses.load(three_questions.COURSE).environment) as sandbox:
        assert [score(folder, sandbox) for folder in folders] == [3, 2, 3]


def test_every_check_has_a_hint() -> None:
    course = courses.load(three_questions.COURSE)
    assert hints.problems([course.rubric], hints.load(course)) == []


def test_the_commands_that_hints_show_name_the_course() -> None:
    course = courses.load(three_questions.COURSE)
    shown = next(iter(text.hint_lines("lab1.questions.distances", hints.load(course), course, steps=0)))
    words = re.search(r"gradebox next --course (\S+) --check (\S+) --hints 1", shown)
    assert words is not None, shown
    shown_course, check = words.groups()
    assert (Path(shown_course).resolve(), check) == (three_questions.COURSE, "lab1.questions.distances")


def test_a_course_in_a_submission_is_refused(tmp_path: Path) -> None:
    course = _copy(tmp_path / "ada")
    mark = tmp_path / "mark"
    (course / "lab1" / "one" / "checks.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    (tmp_path / "ada" / "lab1_own").mkdir()
    done = _gradebox("grade", f"--course={course}", tmp_path / "ada", folder=tmp_path)
    assert done.returncode == 2
    assert "is in the submission" in done.stderr
    assert not mark.exists()


def test_without_a_course_nothing_is_graded_by_guess(tmp_path: Path) -> None:
    """Not even in a course's own folder: that may be what a student has written."""
    done = _gradebox("grade", tmp_path, folder=_copy(tmp_path))
    assert done.returncode == 2
    assert "--course" in done.stderr


def test_a_course_that_cannot_be_graded_says_why_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "ada" / "lab1_own").mkdir(parents=True)
    done = _gradebox("grade", f"--course={_copy(tmp_path)}", "ada", folder=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "lab1/one/criterion.toml:3: lab1.one.right has points, but own_course/lab1/one/checks.py has no such" in line


def test_folders_that_python_cannot_import_are_named(tmp_path: Path) -> None:
    course = _copy(tmp_path)
    (course / "lab1" / "one" / "__init__.py").rename(course / "lab1" / "one" / "checks.py")
    with pytest.raises(ReadingError, match=r"lab1/one lacks an __init__\.py"):
        courses.load(course)


def test_the_name_of_another_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="Python has another numpy in"):
        courses.load(_copy(tmp_path, "numpy")).prepare()
    with pytest.raises(ReadingError, match="json needs another name: Python itself has a module json"):
        courses.load(_copy(tmp_path, "json"))


@pytest.mark.parametrize("name", ["json", "numpy"])
def test_the_name_of_another_package_ends_no_grading_in_a_traceback(name: str, tmp_path: Path) -> None:
    (tmp_path / "ada" / "lab1_own").mkdir(parents=True)
    done = _gradebox("grade", f"--course={_copy(tmp_path, name)}", "ada", folder=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("could not grade: ")
    assert "name" in line
