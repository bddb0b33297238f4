"""An instructor's word against the automatic score: `overrides.toml`.

    [[override]]
    student = "ada"                 # the submission's folder name, or --student
    criterion = "lab2.comparison"
    points = 4.5
    reason = "the conclusion is right, in other units than the check expects"

An override replaces the points of one criterion of one student; its reason stands in every report. The file is the
instructor's and never read from a submission. Not for the arithmetic of grades (`grade.py`).
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from gradebox.rubric import Rubric

DEFAULT_FILE = "overrides.toml"
_FIELDS: dict[str, tuple[type, ...]] = {
    "student": (str,),
    "criterion": (str,),
    "points": (int, Decimal),
    "reason": (str,),
}


class OverrideError(ValueError):
    """The file cannot be used; the message is one line that names the entry and what to do."""


@dataclass(frozen=True)
class Override:
    """What an instructor decided for one criterion of one student."""

    student: str
    criterion: str
    points: Decimal
    reason: str


def load(path: Path, rubric: Rubric) -> tuple[Override, ...]:
    """Read and check a file of overrides.

    Raises:
        OverrideError: it cannot be read, is no valid TOML, or an entry lacks a field, names no criterion of the rubric,
            gives more points than the criterion has, has an empty reason, or stands twice.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    except OSError as error:
        raise OverrideError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OverrideError(f"{path} is not valid TOML: {error}") from None
    entries = document.pop("override", [])
    if document:
        raise OverrideError(f"{path} does not know {next(iter(document))!r}; it holds [[override]] entries only")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise OverrideError(f"{path}: write each override as [[override]], with two brackets")
    most = {criterion.id: criterion.points for lab in rubric.labs for criterion in lab.criteria}
    overrides: dict[tuple[str, str], Override] = {}
    for number, entry in enumerate(entries, start=1):
        override = _entry(entry, f"{path}, override {number}", most)
        key = (override.student, override.criterion)
        if key in overrides:
            raise OverrideError(f"{path}, override {number}: {key[1]} of {key[0]} stands twice; keep one")
        overrides[key] = override
    return tuple(overrides.values())


def _meant(name: str, known: Collection[str]) -> str:
    """Which criterion was meant: the one of a check, or one that is spelt nearly so."""
    if (criterion := name.rpartition(".")[0]) in known:
        return f"{name} is a check; points are given by criterion, here {criterion!r}"
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"


def _entry(entry: Mapping[str, Any], where: str, most: Mapping[str, Decimal]) -> Override:
    for name in entry:
        if name not in _FIELDS:
            raise OverrideError(f"{where} does not know {name!r}; it has {', '.join(_FIELDS)}")
    for name, kind in _FIELDS.items():
        value = entry.get(name)
        if value is None or (isinstance(value, str) and not value.strip()):
            raise OverrideError(f"{where}: {name} is missing; an override has {', '.join(_FIELDS)}")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise OverrideError(f"{where}: {name} = {value!r} is no {'number' if name == 'points' else 'text'}")
    criterion, points = entry["criterion"], Decimal(entry["points"])
    if criterion not in most:
        raise OverrideError(f"{where}: there is no criterion {criterion!r}; {_meant(criterion, most)}")
    if not 0 <= points <= most[criterion]:
        raise OverrideError(f"{where}: points = {points}, but {criterion} gives 0 to {most[criterion]}")
    return Override(entry["student"], criterion, points, entry["reason"].strip())
