"""The streams of many ranks: what they add up to by hand, and what the page shows of the results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.job_scaling import BUCKET_BYTES, RANKS, Step, cluster, ddp_step, fsdp_step
from vgpu.device.cost import collective_seconds, straggler_ratio

ROOT = Path(__file__).parents[2]
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "job_scaling.json").read_text())
H100 = cluster("H100", 8, "nvlink4", "infiniband-ndr")


def step(bytes: int, *ready: float) -> Step:
    return Step(ready=tuple((seconds, bytes) for seconds in ready), backward_ends=max(ready), ends=max(ready) + 0.001)


def test_one_bucket_that_is_ready_last_is_added_to_the_step() -> None:
    alone = step(BUCKET_BYTES, 0.1)
    expected = 0.101 * (1 + straggler_ratio(8)) + collective_seconds(H100.within, "all_reduce", BUCKET_BYTES, 8)
    assert ddp_step(alone, H100, 8) == pytest.approx(expected)


def test_what_is_ready_early_is_hidden_behind_the_backward_pass() -> None:
    early, late = step(BUCKET_BYTES, 0.01, 0.1), step(BUCKET_BYTES, 0.1, 0.1)
    assert ddp_step(early, H100, 64) < ddp_step(late, H100, 64)


def test_a_node_by_itself_does_not_know_the_network() -> None:
    slower = replace(H100, between=replace(H100.between, bandwidth_bytes_per_second=1e6))
    assert ddp_step(step(BUCKET_BYTES, 0.1), slower, 8) == ddp_step(step(BUCKET_BYTES, 0.1), H100, 8)
    assert ddp_step(step(BUCKET_BYTES, 0.1), slower, 16) > 10 * ddp_step(step(BUCKET_BYTES, 0.1), H100, 16)


def test_gathers_that_take_no_time_leave_the_computing() -> None:
    instant = replace(H100.within, bandwidth_bytes_per_second=1e30, latency_seconds=0.0, start_seconds=0.0)
    there = replace(H100, within=instant, between=instant)
    assert fsdp_step(0.001, 0.002, 10, 1e9, there, 512) == pytest.approx(0.03 * (1 + straggler_ratio(512)))


def test_a_step_of_blocks_that_only_communicate_is_as_long_as_their_collectives() -> None:
    gather, scatter = (H100.seconds(name, 1e9, 64) for name in ("all_gather", "reduce_scatter"))
    assert fsdp_step(0.0, 0.0, 10, 1e9, H100, 64) == pytest.approx(20 * gather + 10 * scatter)


def test_more_ranks_never_make_a_step_shorter() -> None:
    for row in RESULTS["scaling"]:
        times = [row["milliseconds"][str(ranks)] for ranks in RANKS]
        assert times == sorted(times)


def test_published_scaling_is_met_as_the_pages_say() -> None:
    assert max(abs(row["difference"]) for row in RESULTS["published"]) <= 0.04
    notes = (ROOT / "benchmarks" / "NOTES.md").read_text()
    for row in RESULTS["published"]:
        few, many = row["ranks"]
        assert f"| {row['what']} | {few} to {many} | {row['published']:.3f} | {row['modelled']:.3f} |" in notes
    page = (ROOT / "docs" / "training-job.md").read_text()
    for row in RESULTS["scaling"]:
        assert " | ".join(f"{row['milliseconds'][str(ranks)]:.1f}" for ranks in RANKS) in page
