"""What a cluster should be, in a TOML file: read for `--expect`, written from a good run by `--write-expectations`.

Here are the file, its keys and its mistakes. A run is compared with them in `checks/expected.py`; rates, bandwidths and
latencies in the checks that measure them.
"""

import difflib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.acceptance.verdict import Relation, Threshold
from labkit import LabError

Value = int | float | str


class ExpectationsError(LabError):
    """The file of `--expect` cannot be read or says what no cluster can be."""


@dataclass(frozen=True)
class Key:
    """One thing that the file may say."""

    kind: type[int] | type[float] | type[str]
    meaning: str


_OPERATIONS = ("all_gather", "all_reduce", "broadcast", "reduce_scatter", "point_to_point", "all_to_all")
_PRECISIONS = ("float32", "float16", "bfloat16", "float8_e4m3fn")
KEYS: dict[str, dict[str, Key]] = {
    "cluster": {
        "nodes": Key(int, "nodes that take part"),
        "gpus_per_node": Key(int, "GPUs that CUDA sees on each node"),
        "nvlink_domain_nodes": Key(int, "nodes that NVLink joins, as on an NVL72; 1: none"),
        "models": Key(int, "models of GPU that there are"),
    },
    "gpu": {
        "model": Key(str, "name of every GPU, as nvidia-smi -L has it"),
        "memory_gib": Key(float, "memory of every GPU, within 1 %"),
        "vbios": Key(str, "VBIOS of every GPU"),
        "power_limit_watts": Key(float, "power limit of every GPU, within 1 %"),
        "ecc": Key(str, '"on" or "off", on every GPU'),
        "sm_clock_megahertz": Key(float, "SM clock under load that somebody has set, at least 95 % of it"),
        "memory_clock_megahertz": Key(float, "memory clock under load, at least 95 % of it"),
        "pcie_generation": Key(int, "PCIe generation under load, at least"),
        "copy_gigabytes_per_second": Key(float, "pinned copies each way, at least; if no link is shown"),
        "memory_gigabytes_per_second": Key(float, "bandwidth of the GPU's memory, copies and triads, at least"),
        "pcie_width": Key(int, "PCIe lanes, at least"),
        "nvlinks": Key(int, "NVLinks that are up on every GPU"),
    },
    "software": {
        "driver": Key(str, "NVIDIA driver"),
        "torch": Key(str, "PyTorch"),
        "cuda": Key(str, "CUDA that PyTorch was built with"),
        "nccl": Key(str, 'NCCL, such as "2.27.5"'),
    },
    "compute_tflops": {name: Key(float, f"rate of products in {name}, at least") for name in _PRECISIONS},
    "bus_gigabytes_per_second": {
        name: Key(float, f"bus bandwidth of {name}, largest message, at least") for name in _OPERATIONS
    },
    "latency_milliseconds": {
        name: Key(float, f"latency of {name}, 1 KiB, 95th percentile, at most") for name in _OPERATIONS
    },
    "training": {"images_per_second": Key(float, "rate of each rank in the training, at least")},
    "steadiness": {
        "products": Key(float, "share of the time that slow repetitions of products may cost, at most"),
        "copies": Key(float, "the same of copies from and to the host"),
        "messages": Key(float, "the same of small and of large messages"),
        "training": Key(float, "the same of a training's steps before ranks meet"),
    },
    "network": {
        "ports": Key(int, "network ports of each node that are up and can carry RDMA, at least"),
        "rate_gigabits": Key(float, "rate of each of these ports, at least"),
        "oversubscription": Key(float, "how many times less the switches' spines carry than their leaves"),
    },
}
"""By table. A table's name ends in the unit of its values where all have the same."""


@dataclass(frozen=True)
class Expectations:
    """What a file says; absent keys expect nothing."""

    path: Path
    tables: Mapping[str, Mapping[str, Value]]

    def text(self, table: str, key: str) -> str | None:
        """A word that is expected."""
        value = self.tables.get(table, {}).get(key)
        return None if value is None else str(value)

    def number(self, table: str, key: str) -> float | None:
        """A number that is expected."""
        value = self.tables.get(table, {}).get(key)
        return None if value is None or isinstance(value, str) else float(value)

    def count(self, table: str, key: str) -> int | None:
        """A whole number that is expected."""
        value = self.number(table, key)
        return None if value is None else int(value)

    def threshold(self, table: str, key: str, unit: str, relation: Relation) -> Threshold | None:
        """A number that is expected, to be compared with something measured."""
        value = self.number(table, key)
        if value is None:
            return None
        return Threshold(value=value, unit=unit, relation=relation, source=f"[{table}] {key} of {self.path}")


def read(path: Path) -> Expectations:
    """Read a file of `--expect`.

    Raises:
        ExpectationsError: it is no TOML, has a table or key that there is none of, a value of the wrong kind, or says
            nothing at all. The message has the line.
        OSError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ExpectationsError(f"--expect {path}: not a TOML file: {error}") from error
    tables: dict[str, dict[str, Value]] = {}
    for table, entries in document.items():
        if table not in KEYS or not isinstance(entries, dict):
            kind = "table" if isinstance(entries, dict) else "key outside a table"
            raise _mistake(path, text, table, None, f"there is no {kind} {table!r}{_nearest(table, KEYS)}")
        for key, value in entries.items():
            if key not in KEYS[table]:
                hint = _nearest(key, KEYS[table]) or _elsewhere(key)
                raise _mistake(path, text, table, key, f"[{table}] has no key {key!r}{hint}")
            if problem := _problem(KEYS[table][key], value):
                raise _mistake(path, text, table, key, f"[{table}] {key}: {problem}")
        tables[table] = dict(entries)
    if not any(tables.values()):
        raise ExpectationsError(f"--expect {path}: expects nothing; --write-expectations makes one from a good run")
    return Expectations(path, tables)


def _problem(key: Key, value: Any) -> str:
    """What is wrong with a value; empty when nothing is."""
    if key.kind is str:
        return "" if isinstance(value, str) and value.strip() else f'{value!r} should be a word in "quotes"'
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if key.kind is int:
        return "" if number and isinstance(value, int) and value >= 0 else f"{value!r} should be a whole number"
    return "" if number and math.isfinite(value) and value > 0 else f"{value!r} should be a number above 0"


def _mistake(path: Path, text: str, table: str, key: str | None, what: str) -> ExpectationsError:
    line = _line(text, table, key)
    return ExpectationsError(f"--expect {path}{f', line {line}' if line else ''}: {what}")


def _line(text: str, table: str, key: str | None) -> int | None:
    """Where a table or a key stands; None where it is written in some other way than on a line of its own."""
    inside = False
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].strip()
        if words.startswith("["):
            inside = words.strip("[] \"'") == table
            if inside and key is None:
                return number
        elif "=" in words and words.partition("=")[0].strip(" \"'") == (key or table) and (inside or key is None):
            return number
    return None


def _nearest(word: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f": did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}" if known is KEYS else ""


def _elsewhere(key: str) -> str:
    """Where a key does belong, or what there is."""
    homes = [table for table, keys in KEYS.items() if key in keys]
    if homes:
        return f": it belongs into [{homes[0]}]"
    return ""


HEAD = """\
# What this cluster should be. Held against a run by: python -m cluster.acceptance --expect {name}
# {origin}
# Rates are {share:.0%} of what was measured, latencies {times:g} times as long. Change what you know better;
# what you delete is not expected.
"""
RATE_SHARE = 0.9
"""Of what a good run measured: the same as a baseline allows (`baseline.NOT_SLOWER`)."""
LATENCY_TIMES = 5.0
"""Ours: the 95th percentile of some tens of microseconds is twice as much where a host was busy for a moment."""


def from_report(document: Mapping[str, Any]) -> dict[str, dict[str, Value]]:
    """What a report's cluster is, as tables of this file; of figures that differ between GPUs the lowest."""
    ranks = document["ranks"]
    readings = [health["before"] for health in document["gpu_health"] if health["before"].get("up")]
    after = [health["after"] for health in document["gpu_health"] if (health["after"] or {}).get("up")]
    nodes = {rank["node"] for rank in ranks}
    machines = {rank.get("boot_id") or rank["node"] for rank in ranks}
    products = document["performance"]["products"]
    largest = {collective["operation"]: collective for collective in document["performance"]["collectives"]}
    smallest = {collective["operation"]: collective for collective in reversed(document["performance"]["collectives"])}
    software = document["software"]
    memory = [reading["memory_total_bytes"] for reading in readings if reading.get("memory_total_bytes")]
    tables: dict[str, dict[str, Value | None]] = {
        "cluster": {
            "nodes": len(machines),
            "gpus_per_node": min(sum(rank["node"] == node for rank in ranks) for node in nodes),
        },
        "gpu": {
            "model": _same([rank["device_name"] for rank in ranks]),
            "memory_gib": round(min(memory) / 2**30, 2) if memory else None,
            "vbios": _same([reading.get("vbios") for reading in readings]),
            "power_limit_watts": _lowest(readings, "power_limit_watts"),
            "memory_gigabytes_per_second": _memory_rate(document),
            "pcie_generation": _lowest(after, "pcie_generation"),
            "pcie_width": _lowest(readings, "pcie_width"),
            "nvlinks": _lowest(readings, "nvlinks_up") or None,
        },
        "software": {
            "driver": software["driver"],
            "torch": software["torch"],
            "cuda": software["cuda"],
            "nccl": ".".join(map(str, software["nccl"])) if software["nccl"] else None,
        },
        "compute_tflops": {
            name: _figures(RATE_SHARE * min(product["tflops"] for product in products if product["dtype"] == name))
            for name in dict.fromkeys(product["dtype"] for product in products)
        },
        "bus_gigabytes_per_second": {
            name: _figures(RATE_SHARE * collective["bus_bytes_per_second"] / 1e9)
            for name, collective in largest.items()
        },
        "latency_milliseconds": {
            name: _figures(LATENCY_TIMES * collective["p95_seconds"] * 1e3) for name, collective in smallest.items()
        },
        "network": _network(document),
    }
    kept = {
        table: {key: value for key, value in entries.items() if value is not None} for table, entries in tables.items()
    }
    return {table: entries for table, entries in kept.items() if entries}


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write what a report's cluster is as a file for `--expect`; each key with its meaning.

    Raises:
        OSError: it cannot be written.
    """
    origin = f"From a run of {document['test_timestamp']} UTC whose verdict was {document['acceptance']['status']}" + (
        ", on virtual GPUs." if document["simulated"] else "."
    )
    lines = [HEAD.format(name=path.name, origin=origin, share=RATE_SHARE, times=LATENCY_TIMES)]
    for table, entries in from_report(document).items():
        lines.append(f"[{table}]")
        # A JSON string is a basic string of TOML, and so are JSON's numbers.
        lines += [
            f"{key} = {json.dumps(value, ensure_ascii=False)}  # {KEYS[table][key].meaning}"
            for key, value in entries.items()
        ]
        lines.append("")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines), encoding="utf-8")


def _figures(value: float) -> float:
    return float(f"{value:.4g}")


def _same(values: list[Any]) -> Any:
    """The value that all have; None where they differ or one has none."""
    return values[0] if values and len(set(values)) == 1 else None


def _lowest(readings: list[dict[str, Any]], name: str) -> Any:
    values = [reading[name] for reading in readings if reading.get(name) is not None]
    return min(values) if values and len(values) == len(readings) else None


def _memory_rate(document: Mapping[str, Any]) -> Value | None:
    """Of the slowest GPU; None on virtual ones, whose arrays are too small to judge."""
    rates = [
        rate for row in document["performance"].get("memory") or [] for name, rate in row.items() if name != "rank"
    ]
    return None if document["simulated"] or not rates else _figures(RATE_SHARE * min(rates) / 1e9)


def _network(document: Mapping[str, Any]) -> dict[str, Value | None]:
    """Ports of the node with the fewest, and the lowest rate."""
    per_node = [
        [port["rate_gigabits"] for port in node["ports"] if port["rdma"] and port["up"] and port["rate_gigabits"]]
        for node in document["performance"].get("network") or []
    ]
    if not per_node or not all(per_node):
        return {}
    return {"ports": min(map(len, per_node)), "rate_gigabits": min(rate for rates in per_node for rate in rates)}
