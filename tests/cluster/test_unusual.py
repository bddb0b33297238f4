"""Figures that stand out from their siblings, or that no sound machine shows; and each field, varied."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from cluster.acceptance import host, ledger, nvml, sysfs
from cluster.acceptance.checks import unusual
from cluster.acceptance.records import TOOK, Record
from cluster.acceptance.verdict import UNUSUAL
from tests.cluster import sound
from tests.cluster.faults import machines
from tests.cluster.faults.changes import hosted
from tests.cluster.faults.reported import T4
from tests.cluster.test_ledger import machine
from tests.cluster.test_variations import judged

SICK = 2
TWICE = {"reading": ("before", "after"), "time": ("before", "after"), "network": ("network", "network_after")}
UNKNOWN_WORD = "a word that nobody knows"
LARGE, SMALL = 1e4, 1e-4
"""Times a value: what no sound machine shows."""
EXCUSED = {
    "reading.untold.*": "why a figure is not there; that it is not there is judged",
    "presence.peak_tflops.*": "a constant of this test, not a reading; the measured rate is judged",
    "presence.held_ratio.*": "as before",
    "reading.pcie_*_bytes_per_second, *": "traffic of a moment; that of before the run has a bound",
    "reading.fabric.clique, large": "an identity: any will do",
    "presence.given_by_slurm, absent": "not every job is of Slurm",
    "presence.host.processors_allowed, absent": "not every job has a quota",
    "adapters.measured.server, *": "the other end, chosen by this test; the rate is judged",
    "adapters.measured.reason, *": "why there is no rate; that there is none is judged",
    "collectives.steady.samples, large": "how many there were in the time",
    "presence.host.open_files, *": "many do no harm",
    "presence.host.*, large": "more of it does no harm",
    "presence.host.processors*, large": "more of it does no harm",
    "presence.host.up_seconds, large on one": "as before",
    "presence.host.swapped_bytes, large on one": "10 kB",
    "presence.host.kernel, *": "any will do if all have it",
    "presence.environment.*, *": "any value of a variable that names things",
}
"""What need not be named, by field and what was done to it; each with the reason."""


def put(tree: Any, path: list[str], change: Any) -> bool:
    """Apply a change to all that the path leads to; it gets the table, and the key."""
    if isinstance(tree, list):
        return sum(put(inner, path, change) for inner in tree if isinstance(inner, dict)) > 0
    if not isinstance(tree, dict):
        return False
    head, *rest = path
    keys = [key for key in tree if head in ("*", key)]
    if rest:
        return sum(put(tree[key], rest, change) for key in keys) > 0
    for key in keys:
        change(tree, key)
    return bool(keys)


def scaled(factor: float) -> Any:
    def change(tree: dict[str, Any], key: str) -> None:
        value = tree[key]
        if isinstance(value, list):
            tree[key] = [type(one)((one or 1) * factor) if isinstance(one, int | float) else one for one in value]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            tree[key] = type(value)((value or 1) * factor)

    return change


def gone(tree: dict[str, Any], key: str) -> None:
    del tree[key]


def of_another_type(tree: dict[str, Any], key: str) -> None:
    tree[key] = {"a": 1} if isinstance(tree[key], str) else UNKNOWN_WORD


def unknown(tree: dict[str, Any], key: str) -> None:
    if isinstance(tree[key], str):
        tree[key] = UNKNOWN_WORD + "\x07"
    elif isinstance(tree[key], list) and (not tree[key] or isinstance(tree[key][0], str)):
        tree[key] = [UNKNOWN_WORD]


WAYS = {
    "absent": (gone, "all"), "of another type": (of_another_type, "all"), "an unknown word": (unknown, "all"),
    "large": (scaled(LARGE), "all"), "large on one": (scaled(LARGE), "one"), "absent on one": (gone, "one"),
    "changed in the run": (scaled(1.7), "after"),
}  # fmt: skip


def drawn() -> Iterator[tuple[str, list[Record]]]:
    """Each field of the ledger, and each way."""
    for field in ledger.readings():
        for way, (change, who) in WAYS.items():
            if any(fnmatchcase(f"{field}, {way}", name) or field == name for name in EXCUSED):
                continue
            ranks = machine()
            for record in ranks if who == "all" else [ranks[SICK]]:
                stage, *path = field.split(".")
                stages = TWICE.get(stage, (stage,))
                if who == "after" and len(stages) < 2:
                    continue
                for own in stages[1:] if who == "after" else stages:
                    if own in record.results:
                        record.results[own] = copy.deepcopy(record.results[own])
                        put(record.results[own], ["reading", *path] if stage == "reading" else path or [stage], change)
            yield f"{field}, {way}", ranks


def silent(every: int) -> list[str]:
    """Those that pass, and of which the banner says what it says of the sound machine."""
    base = machine()
    usual = _banner(base)
    found = []
    for number, (title, ranks) in enumerate(drawn()):
        if number % every == 0 and ranks != base and judged(ranks)[0] == "PASS" and _banner(ranks) == usual:
            found.append(title)
    return found


def _banner(ranks: list[Record]) -> list[str]:
    return [line for line in sound.report(ranks, "--thorough")["acceptance"]["summary"] if line.startswith("Not ")]


def test_each_fifteenth_field_is_named_whatever_happens_to_it() -> None:
    assert silent(every=15) == []


@pytest.mark.night
def test_each_field_is_named_whatever_happens_to_it() -> None:
    assert silent(every=1) == []


def odd(ranks: list[Record]) -> dict[str, str]:
    """Subjects and evidence."""
    return {check.subject: check.evidence for check in unusual.judge(ranks) if check.name == UNUSUAL}


@pytest.mark.parametrize("card", machines.CARDS[::4], ids=lambda card: card.name)
def test_nothing_of_sound_machines_stands_out(card: machines.Card) -> None:
    assert odd(machines.draw(3, card=card.name, nodes=2).records) == {}


def test_a_gpu_that_is_an_eighth_slower_than_seven_that_are_alike_is_in_the_banner() -> None:
    ranks = sound.records(8)
    ranks[3].results["bandwidth"]["rates"]["copy"] *= 0.88
    assert "bandwidth.rates.copy" in odd(ranks)[ranks[3].subject]
    lines = sound.report(ranks)["acceptance"]["summary"]
    assert any("bandwidth.rates.copy" in line for line in lines if line.startswith("Not excluded: unusual"))


def test_far_from_its_siblings_a_figure_is_no_pass() -> None:
    ranks = sound.records(8)
    ranks[3].results["training"]["alone_seconds"] = [0.03] * 5
    (check,) = (check for check in unusual.judge(ranks) if check.rank == 3)
    assert check.status == "unverified"


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("governor", "powersave", "powersave"),
        ("clock_source", "hpet", "hpet"),
        ("shared_memory_bytes", 64 * 2**20, "shared_memory_bytes"),
        ("locked_memory_bytes", 8 * 2**20, "locked_memory_bytes"),
        ("memory_errors", [0, 1], "memory_errors"),
        ("processors_allowed", 1.0, "processors_allowed"),
    ],
)
def test_settings_of_all_hosts_are_in_the_banner(key: str, value: Any, named: str) -> None:
    ranks = machine()
    assert not odd(ranks)
    for record in ranks:
        record.results["presence"]["host"][key] = value
    assert any(named in evidence for evidence in odd(ranks).values())


def test_variables_and_old_software_are_in_the_banner() -> None:
    ranks = machine()
    for record in ranks:
        record.results["presence"]["environment"] = {"NCCL_P2P_DISABLE": "1", "NCCL_DEBUG": "INFO"}
    assert odd(ranks) == {"all ranks": "variables that are set: NCCL_P2P_DISABLE=1"}
    for stage in ("before", "after"):
        ranks[1].results[stage]["reading"]["driver"] = "470.57.02"
    assert "this chip needs 525" in odd(ranks)[ranks[1].subject]


def test_more_than_the_data_sheet_has_is_in_the_banner() -> None:
    ranks = machine()
    ranks[1].results["presence"]["multiprocessors"] = 264
    assert "264, such boards have 132" in odd(ranks)[ranks[1].subject]
    for record in ranks:
        record.results["after"]["reading"]["memory_clock_hertz"] = 3201e6
        record.results["after"]["reading"]["memory_clock_max_hertz"] = 3201e6
    assert "3201 MHz, such boards have 2619" in odd(ranks)[ranks[2].subject]


def test_a_port_that_goes_down_in_the_run_is_in_the_banner() -> None:
    ranks = hosted(T4, gpus=1, rdma=False, port=25)
    ranks[0] = Record.loads(ranks[0].dumps())
    assert not odd(ranks)
    ranks[0].results["network_after"]["ports"][0]["up"] = False
    assert odd(ranks) == {"node node0": "ens0 went down while the test ran"}
    ranks[0].results["network_after"]["ports"] = []
    assert odd(ranks) == {"node node0": "ens0 is gone after the run"}


@pytest.mark.parametrize(
    ("slow", "named"),
    [
        ([1.0, 2.0, 1.0, 1.0, 1.0], "mean without the longest of the median"),
        ([1.0] * 10 + [1.2] * 10, "late half of the early one"),
        ([1.0, 2.5] + [1.0] * 8, "longest but one of the median"),
    ],
)
def test_lists_whose_median_is_as_usual_are_named_by_their_shape(slow: list[float], named: str) -> None:
    ranks = machine()
    assert not odd(ranks)
    for record in ranks:
        own = record.results["compute"]["products"]["float32"]
        own["seconds"] = [factor * own["seconds"][0] for factor in slow * (20 // len(slow))]
    assert any(named in evidence for evidence in odd(ranks).values()), odd(ranks)


def test_what_a_finished_rank_printed_is_in_the_banner_and_what_nccl_always_prints_is_not() -> None:
    ranks = machine()
    for record in ranks:
        record.log = "NCCL version 2.27.5+cuda13.0\nnode0:1:1 [0] NCCL INFO Bootstrap : Using eth0\n"
    assert not odd(ranks)
    ranks[1].log += "node0:1:2 [1] NCCL WARN NET/IB : Got async event : port error\n"
    assert "port error" in odd(ranks)[ranks[1].subject]
    ranks[1].ending = "died"
    assert not odd(ranks), "the report shows its log"


def test_two_that_differ_and_two_groups_are_named_together() -> None:
    pair = sound.records(2)
    pair[1].results["bandwidth"]["rates"]["copy"] *= 0.8
    assert any("unlike each other" in evidence for evidence in odd(pair).values())
    ranks = sound.records(8)
    for record in ranks[4:]:
        record.results["bandwidth"]["rates"]["copy"] *= 0.85
    assert any("at most on 4" in evidence and "at least on 4" in evidence for evidence in odd(ranks).values())


def test_stages_cannot_take_longer_than_the_clock_says_and_all_have_a_time() -> None:
    for change, question in (({"memory": 500.0}, "record: consistent"), ({"memory": None}, "record: well formed")):
        ranks = machine()
        ranks[1].results[TOOK] |= change
        checks = judged(ranks)[1]
        assert (question, ranks[1].subject) in {(check.name, check.subject) for check in checks
                                                if check.status == "unverified"}  # fmt: skip
    del ranks[1].results[TOOK]["memory"]
    assert any("took.memory is missing" in check.evidence for check in judged(ranks)[1])


def test_the_host_is_read_from_its_files(tmp_path: Path) -> None:
    for name, text in {
        "proc/sys/kernel/osrelease": "6.8.0-60-generic", "proc/uptime": "512.25 4000.0",
        "proc/meminfo": "MemTotal: 2048 kB\nMemAvailable: 1024 kB\nSwapTotal: 64 kB\nSwapFree: 16 kB\n",
        "sys/fs/cgroup/cpu.max": "150000 100000", "sys/devices/system/edac/mc/mc0/ce_count": "3",
        "sys/devices/system/edac/mc/mc0/ue_count": "1", "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "a",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "b",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = host.measure(tmp_path)
    assert found["kernel"] == "6.8.0-60-generic"
    assert (found["memory_bytes"], found["memory_available_bytes"]) == (2**21, 2**20)
    assert (found["processors_allowed"], found["memory_errors"], found["governor"]) == (1.5, [3, 1], "a, b")
    assert (found["clock_source"], found["up_seconds"], found["swapped_bytes"]) == (None, 512.25, 48 * 1024)
    assert host.measure(tmp_path / "nowhere")["up_seconds"] is None
    assert host.variables({"NCCL_P2P_DISABLE": "1", "HOME": "/", "UCX_TLS": ""}) == {
        "NCCL_P2P_DISABLE": "1", "UCX_TLS": "(empty)"
    }  # fmt: skip


def test_bits_and_numbers_that_nobody_knows_have_names_that_nobody_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "throttle_mask", lambda handle: 0x1004)
    assert nvml.throttle_reasons(None) == ["power_cap", "unknown 0x1000"]
    assert (nvml._action(99), nvml._compute_mode(0), nvml._compute_mode(7)) == ("unknown 99", "default", "unknown 7")
    assert nvml._fabric_faults(0b01 << 4 | 5 << 8) == ["routes are unhealthy", "too few NVLinks"]
    assert nvml._fabric_faults(0b10 << 4 | 1 << 8 | 1 << 12) == []
    assert nvml._fabric_faults(13 << 8) == ["unknown 13"]
    for words in (["unknown 0x1000"], ["idle", "idle"]):
        ranks = sound.records()
        ranks[1].results["after"]["reading"]["throttle_reasons"] = words
        assert "record: well formed" in {check.name for check in judged(ranks)[1] if check.status == "unverified"}


def test_pcie_errors_are_added_up_by_the_kernel(tmp_path: Path) -> None:
    assert sysfs.pcie_errors(tmp_path) is None
    for name, total in (("correctable", "COR 12"), ("nonfatal", "NONFATAL 1"), ("fatal", "FATAL 0")):
        (tmp_path / f"aer_dev_{name}").write_text(f"RxErr 0\nTOTAL_ERR_{total}\n")
    assert sysfs.pcie_errors(tmp_path) == [12, 1, 0]
