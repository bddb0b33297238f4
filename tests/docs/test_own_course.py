"""Who follows docs/write-your-own-course.md has a course that grades: its files are taken from the page as they are."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from gradebox.authoring.lint import problems
from gradebox.course import course as courses
from gradebox.course import hints
from gradebox.run import grading
from gradebox.run.grade import Grade
from gradebox.run.options import Options
from gradebox.run.request_builder import build_request
from gradebox.sandbox import Sandbox

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "write-your-own-course.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`([\w./]+)`:\n\n```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
COURSE = "temperatures"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The folder after every step of the page."""
    for name in re.findall(r"\S+/__init__\.py", PAGE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def _graded(folder: Path, names: list[str], monkeypatch: pytest.MonkeyPatch) -> list[Grade]:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    environment = courses.load(folder / COURSE).environment
    with Sandbox(folder / names[0], environment) as sandbox:
        options = [Options(course=COURSE, submission=name, origin=str(folder)) for name in names]
        return [grading.run(build_request(each), sandbox=sandbox) for each in options]


def _unmet(grade: Grade) -> dict[str, str]:
    rows = [check for lab in grade.labs for criterion in lab.criteria for check in criterion.checks]
    return {check.id: check.message for check in rows if check.outcome.value != "passed"}


def test_the_page_names_its_files() -> None:
    assert sorted(FILES) == [
        "labs/lab1_temperatures/conversion.py",
        "solution/lab1_temperatures/conversion.py",
        "temperatures/course.toml",
        "temperatures/lab1/conversion/checks.py",
        "temperatures/lab1/conversion/criterion.toml",
        "temperatures/lab1/conversion/probes.py",
        "temperatures/lab1/lab.toml",
        "temperatures/lab1/records/checks.py",
        "temperatures/lab1/records/criterion.toml",
        "temperatures/lab1/records/probes.py",
    ]


def test_solution_stubs_and_a_mistake_get_what_the_page_says(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FILES["solution/lab1_temperatures/conversion.py"]
    search = "best, name = 0, None\n    for day, degrees in days.items():\n        if degrees > best:\n"
    search += "            best, name = degrees, day\n    return name"
    mistaken = written / "mistaken" / "lab1_temperatures" / "conversion.py"
    mistaken.parent.mkdir(parents=True)
    assert source.count("return max(days, key=days.get)") == 1
    mistaken.write_text(source.replace("return max(days, key=days.get)", search))
    right, open_, wrong = _graded(written, ["solution", "labs", "mistaken"], monkeypatch)
    assert (right.score, right.max_score, _unmet(right)) == (4, 4, {})
    assert (open_.score, len(_unmet(open_))) == (0, 3)
    assert (wrong.score, list(_unmet(wrong))) == (2, ["lab1.records.hottest"])
    assert re.sub(r"'\w+'", "'Wed'", _unmet(wrong)["lab1.records.hottest"]) in PAGE


def test_proofreading_finds_what_the_page_says(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(written))
    for name in [name for name in sys.modules if name.partition(".")[0] == COURSE]:
        monkeypatch.delitem(sys.modules, name)
    course = courses.load(written / COURSE)
    assert list(problems(course, written / "solution")) == []
    of_values, of_empty, of_hottest = re.findall(r"```toml\n(task = .*?)```", PAGE, re.DOTALL)
    file = written / COURSE / "lab1" / "conversion" / "criterion.toml"
    file.write_text(file.read_text().replace("\n\n[checks.empty]", f"\n{of_values}\n[checks.empty]"))
    hints.load.cache_clear()
    lacking = [line.rpartition("] ")[2] for line in problems(course, written / "solution")]
    assert lacking == ["lab1.conversion.empty has no hint", "lab1.records.hottest has no hint"]
    file.write_text(file.read_text() + of_empty)
    records = written / COURSE / "lab1" / "records" / "criterion.toml"
    records.write_text(records.read_text() + of_hottest)
    hints.load.cache_clear()
    assert list(problems(course, written / "solution")) == []
    assert hints.load(course)["lab1.conversion.values"].task == "1.1"


def test_the_page_is_linked() -> None:
    assert "docs/write-your-own-course.md" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "(write-your-own-course.md)" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
