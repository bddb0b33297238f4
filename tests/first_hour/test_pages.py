"""What the page for students shows of programs is what they print."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import grader
from grader import doctor
from grader.cli import app
from grader.doctor import fact
from tests.first_hour.conftest import ROOT

PAGE = (ROOT / "docs" / "student.md").read_text(encoding="utf-8")
BLOCKS = [text for kind, text in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) if not kind]


def test_the_page_shows_what_next_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shown,) = [block for block in BLOCKS if block.startswith("Next: ")]
    shutil.copytree(ROOT / "labs", tmp_path / "labs", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["next", "labs", "--lab", "1"])
    printed = re.sub(r"\S*/gpulabs ", "gpulabs ", result.output).replace(f"{ROOT}/", "")
    assert result.exit_code == 0
    assert printed.startswith(shown)


def test_the_page_shows_titles_of_checks_that_exist() -> None:
    (shown,) = [block for block in BLOCKS if block.startswith("watching ")]
    rubric = grader.course().rubric
    titles = {check.id: check.title for lab in rubric.labs for criterion in lab.criteria for check in criterion.checks}
    rows = re.findall(r"^  ✓ (.+)  (lab\S+)$", shown, re.MULTILINE)
    assert rows
    assert [(titles[check], check) for _, check in rows] == rows


@pytest.mark.parametrize("state", [fact.OK, fact.TO_DO])
def test_the_page_shows_how_doctor_ends(state: str) -> None:
    libraries = fact.Fact("libraries", state, "", ("make grade LAB=1",))
    last = doctor.summary([libraries]).splitlines()[-1].partition(". Begin")[0]
    assert f"`{last}`" in PAGE
