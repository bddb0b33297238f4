"""Answers of the wrong form fail a check with a message for the student; none ends in an exception of the judge.

What the probes report is made up here. How a submission gets there is another matter.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest

from gradebox.run.assertions import CheckFailed
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Seen, Submission
from gradebox.sandbox.devices import Device
from gradebox.sandbox.probe_types import ProbeInputs
from grader.lab1.analysis.cases import Operation, ProfileOnGpu, ProfileReply
from grader.lab1.analysis.checks import analysis
from grader.lab1.benchmark.cases import ComparisonRow
from grader.lab1.benchmark.checks import comparisons
from grader.lab1.memory.checks import memory
from grader.lab3.accumulation.cases import PassReply, whole_windows
from grader.lab3.accumulation.checks.passes import require_right
from grader.lab3.accumulation.reference import follow
from grader.lab5.monitoring.cases import ExportedReply
from grader.lab5.monitoring.checks import exports, monitor
from grader.shared.probes.support import WrongReturn, fields
from labkit.results import STAGES, Comparison, MatmulResult, MemoryProfile

FRESH = InputGenerator(7, "wrong answers")


class Told:
    """A submission whose every probe tells the same."""

    device = Device("vgpu:T4", "virtual T4", simulated=True)

    def __init__(self, **values: Any) -> None:
        self._seen = Seen(values, {})

    def probe(self, probe: ProbeInputs[Any] | str, **options: Any) -> Any:
        return self._seen if isinstance(probe, str) else self._seen.read_as(probe.reply_type(), probe.probe)


def submission(**values: Any) -> Submission:
    return cast(Submission, Told(**values))


def result(device: str, seconds: object) -> Any:
    return MatmulResult(device=device, dtype="float32", size=9, iterations=5, seconds=cast(float, seconds), tflops=1.0)


@pytest.mark.parametrize("seconds", [0, 0.0, -1.0, "1", None])
def test_seconds_that_one_cannot_divide_by(seconds: object) -> None:
    row = {"size": 9, "cpu": vars(result("cpu", 1.0)), "gpu": vars(result("cuda", seconds)), "speedup": 1.0}
    with pytest.raises(CheckFailed, match=r"\.gpu\.seconds must be"):
        comparisons.require_compared(cast(ComparisonRow, row), 5)


@pytest.mark.parametrize("size", ["x", None, [1]])
def test_texts_for_bytes(size: object) -> None:
    stages = [{"stage": name, "allocated_bytes": size} for name in STAGES]
    profiles = [{"dtype": dtype, "stages": stages} for dtype in ("float32", "float16")]
    with pytest.raises(CheckFailed, match="allocated_bytes of 'baseline' must be"):
        memory.TestMemory().test_precisions_compared(
            submission(profiles=[profiles, profiles], endings=[], indexed=""), FRESH
        )


def test_a_profile_without_its_stages() -> None:
    profiles = [{"dtype": dtype, "stages": []} for dtype in ("float32", "float16")]
    with pytest.raises(CheckFailed, match="there is no stage baseline"):
        memory.TestMemory().test_precisions_compared(
            submission(profiles=[profiles, profiles], endings=[], indexed=""), FRESH
        )


def test_a_step_that_was_never_run() -> None:
    class NeverRun(Told):
        def probe(self, probe: ProbeInputs[Any] | str, **options: Any) -> ProfileReply:
            assert isinstance(probe, ProfileOnGpu)
            slowest = max(probe.repeats, key={"mm": 9, "exp": probe.repeats["exp"]}.__getitem__)
            calls = probe.repeats[slowest] * probe.steps
            row: Operation = {
                "name": f"aten::{slowest}", "calls": calls, "cpu_seconds": 1.0, "device_seconds": 1.0,
            }  # fmt: skip
            return ProfileReply(operations=[row], steps_run=0, recorded=True, device_record=None)

    with pytest.raises(CheckFailed, match="the step ran 0 times"):
        analysis.TestAnalysis().test_slowest_operation_found(cast(Submission, NeverRun()), FRESH)


@pytest.mark.parametrize("losses", [None, [], [1.0], "losses"])
def test_losses_of_another_number_than_steps(losses: object) -> None:
    case = whole_windows(FRESH)
    expected = follow(case)
    result = {"optimizer_steps": len(expected.losses), "micro_batches": len(case.sizes[0]), "losses": losses}
    reply = PassReply(result=result, weight=expected.weight, frozen=np.ones(1), reduced_bytes=0)
    with pytest.raises(CheckFailed, match="losses"):
        require_right(case, [reply], "training", "")


def test_metrics_that_are_no_numbers() -> None:
    text = "# TYPE gpu_power_watts gauge\ngpu_power_watts abc\n"
    reply = ExportedReply(
        by_dcgm="", first="", text=text, jsonl=None, lines=[], scalars=[], left_open=0, answers=False
    )  # fmt: skip

    class Exporting(Told):
        def probe(self, inputs: object, **options: Any) -> Any:
            return reply

    with pytest.raises(CheckFailed, match="/metrics is not in Prometheus' text format"):
        monitor.TestMonitoring().test_training_metrics_logged(cast(Submission, Exporting()), FRESH)


TIMESTAMPED = """# HELP training_loss The loss.
# TYPE training_loss gauge
training_loss NaN 1732791234567
# TYPE gpu_temperature_celsius gauge
gpu_temperature_celsius{gpu="0",uuid="GPU-1"} 61.0 1732791234567
# TYPE monitor_samples_total counter
monitor_samples_total 2.0 1732791234567
# TYPE monitor_samples_created gauge
monitor_samples_created 1.732791e+09
# TYPE monitor_seconds_total counter
monitor_seconds_total 0.25
"""


def test_metrics_may_say_when_they_were_taken_and_counters_when_they_began() -> None:
    values = exports.series(TIMESTAMPED)
    assert (values["gpu_temperature_celsius", "0"], values["monitor_samples_total", ""]) == (61.0, 2.0)
    assert math.isnan(values["training_loss", ""])
    counters = [["monitor_samples_total", "counter"], ["monitor_seconds_total", "counter"]]
    assert exports.last_families(TIMESTAMPED, 2) == counters


def test_a_line_of_metrics_without_its_alerts_is_no_error_of_the_judge() -> None:
    assert (exports.length([1, 2]), exports.length(None), exports.length("two")) == (2, None, "two")


@pytest.mark.parametrize("inner", [None, 1.0, {"seconds": 1.0}])
def test_something_else_where_a_dataclass_is_promised(inner: object) -> None:
    row = Comparison(size=9, cpu=result("cpu", 1.0), gpu=cast(MatmulResult, inner), speedup=1.0)
    with pytest.raises(WrongReturn, match=r"compare\.gpu is .* expected a labkit\.results\.MatmulResult"):
        fields(row, Comparison, "compare")


@pytest.mark.parametrize("stages", [None, 3, (None,), ({"stage": "model"},)])
def test_something_else_where_dataclasses_are_promised(stages: object) -> None:
    profile = MemoryProfile(device="cuda", dtype="float32", stages=cast(Any, stages))
    with pytest.raises(WrongReturn, match=r"profile\.stages"):
        fields(profile, MemoryProfile, "profile")


def test_right_answers_have_the_right_form() -> None:
    row = Comparison(size=9, cpu=result("cpu", 2.0), gpu=result("cuda", 1.0), speedup=2.0)
    assert fields(row, Comparison, "compare")["gpu"]["device"] == "cuda"
