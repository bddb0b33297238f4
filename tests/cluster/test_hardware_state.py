"""What was broken before the run never passes, and is named: rank, GPU, link, and what should have been."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cluster.acceptance.context import Context
from cluster.acceptance.options import VIRTUAL_GPU
from cluster.acceptance.records import Record
from labkit.device import Device
from tests.cluster import sound


def changed(ranks: list[Record], rank: int, stage: str = "before", **figures: Any) -> None:
    """Both readings have it, as a state that the run did not cause."""
    record = ranks[rank]
    if stage in ("presence", "bandwidth"):
        record.results[stage] |= figures
        return
    record.results["before"]["reading"] |= figures
    record.results["after"]["reading"] |= figures


def verdict(ranks: list[Record]) -> tuple[str, list[tuple[str, str]]]:
    report = sound.report(ranks)
    return report["acceptance"]["status"], sound.failures(report)


@pytest.mark.parametrize(
    ("figures", "check"),
    [
        ({"ecc_errors": 500}, "sound: memory errors before the run"),
        ({"remapped_rows": [0, 1, 1, 0]}, "sound: row remapping"),
        ({"remapped_rows": [0, 3, 0, 1]}, "sound: row remapping"),
        ({"retired_pages": [58, 2]}, "sound: retired pages"),
        ({"pcie_width": 4}, "sound: PCIe width and generation"),
        ({"pcie_generation": 3}, "sound: PCIe width and generation"),
        ({"nvlinks_up": 12}, "sound: NVLinks"),
        ({"nvlinks_up": 0}, "sound: NVLinks"),
        ({"driver": "535.10.01"}, "sound: same driver"),
        ({"vbios": "96.00.10.00.00"}, "sound: same VBIOS"),
        ({"power_limit_watts": 500.0}, "sound: same power limit"),
    ],
)
def test_a_state_of_one_gpu(figures: dict[str, Any], check: str) -> None:
    ranks = sound.records(4)
    changed(ranks, 2, **figures)
    status, failures = verdict(ranks)
    assert status == "FAIL"
    assert (check, ranks[2].subject) in failures
    assert {subject for _, subject in failures} == {ranks[2].subject}


@pytest.mark.parametrize(
    ("figures", "check"),
    [
        ({"memory_bytes": 40e9}, "sound: same memory of the GPU"),
        ({"torch": "2.12.0"}, "sound: same PyTorch"),
        ({"nccl": [2, 20, 3]}, "sound: same NCCL"),
        ({"cuda": "12.6"}, "sound: same CUDA of PyTorch"),
        ({"uuid": "1234-0"}, "sound: a GPU of its own"),
    ],
)
def test_what_a_rank_has_and_the_others_have_not(figures: dict[str, Any], check: str) -> None:
    ranks = sound.records(4)
    changed(ranks, 2, "presence", **figures)
    status, failures = verdict(ranks)
    assert status == "FAIL"
    assert (check, ranks[2].subject) in failures
    assert {subject for _, subject in failures} == {ranks[2].subject}


@pytest.mark.parametrize("figures", [{"ecc_errors": 1}, {"nvlinks_up": 17}, {"pcie_width": 8}])
def test_what_is_wrong_on_every_gpu_fails_as_well(figures: dict[str, Any]) -> None:
    ranks = sound.records(4)
    for rank in range(4):
        changed(ranks, rank, **figures)
    status, failures = verdict(ranks)
    assert status == "FAIL"
    assert {subject for _, subject in failures} == {record.subject for record in ranks}


def test_boards_of_two_models_need_not_have_the_same_memory() -> None:
    ranks = sound.records(4)
    for rank in (2, 3):
        changed(ranks, rank, "presence", device_name="NVIDIA A100-SXM4-40GB", memory_bytes=42e9)
        changed(ranks, rank, vbios="92.00.45.00.03", power_limit_watts=400.0, power_limit_default_watts=400.0)
    assert not [name for name, _ in verdict(ranks)[1] if name.startswith("sound:")]


def test_a_power_cap_on_every_gpu_is_no_pass() -> None:
    ranks = sound.records()
    for rank in range(2):
        changed(ranks, rank, power_limit_watts=450.0)
    assert verdict(ranks) == ("INCOMPLETE", [])


def test_bridges_that_nobody_mounted_are_no_fault_and_no_pass() -> None:
    ranks = sound.records()
    sound.links_carry(sound.PCIE, ranks)
    for rank in range(2):
        changed(ranks, rank, "presence", device_name="NVIDIA A100 80GB PCIe", multiprocessors=108)
        changed(ranks, rank, "bandwidth", rates={"copy": 1.6e12, "triad": 1.62e12})
        changed(ranks, rank, nvlinks=12, nvlinks_up=0, memory_clock_hertz=1512e6, name="NVIDIA A100 80GB PCIe")
    status, failures = verdict(ranks)
    assert failures == []
    assert status == "PASS"  # nobody has a link, so none is down
    changed(ranks, 0, nvlinks_up=4)
    changed(ranks, 1, nvlinks_up=4)
    sound.links_carry(80e9, ranks)
    assert verdict(ranks) == ("INCOMPLETE", [])


def test_an_idle_board_is_not_judged_by_its_generation() -> None:
    ranks = sound.records()
    changed(ranks, 0, pcie_generation=1, throttle_reasons=["idle"])
    assert verdict(ranks) == ("PASS", [])


def test_what_nvml_may_not_tell_is_no_pass_and_what_a_card_has_not_is_none_of_its_faults() -> None:
    ranks = sound.records()
    changed(ranks, 0, remapped_rows=None, untold={"remapped_rows": "Insufficient Permissions"})
    assert verdict(ranks) == ("INCOMPLETE", [])
    changed(ranks, 0, remapped_rows=None, vbios=None, untold={})
    assert verdict(ranks) == ("INCOMPLETE", []), "the other one of its model tells it"
    changed(ranks, 1, remapped_rows=None, vbios=None)
    assert verdict(ranks) == ("PASS", [])


@pytest.mark.parametrize(("visible", "count", "index"), [("3", 1, 0), (None, 4, 3), ("0,1,2,3", 4, 3), (None, 1, 3)])
def test_a_rank_that_is_shown_its_own_gpu_alone_takes_it(
    visible: str | None, count: int, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    context = Context(
        rank=3, local_rank=3, world_size=4, local_world_size=4, options=sound.options(), sizes=VIRTUAL_GPU,
        device=Device(torch_device="cuda", name="", simulated=False, peaks=None), at=print,
    )  # fmt: skip
    assert context.index == index
    assert context.torch_device == torch.device("cuda", index)


def test_ranks_bound_to_a_gpu_each_count_together() -> None:
    ranks = sound.records(4)
    for rank in range(4):
        changed(ranks, rank, "presence", seen_by_cuda=1, restricted=True, index=0)
    assert sound.failures(sound.report(ranks, "--expect-gpus", "4")) == []
    changed(ranks, 3, "presence", uuid="1234-2")
    assert {name for name, _ in sound.failures(sound.report(ranks, "--expect-gpus", "4"))} == {
        "presence: number of GPUs",
        "sound: a GPU of its own",
    }


def test_a_gpu_that_is_alone_in_its_node_needs_no_nvlink() -> None:
    """A virtual machine that got one board of an HGX: its links are there, and none is up."""
    (alone,) = sound.nodes(1, per_node=1)
    changed([alone], 0, nvlinks_up=0)
    report = sound.report([alone])
    assert ("sound: NVLinks", alone.subject) not in sound.failures(report)
    assert ("sound: NVLinks", alone.subject) in sound.outcomes(report, "skipped")
    alone.results["presence"]["seen_by_nvml"] = 8
    assert ("sound: NVLinks", alone.subject) in sound.failures(sound.report([alone]))
