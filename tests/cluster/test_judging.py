"""What passes and what fails, from the records of a sound machine with one thing changed. Needs no GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from cluster.acceptance.checks import training
from cluster.acceptance.context import Context
from cluster.acceptance.records import against_peers, percentile
from tests.cluster import sound

GPU_0, GPU_1 = "GPU 0 (rank 0, node17)", "GPU 1 (rank 1, node17)"


def test_a_sound_machine_passes() -> None:
    report = sound.report(sound.records(8))
    assert report["acceptance"] == {
        "status": "PASS",
        "exit_code": 0,
        "summary": [
            "GPU Available: YES",
            "GPU Computation: PASS",
            "NCCL Communication: PASS",
            "Training Status: PASS",
            "GPU Health: PASS",
            *report["acceptance"]["summary"][5:],
        ],
    }
    assert all(line.startswith("Not judged: ") for line in report["acceptance"]["summary"][5:])
    assert report["status"] == "success"
    assert sound.outcomes(report, "unverified") == []


def test_one_gpu_can_pass_although_it_has_nobody_to_talk_to() -> None:
    report = sound.report(sound.records(1))
    assert report["acceptance"]["status"] == "PASS"
    assert "NCCL Communication: SKIPPED" in report["acceptance"]["summary"]
    assert ("product float32: time against peers", GPU_0) in sound.outcomes(report, "skipped")


def test_a_gpu_without_ecc_or_nvlink_can_pass() -> None:
    ranks = sound.records()
    sound.links_carry(sound.PCIE, ranks)
    for record in ranks:
        record.results["presence"] |= {"device_name": "NVIDIA H100 PCIe", "multiprocessors": 114}
        record.results["bandwidth"]["rates"] = {"copy": 1.75e12, "triad": 1.77e12}
        for stage in ("before", "after"):
            record.results[stage]["reading"] |= {"memory_clock_hertz": 1593e6, "name": "NVIDIA H100 PCIe"}
            record.results[stage]["reading"] |= {
                "ecc_errors": None,
                "ecc_mode": None,
                "xid_errors": None,
                "nvlinks_up": 0,
                "nvlinks": 0,
            }
    assert sound.report(ranks)["acceptance"]["status"] == "PASS"


def test_what_nvml_may_not_tell_leaves_the_verdict_open() -> None:
    ranks = sound.records()
    after = ranks[1].results["after"]["reading"]
    after |= {"ecc_errors": None, "untold": {"ecc_errors": "Insufficient Permissions"}}
    report = sound.report(ranks)
    assert report["acceptance"]["exit_code"] == 3
    names = {"health: uncorrected memory errors", "record: readable", "record: complete"}
    assert {("health: uncorrected memory errors", GPU_1)} <= set(sound.outcomes(report, "unverified"))
    assert set(sound.outcomes(report, "unverified")) <= {(name, GPU_1) for name in names}


def test_simulated_gpus_never_pass() -> None:
    report = sound.report(sound.records(), simulated=True)
    assert report["acceptance"]["status"] == "INCOMPLETE"
    assert report["acceptance"]["exit_code"] == 3
    assert {check["part"] for check in report["validation"]["checks"] if check["status"] == "pass"} == {"run"}
    assert all("simulated" in check["evidence"] for check in report["validation"]["checks"])


def test_a_run_with_an_injected_fault_never_passes() -> None:
    report = sound.report(sound.records(), "--inject", "slow:1")
    assert report["acceptance"]["status"] == "INCOMPLETE"
    assert "Injected on purpose: slow at rank 1" in report["acceptance"]["summary"]


def test_left_out_on_request_is_no_reason_not_to_pass() -> None:
    ranks = sound.records()
    for record in ranks:
        record.results["data"] = record.results["training"] = {"skipped": "--validation-only", "asked": True}
    report = sound.report(ranks, "--validation-only")
    assert report["acceptance"]["status"] == "PASS"
    assert "Training Status: SKIPPED" in report["acceptance"]["summary"]


def change(stage: str, **values: Any) -> Any:
    return lambda record: record.results[stage].update(values)


def change_after(**values: Any) -> Any:
    return lambda record: record.results["after"].update(reading=sound.worked(**values))


def change_product(**values: Any) -> Any:
    return lambda record: record.results["compute"]["products"]["bfloat16"].update(values)


def change_last_message(**values: Any) -> Any:
    return lambda record: record.results["collectives"]["measurements"][-1].update(values)


def change_epochs(**values: Any) -> Any:
    return lambda record: [epoch.update(values) for epoch in record.results["training"]["epochs"]]


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (change_product(wrong_rows=[17]), "product bfloat16: result"),
        (change_product(differing_repeats=1), "product bfloat16: result"),
        (change_product(seconds=[0.6e-3] * 20), "product bfloat16: time against peers"),
        (change_product(tflops=200.0), "product bfloat16: rate against the data sheet"),
        (change("compute", error="AcceleratorError: CUDA error: an illegal memory access"), "compute: runs"),
        (change("presence", error="RuntimeError: no GPU is left for local rank 1"), "presence: runs"),
        (change_last_message(wrong=1), "point_to_point: result"),
        (change("training", sha256="cd" * 32), "training: replicas are equal"),
        (change_epochs(own_seconds=[0.02] * 4), "training: pace"),
        (change("training", error="OutOfMemoryError: CUDA out of memory"), "training: runs"),
        (change_after(temperature_celsius=95), "health: temperature"),
        (change_after(throttle_reasons=["hardware_thermal_slowdown"]), "health: throttling"),
        (change_after(ecc_errors=1), "health: uncorrected memory errors"),
        (change_after(xid_errors=1), "health: XID errors"),
        (change_after(memory_used_bytes=80_000 * sound.MIB), "health: memory"),
        (change_after(pcie_width=8), "health: PCIe link"),
        (change_after(pcie_generation=1), "health: PCIe link"),
        (change_after(nvlinks_up=17), "health: NVLink"),
        (change("after", reading={"up": False}), "health: GPU is still there"),
    ],
)
def test_a_fault_is_found_and_its_gpu_named(spoil: Any, name: str) -> None:
    ranks = sound.records(3)
    spoil(ranks[1])
    report = sound.report(ranks)
    named = [subject for failed, subject in sound.failures(report) if failed == name]
    # A rank whose stage "presence" broke is known by its node only.
    assert named in ([GPU_1], ["rank 1, node17"])
    assert {subject for _, subject in sound.failures(report)} <= {*named, "all ranks", "node node17"}
    assert report["acceptance"]["exit_code"] == 1
    assert any(line.startswith("Error: ") and named[0] in line for line in report["acceptance"]["summary"])


def test_a_slow_link_is_named_by_both_ends() -> None:
    ranks = sound.records(4)
    change_last_message(seconds=[2e-3] * 20)(ranks[2])
    name = "point_to_point: link against the others"
    assert (name, f"{GPU_1} to GPU 2 (rank 2, node17)") in sound.failures(sound.report(ranks))


def test_links_between_nodes_are_not_compared_with_links_within() -> None:
    ranks = sound.records(8)
    for record in ranks[4:]:
        record.node = "node18"
    for record in (ranks[0], ranks[4]):  # those that receive from the other node
        change_last_message(seconds=[10e-3] * 20)(record)
    assert sound.failures(sound.report(ranks)) == []


def test_bandwidth_is_held_against_the_links_that_nvml_sees() -> None:
    ranks = sound.records()
    for record in ranks:
        for measured in record.results["collectives"]["measurements"]:
            if measured["operation"] == "all_reduce" and measured["bytes"] > sound.MIB:
                measured["seconds"] = [10e-3] * 20  # 27 GB/s, less than PCIe 5 alone
    assert sound.failures(sound.report(ranks)) == [("all_reduce: bus bandwidth", "all ranks")]


def test_heat_and_slowdowns_of_before_are_no_fault_of_the_run_and_no_pass() -> None:
    ranks = sound.records()
    before = {"temperature_celsius": 93, "throttle_reasons": ["thermal_slowdown"]}
    ranks[0].results["before"]["reading"] = sound.reading(**before, xid_errors=2)
    ranks[0].results["after"]["reading"] = sound.worked(**before, xid_errors=2)
    report = sound.report(ranks)
    assert sound.failures(report) == []
    assert report["acceptance"]["status"] != "PASS"
    assert ("health: temperature", GPU_0) in sound.outcomes(report, "unverified")
    assert ("health: throttling", GPU_0) in sound.outcomes(report, "unverified")


def test_an_idle_board_may_lower_its_pcie_generation() -> None:
    ranks = sound.records()
    change_after(pcie_generation=1, throttle_reasons=["idle"])(ranks[0])
    assert sound.failures(sound.report(ranks)) == []


@pytest.mark.parametrize("last", [2.4, float("nan")])
def test_a_loss_that_does_not_fall_fails(last: float) -> None:
    ranks = sound.records()
    for record in ranks:
        record.results["training"]["epochs"][-1]["losses"] = [last] * 4
    failed = sound.failures(sound.report(ranks))
    assert ("training: loss falls", "all ranks") in failed
    assert (("training: losses are numbers", GPU_0) in failed) == (last != last)


def test_a_loss_that_is_no_number_names_its_rank() -> None:
    ranks = sound.records()
    ranks[1].results["training"]["epochs"][0]["losses"][2] = float("nan")
    assert ("training: losses are numbers", ranks[1].subject) in sound.failures(sound.report(ranks))
    assert ("training: losses are numbers", ranks[0].subject) not in sound.failures(sound.report(ranks))


def test_a_gpu_that_cuda_does_not_see_fails_its_node() -> None:
    ranks = sound.records()
    for record in ranks:
        record.results["presence"]["seen_by_nvml"] = 8
    assert sound.failures(sound.report(ranks)) == [("presence: number of GPUs", "node node17")]
    for record in ranks:
        record.results["presence"]["restricted"] = True  # somebody chose among them
    assert sound.failures(sound.report(ranks)) == []
    assert sound.failures(sound.report(ranks, "--expect-gpus", "4")) == [("presence: number of GPUs", "node node17")]


def test_a_node_without_gpus_beside_nodes_with_gpus_fails() -> None:
    ranks = sound.records()
    ranks[1].results["presence"] = {"kind": "cpu", "device_name": "x86_64", "torch": "2.13.0", "cuda": "13.0"}
    ranks[1].node = "node18"
    assert ("presence: GPU", "rank 1, node18") in sound.failures(sound.report(ranks))


def test_of_ranks_that_hang_the_one_behind_is_blamed() -> None:
    ranks = sound.records(3)
    for record in ranks:
        record.ending, record.progress_at_stop, record.at_stop = "hung", 12, "all_reduce of 1.0 MiB"
    ranks[1].progress_at_stop, ranks[1].at_stop = 11, "all_gather of 1.0 MiB"
    ranks[1].ending = "stopped"  # the watchdog of another one was the first to lose patience
    report = sound.report(ranks)
    assert sound.failures(report) == [("run: process", GPU_1)]
    assert ("run: process", GPU_0) in sound.outcomes(report, "unverified")


def test_ranks_that_hang_together_blame_what_joins_them() -> None:
    ranks = sound.records(3)
    for record in ranks:
        record.ending, record.progress_at_stop, record.at_stop = "hung", 12, "all_reduce of 1.0 MiB"
    checks = sound.report(ranks)["validation"]["checks"]
    hanging = [check["evidence"] for check in checks if check["status"] == "fail"]
    assert len(hanging) == 3
    assert all("no rank was behind the others" in evidence for evidence in hanging)


def test_a_collective_that_broke_because_its_peer_died_is_not_blamed() -> None:
    ranks = sound.records()
    ranks[0].ending, ranks[0].detail = "died", "killed by SIGKILL"
    ranks[0].results = {"presence": ranks[0].results["presence"]}
    change("collectives", error="RuntimeError: Connection closed by peer")(ranks[1])
    report = sound.report(ranks)
    assert sound.failures(report) == [("run: process", GPU_0)]
    assert ("collectives: runs", GPU_1) in sound.outcomes(report, "unverified")


def test_the_rank_that_ran_out_of_memory_is_blamed_and_not_the_one_it_left_waiting() -> None:
    ranks = sound.records()
    change("training", error="OutOfMemoryError: CUDA out of memory")(ranks[0])
    change("training", error="RuntimeError: Connection closed by peer")(ranks[1])
    report = sound.report(ranks)
    assert sound.failures(report) == [("training: runs", GPU_0)]
    assert ("training: runs", GPU_1) in sound.outcomes(report, "unverified")


def test_a_small_data_set_is_enough_for_many_ranks() -> None:
    many = SimpleNamespace(
        world_size=16, rank=3, options=SimpleNamespace(steps=None), sizes=SimpleNamespace(steps=None)
    )
    batches = training._batches(cast(Context, many), torch.zeros(1438, 1), torch.zeros(1438), 128, 0)
    assert len(batches) >= training.FEWEST_STEPS
    assert {len(batch) for batch in batches} == {1438 // 16}


def test_a_value_is_compared_with_the_median_of_the_others() -> None:
    assert against_peers([1.0, 4.0]) == [0.25, 4.0]
    assert against_peers([1.0, 1.0, 4.0]) == [1 / 2.5, 1 / 2.5, 4.0]
    assert against_peers([3.0]) == [None]


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, percent) for percent in (50, 95, 99)] == [50.0, 95.0, 99.0]
    assert percentile([7.0], 99) == 7.0
