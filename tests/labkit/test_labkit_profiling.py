"""What a recording becomes: the same sorts of intervals from PyTorch's own profiler and from the virtual GPU's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

import vgpu
from labkit.profiling import Timeline, intersect, read_timeline, subtract, total, union

STEPS = 3


def _record(device: str) -> Timeline:
    layer = torch.nn.Linear(64, 64).to(device)
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if device == "cuda" else [ProfilerActivity.CPU]
    with profile(activities=activities, schedule=schedule(wait=1, warmup=1, active=STEPS, repeat=1)) as recorded:
        for _ in range(2 + STEPS):
            with record_function("transfer"):
                inputs = torch.zeros(32, 64).to(device)
            with record_function("forward"):
                loss = layer(inputs).sum()
            with record_function("backward"):
                loss.backward()
            loss.item()
            recorded.step()
    return read_timeline(recorded)


def _inside(timeline: Timeline, spans: Any) -> bool:
    return all(timeline.start <= start <= stop <= timeline.stop for start, stop in spans)


def test_on_a_cpu_the_host_itself_computes() -> None:
    timeline = _record("cpu")
    assert timeline.steps == STEPS
    assert {name: len(spans) for name, spans in timeline.regions.items() if spans} == {
        "transfer": STEPS,
        "forward": STEPS,
        "backward": STEPS,
    }
    assert sorted(timeline.kernels) == sorted(timeline.regions["forward"] + timeline.regions["backward"])
    assert not timeline.copies_in
    assert _inside(timeline, timeline.kernels)


def test_on_a_gpu_kernels_copies_and_waits_are_told_apart() -> None:
    with vgpu.attach("T4"):
        timeline = _record("cuda")
    assert (timeline.steps, len(timeline.copies_in), len(timeline.copies_out)) == (STEPS, STEPS, STEPS)
    assert len(timeline.waits) >= STEPS
    assert len(timeline.kernels) >= 4 * STEPS
    assert _inside(timeline, [*timeline.kernels, *timeline.copies_in, *timeline.copies_out])


def test_a_recording_without_steps_is_refused() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        torch.zeros(1)
    with pytest.raises(ValueError, match="no step was recorded"):
        read_timeline(recorded)


def test_moments_are_counted_once() -> None:
    spans = [(4.0, 6.0), (0.0, 2.0), (1.0, 3.0), (6.0, 7.0), (5.0, 5.0)]
    assert union(spans) == [(0.0, 3.0), (4.0, 7.0)]
    assert intersect(spans, [(2.5, 4.5), (6.5, 9.0)]) == [(2.5, 3.0), (4.0, 4.5), (6.5, 7.0)]
    assert subtract([(0.0, 10.0)], spans) == [(3.0, 4.0), (7.0, 10.0)]
    assert total(spans) == 6.0
