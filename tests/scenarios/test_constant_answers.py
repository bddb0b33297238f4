"""No check is passed by answers for another seed, except where a reason is named; none by refusals."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.scenarios.build import ROOT, SCENARIOS, load
from tests.scenarios.constant_answers import Recording, Replaying, grade
from tests.scenarios.grading import Bench, rebuild

OTHERS = (2, 3, 4)
"""Seeds. An answer that is right by chance now and then is not right three times."""

_FILES = (
    "a program's files: that it runs, and what it writes; a picture or a row that was made up is a lie, see reports"
)
_REPORT = "REPORT.md and results/ are read by the judge, and no seed changes them"
_OBSERVED = "seen by the probe, not told by the submission: whoever does not do it has nothing to show"
_REFUSED = "a refusal is the same right answer for every seed; neighbours that make sense are called next to it"
_OUTSIDE = "read from the device's record or the system's, which no submission can write; here it is replayed"
_ACCURACY = "the accuracy of a model that was trained, measured by the probe: about the same for every seed"
_FACTS = "facts of the machine or of a format: the same for everybody"

EXCUSED: dict[str, str] = {
    "lab1.benchmark.nonsense_refused": _REFUSED,
    "lab1.memory.every_stage_present": _OUTSIDE,
    "lab1.analysis.report_agrees_with_results": _REPORT,
    "lab2.amp.loss_in_float32": _OUTSIDE,
    "lab2.amp.parameters_and_state_stay_float32": _OBSERVED,
    "lab2.scaling.float16_as_accurate_as_float32": _ACCURACY,
    "lab2.stability.formats_described": _FACTS,
    "lab2.stability.wrong_arguments_refused": _REFUSED,
    "lab2.comparison.wrong_arguments_refused": _REFUSED,
    "lab2.comparison.report_agrees_with_results": _REPORT,
    "lab3.setup.reshuffled_each_epoch": _OBSERVED,
    "lab3.setup.debugged_script_ends": "that the ranks meet and end is all it asks for",
    "lab3.scaling.report_agrees_with_results": _REPORT,
    "lab3.checkpointing.rank_zero_alone_writes": _OUTSIDE,
    "lab3.checkpointing.every_rank_waits_for_the_file": _OUTSIDE,
    "lab3.checkpointing.saved_atomically": _OUTSIDE,
    "lab4.checkpointing.nonsense_refused": _REFUSED,
    "lab4.checkpointing.saved_bytes_follow_the_interval": _OUTSIDE,
    "lab4.checkpointing.no_recompute_in_evaluation": _OUTSIDE,
    "lab4.attention.nonsense_refused": _REFUSED,
    "lab4.attention.no_square_tensor_made": _OUTSIDE,
    "lab4.oom.nonsense_refused": _REFUSED,
    "lab4.oom.fits_in_24_gb": _OUTSIDE,
    "lab4.oom.retry_frees_the_failed_attempt": _OBSERVED,
    "lab4.oom.results_saved": _FILES,
    "lab4.analysis.nonsense_refused": _REFUSED,
    "lab4.analysis.report_agrees_with_results": _REPORT,
    "lab5.pipeline.report_agrees_with_results": _REPORT,
}


@pytest.mark.night
@pytest.mark.parametrize("lab", [1, 2, 3, 4, 5])
def test_answers_of_another_seed_pass_only_what_is_excused(lab: int, bench: Bench) -> None:
    rebuild(load(SCENARIOS / "exploits" / "honest_right"), bench.folder)
    recording = Recording(bench.asking)
    reference = grade(bench, recording, lab, bench.seed)
    assert reference.problems == ""
    passed = set(reference.passed)
    for seed in OTHERS:
        passed &= grade(bench, Replaying(recording), lab, seed).passed
    excused = {name for name in EXCUSED if name.startswith(f"lab{lab}.")}
    assert passed - excused == set(), "passed by answers to other questions: draw the cases, or say why that is right"
    assert excused - passed == set(), "these need no excuse any more"


# By day `test_pytest_plugin.py` shows that stubs earn nothing.
@pytest.mark.night
@pytest.mark.parametrize("lab", [1, 2, 3, 4, 5])
def test_refusing_whatever_comes_earns_nothing(lab: int, bench: Bench, tmp_path: Path) -> None:
    refusing = tmp_path / "labs"
    shutil.copytree(ROOT / "labs", refusing, ignore=shutil.ignore_patterns("__pycache__"))
    for file in refusing.rglob("*.py"):
        file.write_text(file.read_text(encoding="utf-8").replace("raise NotImplementedError(", "raise ValueError("))
    assert bench.grade_folder(refusing, str(lab)).passed == set()
