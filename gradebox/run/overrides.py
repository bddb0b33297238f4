"""An instructor's word against the automatic score: `overrides.toml`.

    [[override]]
    student = "ada"                 # the submission's folder name, or --student
    criterion = "lab2.comparison"
    points = 4.5
    reason = "the conclusion is right, in other units than the check expects"
    by = "Grace Hopper"             # who decided it, and when; both may be left out
    at = 2026-03-02T08:00:00+00:00

An override replaces the points of one criterion of one student; its reason is in every report. The file is the
instructor's and never read from a submission. Not for the arithmetic of grades (`grade.py`).
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from gradebox.common import reading
from gradebox.course.rubric import Rubric

DEFAULT_FILE = "overrides.toml"
OF_AN_ENTRY = ": correct points, or remove the entry if the criterion had more points before"
"""What to do about points that an entry of a file cannot have."""


class OverrideError(ValueError):
    """The file cannot be used; the message is one line that names the entry and what to do."""


@dataclass(frozen=True)
class Override:
    """What an instructor decided for one criterion of one student."""

    student: str
    criterion: str
    points: Decimal
    reason: str
    by: str = ""
    at: datetime | None = None


@dataclass(frozen=True)
class _File:
    override: tuple[Override, ...] = ()


def load(path: Path, rubric: Rubric, former: Collection[str] = ()) -> tuple[Override, ...]:
    """Read and check a file of overrides; `former` criteria, which the rubric has no more, are let be.

    Raises:
        OverrideError: it cannot be read, is no valid TOML, or an entry lacks a field, names no criterion of the rubric,
            gives more points than the criterion has, has an empty reason, or stands twice.
    """
    try:
        document = reading.toml(path)
        entries = reading.into(_File, document).override
        most = {criterion.id: criterion.points for lab in rubric.labs for criterion in lab.criteria}
        _check(document, entries, most, former)
    except reading.ReadingError as error:
        raise OverrideError(str(error)) from None
    return tuple(replace(entry, reason=entry.reason.strip()) for entry in entries)


def _check(
    document: reading.Document, entries: Sequence[Override], most: Mapping[str, Decimal], former: Collection[str]
) -> None:
    """Raise ReadingError for what a type does not say."""
    pairs: set[tuple[str, str]] = set()
    for number, entry in enumerate(entries):
        place = ("override", number)
        for name in ("student", "criterion", "reason"):
            if not getattr(entry, name).strip():
                raise document.error((*place, name), f"{name} is empty")
        if entry.criterion in former and entry.criterion not in most:
            continue
        if entry.criterion not in most:
            meant = _meant(entry.criterion, most)
            raise document.error((*place, "criterion"), f"there is no criterion {entry.criterion!r}; {meant}")
        if not 0 <= entry.points <= most[entry.criterion]:
            text = f"points = {entry.points}, but {entry.criterion} gives 0 to {most[entry.criterion]}"
            raise document.error((*place, "points"), f"{text}{OF_AN_ENTRY}")
        if (entry.student, entry.criterion) in pairs:
            raise document.error(place, f"{entry.criterion} of {entry.student} stands twice; keep one")
        pairs.add((entry.student, entry.criterion))


def _meant(name: str, known: Collection[str]) -> str:
    """Which criterion was meant: the one of a check, or one that is spelt nearly so."""
    if (criterion := name.rpartition(".")[0]) in known:
        return f"{name} is a check; points are given by criterion, here {criterion!r}"
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
