"""What surrounds a GPU, by good words: the host's settings, variables, and versions that fit together."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.acceptance import ledger
from cluster.acceptance.checks.links import by_node
from cluster.acceptance.hardware import board
from cluster.acceptance.records import Record

WORDS: dict[str, frozenset[str]] = {
    "presence.host.clock_source": frozenset(
        {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "xen", "timebase"}
    ),
    "presence.host.governor": frozenset({"performance"}),
    "reading.compute_mode": frozenset({"default"}),
}
"""Of a field the only words that nobody has to ask about."""
FEWEST = 4
"""GPUs of a node, below which nobody knows which one is in the wrong slot."""
CHIPS = {
    r"\bV100": (7, 0), r"\bT4\b": (7, 5), r"\b(A100|A800|A30)\b": (8, 0), r"\b(A10G?|A2|A16|A40)\b": (8, 6),
    r"\b(L4|L40S?|L20)\b|RTX 40\d\d": (8, 9), r"\b(H100|H200|H800|H20|GH200)\b": (9, 0), r"\bG?B200\b": (10, 0),
    r"\bG?B300\b": (10, 3), r"RTX 50\d\d": (12, 0),
}  # fmt: skip
"""Compute capability by the name of the board (NVIDIA, CUDA GPUs)."""
DRIVERS_OF_CHIPS = {(7, 0): 384, (7, 5): 410, (8, 0): 450, (8, 9): 525, (9, 0): 525, (10, 0): 570}
"""By compute capability (NVIDIA, data-centre driver releases)."""
DRIVERS_OF_CUDA = {(11, 0): 450, (12, 0): 525, (13, 0): 580}
"""Without the package for forward compatibility (NVIDIA, CUDA compatibility)."""
NCCL_OF_CHIPS = {(8, 0): (2, 7), (9, 0): (2, 12), (10, 0): (2, 25)}
PORT_RATES = frozenset((1, 2.5, 5, 10, 14, 20, 25, 28, 40, 50, 56, 80, 100, 112, 200, 400, 800))
"""Gbit/s that ports of InfiniBand and Ethernet have."""
HARMLESS = {
    "NCCL_DEBUG": "VERSION|WARN|INFO", "NCCL_DEBUG_SUBSYS": ".*", "NCCL_DEBUG_FILE": ".*", "NCCL_VERSION": ".*",
    "NCCL_ASYNC_ERROR_HANDLING": "[013]", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "[013]", "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}  # fmt: skip
"""Variables, and their values, that change nothing; any other one may change what NCCL or a product does."""
QUIET = re.compile(r"\s*|.*NCCL (version|INFO)\b.*|\.\.\. [a-z_]+")
"""Lines that a sound worker may print."""
MOST_WORDS, MOST_LINES = 100, 3
MORE_THAN_SHEET = 1.2
"""Times its multiprocessors: the data sheets' entries stand for several boards."""
ABOVE_SHEET = 1.05
"""Of the data sheet's memory clock: a board that is above it has another memory, or is overclocked."""


@dataclass(frozen=True, kw_only=True)
class Oddity:
    """A figure that stands out."""

    subject: str
    name: str
    evidence: str
    far: bool = False


def found(records: Sequence[Record]) -> list[Oddity]:
    """All of them."""
    return [*_odd_words(records), *_variables(records), *_old(records), *_rates(records), *_paths(records),
            *_printed(records), *_built(records), *_flapped(records)]  # fmt: skip


def _odd_words(records: Sequence[Record]) -> Iterator[Oddity]:
    """Words of the host that are not among the known good ones, or not those of most."""
    said: dict[str, dict[str, str]] = {}
    for node, own in by_node(records).items():
        hosts = [record.result("presence").get("host") or {} for record in own]
        for key in dict.fromkeys(key for host in hosts for key, value in host.items() if isinstance(value, str)):
            words = sorted({str(host[key]) for host in hosts if host.get(key) is not None})
            said.setdefault(f"presence.host.{key}", {})[f"node {node}"] = " or ".join(words)
    for record in records:
        if (mode := (record.result("before").get("reading") or {}).get("compute_mode")) is not None:
            said.setdefault("reading.compute_mode", {})[record.subject] = mode
        for port in record.result("network").get("ports") or ():
            if port["up"] and port.get("firmware"):
                # Adapters of one kind and rate have one firmware.
                of_kind = f"network.ports.firmware of {port['kind']}, {port['rate_gigabits']} Gbit/s"
                said.setdefault(of_kind, {})[f"node {record.node} port {port['name']}"] = port["firmware"]
    for path, by_place in said.items():
        usual, most = Counter(by_place.values()).most_common(1)[0]
        for node, value in by_place.items():
            if value not in WORDS.get(path, (value,)):
                yield Oddity(subject=node, name=path, evidence=f"{_words(path)}: {value}")
            elif value != usual or (len(by_place) > most and 2 * most <= len(by_place)):
                yield Oddity(subject=node, name=path, evidence=f"{_words(path)}: {value}, on most nodes {usual}")


def _printed(records: Sequence[Record]) -> Iterator[Oddity]:
    """What a rank printed although it went through all stages: warnings of PyTorch, NCCL or CUDA."""
    lines: dict[str, tuple[str, list[str]]] = {}
    for record in records:
        for line in record.log.splitlines() if record.ending == "finished" else ():
            if not QUIET.fullmatch(line):
                same = re.sub(r"[0-9a-f]*\d[0-9a-f]*", "#", line)
                lines.setdefault(same, (line, []))[1].append(record.subject)
    for line, subjects in list(lines.values())[:MOST_LINES]:
        subject = "all ranks" if len(set(subjects)) == len(records) else subjects[0]
        shown = "".join(character if " " <= character <= "~" else " " for character in line)[:MOST_WORDS]
        yield Oddity(subject=subject, name="log", evidence=f"it printed {shown.strip()!r} ({len(subjects)} lines so)")


def _built(records: Sequence[Record]) -> Iterator[Oddity]:
    """How many GPUs and ports a node has, and what joins them, against how such boards are built."""
    for node, own in by_node(records).items():
        presence, count = own[0].result("presence"), len({record.result("presence").get("uuid") for record in own})
        known = board(presence.get("device_name"))
        seen = max(presence.get("seen_by_cuda") or 0, count)
        place = f"node {node}"
        if known is not None and known.wired and seen & (seen - 1):
            evidence = f"seen_by_cuda: {seen} GPUs; such boards have 4, 8 or 16"
            yield Oddity(subject=place, name="presence.seen_by_cuda", evidence=evidence)
        used = [port for record in own for port in record.result("network").get("ports") or ()
                if port["rdma"] and port["up"]]  # fmt: skip
        of_rate = max(Counter(port["rate_gigabits"] for port in used).values(), default=0)
        if seen > 1 and of_rate > 1 and seen % of_rate and of_rate % seen:
            evidence = f"{of_rate} ports of one rate for {seen} GPUs, which cannot share them evenly"
            yield Oddity(subject=place, name="network.ports.up", evidence=evidence)
        for record in own:
            reading = record.result("before").get("reading") or {}
            peers, slot = reading.get("nvlink_peers") or {}, reading.get("pcie_generation_max")
            if known is not None and known.joined == "switch" and peers and not peers.get("switch"):
                evidence = "nvlink_peers: none of its NVLinks leads to a switch, as they do on such boards"
                yield Oddity(subject=record.subject, name="reading.nvlink_peers", evidence=evidence)
            units, of_sheet = record.result("presence").get("multiprocessors"), known.multiprocessors if known else None
            if units and of_sheet and units > MORE_THAN_SHEET * of_sheet:
                evidence = f"multiprocessors: {units}, such boards have {of_sheet}"
                yield Oddity(subject=record.subject, name="presence.multiprocessors", evidence=evidence)
            clock = (record.result("after").get("reading") or {}).get("memory_clock_hertz")
            if (
                known is not None
                and clock
                and known.memory_clock_mhz
                and clock > ABOVE_SHEET * 1e6 * known.memory_clock_mhz
            ):
                evidence = f"memory_clock_hertz: {clock / 1e6:g} MHz, such boards have {known.memory_clock_mhz:g}"
                yield Oddity(subject=record.subject, name="reading.memory_clock_hertz", evidence=evidence)
            if known is not None and slot and known.pcie_generation and slot < known.pcie_generation:
                evidence = f"pcie_generation_max: the slot allows {slot}, the board {known.pcie_generation}"
                yield Oddity(subject=record.subject, name="reading.pcie_generation_max", evidence=evidence)


def _old(records: Sequence[Record]) -> Iterator[Oddity]:
    """Drivers and libraries that are older than what the chip, or PyTorch, was made for; chips of another name."""
    places: dict[tuple[str, str], list[str]] = {}
    for record in records:
        for field, evidence in _unfit(record):
            places.setdefault((field, evidence), []).append(record.subject)
    for (field, evidence), subjects in places.items():
        subject = "all ranks" if len(subjects) == len(records) else subjects[0]
        yield Oddity(subject=subject, name=field, evidence=f"{evidence} (so on {len(subjects)} of {len(records)})")


def _unfit(record: Record) -> Iterator[tuple[str, str]]:
    """Field and evidence."""
    presence, reading = record.result("presence"), record.result("before").get("reading") or {}
    chip, driver = tuple(presence.get("compute_capability") or ()), _version(reading.get("driver"))
    cuda = _version(presence.get("cuda"))
    for what, table, key in (("this chip", DRIVERS_OF_CHIPS, chip), ("CUDA", DRIVERS_OF_CUDA, cuda)):
        least = max((need for since, need in table.items() if key >= since), default=0)
        if driver and driver[0] < least:
            yield "presence.driver", f"driver {reading['driver']}, {what} needs {least} and newer"
    name = str(presence.get("device_name"))
    meant = next((own for words, own in CHIPS.items() if re.search(words, name)), chip)
    if chip and chip != meant:
        evidence = f"compute_capability {chip[0]}.{chip[1]}, and {name} has {meant[0]}.{meant[1]}"
        yield "presence.compute_capability", evidence
    nccl = tuple(presence.get("nccl") or ())
    least_nccl = max((need for since, need in NCCL_OF_CHIPS.items() if chip >= since), default=(0,))
    if nccl and nccl < least_nccl:
        evidence = f"NCCL {'.'.join(map(str, nccl))}, this chip needs {'.'.join(map(str, least_nccl))} and newer"
        yield "presence.nccl", evidence


def _paths(records: Sequence[Record]) -> Iterator[Oddity]:
    """A GPU that PCIe joins to its neighbours in another way than these to each other: another slot, or processor."""
    nodes: dict[str, dict[str, str]] = {}
    for record in records:
        if words := words_of_topology(record):
            nodes.setdefault(record.node, {})[record.subject] = words
    for own in nodes.values():
        usual, count = Counter(own.values()).most_common(1)[0]
        for subject, kinds in own.items() if len(own) >= FEWEST and 2 * count > len(own) else ():
            if kinds != usual:
                yield Oddity(subject=subject, name="reading.topology", evidence=f"topology: {kinds}; others {usual}")


def words_of_topology(record: Record) -> str:
    """What PCIe has between a GPU and its neighbours, each with how often: "3 x PCIe switches"."""
    paths = (record.result("before").get("reading") or {}).get("topology") or {}
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(Counter(paths.values()).items()))


def _rates(records: Sequence[Record]) -> Iterator[Oddity]:
    for record in records:
        for port in record.result("network").get("ports") or ():
            rate = port["rate_gigabits"]
            if port["up"] and rate is not None and rate not in PORT_RATES:
                evidence = f"{port['name']} has {rate:g} Gbit/s, which no kind of port has"
                yield Oddity(subject=f"node {record.node}", name="network.ports.rate_gigabits", evidence=evidence)


def _flapped(records: Sequence[Record]) -> Iterator[Oddity]:
    """Ports of any kind that went up or down while the test ran: no check asks of those that carry no messages."""
    for record in records:
        after = {port["name"]: port["up"] for port in record.result("network_after").get("ports") or ()}
        for port in record.result("network").get("ports") or ():
            if record.measured("network_after") and port["name"] not in after:
                evidence = f"{port['name']} is gone after the run"
                yield Oddity(subject=f"node {record.node}", name="network.ports.name", evidence=evidence)
            elif after.get(port["name"], port["up"]) != port["up"]:
                evidence = f"{port['name']} went {'down' if port['up'] else 'up'} while the test ran"
                yield Oddity(subject=f"node {record.node}", name="network.ports.up", evidence=evidence)


def _version(text: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", str(text or ""))[:2])


def _variables(records: Sequence[Record]) -> Iterator[Oddity]:
    """Variables that somebody has set, and that change what is measured."""
    values: dict[str, set[str]] = {}
    for record in records:
        for name, value in (record.result("presence").get("environment") or {}).items():
            if not re.fullmatch(HARMLESS.get(name, "(?!)"), str(value)):
                values.setdefault(name, set()).add(value)
    if values:
        shown = ", ".join(f"{name}={' or '.join(sorted(own))}" for name, own in sorted(values.items()))
        yield Oddity(subject="all ranks", name="presence.environment", evidence=f"variables that are set: {shown}")


def _words(path: str) -> str:
    return f"{path}, {ledger.readings()[path].meaning}" if path in ledger.readings() else path
