"""Values without a norm are in the banner as they were read."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.acceptance import as_read
from cluster.acceptance.records import Record
from tests.cluster import sound
from tests.cluster.faults import changes
from tests.cluster.faults.reported import H100, Change


def lines(records: list[Record]) -> dict[str, str]:
    """By what they are about."""
    parts = (line.removeprefix("Not judged: ").partition(": ") for line in as_read.lines(records))
    return {name: shown for name, _, shown in parts}


def machine() -> list[Record]:
    records = changes.hosted(H100, gpus=2, adapters=2)
    changes.paced(0.95)(records)
    return records


def after(records: list[Record], **figures: Any) -> None:
    records[1].results["after"]["reading"] |= figures


@pytest.mark.parametrize(
    ("change", "name", "shown"),
    [
        (changes.before([1], temperature_celsius=48), "before the run", "35 to 48 C"),
        (lambda records: after(records, sm_clock_hertz=1410e6), "after it", "1410 to 1980 MHz"),
        (lambda records: after(records, throttle_reasons=["power_cap"]), "after it", "no reason (1) and power_cap (1)"),
        (changes.before([1], pcie_replays=7), "counted before it", "0 to 7 replays of PCIe"),
        (changes.in_load(1, "watts", 390.0, slice(3, 4)), "minutes of load", "390 to 690 W"),
        (changes.losses([2.0, 1.9], [0]), "training", "1 to 1.9 at its end"),
        (changes.every_fit(0.01, 40.0), "repetitions", "1 % slow"),
        (changes.host(busy_ratio=0.31), "hosts", "31 % busy"),
        (changes.took("data", 61.0), "stages", "data 61 s"),
    ],
)
def test_what_was_read_is_quoted(change: Change, name: str, shown: str) -> None:
    records = machine()
    assert shown not in lines(records)[name]
    change(records)
    assert shown in lines(records)[name]


def test_ports_and_messages_are_counted() -> None:
    quoted = lines(machine())
    assert "2 x InfiniBand with RDMA of 400 Gbit/s" in quoted["ports"]
    assert quoted["messages"].startswith("1.0 KiB in 30 us, the longest in 30 us, 256.0 MiB in ")


def test_a_verdict_that_failed_or_is_simulated_quotes_nothing() -> None:
    quoted = set(as_read.lines(machine()))
    assert quoted < set(sound.report(machine(), "--thorough")["acceptance"]["summary"])
    assert not quoted & set(sound.report(machine(), "--thorough", simulated=True)["acceptance"]["summary"])
    sick = machine()
    sick[0].results["compute"]["products"]["float16"]["wrong_rows"] = [3]
    assert not quoted & set(sound.report(sick, "--thorough")["acceptance"]["summary"])


def test_nothing_is_quoted_of_what_was_not_measured() -> None:
    records = sound.records(1)
    assert not {"minutes of load", "messages"} & set(lines(records))
    records[0].results = {"presence": records[0].results["presence"]}
    assert lines(records) == {"hosts": "1 GPUs by CUDA, 1 by NVML"}
