"""Outliers of a fleet, memory, gradients, load, paces: from the records of a sound machine with one thing changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cluster.acceptance import expectations
from cluster.acceptance.checks import bandwidth, compute, gradients, memory
from cluster.acceptance.checks.compute import outlying
from cluster.acceptance.context import Context
from cluster.acceptance.faults import Fault
from cluster.acceptance.options import VIRTUAL_GPU, Options
from cluster.acceptance.records import Record
from labkit.device import Device, open_device
from tests.cluster import sound

GPU_1 = "GPU 1 (rank 1, node17)"


def product(record: Record, factor: float) -> None:
    figures = record.results["compute"]["products"]["bfloat16"]
    figures["seconds"] = [factor * seconds for seconds in figures["seconds"]]
    figures["tflops"] /= factor


def test_one_of_eight_that_is_24_percent_slow_is_an_outlier() -> None:
    ranks = sound.records(8)
    for record in ranks:
        product(record, 1 + 0.01 * (record.rank % 3))
    product(ranks[1], 1.24)
    failures = sound.failures(sound.report(ranks))
    assert failures == [("product bfloat16: time against peers", GPU_1)]


def test_gpus_that_vary_as_gpus_do_pass() -> None:
    ranks = sound.records(8)
    for record, factor in zip(ranks, (1.0, 1.02, 1.03, 1.05, 1.06, 1.08, 1.10, 1.14), strict=True):
        product(record, factor)
    assert sound.report(ranks)["acceptance"]["status"] == "PASS"


def test_all_at_36_percent_of_the_data_sheet_fail() -> None:
    ranks = sound.records(8)
    for record in ranks:
        product(record, 690 / (0.36 * 989))
    failures = sound.failures(sound.report(ranks))
    assert failures == [("product bfloat16: rate against the data sheet", record.subject) for record in ranks]


def test_a_product_that_is_too_short_is_no_measure_of_its_rate() -> None:
    ranks = sound.records()
    for record in ranks:
        record.results["compute"] |= {"rows": 2048, "depth": 1024}
        product(record, 10)
    report = sound.report(ranks)
    assert (report["acceptance"]["status"], sound.failures(report)) == ("INCOMPLETE", [])


def test_one_deviation_does_not_hide_another() -> None:
    far = outlying([1.0, 1.01, 1.02, 1.01, 1.0, 1.02, 1.5, 1.5])
    assert [value > 3.5 for value in far] == [False] * 6 + [True] * 2
    assert outlying([1.0, 1.0, 9.0]) == [0.0] * 3, "three are no fleet"


@pytest.mark.parametrize(
    ("stage", "changes", "name"),
    [
        ("memory", {"wrong": {"ones": 3}, "first_byte": {"ones": 4096}}, "memory: patterns"),
        ("gradients", {"deviation": 0.5}, "gradient: before the all-reduce"),
        ("gradients", {"deviation": float("nan")}, "gradient: before the all-reduce"),
        ("copies", {"seconds": {"to_device": 20e-3, "to_host": 5e-3}}, "copy: host to device"),
        ("training", {"alone_seconds": [0.04] * 5}, "training: pace of forward and backward"),
    ],
)
def test_what_one_gpu_does_wrong_is_its_own(stage: str, changes: dict[str, Any], name: str) -> None:
    ranks = sound.records(4)
    ranks[1].results[stage] |= changes
    report = sound.report(ranks)
    assert sound.failures(report) == [(name, GPU_1)]


def test_memory_that_was_not_free_is_no_pass() -> None:
    ranks = sound.records()
    ranks[1].results["memory"]["tested_bytes"] = int(40e9)
    report = sound.report(ranks)
    assert sound.outcomes(report, "unverified") == [("memory: patterns", GPU_1)]


def test_copies_that_are_slow_everywhere_fail() -> None:
    ranks = sound.records()
    for record in ranks:
        record.results["copies"]["seconds"] = {"to_device": 268e6 / 25e9, "to_host": 5e-3}  # PCIe 4 in a slot of PCIe 5
    assert {name for name, _ in sound.failures(sound.report(ranks))} == {"copy: host to device"}


def test_of_two_replicas_that_differ_both_may_be_the_wrong_one() -> None:
    ranks = sound.records()
    ranks[1].results["training"]["sha256"] = "cd" * 32
    report = sound.report(ranks)
    assert sound.failures(report) == [("training: replicas are equal", record.subject) for record in ranks]


def test_of_two_drivers_both_are_named() -> None:
    ranks = sound.records()
    ranks[1].results["before"]["reading"]["driver"] = "535.183.01"
    assert sound.failures(sound.report(ranks)) == [("sound: same driver", record.subject) for record in ranks]


def test_a_rank_that_left_a_collective_out_is_blamed_and_not_those_that_waited_for_it() -> None:
    ranks = sound.records(4)
    ranks[1].skipped_collectives, ranks[1].ending = 1, "stopped"
    ranks[1].progress_at_stop, ranks[1].at_stop = 31, "all_reduce of 16.0 MiB"
    for record in (ranks[0], ranks[2], ranks[3]):  # they are behind, and innocent
        record.ending, record.progress_at_stop, record.at_stop = "hung", 30, "all_reduce of 1.0 MiB"
    ranks[2].results["collectives"]["measurements"][1]["wrong"] = 7
    ranks[3].results["collectives"] = {"error": "RuntimeError: the sizes differ"}
    report = sound.report(ranks)
    assert sound.failures(report) == [("run: process", GPU_1)]


def loaded(**changes: Any) -> dict[str, Any]:
    """Two minutes of load as a sound board goes through them; `changes` are of the second half."""
    series = []
    for number in range(24):
        sample = {"seconds": 5.0 * number, "products_per_second": 2500.0, "celsius": 40 + number, "watts": 690.0}
        sample |= {"sm_clock_hertz": 1.9e9, "throttle_reasons": ["power_cap"]}
        series.append({**sample, **(changes if number >= 12 else {})})
    return {"series": series, "products": 300_000, "differing": 0}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"throttle_reasons": ["hardware_thermal_slowdown"]}, {"load: throttling"}),
        ({"celsius": 96}, {"load: temperature"}),
        ({"products_per_second": 2000.0}, {"load: pace over time"}),
        ({"celsius": None, "throttle_reasons": None}, set()),
    ],
)
def test_what_only_minutes_of_load_show(changes: dict[str, Any], names: set[str]) -> None:
    ranks = sound.records(4)
    for record in ranks:
        record.results["load"] = loaded()
    assert sound.report(ranks, "--thorough")["acceptance"]["status"] == "PASS"
    ranks[1].results["load"] = loaded(**changes)
    failures = sound.failures(sound.report(ranks, "--thorough"))
    assert {name for name, _ in failures} == names
    assert {subject for _, subject in failures} <= {GPU_1}


def test_a_product_that_was_wrong_once_in_minutes_fails() -> None:
    ranks = sound.records(4)
    for record in ranks:
        record.results["load"] = loaded()
    ranks[1].results["load"]["differing"] = 1
    assert sound.failures(sound.report(ranks, "--thorough")) == [("load: results", GPU_1)]


def context(*faults: str, torch_device: str = "cpu", options: Options | None = None) -> Context:
    words = [word for fault in faults for word in ("--inject", fault)]
    return Context(
        rank=0, local_rank=0, world_size=1, local_world_size=1, options=options or sound.options(*words),
        sizes=VIRTUAL_GPU, device=Device(torch_device=torch_device, name="", simulated=True, peaks=None),
        at=lambda position: None,
    )  # fmt: skip


def test_a_gradient_is_near_the_reference_and_one_with_a_wrong_element_is_not() -> None:
    right = gradients.measure(context())
    assert gradients.NEAR.holds(100 * right["deviation"]), "a margin of a hundred"
    wrong = gradients.measure(context("wrong-gradient"))
    assert not gradients.NEAR.holds(wrong["deviation"])
    assert wrong["parameter"] == "layer1.0.conv1.weight"


@pytest.mark.parametrize("name", [*memory.PATTERNS, memory.ADDRESSES])
def test_a_word_that_changes_is_not_what_was_written(name: str) -> None:
    block = torch.empty(1000, dtype=torch.int64)
    memory._write(block, name, 2)
    assert bool((block == memory._expected(block, name, 2)).all())
    block[3] ^= 1 << 63
    assert (block != memory._expected(block, name, 2)).nonzero().flatten().tolist() == [3]


def test_addresses_differ_from_block_to_block() -> None:
    first, second = torch.empty(8, dtype=torch.int64), torch.empty(8, dtype=torch.int64)
    memory._write(first, memory.ADDRESSES, 0)
    memory._write(second, memory.ADDRESSES, 1)
    assert not set(first.tolist()) & set(second.tolist())


def test_a_fault_is_of_one_rank() -> None:
    assert sound.options("--inject", "bad-memory:3").inject == (Fault("bad-memory", 3),)


SMALL = replace(VIRTUAL_GPU, rows=256, depth=256)


@pytest.mark.parametrize(
    ("model", "has_them"),
    [
        pytest.param("H100", True, marks=pytest.mark.night),
        ("A100-80GB", False),
        pytest.param("L4", True, marks=pytest.mark.night),
    ],
)
def test_eight_bits_are_measured_where_the_card_has_them(model: str, has_them: bool) -> None:
    with open_device(f"vgpu:{model}") as device:
        product = compute.measure(replace(context(), device=device, sizes=SMALL))["products"].get(compute.EIGHT_BITS)
    assert (product is not None) == has_them
    if product is not None:
        assert (product["wrong_rows"], product["differing_repeats"]) == ([], 0)
        assert product["tflops"] > 0


def test_eight_bits_that_break_are_no_card_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_device("vgpu:H100") as device:
        for words, raised in (("CUBLAS_STATUS_EXECUTION_FAILED", True), ("_scaled_mm is not compiled in", False)):

            def broken(*arguments: Any, words: str = words, **keywords: Any) -> None:
                raise RuntimeError(words)

            monkeypatch.setattr(torch, "_scaled_mm", broken)
            if raised:
                with pytest.raises(RuntimeError, match=words):
                    compute.measure(replace(context(), device=device, sizes=SMALL))
            else:
                assert (
                    compute.EIGHT_BITS
                    not in compute.measure(replace(context(), device=device, sizes=SMALL))["products"]
                )


def eight_bits(ranks: list[Record], tflops: float) -> list[Record]:
    for record in ranks:
        work = 2 * 8192 * 8192 * 2048 / 1e12
        record.results["compute"]["products"][compute.EIGHT_BITS] = sound.product(seconds=work / tflops, tflops=tflops)
    return ranks


@pytest.mark.parametrize(("tflops", "status"), [(1200.0, "PASS"), (760.0, "INCOMPLETE"), (600.0, "FAIL")])
def test_eight_bits_are_judged_by_twice_the_peak_of_sixteen(tflops: float, status: str) -> None:
    report = sound.report(eight_bits(sound.records(8), tflops))
    assert report["acceptance"]["status"] == status
    assert {name for name, _ in sound.failures(report)} <= {"product float8_e4m3fn: rate against the data sheet"}


def test_one_gpu_without_eight_bits_among_others_is_named() -> None:
    ranks = eight_bits(sound.records(4), 1200.0)
    del ranks[1].results["compute"]["products"][compute.EIGHT_BITS]
    report = sound.report(ranks)
    assert report["acceptance"]["status"] == "INCOMPLETE"
    assert sound.outcomes(report, "unverified") == [("product float8_e4m3fn: result", GPU_1)]


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize(("expect", "status"), [("", "unverified"), ("1300", "pass"), ("4000", "fail")])
def test_memory_of_a_model_without_a_data_sheet_is_right_only_if_somebody_says_so(
    tmp_path: Path, ranks: int, expect: str, status: str
) -> None:
    records = sound.records(ranks)
    for record in records:
        record.results["presence"]["device_name"] = record.results["before"]["reading"]["name"] = "NVIDIA Next"
    file = None
    if expect:
        (tmp_path / "cluster.toml").write_text(f"[gpu]\nmemory_gigabytes_per_second = {expect}")
        file = expectations.read(tmp_path / "cluster.toml")
    checks = bandwidth.judge(records, file)
    assert {check.status for check in checks} == {status}
    assert all(bandwidth.KEY in check.remedy for check in checks)
    with_baseline = bandwidth.judge(records, file, has_baseline=True)
    assert {check.status for check in with_baseline} == {"skipped" if status == "unverified" else status}
