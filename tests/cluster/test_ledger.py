"""Every field that a worker records is judged, or the ledger says why not; and what it names does judge."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from cluster.acceptance import expectations, ledger, nvml, report, sysfs
from cluster.acceptance.checks import hardware_state
from cluster.acceptance.records import Record
from cluster.acceptance.verdict import UNUSUAL
from tests.cluster import sound
from tests.cluster.faults import issues
from tests.cluster.faults.machines import alone
from tests.cluster.faults.measured import FAULTS, judged
from tests.cluster.faults.spoils import load
from tests.cluster.test_network import tree

ABSOLUTE, SIBLINGS, HISTORY = ledger.WAYS
EXPECTED = """
[gpu]
model = "NVIDIA H100 80GB HBM3"
vbios = "96.00.89.00.01"
[software]
driver = "580.65.06"
torch = "2.13.0"
cuda = "13.0"
nccl = "2.27.5"
[network]
rate_gigabits = 400
[training]
images_per_second = 9000
"""


class NoXids:
    """What `nvml.read` wants to know XIDs from."""

    def count(self) -> None:
        return None


def machine() -> list[Record]:
    """Two nodes of two GPUs, with all that newer drivers tell, adapters' slots, and minutes of load."""
    ranks = sound.nodes(2, per_node=2)
    load()(ranks)
    for record in ranks:
        record.results["presence"] |= {"given_by_slurm": 2, "restricted": record.rank > 1,
                                       "host": dict(sound.HOST), "environment": {"NCCL_DEBUG": "WARN"}}  # fmt: skip
        for stage in ("before", "after"):
            record.results[stage]["reading"] |= {
                "fabric": {"state": "completed", "status": 0, "clique": 0, "cluster": "", "degraded": False,
                           "faults": []},
                "pcie_errors": [0, 0, 0], "slowed_seconds": [0.0, 0.0, 0.0],
                "recovery_action": "none", "sram_errors": [0, 0], "ecc_lifetime": 0, "xids_before": [],
                "memory_clock_max_hertz": 2619e6, "nvlink_megabytes_per_second": 26562, "nvlink_peers": {"switch": 18},
                "retired_pages": [0, 0],
            }  # fmt: skip
        record.results["before"]["reading"]["topology"] = {
            str(other): "same board" if other == record.local_rank else "PCIe switches" for other in range(2)
        }
        for stage in ("network", "network_after"):
            for port in record.results[stage].get("ports", ()):
                port |= {"pcie_width": 16, "pcie_width_max": 16, "pcie_generation": 5, "pcie_generation_max": 5}
                port |= {"numa_node": 0, "firmware": "28.39.1002", "mtu": 4092}
    alone(ranks, 391.0)
    return ranks


def test_every_recorded_field_has_an_entry(tmp_path: Path) -> None:
    tree(tmp_path)
    reading = nvml.read(None, NoXids())  # type: ignore[arg-type]
    reading["untold"] = {}
    ranks = [*machine(), sound.record(), Record(rank=0, results={"before": {"reading": reading, "time": 1.0}})]
    ranks.append(Record(rank=0, results={"network": {"ports": sysfs.ports(tmp_path), "peer_memory": False}}))
    missing = {field for record in ranks for field in ledger.fields(record) if ledger.entry(field) is None}
    assert not missing, "add them to cluster/acceptance/readings.toml"


def test_a_field_that_nobody_wrote_down_is_found() -> None:
    record = sound.record()
    record.results["before"]["reading"]["fan_percent"] = 30
    assert [field for field in ledger.fields(record) if ledger.entry(field) is None] == ["reading.fan_percent"]


def names(document: dict[str, Any]) -> set[str]:
    return {check["name"] for check in document["validation"]["checks"]}


def test_every_check_of_the_ledger_is_one_that_there_is(tmp_path: Path) -> None:
    patterns = {
        f"{field}, {way}": getattr(reading, way) for field, reading in ledger.readings().items() for way in ledger.WAYS
    }
    reasons = [text for text in patterns.values() if text.startswith(ledger.NOT)]
    assert all(len(text) > len(ledger.NOT) + 5 for text in reasons), "no reason"
    open_ = {place: pattern for place, pattern in patterns.items() if pattern not in reasons}
    for known in _names_of_checks(tmp_path):
        open_ = {
            place: pattern for place, pattern in open_.items() if not any(fnmatchcase(name, pattern) for name in known)
        }
        if not open_:
            return
    raise AssertionError(f"no check is called {open_}")


def _names_of_checks(folder: Path) -> Iterator[set[str]]:
    """Those of many reports, one after the other: first of those that have the most checks."""
    (folder / "file.toml").write_text(EXPECTED)
    standards = report.Standards(expected=expectations.read(folder / "file.toml"))
    yield names(sound.report(machine(), "--thorough", standards=standards))
    yield names(sound.report(sound.records(8)))
    yield {f"sound: same {title}" for title, _, _ in hardware_state.ALIKE.values()}
    odd = machine()
    odd[0].results["presence"]["host"]["governor"] = "powersave"
    yield names(sound.report(odd))
    for story in issues.BROKEN:
        if "node" in story.what:  # of these there is a check only where nodes differ
            ranks = story.records()
            story.change(ranks)
            yield names(sound.report(ranks))
    yield {fault.check for fault in FAULTS}  # `test_faults.py` finds each in the report of its fault
    # Those with the most checks first: of nodes that differ, of a file or an earlier report to be compared with.
    for fault in sorted(FAULTS, key=lambda fault: not (fault.compared or fault.expect or "node" in fault.what)):
        yield names(judged(fault))


_NEXT_DIGIT = str.maketrans("0123456789abcdef", "123456789abcdef0")


def changed(value: Any) -> Iterator[Any]:
    """Other values of the same kind: much less, much more, other words."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (type(value)(value * factor) for factor in (0.1, 0.8, 9.0, 0.001))
        yield from (value + 1, value + 10**6, value + 7 * 10**9, None)
        yield from (type(value)(value * factor) for factor in (0.5, 2.0))
    elif isinstance(value, str):
        yield from ("in progress", "another", "3")
        # What looks like a value of that field: form.py takes out what does not.
        yield from (value.translate(_NEXT_DIGIT), f"{value[:-1]}0", nvml.RECOVERY_ACTIONS[1], nvml.COMPUTE_MODES[2],
                    "Ethernet")  # fmt: skip
    elif isinstance(value, list):
        yield from (
            [79],
            ["hardware_thermal_slowdown"],
            ["application_clocks"],
            ["in no partition"],
            [1] * len(value),
            [0] * len(value),
            [300] * len(value),
        )
        if value and isinstance(value[0], float):
            yield from ([one * factor for one in value] for factor in (0.3, 3.0))
            yield [float("nan")] * len(value)
    elif value is None:
        yield from (1, "another", [79], 0)


def change(value: Any, path: list[str], number: int) -> bool:
    """Put the `number`-th other value at every place that the path leads to; False if there is none."""
    if isinstance(value, list):
        return sum(change(inner, path, number) for inner in value if isinstance(inner, dict)) > 0
    if not isinstance(value, dict):
        return False
    keys = [key for key in value if path[0] in ("*", key)]
    if len(path) > 1:
        return sum(change(value[key], path[1:], number) for key in keys) > 0
    done = False
    for key in keys:
        others = list(changed(value[key]))
        if number < len(others):
            value[key], done = others[number], True
    return done


STAGES = {
    ABSOLUTE: ("before", "after", "network", "network_after"),
    SIBLINGS: ("before", "after", "network", "network_after"),
    HISTORY: ("after", "network_after"),
}
EMPTY = ("reading.untold.*", "memory.wrong.*", "reading.fabric", "presence.environment.*")
"""Tables that a sound machine leaves empty, or fills with what does no harm; the planted faults fill them."""
OVER_TIME = ("load.", "bandwidth.", "training.", "compute.", "collectives.", "steadiness.")
"""History that is inside one stage, or in a report of another day."""


@pytest.mark.parametrize("way", ledger.WAYS)
def test_what_the_ledger_says_is_judged_is_no_pass_when_it_changes(way: str, tmp_path: Path) -> None:
    (tmp_path / "file.toml").write_text(EXPECTED)
    file = report.Standards(expected=expectations.read(tmp_path / "file.toml"))
    silent = []
    sick = {ABSOLUTE: range(4), SIBLINGS: [2], HISTORY: [2]}[way]
    for field, reading in ledger.readings().items():
        pattern = getattr(reading, way)
        if pattern.startswith(ledger.NOT) or field in EMPTY or (way == HISTORY and field.startswith(OVER_TIME)):
            continue
        for number in range(12):
            ranks = machine()
            before = copy.deepcopy(ranks)
            for rank in sick:
                _change(ranks[rank], field, STAGES[way], number)
            if ranks == before:
                continue
            standards = file if "expected" in pattern else report.Standards()
            try:
                checks = report.judge(sound.options("--thorough"), ranks, standards)
            except (
                TypeError,
                ValueError,
                AttributeError,
                IndexError,
            ):  # a value of another type, which no worker records
                continue
            # What stands out passes, and is in the banner.
            named = [check for check in checks if check.status in ("fail", "unverified") or check.name == UNUSUAL]
            if any(fnmatchcase(check.name, pattern) for check in named):
                break
        else:
            silent.append(f"{field}: {pattern}")
    assert not silent, silent


def _change(record: Record, field: str, stages: tuple[str, ...], number: int) -> None:
    stage, *path = field.split(".")
    if stage == "reading":
        for name in stages[:2] if len(stages) > 2 else stages[:1]:
            change(record.results[name]["reading"], path, number)
    elif stage == "network":
        for name in stages[-2:] if len(stages) > 2 else stages[-1:]:
            if "ports" in record.results[name]:
                record.results[name] = copy.deepcopy(record.results[name])
                change(record.results[name], path, number)
    else:
        change(record.results.get(stage), path, number)


def test_the_report_says_what_nobody_judges_and_nobody_reads() -> None:
    document = sound.report(sound.records())
    unjudged = document["unjudged"]
    assert "reading.topology.*" not in unjudged["not_judged"], "it was not recorded"
    assert "gradients.parameter" in unjudged["not_judged"]
    assert "fabric" in unjudged["not_read"]
    assert "fabric" not in sound.report(machine())["unjudged"]["not_read"]
    note = document["acceptance"]["summary"][5]
    assert str(len(unjudged["not_judged"])) in note
    assert str(len(unjudged["not_read"])) in note
