"""TensorBoard's own reader on what a monitor wrote."""

from __future__ import annotations

import json
import math
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.monitoring.conftest import BUSY, LOST, POOR, Watched


def test_the_reader_finds_every_number_at_its_step_and_nothing_that_is_absent(tmp_path: Path, watched: Watched) -> None:
    monitor = watched(BUSY, POOR, LOST, log_dir=tmp_path)
    monitor.log_metrics(10, {"loss": 2.5, "val/loss": 3.0})
    monitor.log_metrics(20, {"loss": math.nan})
    monitor.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    tags = events.Tags()["scalars"]
    assert [(event.step, event.value) for event in events.Scalars("training/val/loss")] == [(10, 3.0)]
    (first, second) = events.Scalars("training/loss")
    assert (first.step, first.value, second.step) == (10, 2.5, 20)
    assert math.isnan(second.value)
    assert [event.value for event in events.Scalars("gpu0/power_watts")] == [180.5, 180.5]
    assert {tag for tag in tags if tag.startswith("gpu1/")} == set()
    assert {tag.partition("/")[2] for tag in tags if tag.startswith("gpu2/")} == {
        "memory_used_bytes",
        "memory_total_bytes",
        "temperature_celsius",
    }
    assert not any(tag.startswith("gpu3/") for tag in tags)


def test_the_events_agree_with_the_lines(tmp_path: Path, watched: Watched) -> None:
    monitor = watched(BUSY, log_dir=tmp_path)
    for step in range(5):
        monitor.log_metrics(step, {"loss": 2.0**-step})
    monitor.close()
    events = EventAccumulator(str(tmp_path)).Reload().Scalars("training/loss")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(event.step, event.value) for event in events] == [
        (line["step"], line["metrics"]["loss"]) for line in lines
    ]
