"""Files that follow from others are as they follow from them; one command writes them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.measure import RESULTS
from benchmarks.measured import kernel_pages
from benchmarks.published import figures, report
from docs import recorded_tables

pytest.importorskip("grimp", reason="import-linter, of the extra dev, is not installed")
from gradebox.course.course import Course
from grader import generated
from tests.requirements import entries

CHECKS = Course.checks


@pytest.mark.parametrize("part", generated.PARTS, ids=lambda part: part.name)
def test_nothing_is_stale(part: generated.Part) -> None:
    assert part.stale() == [], f"run {generated.COMMAND}"


def test_the_tables_of_kernels_are_those_of_the_recorded_results() -> None:
    result = json.loads((RESULTS / "h100_kernels.json").read_text(encoding="utf-8"))
    for page, name, lines in kernel_pages.parts(result):
        stale = kernel_pages.replaced(page, name, lines) != page.read_text(encoding="utf-8")
        assert not stale, f"{page.name}, {name}: run python -m benchmarks.measured.cross_validation"


def test_the_table_of_published_figures_is_that_of_the_recorded_results() -> None:
    recorded = json.loads((RESULTS / "published.json").read_text(encoding="utf-8"))
    simulated = {name: figure["simulated"] for name, figure in recorded["figures"].items()}
    comparisons = [figures.Comparison(figure, simulated[figure.id]) for figure in figures.load()]
    table = report.page_of("groups").read_text(encoding="utf-8").partition("<!-- published: groups -->")[2]
    assert table.partition("<!-- end of published -->")[0].strip().splitlines() == report.group_table(comparisons)


def test_each_planted_fault_is_below_one_subheading() -> None:
    faults, drawn = (
        json.loads((RESULTS / name).read_text(encoding="utf-8"))
        for name in ("acceptance_faults.json", "acceptance_drawn.json")
    )
    page = recorded_tables.acceptance_faults(faults, drawn)
    parts = page.partition("## Faults planted in records")[2].partition("\n## ")[0].split("\n### ")[1:]
    tables = {part.partition("\n")[0]: [line for line in part.splitlines() if line.startswith("| ")] for part in parts}
    rows = {title: table[1:] for title, table in tables.items()}
    assert sorted(row.split(" | ")[0][2:] for own in rows.values() for row in own) == sorted(
        fault["what"] for fault in faults["records"]
    )
    assert all(row.split(" | ")[1].startswith("network:") for row in rows["Network ports"])
    strange = {**faults, "records": [{**faults["records"][0], "check": "nobody: knows it"}]}
    with pytest.raises(KeyError, match="nobody"):
        recorded_tables.acceptance_faults(strange, drawn)


def test_half_of_a_figure_is_as_wrong_as_twice_the_figure() -> None:
    figure = next(figure for figure in figures.load() if figure.unit == "TFLOP/s")
    half, twice = (figures.Comparison(figure, factor * figure.value) for factor in (0.5, 2.0))
    assert report.error([half]) == pytest.approx(report.error([twice])) == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["groups", "figures", "held out", "older cards", "lab comparisons", "pairs"])
def test_one_page_has_the_marks_of_each_published_table(name: str) -> None:
    page = report.page_of(name).read_text(encoding="utf-8")
    assert page.partition(f"<!-- published: {name} -->")[2].partition("<!-- end of published -->")[1]


def test_nothing_is_written_while_checks_and_their_tables_disagree(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(generated.problems()) == []
    course = generated.grader.course()
    checks = dict(course.checks(course.all_labs[0]))
    gone = checks.pop("lab1.memory.memory_timeline_saved")
    new = replace(gone, id="lab1.memory.nobody_knows_it")
    changed = {**checks, new.id: new}
    first = course.all_labs[0]
    monkeypatch.setattr(Course, "checks", lambda self, lab: changed if lab is first else CHECKS(self, lab))
    monkeypatch.setattr("sys.argv", ["generated"])
    assert generated.main() == 1
    assert capsys.readouterr().err.splitlines() == [
        "grader/lab1/memory/criterion.toml has [checks.memory_timeline_saved], but there is no "
        "test_memory_timeline_saved",
        "grader/lab1/memory/criterion.toml has no [checks.nobody_knows_it]",
        "nothing is written: fix this first",
    ]


def test_a_requirement_is_named_by_a_beginning_that_one_sentence_has(monkeypatch: pytest.MonkeyPatch) -> None:
    named = {"lab1.a.none": ("No sentence of all begins so",), "lab1.a.several": ("T",)}
    monkeypatch.setattr(entries, "_named_by_checks", lambda lab: named)
    none, several = entries.ambiguous("lab1")
    assert none.startswith("lab1.a.none: no sentence begins with 'No sentence of all begins so'; ")
    assert several.startswith("lab1.a.several: ")
    assert " sentences begin with 'T'; " in several


def test_what_is_stale_is_named_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated, "ROOT", tmp_path)
    (tmp_path / "right.txt").write_text("a")
    (tmp_path / "old.txt").write_text("b")
    texts = {tmp_path / "right.txt": "a", tmp_path / "old.txt": "c", tmp_path / "missing.txt": "d"}
    part = generated._texts("texts", lambda: texts)
    assert part.stale() == ["old.txt", "missing.txt"]
    part.write()
    assert part.stale() == []
    assert {path: path.read_text() for path in tmp_path.iterdir()} == texts
