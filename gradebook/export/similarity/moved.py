"""Code that two students have in files of different names: a copy may be moved into a file of its own.

Only files that nobody was given are looked for elsewhere. Modules that both students have are compared in
`similarity.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

File = tuple[str, str]
"""A student and the path of one of the student's modules."""


@dataclass(frozen=True)
class Moved:
    """A file of a student's own, and the file of another student that has most of it."""

    own: File
    other: File


def find(
    prints: Mapping[File, Set[int]], given: Set[str], years: Set[str], *, least: int, share: float
) -> Iterator[Moved]:
    """Each pair of such files once.

    Args:
        prints: the fingerprints of each student's own code, by file.
        given: the modules that everybody was given.
        years: students of earlier years, who are not compared with each other.
        least: how many fingerprints a file must have.
        share: of the file's fingerprints, those that the other student must have in the same lab.
    """
    labs: dict[tuple[str, str], list[File]] = {}
    for student, module in sorted(prints):
        labs.setdefault((student, module.partition("/")[0]), []).append((student, module))
    everything = {key: frozenset().union(*(prints[file] for file in files)) for key, files in labs.items()}
    own = [file for file in sorted(prints) if file[1] not in given and len(prints[file]) >= least]
    found: set[frozenset[File]] = set()
    for student, module in own:
        mine, lab = prints[student, module], module.partition("/")[0]
        for (other, where), theirs in everything.items():
            if where != lab or other == student or {student, other} <= years or (other, module) in prints:
                continue
            if len(mine & theirs) < share * len(mine):
                continue
            best = _most_alike(mine, labs[other, where], prints)
            if len(prints[best]) >= least and frozenset(((student, module), best)) not in found:
                found.add(frozenset(((student, module), best)))
                yield Moved((student, module), best)


def _most_alike(mine: Set[int], files: Sequence[File], prints: Mapping[File, Set[int]]) -> File:
    return max(files, key=lambda file: len(mine & prints[file]))
