"""Answers are reused only where the student's code that gave them is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradebox.sandbox import Request
from tests.scenarios import reuse
from tests.scenarios.build import SCENARIOS, load

AMP, COMPARISON = "lab2_mixed_precision.amp_training", "lab2_mixed_precision.precision_comparison"
TRAINING, CHECKPOINTS = "lab3_distributed.ddp_training", "lab3_distributed.checkpoints"


def _changed(tmp_path: Path, scenario: str) -> set[reuse.Symbol] | None:
    return reuse.changed_symbols(load(SCENARIOS / scenario).build(tmp_path / "student"))


@pytest.mark.parametrize(
    ("request_", "needed", "not_needed"),
    [
        (Request("lab2.training.train"), {(AMP, "train_with_amp")}, {(AMP, "plot_losses"), (COMPARISON, "conclude")}),
        (Request("lab2.comparison.conclude"), {(COMPARISON, "conclude")}, {(AMP, "train_with_amp")}),
        (Request("lab2.comparison.accuracies"), {(AMP, "train_with_amp"), (AMP, "evaluate")}, set()),
        (Request("lab3.checkpoints.save"), {(CHECKPOINTS, "save_checkpoint")}, set()),
        (
            Request("lab3.training.evaluate"),
            {(TRAINING, "evaluate")},
            {("lab3_distributed.scaling_analysis", "speedup")},
        ),
        (Request("lab3.launch.program", {"module": TRAINING}), {(TRAINING, "main"), (TRAINING, "train")}, set()),
    ],
    ids=lambda value: value.probe if isinstance(value, Request) else "",
)
def test_what_a_probe_uses_is_found(
    request_: Request, needed: set[reuse.Symbol], not_needed: set[reuse.Symbol]
) -> None:
    symbols = reuse.symbols_of(request_)
    assert needed <= symbols
    assert symbols.isdisjoint(not_needed)


def test_what_no_source_tells_is_not_known() -> None:
    assert reuse.symbols_of(Request("lab2.comparison.compare_truth")) == set()


def test_what_differs_from_the_reference_is_found(tmp_path: Path) -> None:
    assert _changed(tmp_path / "same", "exploits/honest_right") == set()
    assert _changed(tmp_path / "bug", "lab2/bugs/speedup_upside_down") == {(COMPARISON, "conclude")}
    folder = load(SCENARIOS / "exploits" / "honest_right").build(tmp_path / "program")
    file = folder / "lab2_mixed_precision" / "amp_training.py"
    file.write_text(file.read_text().replace('if __name__ == "__main__":', 'if __name__ == "__main__" and 0:'))
    assert reuse.changed_symbols(folder) not in (set(), None)
    assert _changed(tmp_path / "other", "exploits/hostile_files_around_the_labs") is None


def test_a_changed_import_changes_all_of_its_module(tmp_path: Path) -> None:
    folder = load(SCENARIOS / "exploits" / "honest_right").build(tmp_path / "student")
    file = folder / "lab2_mixed_precision" / "precision_comparison.py"
    file.write_text("from .numerics import stable_softmax as compare_precisions\n" + file.read_text())
    changed = reuse.changed_symbols(folder)
    assert changed is not None
    assert {(COMPARISON, "conclude"), (COMPARISON, "compare_precisions")} <= changed
