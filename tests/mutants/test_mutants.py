"""Mutants are what somebody could have written: valid, different, changed in one place; excuses are for somebody."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from docs import recorded_tables
from tests.mutants import excuses, report
from tests.mutants.mutators import Mutant, mutants
from tests.mutants.survey import Verdict, of_lab

MACHINE = {"torch": "2.11.0", "python": "3.12.1", "date": "2026-01-02"}
SOURCE = '''\
def task(values, limit=3):
    """Do it."""
    # TODO(task 1.1): all of it
    # --- solution: task 1.1 ---
    found = []
    with quiet():
        found.clear()
        found.append(max(values[1:], default=0))
    for value in values:
        if value < limit and value:
            found.append(value.detach())
    try:
        return mean(found) * 2**20
    except ValueError:
        return None
    # --- end ---


def given(values):
    return len(values) + 1
'''
CHANGES = {
    "statement left out: found.clear() -> pass",
    "order of two steps: found.clear() found.append(max(values[1:], default=0)) -> "
    "found.append(max(values[1:], default=0)) found.clear()",
    "without its context: with quiet() -> if True",
    "moved out of its context: found.append(max(values[1:], default=0)) -> found.append(max(values[1:], default=0))",
    "argument not given: , default=0 -> ",
    "all of it: values[1:] -> values",
    "one for another: max -> min",
    "off by one: 1 -> 2",
    "comparison: < -> <=",
    "and, or: and -> or",
    "without detach(): value.detach() -> value",
    "one for another: mean -> sum",
    "unit: 2**20 -> 10**6",
    "catches too much: ValueError -> Exception",
    "one too few: values -> list(values)[1:]",
    "argument ignored:  -> limit = 3",
}


@pytest.fixture
def made(tmp_path: Path) -> list[Mutant]:
    file = tmp_path / "file.py"
    file.write_text(SOURCE)
    return mutants(file, "lab1_x/file.py")


def test_every_kind_of_slip_is_made(made: list[Mutant]) -> None:
    assert {mutant.key for mutant in made} >= CHANGES


def test_each_is_valid_and_changed_in_one_place_of_what_students_write(made: list[Mutant]) -> None:
    for mutant in made:
        ast.parse(mutant.text)
        before, after = SOURCE.splitlines(), mutant.text.splitlines()
        assert before != after
        assert after[:4] == before[:4]
        assert after[-6:] == before[-6:], "what is given is changed"
    assert len({ast.dump(ast.parse(mutant.text)) for mutant in made}) == len(made)


def test_every_lab_has_mutants_in_every_file_that_students_write() -> None:
    files = {mutant.file for mutant in of_lab("lab2")}
    assert files == {
        f"lab2_mixed_precision/{name}.py"
        for name in ("amp_training", "numerics", "precision_comparison", "stability_tests")
    }


@pytest.mark.night
def test_every_excuse_is_for_somebody() -> None:
    everybody = [mutant for number in range(1, 6) for mutant in of_lab(f"lab{number}")]
    for excuse in excuses.load():
        assert any(excuse.holds_for(mutant) for mutant in everybody), excuse


def test_an_excuse_without_a_reason_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "excused.toml"
    file.write_text('[[excuse]]\nfile = "x"\n')
    with pytest.raises(ValueError, match="an excuse has a reason"):
        excuses.load(file)


def test_the_page_counts_who_was_noticed_who_is_excused_and_who_is_open(made: list[Mutant], tmp_path: Path) -> None:
    file = tmp_path / "excused.toml"
    file.write_text('[[excuse]]\nkind = "comparison"\nreason = "nothing is promised"\n')
    known = excuses.load(file)
    chosen = [next(mutant for mutant in made if mutant.kind == kind) for kind in ("comparison", "and, or", "unit")]
    outcomes = [
        report.outcome_of(Verdict(mutant, "lab1.x.y" if mutant.kind == "unit" else ""), known) for mutant in chosen
    ]
    report.save(tmp_path / "lab1.json", outcomes)
    recorded = {
        "machine": MACHINE,
        **report.summary({"lab1": report.load(tmp_path / "lab1.json")}, {"lab1": len(made)}),
    }
    page = recorded_tables.mutants(recorded)
    assert f"| lab1 | {len(made)} | 3 | 1 | 1 | 1 | 50 % |" in page
    assert "- `lab1_x/file.py:10, task: and, or: and -> or`" in page
    assert f"This is a sample: 3 of {len(made)} mutants were graded" in page
    whole = {"machine": MACHINE, **report.summary({"lab1": outcomes}, {"lab1": 3})}
    assert "a sample" not in recorded_tables.mutants(whole)
