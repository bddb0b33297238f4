"""What surrounds a GPU, by good words: the host's settings, variables, and versions that fit together."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.acceptance import ledger
from cluster.acceptance.records import Record

WORDS: dict[str, frozenset[str]] = {
    "presence.host.clock_source": frozenset(
        {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "xen", "timebase"}
    ),
    "presence.host.governor": frozenset({"performance"}),
}
"""Of a field the only words that nobody has to ask about."""
DRIVERS_OF_CHIPS = {(7, 0): 384, (7, 5): 410, (8, 0): 450, (8, 9): 525, (9, 0): 525, (10, 0): 570}
"""By compute capability (NVIDIA, data-centre driver releases)."""
DRIVERS_OF_CUDA = {(11, 0): 450, (12, 0): 525, (13, 0): 580}
"""Without the package for forward compatibility (NVIDIA, CUDA compatibility)."""
NCCL_OF_CHIPS = {(8, 0): (2, 7), (9, 0): (2, 12), (10, 0): (2, 25)}
PORT_RATES = frozenset((1, 2.5, 5, 10, 14, 20, 25, 28, 40, 50, 56, 80, 100, 112, 200, 400, 800))
"""Gbit/s that ports of InfiniBand and Ethernet have."""
HARMLESS = frozenset(
    {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX",
     "NCCL_TOPO_FILE", "NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "CUDA_DEVICE_ORDER",
     "NCCL_VERSION"}
)  # fmt: skip
"""Variables that name things; any other one changes what NCCL or a product does."""


@dataclass(frozen=True, kw_only=True)
class Oddity:
    """A figure that stands out."""

    subject: str
    name: str
    evidence: str
    far: bool = False


def found(records: Sequence[Record]) -> list[Oddity]:
    """All of them."""
    return [*_odd_words(records), *_variables(records), *_old(records), *_rates(records)]


def _odd_words(records: Sequence[Record]) -> Iterator[Oddity]:
    """Words of the host that are not among the known good ones, or not those of most."""
    said: dict[str, dict[str, str]] = {}
    for record in records:
        for key, value in (record.result("presence").get("host") or {}).items():
            if isinstance(value, str):
                said.setdefault(f"presence.host.{key}", {}).setdefault(f"node {record.node}", value)
    for path, by_node in said.items():
        usual, most = Counter(by_node.values()).most_common(1)[0]
        for node, value in by_node.items():
            if value not in WORDS.get(path, (value,)):
                yield Oddity(subject=node, name=path, evidence=f"{_words(path)}: {value}")
            elif value != usual or (len(by_node) > most and 2 * most <= len(by_node)):
                yield Oddity(subject=node, name=path, evidence=f"{_words(path)}: {value}, on most nodes {usual}")


def _old(records: Sequence[Record]) -> Iterator[Oddity]:
    """Drivers and libraries that are older than what the chip, or PyTorch, was made for: they run by a detour."""
    for record in records:
        presence, reading = record.result("presence"), record.result("before").get("reading") or {}
        chip, driver = tuple(presence.get("compute_capability") or ()), _version(reading.get("driver"))
        for what, table, key in (
            ("this chip", DRIVERS_OF_CHIPS, chip),
            ("CUDA", DRIVERS_OF_CUDA, _version(presence["cuda"])),
        ):
            least = max((need for since, need in table.items() if key >= since), default=0)
            if driver and driver[0] < least:
                evidence = f"driver {reading['driver']}, {what} needs {least} and newer"
                yield Oddity(subject=record.subject, name="presence.driver", evidence=evidence)
        nccl = tuple(presence.get("nccl") or ())
        least_nccl = max((need for since, need in NCCL_OF_CHIPS.items() if chip >= since), default=(0,))
        if nccl and nccl < least_nccl:
            evidence = f"NCCL {'.'.join(map(str, nccl))}, this chip needs {'.'.join(map(str, least_nccl))} and newer"
            yield Oddity(subject=record.subject, name="presence.nccl", evidence=evidence)


def _rates(records: Sequence[Record]) -> Iterator[Oddity]:
    for record in records:
        for port in record.result("network").get("ports") or ():
            rate = port["rate_gigabits"]
            if port["up"] and rate is not None and rate not in PORT_RATES:
                evidence = f"{port['name']} has {rate:g} Gbit/s, which no kind of port has"
                yield Oddity(subject=f"node {record.node}", name="network.ports.rate_gigabits", evidence=evidence)


def _version(text: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", str(text or ""))[:2])


def _variables(records: Sequence[Record]) -> Iterator[Oddity]:
    """Variables that somebody has set, and that change what is measured."""
    values: dict[str, set[str]] = {}
    for record in records:
        for name, value in (record.result("presence").get("environment") or {}).items():
            if name not in HARMLESS:
                values.setdefault(name, set()).add(value)
    if values:
        shown = ", ".join(f"{name}={' or '.join(sorted(own))}" for name, own in sorted(values.items()))
        yield Oddity(subject="all ranks", name="presence.environment", evidence=f"variables that are set: {shown}")


def _words(path: str) -> str:
    return f"{path}, {ledger.readings()[path].meaning}" if path in ledger.readings() else path
