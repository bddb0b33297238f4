"""Every fault is found, and named rightly; none passes; and the page that says so is of these faults."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from tests.by_day import one_in
from tests.cluster.faults import running, table
from tests.cluster.faults.measured import FAULTS, Fault, judged, machine
from tests.cluster.sound import failures, outcomes, report
from tests.cluster.test_report import SCHEMA

VALID = jsonschema.Draft202012Validator(SCHEMA)
RECORDED = Path(__file__).parents[2] / "benchmarks" / "results" / "acceptance_faults.json"


@pytest.mark.parametrize("fault", one_in(2, FAULTS), ids=lambda fault: fault.what)
def test_a_fault_is_found_and_named_rightly(fault: Fault) -> None:
    document = judged(fault)
    assert not list(VALID.iter_errors(document))
    assert document["acceptance"]["status"] == fault.verdict
    assert document["acceptance"]["exit_code"] == {"FAIL": 1, "INCOMPLETE": 3}[fault.verdict]
    checks = outcomes(document, "fail" if fault.verdict == "FAIL" else "unverified")
    assert [subject for name, subject in checks if name == fault.check] == list(fault.named)
    assert {name for name, _ in failures(document)} <= {fault.check, *fault.also}, "nothing else is blamed"


@pytest.mark.parametrize("nodes", [0, 4])
def test_without_a_fault_the_same_machine_passes(nodes: int) -> None:
    fault = next(fault for fault in FAULTS if fault.nodes == nodes)
    document = report(machine(fault))
    assert document["acceptance"]["status"] == "PASS"
    assert outcomes(document, "unverified") == []


def test_there_are_enough_of_them_and_each_is_another_one() -> None:
    assert len({fault.what for fault in FAULTS}) == len(FAULTS) >= 60
    assert sum(fault.later for fault in FAULTS) >= 10


@pytest.mark.night
@pytest.mark.parametrize("case", running.CASES, ids=lambda case: case.what)
def test_a_fault_of_a_run_is_found_and_leaves_nothing_behind(case: running.Case, tmp_path: Path) -> None:
    result = running.run(case, tmp_path)
    assert (result.verdict, result.exit_code) == (case.verdict, case.exit_code), result.output
    assert result.named(case), result.output
    assert result.left == 0


def test_the_recorded_results_have_these_faults() -> None:
    recorded = json.loads(RECORDED.read_text())
    rows = [(row["what"], row["verdict"]) for row in (*recorded["records"], *recorded["runs"])]
    listed = [(fault.what, fault.verdict) for fault in FAULTS] + [(case.what, case.verdict) for case in running.CASES]
    assert rows == listed, table.COMMAND
    assert not recorded["wrong"]
