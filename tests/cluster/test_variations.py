"""Whatever is done to a field of a sound machine's records, the verdict is no plain PASS, or `FREE` says why."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from fnmatch import fnmatchcase

import pytest

from cluster.acceptance import as_read, report
from cluster.acceptance.records import Record, apart
from cluster.acceptance.verdict import UNUSUAL, Check, decide
from tests.cluster import sound
from tests.cluster.faults.variations import Variation, variations
from tests.cluster.test_ledger import machine

FREE = {
    "reading.untold.*, *": "why a figure is not there; that it is not there is judged",
    "reading.name, other case, both, *": "the same name; CUDA's is compared",
    "reading.pcie_generation, *, before, *": "idle boards lower it",
    "reading.temperature_celsius, *": "sound GPUs of one node differ by 30 degrees",
    "reading.memory_used_bytes, *": "what others may use is judged by a bound",
    "reading.memory_busy_ratio, *": "it depends on the work; that it is free before is judged",
    "reading.pcie_sent_bytes_per_second, *": "it depends on the work; that it is free before is judged",
    "reading.pcie_received_bytes_per_second, *": "it depends on the work; that it is free before is judged",
    "reading.power_watts, *": "it depends on the work; the rates are judged",
    "reading.power_limit_watts, *, both, all": "a limit above the default costs no rate",
    "reading.energy_joules, *": "a counter of unknown beginning; that it goes on is judged",
    "reading.sm_clock_hertz, *": "idle boards lower it, and under load the rates are judged",
    "reading.memory_clock_hertz, *before*": "idle boards lower it",
    "reading.throttle_reasons, *": "a board may be idle at either time; what harms is judged",
    "reading.ecc_corrected, *": "a counter of unknown beginning, which few boards have",
    "reading.ecc_mode_default, *, both, all": "off by default is how some models come",
    "reading.nvlinks, a quarter more, both, all": "NVML counts links of the chip that a board does not wire",
    "reading.maximum_celsius, *, both, all": "the board's own limit; how warm it gets is judged",
    "reading.sm_clock_max_hertz, a quarter more, both, all": "a board's property; the rates are judged",
    "reading.nvlinks, double, both, all": "NVML counts links of the chip that a board does not wire",
    "reading.topology.*, *, all": "how a node is built is its maker's choice; the rates of pairs are judged",
    "time, *": "any day will do; that it goes on is judged",
    "presence.device_name, other case, all": "NVML has the name as well",
    "presence.compute_capability, *, all": "no bound comes of it above 8.0",
    "presence.nccl, *, all": "any version will do; which one, --expect says",
    "presence.peak_tflops.*, *, all": "a constant of this test, not a reading",
    "presence.held_ratio.*, *, all": "a constant of this test, not a reading",
    "took.*, zero*": "not each rank goes through all of a stage",
    "took.*, half*": "quicker",
    "took.*, 0.8 of it*": "quicker",
    "took.*, a quarter more*": "what it loads, and from where, differs; twice and ten seconds more are named",
    "took.*, double*": "as before: of these few seconds",
    "presence.host.busy_ratio, *": "how busy a host is varies; from a half on, the banner says it",
    "presence.host.memory_available_bytes, *": "what is free varies; 8 GiB and less is in the banner",
    "presence.*, *, all": "how GPUs are shown to a job is its owner's choice",
    "steadiness.*samples, *": "how many there were in the time",
    "collectives.steady.samples, *, all": "how many there were in the time",
    "steadiness.*, a quarter more (longest_seconds), *": "one interruption of less than a second is nobody's fault",
    "steadiness.*, double (longest_seconds), *": "one interruption of less than a second is nobody's fault",
    "collectives.steady.*, a quarter more (longest_seconds), *": "as before",
    "collectives.steady.*, double (longest_seconds), *": "as before",
    "collectives.measurements.seconds, * in one, *": "of the smallest message: its bound is ten times the usual",
    "collectives.measurements.seconds, 0.8 of it in all, all": "quicker, and still within what the links carry",
    "collectives.measurements.seconds, cut in all, all": "fewer repetitions",
    "collectives.measurements.seconds, twice in all, all": "one repetition more",
    "network.ports.counters.*, *, both, *": "nobody knows in how many days errors came",
    "network.ports.rate_gigabits, * more in *, both, all": "what the slots allow is the bound",
    "network.ports.rate_gigabits, double *, both, all": "what the slots allow is the bound",
    "network.ports.pcie_generation_max, a quarter more in *, both, *": "the adapter's own; the link of now is judged",
    "network.ports.pcie*, *, both, all": "adapters of a virtual machine show no slot",
    "network.ports.numa_node, none in all, both, all": "adapters of a virtual machine show no NUMA node",
    "*.bytes, *, all": "chosen by this test, the same on all",
    "memory.rounds, double, all": "chosen by this test, the same on all",
    "gradients.*, *": "a place, or a deviation far below its bound",
    "training.model, other case, all": "chosen on the command line",
    "training.batch_size, double, all": "chosen on the command line",
    "training.batch_size, a quarter more, all": "chosen on the command line",
    "training.memory_peak_bytes, *, all": "of the model that is trained",
    "training.memory_peak_bytes, 0.8 of it, one": "an allocator keeps some more or less",
    "training.memory_peak_bytes, a quarter more, one": "an allocator keeps some more or less",
    "training.epochs, twice, all": "one epoch more",
    "training.epochs.losses, 0.8 of it *, all": "a loss is no rate; that it falls from chance is judged",
    "training.epochs.losses, a quarter more *, all": "as before",
    "training.epochs.losses, double *, all": "as before: twice the chance of a new net is believed",
    "training.epochs.losses, 0.8 of it in one, one": "of one epoch; a loss is no rate",
    "training.epochs.own_seconds, a quarter more *, *": "a straggler or a later epoch by a fifth is no pass; all of "
    "all: no norm is published, and the banner says so",
    "training.epochs.own_seconds, double in all, all": "no norm is published, and the banner says so",
    "training.epochs.images_per_second, half in all, all": "no norm is published, and the banner says so",
    "training.epochs.images_per_second, half in one, all": "of the first epoch, whose first steps choose kernels",
    "training.epochs.images_per_second, a quarter more *, *": "a rate of one epoch; what its parts allow is the bound",
    "training.epochs.own_seconds, double in one, *": "of the first epoch, whose first steps choose kernels",
    "training.*, 0.8 of it*, *": "a step that is quicker, or within what GPUs of one model differ by",
    "training.alone_seconds, *, all": "fewer or quicker steps, the same on all",
    "copies.seconds.*, 0.8 of it*, *": "quicker, and still within what the link carries",
    "pairs.met.seconds, 0.8 of it in *, *": "quicker, and still within what the links carry",
    "load.series.products_per_second, 0.8 of it in one, *": "one sample of 24 costs little",
    "load.series.products_per_second, half in one, *": "one sample of 24 costs little",
    "load.series.products_per_second, a quarter more *, *": "quicker, and within what single products allow",
    "load.products, 0.8 of it, *": "the pace is judged",
    "load.products, a quarter more, *": "the pace is judged",
    "bandwidth.rates.*, a quarter more*, *": "quicker, and within what a cache may add",
    "training.epochs.own_seconds, half in all, all": "quicker steps",
    "adapters.tool, other case, all": "the same program",
    "adapters.measured.reason, missing in *, *": "why there is no rate; that there is none is judged",
    "adapters.measured.server, missing in one, *": "taken as the adapter's rate to itself",
    "load.series.*celsius, *": "GPUs of one node differ by 30 degrees",
    "load.series.watts, *": "it depends on the work; the pace is judged",
    "load.series.sm_clock_hertz, *": "shown with the pace, which is judged",
    "load.series.throttle_reasons, *": "what harms is judged",
    "adapters.measured.gigabits, 0.8 of it in one, *": "one adapter to itself, which carries its line to the next node",
    "collectives.measurements.seconds, half in all, all": "between nodes nobody knows the most: switches add up",
    "network.peer_memory, inverted, after, *": "kernels with dma-buf do without",
}
"""Variations that may pass: title, and why."""


def judged(records: list[Record]) -> tuple[str, list[Check]]:
    """The verdict, and the checks."""
    checks = report.judge(sound.options("--thorough"), apart(records), report.Standards())
    return decide(checks, device="cuda", simulated=False).outcome, checks


def banner(records: list[Record]) -> list[str]:
    """What the verdict says that it is not about, without the values that it only quotes."""
    quoted = set(as_read.lines(records))
    summary = sound.report(records, "--thorough")["acceptance"]["summary"]
    return [line for line in summary if line.startswith("Not ") and line not in quoted]


def excuse(variation: Variation) -> str | None:
    """Why it may pass."""
    return next((why for title, why in FREE.items() if fnmatchcase(variation.title, title)), None)


def applied(every: int) -> Iterator[tuple[Variation, list[Record]]]:
    """Each so many-th variation that is not excused, with its records."""
    base = machine()
    for number, variation in enumerate(variations(machine)):
        if number % every == 0 and excuse(variation) is None:
            records = copy.deepcopy(base)
            if variation.apply(records):
                yield variation, records


def silent(every: int) -> list[str]:
    """Those that pass, and of which the banner says nothing that it does not say of the sound machine."""
    usual = banner(machine())
    outcomes = ((variation, judged(records)[0], records) for variation, records in applied(every))
    return [variation.title for variation, verdict, records in outcomes
            if verdict == "PASS" and banner(records) == usual]  # fmt: skip


def test_the_machine_that_is_varied_passes() -> None:
    verdict, checks = judged(machine())
    assert verdict == "PASS", [(check.name, check.evidence) for check in checks if check.status == "unverified"]


def test_some_variations_of_every_kind_do_not_pass() -> None:
    assert silent(every=67) == []


@pytest.mark.night
def test_no_variation_passes() -> None:
    assert silent(every=1) == []


def test_a_part_is_named() -> None:
    """Whatever happens to a field of one rank, that rank or its node is named."""
    unnamed = []
    for variation, records in applied(every=211):
        _, checks = judged(records)
        subjects = {
            check.subject for check in checks if check.status in ("fail", "unverified") or check.name == UNUSUAL
        }
        if not variation.everywhere and not any("rank 2" in name or "node1" in name for name in subjects):
            unnamed.append((variation.title, sorted(subjects)))
    assert not unnamed
