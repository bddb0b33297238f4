"""The branch `solutions` of the course's own checkout: real, solved, and no trap."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradebox.authoring.release import ReleaseError
from grader.doctor import software
from grader.release import branch

ROOT = Path(__file__).parents[2]
SOLVED = '''"""Lab 7."""


def answer() -> int:
    """The answer."""
    # TODO(task 7.1): compute it.
    # --- solution: task 7.1 ---
    return 42
    # --- end ---
'''
STUB = '"""Lab 7."""\n\n\ndef answer() -> int:\n    """The answer."""\n    raise NotImplementedError("Task 7.1")\n'
WHO = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_COMMITTER_NAME": "a",
       "GIT_COMMITTER_EMAIL": "a@example.org"}  # fmt: skip


def git(folder: Path, *arguments: str, accepted: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], env={**os.environ, **WHO}, capture_output=True, text=True, check=False
    )
    assert done.returncode in accepted, done.stderr
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small course with one lab, committed."""
    folder = tmp_path / "course"
    for name, text in {
        "solutions/lab7_answer/answer.py": SOLVED,
        "solutions/lab7_answer/REPORT.md": "what was found\n",
        "labs/lab7_answer/answer.py": STUB,
        "labs/lab7_answer/README.md": "the task\n",
        "install.sh": "echo\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "install.sh").chmod(0o755)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "A course")
    return folder


def test_the_branch_has_the_solutions_in_labs_and_all_else_as_it_was(checkout: Path) -> None:
    made = branch.make(checkout)
    assert made.is_new
    assert git(checkout, "branch", "--show-current") == "main"
    assert (checkout / "labs/lab7_answer/answer.py").read_text() == STUB
    git(checkout, "switch", "-q", "solutions")
    assert "return 42" in (checkout / "labs/lab7_answer/answer.py").read_text()
    assert (checkout / "labs/lab7_answer/README.md").read_text() == "the task\n"
    assert os.access(checkout / "install.sh", os.X_OK)
    assert git(checkout, "status", "--porcelain") == ""


def test_what_was_edited_survives_a_checkout_of_that_name(checkout: Path) -> None:
    edited = checkout / "solutions/lab7_answer/REPORT.md"
    edited.write_text("edited\n")
    git(checkout, "checkout", "solutions")
    assert edited.read_text() == "what was found\n"  # the trap: no error, and the edit is gone
    branch.make(checkout)
    edited.write_text("edited\n")
    git(checkout, "checkout", "-q", "solutions")
    assert edited.read_text() == "edited\n"
    assert git(checkout, "branch", "--show-current") == "solutions"


def test_it_follows_the_solutions_and_keeps_its_history(checkout: Path) -> None:
    first = branch.make(checkout)
    assert branch.make(checkout) == branch.Made(first.commit, is_new=False)
    report = checkout / "solutions/lab7_answer/REPORT.md"
    report.write_text("found again\n")
    git(checkout, "commit", "-q", "-am", "Another report")
    second = branch.make(checkout)
    assert second.is_new
    assert git(checkout, "show", "solutions:labs/lab7_answer/REPORT.md") == "found again"
    assert first.commit in git(checkout, "rev-list", "refs/heads/solutions")


def test_work_that_is_not_committed_stops_it(checkout: Path) -> None:
    (checkout / "solutions/lab7_answer/answer.py").write_text(SOLVED + "\n")
    with pytest.raises(ReleaseError, match=r"not committed: solutions/lab7_answer/answer\.py; commit it first"):
        branch.make(checkout)
    assert git(checkout, "branch", "--list", "solutions") == ""


def test_a_branch_of_somebody_elses_is_left_alone(checkout: Path) -> None:
    git(checkout, "branch", "solutions")
    with pytest.raises(ReleaseError, match="has not made; name another one"):
        branch.make(checkout)
    assert branch.make(checkout, "solved").is_new


def test_the_current_branch_is_left_alone(checkout: Path) -> None:
    branch.make(checkout)
    git(checkout, "switch", "-q", "solutions")
    with pytest.raises(ReleaseError, match="go back first: git switch main"):
        branch.make(checkout)


def test_a_folder_without_git_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="is no git checkout"):
        branch.make(tmp_path)


def test_the_doctor_warns_until_the_branch_is_there(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "ROOT", checkout)
    (fact,) = software._solutions_branch()
    assert (fact.state, fact.fix) == ("note", ("gpulabs release --branch solutions",))
    assert "discards what you edited" in fact.text
    branch.make(checkout)
    assert software._solutions_branch() == []


@pytest.mark.night
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git checkout")
def test_a_clone_that_switches_there_grades_a_hundred(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(ROOT), str(clone))
    command = [sys.executable, "-c", "from grader.cli import app; app()"]
    environment = {**os.environ, "PYTHONPATH": str(clone)}
    made = subprocess.run(
        [*command, "release", "--branch", "solutions"],
        cwd=clone, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert "go there with: git switch solutions" in made.stdout
    git(clone, "switch", "-q", "solutions")
    graded = subprocess.run(
        [*command, "grade", "labs", "--device", "vgpu"],
        cwd=clone, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert graded.returncode == 0, graded.stdout[-3000:] + graded.stderr
    assert "100/100" in graded.stdout.replace(" ", "") or "100 of 100" in graded.stdout, graded.stdout[-3000:]
