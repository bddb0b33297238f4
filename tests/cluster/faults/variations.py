"""Every field of a record, varied: less, more, nothing, nonsense, a sibling's value, what it was before.

Nobody has to think of a fault: the fields come from the records of a sound machine, the changes from their kind. Each is
done to one rank or to all; `wider` adds what `variations` leaves out: two ranks, a node, and lists whose shape changes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from cluster.acceptance import ledger
from cluster.acceptance.records import Record

SICK, OTHER = 2, 1
"""The rank that is varied, the first one of the second node, and the one whose values it may get."""
GONE = object()
Path = tuple[str | int, ...]
Alter = Callable[[Any], Any]
FACTORS = {"half": 0.5, "0.8 of it": 0.8, "a quarter more": 1.25, "double": 2.0, "zero": 0.0, "negative": -1.0}
TWICE = {"before": "after", "network": "network_after"}
"""Stages whose fields are read again after the run."""


@dataclass(frozen=True, kw_only=True)
class Variation:
    """One change of one field, of one rank or of all."""

    entry: str
    """In the ledger."""
    path: Path
    """Stage first."""
    kind: str
    """What is done: "half"."""
    when: str
    """"before", "after" or "both" of what is read twice, else empty."""
    everywhere: bool
    alter: Alter
    whom: str = ""
    """"two" or "half" of the ranks, in place of one."""

    @property
    def title(self) -> str:
        """For people and for `FREE`."""
        scope = "all" if self.everywhere else self.whom or "one"
        return ", ".join(word for word in (self.entry, self.kind, self.when, scope) if word)

    def apply(self, records: list[Record]) -> bool:
        """Change the records; False if they stay as they were."""
        stages = [str(self.path[0])]
        if self.when in ("after", "both"):
            stages = [TWICE[stages[0]]] if self.when == "after" else [stages[0], TWICE[stages[0]]]
        done = False
        for record in self._ranks(records):
            for stage in stages:
                done = _put(record.results, (stage, *self.path[1:]), self.alter) or done
        return done

    def _ranks(self, records: list[Record]) -> list[Record]:
        sick = min(SICK, len(records) - 1)
        if self.everywhere:
            return records
        if self.whom:
            return [records[0], records[sick]] if self.whom == "two" else records[len(records) // 2 :]
        return [records[sick]]


def _put(tree: Any, path: Path, alter: Alter) -> bool:
    """Replace what the path leads to; "*" stands for every element of a list."""
    head, *rest = path
    if head == "*":
        done = [_put(tree, (number, *rest), alter) for number in range(len(tree))]
        return any(done)
    if not (head in tree if isinstance(tree, dict) else isinstance(tree, list) and int(head) < len(tree)):
        return False
    if rest:
        return _put(tree[head], tuple(rest), alter)
    new = alter(copy.deepcopy(tree[head]))
    if new is GONE:
        del tree[head]
        return True
    if _same(new, tree[head]):
        return False
    tree[head] = new
    return True


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def _scaled(value: Any, factor: float) -> Any:
    if isinstance(value, list):
        return [_scaled(inner, factor) for inner in value]
    return value if isinstance(value, bool | str) or value is None else type(value)(value * factor)


def alterations(value: Any) -> Iterator[tuple[str, Alter]]:
    """What can be done with a value of this kind."""
    yield "missing", lambda old: GONE
    if value is None:
        return
    yield "none", lambda old: None
    if isinstance(value, bool):
        yield "inverted", lambda old: not old
    elif isinstance(value, int | float):
        yield from _numbers(value)
        yield "not a number", lambda old: math.nan
        yield "infinite", lambda old: math.inf
        yield "a word", lambda old: "N/A"
    elif isinstance(value, str):
        yield "other case", lambda old: old.swapcase()
        yield "other language", lambda old: "неизвестно"
        yield "empty", lambda old: ""
        yield "a number", lambda old: 7
    elif isinstance(value, dict):
        yield "empty", lambda old: {}
    elif isinstance(value, list):
        yield "empty", lambda old: []
        if value:
            yield "cut", lambda old: old[: len(old) // 2]
            yield "twice", lambda old: [*old, copy.deepcopy(old[0])] if old else old
        if value and isinstance(value[0], int | float):
            yield from _numbers(value)
            yield "not a number", lambda old: [math.nan] * len(old)


def _numbers(value: Any) -> Iterator[tuple[str, Alter]]:
    for name, factor in FACTORS.items():
        if not _same(_scaled(value, factor), value):
            yield name, lambda old, factor=factor: _scaled(old, factor)


def places(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every field and table of a stage; of lists of tables the first element, and all."""
    if path:
        yield path, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for place in (0, "*"):
            for inner_path, inner in places(value[0], ()):
                yield (*path, place, *inner_path), inner


def _entry(path: Path) -> str:
    stage, *rest = (str(part) for part in path if isinstance(part, str) and part != "*")
    field = ".".join([*({"before": [], "network": ["network"]}.get(stage, [stage])), *rest])
    return ledger.entry(field) or field


def variations(machine: Callable[[], list[Record]]) -> Iterator[Variation]:
    """All of them; each is applied to records of its own."""
    sound = machine()
    sick, other = sound[min(SICK, len(sound) - 1)].results, sound[min(OTHER, len(sound) - 1)].results
    for stage in sick:
        if stage in TWICE.values():
            continue
        seen: set[tuple[str, str]] = set()
        for path, value in [
            ((stage,), sick[stage]),
            *((((stage, *path)), value) for path, value in places(sick[stage])),
        ]:
            element = "*" in path or "0" in map(str, path)
            made = list(alterations(value))
            try:
                foreign = _at(other, path)
            except (KeyError, IndexError, TypeError):
                foreign = value
            if "*" not in path and not _same(foreign, value) and not isinstance(value, dict):
                made.append(("a sibling's", lambda old, foreign=foreign: copy.deepcopy(foreign)))
            for kind, alter in made:
                one = Variation(entry=_entry(path), path=path, kind=kind, when="", everywhere=False, alter=alter)
                if element:
                    one = replace(one, kind=f"{kind}{' in all' if '*' in path else ' in one'}")
                if (one.entry, one.kind) in seen and not element:
                    one = replace(one, kind=f"{kind} ({path[-1]})")
                seen.add((one.entry, one.kind))
                for everywhere in (False, True):
                    if stage not in TWICE:
                        yield replace(one, everywhere=everywhere)
                        continue
                    for when in ("before", "after", "both"):
                        yield replace(one, when=when, everywhere=everywhere)
            if stage in TWICE and len(path) > 1 and "*" not in path:
                earlier = copy.deepcopy(value)
                stale = Variation(entry=_entry(path), path=path, kind="stale", when="after", everywhere=False,
                                  alter=lambda old, earlier=earlier: copy.deepcopy(earlier))  # fmt: skip
                yield from (stale, replace(stale, everywhere=True))


def wider(machine: Callable[[], list[Record]]) -> Iterator[Variation]:
    """What `variations` leaves out, of fields that are read."""
    sound = machine()
    for one in variations(machine):
        if not one.everywhere and len(sound) > SICK:
            yield from (replace(one, whom=whom) for whom in ("two", "half"))
    for stage, result in sound[min(SICK, len(sound) - 1)].results.items():
        for path, value in places(result):
            if isinstance(value, list) and len(value) >= FEWEST and all(isinstance(number, float) for number in value):
                for kind, alter in SHAPES.items():
                    one = Variation(
                        entry=_entry((stage, *path)), path=(stage, *path), kind=f"{kind}{' in all' if '*' in path else ''}",
                        when="", everywhere=False, alter=alter,
                    )  # fmt: skip
                    yield from (one, replace(one, whom="half"), replace(one, everywhere=True))


FEWEST = 10
"""Repetitions, of which some can be slow."""
SHAPES: dict[str, Alter] = {
    "a fifth double": lambda old: [value * (2.0 if place % 5 == 2 else 1.0) for place, value in enumerate(old)],
    "two fifths half more": lambda old: [value * (1.5 if place % 5 in (2, 4) else 1.0) for place, value in enumerate(old)],
    "the later half a quarter more": lambda old: [value * (1.25 if 2 * place >= len(old) else 1.0)
                                                  for place, value in enumerate(old)],
    "more and more, to half more": lambda old: [value * (1 + 0.5 * place / len(old)) for place, value in enumerate(old)],
    "two thirty times": lambda old: [value * (30.0 if place in (4, 7) else 1.0) for place, value in enumerate(old)],
}  # fmt: skip
"""Each costs more than 15 % of a rate, and leaves the median as it is or nearly."""


def _at(tree: Any, path: Path) -> Any:
    for part in path:
        tree = tree[part]
    return tree
