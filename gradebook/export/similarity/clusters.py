"""Groups of students whose work is alike, out of pairs: three who share a file are one group, not three pairs.

Two are joined where a pair stands out from its module. That makes chains: of a group each one is like some other one,
not like all; how many pairs there are says which. A hint, like the pairs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence, Set
from dataclasses import dataclass

from gradebook.export.similarity.similarity import Pair


@dataclass(frozen=True)
class Shared:
    """What a group shares of one module."""

    module: str
    pairs: int
    """Of all pairs in the group, those that stand out."""
    lowest: float
    highest: float
    identical: bool
    """Whether all of them are the same, byte for byte."""
    first: int
    """The index of the first of these pairs in the list of all."""


@dataclass(frozen=True)
class Cluster:
    """Students who share something that not everybody has."""

    students: tuple[str, ...]
    modules: tuple[Shared, ...]
    possible: int
    """Pairs that were compared: those of earlier years were not, with each other."""


def stands_out(pair: Pair) -> bool:
    """Whether a pair is at least half-way between what any two of the class have in common and everything."""
    return pair.share >= (1 + pair.median) / 2


def of(pairs: Sequence[Pair]) -> tuple[Cluster, ...]:
    """The groups of all modules, the largest first; the same students in several modules are one group."""
    old = {pair.students[1] for pair in pairs if pair.archive}
    by_students: dict[tuple[str, ...], list[Shared]] = {}
    numbered = [(number, pair) for number, pair in enumerate(pairs) if stands_out(pair)]
    for module, group in itertools.groupby(sorted(numbered, key=_by_module), key=_by_module):
        those = list(group)
        for students in _joined([pair.students for _, pair in those]):
            mine = [(number, pair) for number, pair in those if pair.students[0] in students]
            shared = Shared(
                module=module,
                pairs=len(mine),
                lowest=min(pair.share for _, pair in mine),
                highest=max(pair.share for _, pair in mine),
                identical=all(pair.identical for _, pair in mine),
                first=min(number for number, _ in mine),
            )
            ordered = sorted(students, key=lambda student: (student in old, student))
            by_students.setdefault(tuple(ordered), []).append(shared)
    clusters = [Cluster(students, tuple(shared), _possible(students, old)) for students, shared in by_students.items()]
    return tuple(
        sorted(clusters, key=lambda cluster: (-len(cluster.students), -len(cluster.modules), cluster.students))
    )


def _possible(students: Sequence[str], old: Set[str]) -> int:
    return sum(not {student, other} <= old for student, other in itertools.combinations(students, 2))


def _by_module(numbered: tuple[int, Pair]) -> str:
    return numbered[1].module


def _joined(edges: Sequence[tuple[str, str]]) -> list[set[str]]:
    """The connected components of a graph."""
    groups: list[set[str]] = []
    for student, other in edges:
        touched = [group for group in groups if student in group or other in group]
        groups = [group for group in groups if group not in touched]
        groups.append(set().union({student, other}, *touched))
    return groups
