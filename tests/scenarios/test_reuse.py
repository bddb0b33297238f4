"""Answers are reused only where the student's code that gave them is the same."""

from __future__ import annotations

from pathlib import Path

from grader.sandbox import Request
from tests.scenarios import reuse
from tests.scenarios.build import SCENARIOS, load


def _changed(tmp_path: Path, scenario: str) -> set[str] | None:
    return reuse.changed_modules(load(SCENARIOS / scenario).build(tmp_path / "student"))


def test_the_modules_of_a_probe_are_found_through_constants_helpers_and_inputs() -> None:
    assert reuse.modules_of(Request("lab2.train")) == {"lab2_mixed_precision.amp_training"}
    assert reuse.modules_of(Request("lab2_comparison.compare")) == {"lab2_mixed_precision.precision_comparison"}
    assert reuse.modules_of(Request("lab3_launch.program", {"module": "lab3_distributed.scaling_analysis"})) == {
        "lab3_distributed.scaling_analysis"
    }
    assert reuse.modules_of(Request("lab2_comparison.compare_truth")) == set()


def test_a_module_is_touched_when_one_that_it_imports_is() -> None:
    changed = {"lab2_mixed_precision.amp_training"}
    assert not reuse.is_untouched("lab2_mixed_precision.amp_training", changed)
    assert not reuse.is_untouched("lab2_mixed_precision.precision_comparison", changed)
    assert reuse.is_untouched("lab2_mixed_precision.numerics", changed)
    assert not reuse.is_untouched("lab3_distributed.ddp_training", {"lab3_distributed.checkpoints"})


def test_what_differs_from_the_reference_is_found(tmp_path: Path) -> None:
    assert _changed(tmp_path / "same", "exploits/honest_right") == set()
    assert _changed(tmp_path / "bug", "lab2/bugs/speedup_upside_down") == {"lab2_mixed_precision.precision_comparison"}
    assert _changed(tmp_path / "other", "exploits/hostile_files_around_the_labs") is None
