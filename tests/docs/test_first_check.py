"""The page of a first check: what a reader types is what the course has."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradebox.common.configuration import ROOT

PAGE = ROOT / "docs" / "contributor" / "first-check.md"
PATCH = PAGE.with_suffix(".patch")
MADE = "tests/scenarios/lab4/bugs/full_budget_refused/scenario.toml"
FILES = ("grader/lab4/checkpointing/criterion.toml", "grader/lab4/checkpointing/checks/criterion.py", MADE)
WRITE = f"write {PATCH.relative_to(ROOT)} again: the diff by which the check of the page is added"


@pytest.mark.skipif(shutil.which("git") is None, reason="Git is not installed")
def test_the_check_can_be_taken_out() -> None:
    command = ["git", "apply", "-R", "--check", str(PATCH)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{WRITE}"


def test_it_changes_the_files_that_the_page_names() -> None:
    assert sorted(re.findall(r"^\+\+\+ b/(.*)$", PATCH.read_text(), re.MULTILINE)) == sorted(FILES), WRITE


@pytest.mark.parametrize(("language", "file"), list(zip(("toml", "python", "toml"), FILES, strict=True)))
def test_what_is_typed_is_there(language: str, file: str) -> None:
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    text = (ROOT / file).read_text()
    assert [block for block in blocks if block in text], file


@pytest.mark.night
@pytest.mark.skipif(shutil.which("git") is None, reason="Git is not installed")
def test_the_page_shows_what_make_generated_prints(tmp_path: Path) -> None:
    """Both times: after the check is taken out, and after it is typed again."""
    pytest.importorskip("grimp", reason="import-linter, of the extra dev, is not installed")
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    before = {name: (ROOT / name).read_bytes() for name in names if (ROOT / name).is_file()}
    for name, content in before.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)

    def printed(*apply: str) -> str:
        subprocess.run(["git", "apply", *apply, str(PATCH)], cwd=tmp_path, check=True)
        command = [sys.executable, "-m", "grader.generated"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    shown = re.findall(r"^\$ [^\n]*make generated\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert [printed("-R"), printed()] == shown
    assert {name: (tmp_path / name).read_bytes() for name in before} == before, "Git shows nothing, says the page"
