"""Whether the values of a record look like what the ledger says of their fields; those that do not are taken out.

A worker that was stopped while it wrote, another version of it, a driver that answers nonsense: no judge may pass on
such a value, nor break by it.
"""

import copy
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from typing import Any

from cluster.acceptance import ledger
from cluster.acceptance.names import NAMES, SUMMARY, WAYS
from cluster.acceptance.nvml import COMPUTE_MODES, FABRIC_FAULTS, FABRIC_STATES, MISCONFIGURED, RECOVERY_ACTIONS
from cluster.acceptance.records import STAGES, TOOK, Record
from labkit.data import NAMES as DATA_SETS
from labkit.monitoring.nvml import THROTTLE_REASONS

MOST_SHOWN_CHARACTERS = 40
MOST_CELSIUS = 150
MOST_NVLINKS = 72
"""More than any GPU has so far."""
LANES = (1, 2, 4, 8, 12, 16, 32)
REQUIRED = {("copies", "seconds"): WAYS, ("bandwidth", "rates"): ("copy", "triad")}
NOT_EMPTY = {"training": "epochs", "load": "series", "collectives": "measurements"}
READ_TWICE = ("before", "after")
NONSENSE = "does not look like what NVML reports"
UNKNOWN = "is no field or name that this version of the test knows"
LEFT_OUT = "does not look like what a worker records: "
"""Begins the reason why a stage is left out."""


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finite(value: Any) -> bool:
    return _number(value) and math.isfinite(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _one_of(*words: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in words


def _each(fits: Callable[[Any], bool], *, count: int | None = None, least: int = 0) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, list)
        and len(value) >= least
        and (count is None or len(value) == count)
        and all(fits(inner) for inner in value)
    )


def _count(value: Any) -> bool:
    return _whole(value) and value >= 0


def _positive(value: Any) -> bool:
    return _finite(value) and value > 0


KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "flag": (lambda value: isinstance(value, bool), "yes or no"),
    "0 or 1": (lambda value: value in (0, 1), "0 or 1"),
    "two flags": (_each(lambda value: value in (0, 1), count=2), "two of 0 or 1"),
    "count": (_count, "a whole number"),
    "positive count": (lambda value: _count(value) and value > 0, "a whole number above 0"),
    "counts": (_each(_count), "whole numbers"),
    "parts of a version": (
        lambda value: _each(_count, least=2)(value) and len(value) <= 4,
        "two to four whole numbers",
    ),
    "two counts": (_each(_count, count=2), "two whole numbers"),
    "three counts": (_each(_count, count=3), "three whole numbers"),
    "three figures": (_each(lambda value: _finite(value) and value >= 0, count=3), "three numbers from 0 on"),
    "four counts": (_each(_count, count=4), "four whole numbers"),
    "counter": (lambda value: _finite(value) and value >= 0, "a number from 0 on"),
    "figure": (lambda value: _finite(value) and value >= 0, "a number from 0 on"),
    "positive": (_positive, "a number above 0"),
    "share": (lambda value: _finite(value) and 0 <= value <= 1, "a share from 0 to 1"),
    "celsius": (lambda value: _finite(value) and 0 < value < MOST_CELSIUS, "degrees of a chip that works"),
    "place": (lambda value: _whole(value) and value >= -1, "a whole number from -1 on"),
    "links": (lambda value: _count(value) and value <= MOST_NVLINKS, "a number of links"),
    "lanes": (lambda value: _whole(value) and value in LANES, f"lanes: {', '.join(map(str, LANES))}"),
    "generation": (lambda value: _whole(value) and 1 <= value <= 7, "a generation of PCIe"),
    "times": (_each(_positive, least=1), "times above 0"),
    "any number": (_number, "a number"),
    "any numbers": (_each(_number, least=1), "numbers"),
    "list": (lambda value: isinstance(value, list), "a list"),
    "table": (lambda value: isinstance(value, dict) and bool(value), "a table"),
    "word": (_text(r"[\x20-\x7e]*[!-~][\x20-\x7e]*"), "a word"),
    "identity": (_text(r"[a-zA-Z0-9_:-]+"), "an identity"),
    "version": (_text(r"\d[0-9A-Fa-f]*(\.[0-9A-Za-z]+)+([+._-][0-9A-Za-z.+_-]+)?"), "a version: 1.2.3"),
    "hash": (_text(r"[0-9a-f]{64}"), "a SHA-256"),
    "hexadecimal": (_text(r"[0-9a-f]*"), "hexadecimal digits"),
    "reasons": (
        lambda value: _each(_one_of(*THROTTLE_REASONS.values()))(value) and len(set(value)) == len(value),
        "reasons that NVML knows, each once",
    ),
    "fabric state": (_one_of(*FABRIC_STATES.values()), "a state of joining"),
    "fabric faults": (_each(_one_of(*FABRIC_FAULTS, *MISCONFIGURED.values())), "faults that NVML knows"),
    "recovery action": (_one_of(*RECOVERY_ACTIONS), "an action that NVML knows"),
    "compute mode": (_one_of(*COMPUTE_MODES), "a mode that NVML knows"),
    "topology": (
        _text("same board|one PCIe switch|PCIe switches|one host bridge|one NUMA node|between NUMA nodes|level \\d+"),
        "a kind of path",
    ),
    "device": (_one_of("cuda", "cpu"), "cuda or cpu"),
    "port kind": (_one_of("InfiniBand", "Ethernet"), "InfiniBand or Ethernet"),
    "backend": (_one_of("nccl", "gloo"), "nccl or gloo"),
    "operation": (_text(r"[a-z_]+"), "an operation"),
    "data set": (_one_of(*DATA_SETS), "a data set of this course"),
}
"""By name in the ledger: whether a value is of it, and how to call it."""


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """A value that cannot be right, or is not there."""

    stage: str
    field: str
    """As in the record: "reading.power_watts"."""
    reason: str


def repaired(records: Sequence[Record]) -> tuple[list[Record], dict[int, list[Misfit]]]:
    """The records without what cannot be right, and what that was, by position.

    A reading of NVML is then not told; any other stage is left out, since its figures belong together.
    """
    whole, wrong = [], {}
    odd = _uneven(records)
    for position, record in enumerate(records):
        found = [*misfits(record), *odd.get(position, ())]
        if found:
            wrong[position] = found
            record = _without(record, found)
        whole.append(_filled(record))
    return whole, wrong


def _uneven(records: Sequence[Record]) -> dict[int, list[Misfit]]:
    """Ranks that went through other steps than most: what is added up over all ranks would not fit."""
    odd: dict[int, list[Misfit]] = {}
    for stage, steps in (("collectives", _messages), ("training", _steps)):
        plans = {position: str(steps(record.result(stage))) for position, record in enumerate(records)
                 if record.measured(stage)}  # fmt: skip
        usual = Counter(plans.values()).most_common(1)
        for position, plan in plans.items():
            if plan != usual[0][0]:
                reason = "does not have the steps and repetitions that most ranks have"
                odd.setdefault(position, []).append(Misfit(stage=stage, field=stage, reason=reason))
    return odd


def _messages(result: dict[str, Any]) -> Any:
    rows = result.get("measurements")
    return [(row.get("operation"), _length(row.get("seconds"))) for row in _tables(rows)]


def _steps(result: dict[str, Any]) -> Any:
    return [
        (_length(epoch.get("losses")), _length(epoch.get("own_seconds"))) for epoch in _tables(result.get("epochs"))
    ]


def _tables(value: Any) -> list[dict[str, Any]]:
    return [inner for inner in value if isinstance(inner, dict)] if isinstance(value, list) else []


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else -1


def _filled(record: Record) -> Record:
    """With None for what is not there and need not be, so that nobody has to ask twice."""
    results = dict(record.results)
    for stage in ("before", "after", "presence"):
        result = results.get(stage)
        if (
            not isinstance(result, dict)
            or not record.measured(stage)
            or (stage == "presence" and "index" not in result)
        ):
            continue
        if stage == "presence":
            results[stage] = dict.fromkeys(_FIELDS["presence"]) | result
        elif isinstance(result.get("reading"), dict) and result["reading"].get("up"):
            reading = dict.fromkeys(_FIELDS["reading"]) | result["reading"]
            results[stage] = {**result, "reading": {**reading, "untold": reading.get("untold") or {}}}
    for stage in ("network", "network_after"):
        if record.measured(stage):
            ports = [{"rate_gigabits": None, **port, "counters": _counters(port)} for port in results[stage]["ports"]]
            results[stage] = {**results[stage], "ports": ports}
    if record.measured("adapters"):
        rows = results["adapters"]["measured"]
        results["adapters"] = {**results["adapters"], "measured": [{**_ROW, **row} for row in rows]}
    return replace(record, results=results)


_ROW: dict[str, Any] = {"server": None, "gigabits": None, "reason": None}


def _counters(port: dict[str, Any]) -> dict[str, int]:
    return {name: value for name, value in (port.get("counters") or {}).items() if value is not None}


_FIELDS = {stage: [name for field in ledger.readings() for first, _, name in [field.partition(".")]
                   if first == stage and "." not in name] for stage in ("presence", "reading")}  # fmt: skip


def misfits(record: Record) -> Iterator[Misfit]:
    """All of a record; nothing of stages that broke, or were left out."""
    for stage, result in record.results.items():
        if stage not in (*STAGES, TOOK):
            continue
        if not isinstance(result, dict):
            yield Misfit(stage=stage, field=stage, reason=f"is {_shown(result)}, should be a table")
        elif record.measured(stage):
            yield from _of_stage(stage, result)
    times = record.result(TOOK)
    for stage in STAGES if isinstance(times, dict) and record.ending == "finished" else ():
        if stage not in times:
            yield Misfit(stage=TOOK, field=f"{TOOK}.{stage}", reason="is missing")


def _of_stage(stage: str, result: dict[str, Any]) -> Iterator[Misfit]:
    name = ledger.PREFIXES.get(stage, stage)
    for path, value in _leaves(result, name):
        if (reason := _reason(path, value) or _nameless(path)) is not None:
            yield Misfit(stage=stage, field=path, reason=reason)
    yield from _summaries(stage, result)
    if stage == "presence" and "index" not in result:  # a rank without a GPU
        return
    for field, place in _always_told(name):
        if not _has(result, place):
            yield Misfit(stage=stage, field=field, reason="is missing")
    for parent in _named_tables(stage):
        if not isinstance(result.get(parent), dict):
            yield Misfit(stage=stage, field=f"{stage}.{parent}", reason="is no table")
    if stage in READ_TWICE and not (isinstance(result.get("reading"), dict) and result["reading"]):
        yield Misfit(stage=stage, field="reading", reason=f"is {_shown(result.get('reading'))}, should be a table")


@cache
def _always_told(name: str) -> Sequence[tuple[str, Sequence[str]]]:
    """The fields of a stage that each worker records, with their places in its result."""
    always: list[tuple[str, Sequence[str]]] = []
    for field, reading in ledger.readings().items():
        first, _, rest = field.partition(".")
        if first == "reading":
            first, rest = "", field
        if reading.told == "always" and first == name:
            always.append((field, rest.split(".")))
    return always


@cache
def _named_tables(stage: str) -> Sequence[str]:
    """The tables of a stage whose names nobody knows before."""
    parts = [field.split(".") for field in ledger.readings()]
    return [part[1] for part in parts if len(part) == 3 and part[0] == stage != "presence" and part[2] == "*"]


def _summaries(stage: str, result: dict[str, Any]) -> Iterator[Misfit]:
    """Figures of repetitions (`pace.summary`): all of them, and no time is 0."""
    named = {"collectives.steady": result.get("steady")} if stage == "collectives" else {}
    if stage == "steadiness":
        ways = result.get("copies")
        own = ways if isinstance(ways, dict) else {}
        named = {"steadiness.products": result.get("products")}
        named |= {f"steadiness.copies.{way}": own.get(way) for way in WAYS}
    for (of, field), names in REQUIRED.items():
        table = result.get(field) if of == stage else dict.fromkeys(names)
        if missing := set(names) - set(table if isinstance(table, dict) else ()):
            yield Misfit(stage=stage, field=f"{stage}.{field}.{min(missing)}", reason="is missing")
    if stage in NOT_EMPTY and not result.get(NOT_EMPTY[stage]):
        yield Misfit(stage=stage, field=f"{stage}.{NOT_EMPTY[stage]}", reason="is empty")
    for name, figure in named.items():
        for key in SUMMARY:
            value = figure.get(key) if isinstance(figure, dict) else None
            if not _number(value) or (key.endswith("_seconds") and not _positive(value)):
                yield Misfit(stage=stage, field=f"{name}.{key}", reason=f"is {_shown(value)}, should be above 0")


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value and any(isinstance(inner, dict) for inner in value):
        for inner in value:
            yield from _leaves(inner, path)
    else:
        yield path, value


def _reason(path: str, value: Any) -> str | None:
    """What is wrong with a value."""
    name = ledger.entry(path)
    if name is None:
        depth = path.count(".") + 1
        inside = [field for field in ledger.readings()
                  if field.count(".") >= depth and fnmatchcase(path, ".".join(field.split(".")[:depth]))]  # fmt: skip
        if inside and not (isinstance(value, list) and not value):
            return f"is {_shown(value)}, should be a table or a list"
        return None
    reading = ledger.readings()[name]
    if value is None:
        return "is not reported" if reading.told == "always" else None
    if value == {} and name == f"{path}.*":
        return None
    fits, words = KINDS[reading.kind]
    return None if fits(value) else f"is {_shown(value)}, should be {words}"


@lru_cache(maxsize=4096)
def _nameless(path: str) -> str | None:
    """Whether the ledger has no such field, or a table no such name: another version, or damage."""
    if ledger.entry(path) is None:
        inside = any(field.startswith(f"{path}.") for field in ledger.readings())
        return None if inside or path in ledger.WHOLE else UNKNOWN
    for table, fits in NAMES.items():
        if path.startswith(f"{table}."):
            name = path.removeprefix(f"{table}.").partition(".")[0]
            return None if re.fullmatch(fits, name) else UNKNOWN
    return None


def _has(value: Any, path: Sequence[str]) -> bool:
    """Whether everything has the field; None counts as something, `_reason` looks at it."""
    if not path:
        return True
    if isinstance(value, list):
        return all(_has(inner, path) for inner in value)
    if not isinstance(value, dict):
        return True  # said by `_reason`
    head, *rest = path
    if head == "*":
        return bool(value) and all(_has(inner, rest) for inner in value.values())
    return head in value and _has(value[head], rest)


def _shown(value: Any) -> str:
    text = "not reported" if value is None else repr(value)
    return text if len(text) <= MOST_SHOWN_CHARACTERS else f"{text[:MOST_SHOWN_CHARACTERS]}..."


def _without(record: Record, found: Sequence[Misfit]) -> Record:
    results = dict(record.results)
    for misfit in found:
        stage = misfit.stage
        if misfit.reason == UNKNOWN:
            continue  # nobody looks at it, so that it can stay
        if stage in READ_TWICE and misfit.field.startswith("reading.") and misfit.reason != "is missing":
            if results[stage] is record.results[stage]:
                results[stage] = copy.deepcopy(results[stage])
            _forget(results[stage], misfit.field)
        elif misfit.field == "time":
            results[stage] = {key: value for key, value in results[stage].items() if key != "time"}
        else:
            results[stage] = {"skipped": f"{LEFT_OUT}{misfit.field} {misfit.reason}"}
    return replace(record, results=results)


def _forget(result: dict[str, Any], field: str) -> None:
    reading = result.get("reading")
    name, _, inner = field.removeprefix("reading.").partition(".")
    if not isinstance(reading, dict):
        return
    if name == "untold":
        reading["untold"] = {}
    elif name == "up":
        reading["up"] = False
    else:
        reading[name] = None
        untold = reading.setdefault("untold", {})
        if isinstance(untold, dict):
            untold[name] = f"{inner or name} {NONSENSE}"
