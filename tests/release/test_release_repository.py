"""The students' repository: what it holds, what never gets into it, and that nobody's work is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import grader
from gradebox.authoring.release import ReleaseError
from grader.release import contents, course, leaks

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 9, 1, 12, tzinfo=UTC)
SECRET = "    total = first_number * second_number + offsets.get(kind, 0)"
ANSWER = f'''"""Lab 7."""


def answer(first_number: int, second_number: int, offsets: dict[str, int], kind: str) -> int:
    """The answer."""
    # TODO(task 7.1): compute it.
    # --- solution: task 7.1 ---
{SECRET}
    return total
    # --- end ---


def other() -> int:
    """Another one."""
    # TODO(task 7.2): compute it too.
    # --- solution: task 7.2 ---
    return 7
    # --- end ---
'''


_DOCUMENTS = (
    *("student", "student-grade", "student-programs", "student-machines"),
    *("report-criteria", "chapter", "vgpu-uses", "how-we-know", "how-we-know-figures"),
    *("how-we-know-published", "how-we-know-labs", "how-we-know-checked", "how-we-know-differs"),
    *("virtual-gpu", "virtual-gpu-reference", "virtual-gpu-compiled"),
    *("virtual-gpu-distributed", "virtual-gpu-recordings", "virtual-gpu-unsupported"),
    *("virtual-gpu-cost-model", "virtual-gpu-kernels", "virtual-gpu-convolutions"),
    "instructor",
)


def git(folder: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {
        f"GIT_{who}_{what}": "ada@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, errors="replace", env=environment).stdout


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small course with one lab."""
    root = tmp_path / "course"
    files = {
        "solutions/__init__.py": '"""Labs."""\n',
        "solutions/lab7_answers/__init__.py": "",
        "solutions/lab7_answers/answer.py": ANSWER,
        "solutions/lab7_answers/README.md": "# Lab 7\n\n## Task 7.1: compute\n\n## Task 7.2: compute\n",
        "solutions/lab7_answers/REPORT.md": "We measured forty-two seconds for the largest of all products.\n",
        "solutions/lab7_answers/REPORT.template.md": "What did you measure?\n",
        "solutions/lab7_answers/results/answer.json": '{"answer": 42}\n',
        "notebooks/lab7.ipynb": '{"source": "clone https://github.com/YOUR-COURSE/gpu-computing-labs"}\n',
        "grader/checks.py": "print('judge')\n",
        "gradebox/run/assertions.py": "print('judge')\n",
        "grader/judge.py": "print('judge')\n",
        "examples/training.py": "print('training')\n",
        "examples/courses/other/course.toml": "title = 'Not for students'\n",
        "benchmarks/secret.py": "print('not for students')\n",
        **{name: f"{name}\n" for name in contents._FILES},
        **{f"docs/{name}.md": f"# {name}\n" for name in _DOCUMENTS},
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "students"


def test_students_get_stubs_and_the_grader_and_nothing_for_instructors(source: Path, repository: Path) -> None:
    course.release(source, repository, now=NOW, hold_until=NOW + timedelta(days=1))
    names = set(git(repository, "ls-files").split())
    programs = {"gradebox/run/assertions.py", "grader/judge.py", "examples/training.py"}
    assert {"labs/lab7_answers/answer.py", "Makefile", "README.md", "CHANGES.md"} | programs <= names
    theirs = ("solutions", "benchmarks", "docs/instructor", "examples/courses")
    assert not any(name.startswith(theirs) for name in names)
    assert "total = first_number" not in (repository / "labs" / "lab7_answers" / "answer.py").read_text()
    assert (repository / "labs" / "lab7_answers" / "REPORT.md").read_text() == "What did you measure?\n"
    assert git(repository, "status", "--porcelain") == ""


def test_solutions_held_back_do_not_exist_until_their_date(source: Path, repository: Path) -> None:
    held = course.release(source, repository, now=NOW, hold_until=NOW + timedelta(days=7))
    assert "held back until 2026-09-08" in held.solutions
    assert git(repository, "branch", "--list", "solutions") == ""
    assert "total = first_number" not in git(repository, "cat-file", "--batch", "--batch-all-objects")

    still = course.release(source, repository, now=NOW + timedelta(days=6))  # the date is remembered
    assert "held back" in still.solutions

    course.release(source, repository, now=NOW + timedelta(days=8))
    assert "total = first_number" in git(repository, "show", "solutions:labs/lab7_answers/answer.py")
    assert "# --- " not in git(repository, "show", "solutions:labs/lab7_answers/answer.py")
    assert "forty-two" in git(repository, "show", "solutions:labs/lab7_answers/REPORT.md")
    assert "42" in git(repository, "show", "solutions:labs/lab7_answers/results/answer.json")


def test_holding_back_what_was_published_already_is_refused(source: Path, repository: Path) -> None:
    course.release(source, repository, now=NOW)
    with pytest.raises(ReleaseError, match="has a branch solutions already"):
        course.release(source, repository, now=NOW, hold_until=NOW + timedelta(days=7))


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("docs/student.md", f"Try this:\n\n`{SECRET.strip()}`\n", 3),
        ("notebooks/lab7.ipynb", json.dumps({"cells": [{"source": ["x = 1\n", SECRET], "outputs": []}]}), 2),
        (
            "notebooks/out.ipynb",
            json.dumps({"cells": [{"source": "", "outputs": [{"text": [f"{SECRET.strip()}\n"]}]}]}),
            2,
        ),
        ("docs/virtual-gpu.md", "We measured forty-two seconds for the largest of all products.\n", 1),
        ("gradebox/run/assertions.py", f"def f():\n{SECRET}  # the same\n    return total\n", 2),
        ("notebooks/copied.json", '{"answer": 42}\n', 1),
    ],
)
def test_a_line_of_a_solution_is_refused_with_file_and_line(
    source: Path, repository: Path, file: str, text: str, line: int
) -> None:
    (source / file).parent.mkdir(exist_ok=True)
    (source / file).write_text(text)
    with pytest.raises(ReleaseError, match="lines of solutions would be in") as refused:
        course.release(source, repository, now=NOW)
    assert f"{file}:{line}: " in str(refused.value)
    assert git(repository, "branch", "--list") == "", "something was committed"


def test_one_short_line_in_the_grader_is_no_leak(source: Path, repository: Path) -> None:
    (source / "grader" / "judge.py").write_text("def f():\n    return total\n")
    assert course.release(source, repository, now=NOW).is_new


def test_a_solution_in_an_earlier_commit_is_refused(source: Path, repository: Path) -> None:
    course.release(source, repository, now=NOW, hold_until=NOW + timedelta(days=1))
    for text in (f"{SECRET}\n", ""):
        (repository / "hint.md").write_text(text)
        git(repository, "add", "hint.md")
        git(repository, "commit", "-m", "hint")
    with pytest.raises(ReleaseError, match="in the history of main"):
        course.release(source, repository, now=NOW)


def test_work_that_is_not_committed_stops_a_release_and_stays(source: Path, repository: Path) -> None:
    course.release(source, repository, now=NOW)
    mine = repository / "labs" / "lab7_answers" / "answer.py"
    mine.write_text("my work\n")
    (source / "grader" / "judge.py").write_text("print('a better judge')\n")
    with pytest.raises(ReleaseError, match=r"holds work that is not committed: labs/lab7_answers/answer.py"):
        course.release(source, repository, now=NOW)
    assert mine.read_text() == "my work\n"


def test_files_that_were_edited_in_the_repository_are_not_replaced_without_force(
    source: Path, repository: Path
) -> None:
    course.release(source, repository, now=NOW)
    (repository / "LICENSE").write_text("ours\n")
    (repository / "syllabus.md").write_text("week 1\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-m", "ours")
    with pytest.raises(ReleaseError, match=r"edited in the repository itself.*LICENSE"):
        course.release(source, repository, now=NOW)
    (source / "grader" / "judge.py").write_text("print('a better judge')\n")
    course.release(source, repository, now=NOW, force=True)
    assert (repository / "LICENSE").read_text() == "LICENSE\n"
    assert (repository / "syllabus.md").read_text() == "week 1\n", "what is the instructor's own stays"


def test_a_second_release_is_one_commit_and_tells_which_task_changed(source: Path, repository: Path) -> None:
    first = course.release(source, repository, now=NOW)
    again = course.release(source, repository, now=NOW)
    assert (again.is_new, again.commit) == (False, first.commit)

    solution = source / "solutions" / "lab7_answers" / "answer.py"
    solution.write_text(ANSWER.replace('"""Another one."""', '"""Another one, in seconds."""'))
    course.release(source, repository, now=NOW + timedelta(days=3))
    log = git(repository, "show", "main:CHANGES.md")
    said = "- `answer.py`: `other`, its description or steps; read them again (task 7.2)"
    assert f"## Release 2, 2026-09-04\n\n### lab7_answers\n\n{said}\n" in log
    assert log.index("Release 2") < log.index("Release 1")
    assert len(git(repository, "rev-list", "main").split()) == 2


def test_a_student_takes_a_release_over_without_losing_work(source: Path, repository: Path, tmp_path: Path) -> None:
    course.release(source, repository, now=NOW)
    git(tmp_path, "clone", "--quiet", str(repository), "ada")
    mine = tmp_path / "ada" / "labs" / "lab7_answers" / "answer.py"
    mine.write_text(mine.read_text().replace("    raise NotImplementedError(", "    return first_number  # ", 1))
    git(tmp_path / "ada", "commit", "-am", "my work")
    solution = source / "solutions" / "lab7_answers" / "answer.py"
    solution.write_text(ANSWER.replace('"""Another one."""', '"""Another one, in seconds."""'))
    course.release(source, repository, now=NOW)
    git(tmp_path / "ada", "pull", "--quiet", "--no-rebase", "--no-edit")
    assert "return first_number" in mine.read_text()
    assert "in seconds" in mine.read_text()


def test_both_branches_are_compared_with_the_course(source: Path, repository: Path) -> None:
    course.release(source, repository, now=NOW)
    assert course.drift(source, repository) == []
    (source / "docs" / "student.md").write_text("# new\n")
    (source / "solutions" / "lab7_answers" / "REPORT.md").write_text("We measured something else altogether, twice.\n")
    assert course.drift(source, repository) == [
        "main: docs/student.md differs",
        "solutions: docs/student.md differs",
        "solutions: labs/lab7_answers/REPORT.md differs",
    ]


def test_a_folder_that_is_no_repository_is_left_alone(source: Path, repository: Path) -> None:
    repository.mkdir()
    (repository / "thesis.tex").write_text("\\begin{document}")
    with pytest.raises(ReleaseError, match="neither empty nor a git repository"):
        course.release(source, repository, now=NOW)


def test_no_line_of_the_real_solutions_is_in_what_students_get() -> None:
    leaked = list(leaks.Secrets(ROOT / "solutions").leaks(contents.for_students(ROOT).items()))
    assert leaked == []


def test_students_get_the_hints_of_labs_and_exercises() -> None:
    names = set(contents.for_students(ROOT))
    for lab in grader.course().all_labs:
        criteria = {f"grader/{lab.id}/{criterion.id.partition('.')[2]}/criterion.toml" for criterion in lab.criteria}
        assert criteria <= names or f"grader/{lab.id}/hints.toml" in names


def test_every_single_solution_would_be_noticed_in_the_labs() -> None:
    solved = contents.filled_in(ROOT)
    stubs = contents.for_students(ROOT)
    changed = {name for name, content in solved.items() if stubs.get(name) != content}
    leaked = {leak.file for leak in leaks.Secrets(ROOT / "solutions").leaks(solved.items())}
    assert changed - leaked <= {"labs/__init__.py"}, "only a sentence of its docstring differs"


# One criterion, with the running interpreter. The whole of it, with an environment of its own, is done by hand: see
# docs/releasing.md.
@pytest.mark.night
def test_the_released_repository_grades_solutions_with_everything(tmp_path: Path) -> None:
    students = tmp_path / "students"
    course.release(ROOT, students, now=NOW)
    shutil.copytree(ROOT / "solutions", students / "labs", dirs_exist_ok=True)
    assert _score(students) == (5, 5)


@pytest.mark.night  # that stubs earn nothing is shown elsewhere, for less
def test_the_released_repository_grades_stubs_with_nothing(tmp_path: Path) -> None:
    students = tmp_path / "students"
    course.release(ROOT, students, now=NOW)
    assert _score(students) == (0, 5)


def _score(students: Path) -> tuple[float, float]:
    command = [sys.executable, "-m", "pytest", "--grade", "--criterion=lab1.analysis", "--device=vgpu"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    subprocess.run(command, cwd=students, env=environment, capture_output=True, timeout=600)
    grade = json.loads((students / "grade-report" / "grade.json").read_text())
    return grade["score"], grade["max_score"]


def test_notebooks_clone_the_address_that_was_named_once(source: Path, repository: Path) -> None:
    address = "https://example.org/course-2026/labs"
    assert course.release(source, repository, now=NOW).address is None
    assert "YOUR-COURSE" in git(repository, "show", "main:notebooks/lab7.ipynb")
    for named in (address, None):
        assert course.release(source, repository, now=NOW, address=named).address == address
        assert f"clone {address}" in git(repository, "show", "main:notebooks/lab7.ipynb")
        assert course.drift(source, repository) == []


@pytest.mark.parametrize(
    "address", ["git@example.org:course", "https://example.org", 'https://example.org/a"; rm -rf /']
)
def test_what_git_cannot_clone_everywhere_is_no_address(source: Path, repository: Path, address: str) -> None:
    with pytest.raises(ReleaseError, match="is no address to clone from"):
        course.release(source, repository, now=NOW, address=address)
    assert not repository.exists()


HELP = """
## Getting help

- Office hours: Tuesdays, 14:00 to 16:00
- Forum: <https://forum.example.org/c/gpu>
- Chat: \\#gpu-labs
- E-mail: <gpu-labs@example.org>
"""
CONTACT = """\
title = "GPU"
[contact]
office_hours = "Tuesdays, 14:00 to 16:00"
forum = "https://forum.example.org/c/gpu"
chat = "#gpu-labs"
email = "gpu-labs@example.org"
"""


def test_hand_outs_and_the_students_pages_say_where_to_get_help(source: Path, repository: Path) -> None:
    (source / "grader" / "course.toml").write_text(CONTACT)
    course.release(source, repository, now=NOW)
    pages = ("labs/lab7_answers/README.md", "README.md", "docs/student.md")
    for branch in ("main", "solutions"):
        for page in pages:
            assert git(repository, "show", f"{branch}:{page}").endswith(HELP)
    assert "Getting help" not in git(repository, "show", "main:docs/chapter.md")
    assert course.drift(source, repository) == []


@pytest.mark.parametrize("text", ['title = "GPU"\n', 'title = "GPU"\n[contact]\nforum = ""\nemail = ""\n'])
def test_a_course_that_names_nobody_hands_out_no_heading(source: Path, repository: Path, text: str) -> None:
    (source / "grader" / "course.toml").write_text(text)
    course.release(source, repository, now=NOW)
    for page in git(repository, "ls-files", "*.md").split():
        assert "Getting help" not in (repository / page).read_text()


def test_a_contact_that_cannot_be_used_stops_the_release(source: Path, repository: Path) -> None:
    (source / "grader" / "course.toml").write_text('[contact]\nemail = "nobody"\n')
    with pytest.raises(ReleaseError, match=r"course\.toml:2: email = 'nobody': expected one e-mail address"):
        course.release(source, repository, now=NOW)
    assert not (repository / "README.md").exists()
