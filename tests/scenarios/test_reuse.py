"""Answers are reused only where the student's code that gave them is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradebox.sandbox import Request
from tests.scenarios.build import SCENARIOS, load
from tests.scenarios.reuse import REFERENCE, Code, Symbol, code_of

AMP, COMPARISON = "lab2_mixed_precision.amp_training", "lab2_mixed_precision.precision_comparison"
TRAINING, CHECKPOINTS = "lab3_distributed.ddp_training", "lab3_distributed.checkpoints"
TRAIN, CONCLUDE = Request("lab2.scaling.train"), Request("lab2.comparison.measuring.conclude")
REFERENCES = code_of(REFERENCE)


def _reference(folder: Path) -> Path:
    return load(SCENARIOS / "exploits" / "honest_right").build(folder)


def _edited(folder: Path, file: str, old: str, new: str) -> Code:
    place = _reference(folder) / file
    text = place.read_text()
    assert old in text
    place.write_text(text.replace(old, new))
    return code_of(folder)


@pytest.mark.parametrize(
    ("request_", "needed", "not_needed"),
    [
        (TRAIN, {(AMP, "train_with_amp")}, {(AMP, "plot_losses"), (COMPARISON, "conclude")}),
        (CONCLUDE, {(COMPARISON, "conclude")}, {(AMP, "train_with_amp")}),
        (Request("lab2.comparison.accuracies.accuracies"), {(AMP, "train_with_amp"), (AMP, "evaluate")}, set()),
        (Request("lab3.checkpointing.save"), {(CHECKPOINTS, "save_checkpoint")}, set()),
        (
            Request("lab3.setup.evaluation.evaluate"),
            {(TRAINING, "evaluate")},
            {("lab3_distributed.scaling_analysis", "speedup")},
        ),
        (Request("lab3.shared.launch.program", {"module": TRAINING}), {(TRAINING, "main"), (TRAINING, "train")}, set()),
    ],
    ids=lambda value: value.probe if isinstance(value, Request) else "",
)
def test_what_a_probe_uses_is_found(request_: Request, needed: set[Symbol], not_needed: set[Symbol]) -> None:
    symbols = REFERENCES.symbols(request_)
    assert needed <= symbols
    assert symbols.isdisjoint(not_needed)


def test_what_no_source_tells_is_not_known() -> None:
    assert REFERENCES.digest(Request("lab2.comparison.measuring.compare_reference")) is None


def test_a_bug_changes_what_reaches_it_and_nothing_else(tmp_path: Path) -> None:
    same = code_of(_reference(tmp_path / "same"))
    bug = code_of(load(SCENARIOS / "lab2/bugs/speedup_upside_down").build(tmp_path / "bug"))
    assert same.digest(TRAIN) == REFERENCES.digest(TRAIN) == bug.digest(TRAIN)
    assert same.digest(CONCLUDE) == REFERENCES.digest(CONCLUDE) != bug.digest(CONCLUDE)
    assert bug.digest(CONCLUDE) is not None


def test_a_run_without_the_submission_is_the_same_for_everybody(tmp_path: Path) -> None:
    reference = Request("lab2.scaling.train", student=False)
    folder = load(SCENARIOS / "exploits/hostile_files_around_the_labs").build(tmp_path / "other")
    assert code_of(folder).digest(reference) == REFERENCES.digest(reference)


def test_files_that_no_lab_has_leave_a_doubt(tmp_path: Path) -> None:
    folder = load(SCENARIOS / "exploits/hostile_files_around_the_labs").build(tmp_path / "other")
    assert code_of(folder).digest(TRAIN) is None
    (_reference(tmp_path / "more") / "lab2_mixed_precision" / "notes.txt").write_text("")
    assert code_of(tmp_path / "more").digest(TRAIN) is None


def test_what_cannot_be_read_leaves_a_doubt(tmp_path: Path) -> None:
    code = _edited(tmp_path / "s", "lab2_mixed_precision/precision_comparison.py", "def conclude(", "def conclude((")
    assert code.digest(TRAIN) is None


@pytest.mark.parametrize("word", ["globals()", "sys.modules", "conclude.__code__", "gc.get_objects()"])
def test_code_that_may_reach_what_it_does_not_name_leaves_a_doubt(word: str, tmp_path: Path) -> None:
    added = f"def _other() -> object:\n    return {word}\n\n\ndef conclude("
    code = _edited(tmp_path / "s", "lab2_mixed_precision/precision_comparison.py", "def conclude(", added)
    assert code.digest(TRAIN) is None


@pytest.mark.parametrize(
    ("added", "same"),
    [
        ("# a comment\n", True),
        ("LIMIT = 3\n", True),
        ("def _other():\n    return 1\n", True),
        ("print('hello')\n", False),
        ("LIMIT = open('file')\n", False),
        ("@print\ndef _other():\n    return 1\n", False),
        ("class Other(dict):\n    value = print()\n", False),
    ],
)
def test_what_a_module_does_when_it_is_imported_counts(added: str, same: bool, tmp_path: Path) -> None:
    name = "lab2_mixed_precision/amp_training.py"
    before = (REFERENCE / name).read_text()
    code = _edited(tmp_path / "s", name, before, before + "\n\n" + added)
    assert (code.digest(TRAIN) == REFERENCES.digest(TRAIN)) is same
    # `precision_comparison` imports it, and so runs what it does then.
    assert (code.digest(CONCLUDE) == REFERENCES.digest(CONCLUDE)) is same


def test_a_program_depends_on_what_runs_only_as_a_program(tmp_path: Path) -> None:
    program = Request("lab2.comparison.measuring.conclude", {"module": AMP})
    old = 'if __name__ == "__main__":'
    code = _edited(tmp_path / "s", "lab2_mixed_precision/amp_training.py", old, f"{old}\n    print()")
    assert code.digest(program) not in (None, REFERENCES.digest(program))
    assert code.digest(TRAIN) == REFERENCES.digest(TRAIN)


def test_a_changed_import_changes_what_uses_its_name(tmp_path: Path) -> None:
    file = "lab2_mixed_precision/precision_comparison.py"
    code = _edited(tmp_path / "s", file, "def conclude(", "from .numerics import stable_softmax\n\n\ndef conclude(")
    assert code.digest(CONCLUDE) != REFERENCES.digest(CONCLUDE)
