"""Does a simulator still answer by what it had before the submission? Compared whenever a probe looks at something.

A submission shares the process with the part of a simulator that PyTorch calls, and can reach its objects. Something
that it puts there may go away by itself when it is called, so a comparison afterwards finds nothing: a probe raises
`NOTED` before it takes a reading, too. Not for names of modules (`instruments.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import is_
from typing import Any

Links = Iterable[tuple[object, str]]
"""Objects with the names of attributes that must keep their values."""


def comparing(tables: Mapping[str, Mapping[Any, Any]], links: Links) -> Callable[[], list[tuple[str, object]]]:
    """A function that lists what has changed: labels, with what is there now.

    Args:
        tables: by label, namespaces and dictionaries that must keep their entries.
        links: parts of a simulator. Nothing on these objects may hide something of their classes.
    """
    # As locals, which nobody reaches.
    every, mapped, same, size, attribute, missing, merged = all, map, is_, len, getattr, object(), frozenset.isdisjoint
    saved = tuple((label, table, tuple(table), tuple(table.values())) for label, table in tables.items())
    parts = tuple((type(owner).__name__, owner, name, getattr(owner, name)) for owner, name in links)
    holders = {id(part): part for _, owner, _, value in parts for part in (owner, value)}.values()
    spaces = tuple((type(part).__name__, part.__dict__, _hidden(part)) for part in holders if hasattr(part, "__dict__"))

    def changed() -> list[tuple[str, object]]:
        now: list[tuple[str, object]] = []
        for label, table, names, values in saved:
            as_before = size(table) == size(names)
            if not (as_before and every(mapped(same, table, names)) and every(mapped(same, table.values(), values))):
                now.append((label, table))
        for kind, owner, name, value in parts:
            if (found := attribute(owner, name, missing)) is not value:
                now.append((f"{kind}.{name}", found))
        for kind, space, methods in spaces:
            if not merged(methods, space):
                now.append((f"{kind} (hidden methods)", space))
        return now

    return changed


def _hidden(part: object) -> frozenset[str]:
    """Names of the class that an attribute of the object would hide."""
    return frozenset(name for base in type(part).__mro__ for name in vars(base)) - frozenset(vars(part))
