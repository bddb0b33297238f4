"""Load and validate `rubric.toml`, the only place that states points.

Not for scoring: `grade.py` counts points over what this module returns.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

RUBRIC_FILE = Path(__file__).with_name("rubric.toml")

_LAB_ID = re.compile(r"lab[1-9][0-9]*|container")
"""A lab of the course, or an exercise outside the 100 points (`grader/extensions/`), which has a rubric of its own."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_LAB_KEYS = {"title": str, "package": str, "points": (int, Decimal)}
_CRITERION_KEYS = {"title": str, "points": (int, Decimal)}


class RubricError(Exception):
    """The rubric contradicts itself; the message names file, line and cause."""


@dataclass(frozen=True)
class Check:
    """One graded behaviour, `lab1.benchmark.warmed_up`, and what it is worth."""

    id: str
    points: Decimal

    @property
    def criterion_id(self) -> str:
        return self.id.rpartition(".")[0]


@dataclass(frozen=True)
class Criterion:
    """One line of the hand-out's evaluation table."""

    id: str
    title: str
    points: Decimal
    checks: tuple[Check, ...]

    @property
    def available(self) -> bool:
        """False while the lab behind this criterion is not written yet."""
        return bool(self.checks)


@dataclass(frozen=True)
class Lab:
    """One lab package with its criteria."""

    id: str
    title: str
    package: str
    points: Decimal
    criteria: tuple[Criterion, ...]

    @property
    def number(self) -> int:
        return int(self.id.removeprefix("lab"))


@dataclass(frozen=True)
class Rubric:
    """The whole evaluation: labs in order, and the share of points needed to pass."""

    version: str
    points: Decimal
    pass_percent: Decimal
    labs: tuple[Lab, ...]

    def select(self, numbers: tuple[int, ...] | None) -> tuple[Lab, ...]:
        """The labs with these numbers, in rubric order; all of them for None.

        Raises:
            ValueError: for a number that no lab has.
        """
        if numbers is None:
            return self.labs
        known = {lab.number for lab in self.labs}
        if unknown := [number for number in numbers if number not in known]:
            raise ValueError(f"there is no lab {unknown[0]}; the labs are {', '.join(map(str, sorted(known)))}")
        return tuple(lab for lab in self.labs if lab.number in numbers)

    def named(self, option: str) -> tuple[Lab, ...]:
        """The labs that an option of a command names: `1,3`.

        Raises:
            ValueError: it is no list of numbers, or no lab has one of them.
        """
        try:
            numbers = tuple(sorted({int(part) for part in option.split(",")}))
        except ValueError:
            raise ValueError(f"--lab {option}: expected numbers separated by commas, for example --lab 1,3") from None
        return self.select(numbers)

    def select_criteria(self, ids: Collection[str]) -> tuple[Lab, ...]:
        """The labs cut down to these criteria, whose points they then have.

        Raises:
            ValueError: for a criterion that the rubric does not have, or one whose checks are not written yet.
        """
        known = {criterion.id: criterion for lab in self.labs for criterion in lab.criteria}
        for name in ids:
            if name not in known:
                raise ValueError(f"there is no criterion {name}; the criteria are {', '.join(known)}")
            if not known[name].available:
                raise ValueError(f"{name} is not available yet: its checks are not written")
        labs = []
        for lab in self.labs:
            if criteria := tuple(criterion for criterion in lab.criteria if criterion.id in ids):
                points = sum((criterion.points for criterion in criteria), Decimal(0))
                labs.append(replace(lab, criteria=criteria, points=points))
        return tuple(labs)

    def checks(self) -> Iterator[Check]:
        for lab in self.labs:
            for criterion in lab.criteria:
                yield from criterion.checks


def load(path: Path = RUBRIC_FILE) -> Rubric:
    """Read and validate a rubric.

    Raises:
        RubricError: for TOML that does not parse, unknown or missing keys, points that do not add up, or names that
            are not identifiers. The message begins with `FILE:LINE:`.
    """
    return parse(path.read_text(encoding="utf-8"), path)


def parse(text: str, path: Path) -> Rubric:
    """The rubric in `text`, which stands in the file `path`. Raises as `load` does."""
    try:
        data = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        line = getattr(error, "lineno", None) or _line_in_message(str(error))
        raise RubricError(f"{path}:{line}: not valid TOML: {error}") from None
    return _Reader(path, text).rubric(data)


def _line_in_message(message: str) -> int:
    found = re.search(r"line (\d+)", message)
    return int(found.group(1)) if found else 1


class _Reader:
    """Turns parsed TOML into a `Rubric`; knows the text, so that an error can name its line."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._lines = text.splitlines()

    def rubric(self, data: Mapping[str, Any]) -> Rubric:
        head = data.get("rubric")
        if not isinstance(head, dict):
            raise self._error("", None, "the table [rubric] is missing")
        self._keys(
            head,
            "rubric",
            {"version": str, "points": (int, Decimal), "criteria": int, "pass_percent": (int, Decimal)},
        )
        labs = tuple(self._lab(key, value) for key, value in data.items() if key != "rubric")
        points = Decimal(head["points"])
        if not 0 < Decimal(head["pass_percent"]) <= 100:
            raise self._error("rubric", "pass_percent", "pass_percent must be above 0 and at most 100")
        self._sum("rubric", "the labs", points, [lab.points for lab in labs])
        count = sum(len(lab.criteria) for lab in labs)
        if count != head["criteria"]:
            raise self._error("rubric", "criteria", f"criteria = {head['criteria']}, but {count} criteria follow")
        return Rubric(head["version"], points, Decimal(head["pass_percent"]), labs)

    def _lab(self, lab_id: str, table: Any) -> Lab:
        if not _LAB_ID.fullmatch(lab_id) or not isinstance(table, dict):
            raise self._error(lab_id, None, f"expected a table [labN], found {lab_id!r}")
        criteria = {key: value for key, value in table.items() if isinstance(value, dict)}
        self._keys({key: value for key, value in table.items() if key not in criteria}, lab_id, _LAB_KEYS)
        lab = Lab(
            lab_id,
            table["title"],
            table["package"],
            self._positive(table["points"], lab_id),
            tuple(self._criterion(f"{lab_id}.{name}", value) for name, value in criteria.items()),
        )
        self._sum(lab_id, "the criteria", lab.points, [criterion.points for criterion in lab.criteria])
        return lab

    def _criterion(self, criterion_id: str, table: Mapping[str, Any]) -> Criterion:
        if not _NAME.fullmatch(criterion_id.rpartition(".")[2]):
            raise self._error(criterion_id, None, "a criterion's name is lower_case_with_underscores")
        self._keys({key: value for key, value in table.items() if key != "checks"}, criterion_id, _CRITERION_KEYS)
        points = self._positive(table["points"], criterion_id)
        return Criterion(criterion_id, table["title"], points, self._checks(criterion_id, table, points))

    def _checks(self, criterion_id: str, table: Mapping[str, Any], points: Decimal) -> tuple[Check, ...]:
        stated = table.get("checks")
        if stated is None:
            return ()
        where = f"{criterion_id}.checks"
        if not isinstance(stated, dict) or not stated:
            raise self._error(criterion_id, "checks", "checks must be a table of `name = points`")
        checks = []
        for name, value in stated.items():
            if not _NAME.fullmatch(name):
                raise self._error(where, name, f"a check's name is lower_case_with_underscores, not {name!r}")
            checks.append(Check(f"{criterion_id}.{name}", self._positive(value, where, name)))
        self._sum(criterion_id, "its checks", points, [check.points for check in checks])
        return tuple(checks)

    def _keys(self, table: Mapping[str, Any], where: str, expected: Mapping[str, Any]) -> None:
        for key in table:
            if key not in expected:
                raise self._error(where, key, f"unknown key {key!r}; known are {', '.join(expected)}")
        for key, kind in expected.items():
            if key not in table:
                raise self._error(where, None, f"[{where}] lacks the key {key!r}")
            if not isinstance(table[key], kind) or isinstance(table[key], bool):
                raise self._error(where, key, f"{key} has the wrong type: {table[key]!r}")

    def _positive(self, value: Any, where: str, key: str = "points") -> Decimal:
        if isinstance(value, bool) or not isinstance(value, (int, Decimal)) or value <= 0:
            raise self._error(where, key, f"{key} must be a positive number of points, not {value!r}")
        return Decimal(value)

    def _sum(self, where: str, parts: str, total: Decimal, points: list[Decimal]) -> None:
        if sum(points) != total:
            raise self._error(where, "points", f"[{where}] states {total} points, but {parts} add up to {sum(points)}")

    def _error(self, table: str, key: str | None, cause: str) -> RubricError:
        return RubricError(f"{self._path}:{self._line(table, key)}: {cause}")

    def _line(self, table: str, key: str | None) -> int:
        """The line of `key` inside `[table]`, else that of the table's header, else 1."""
        header = key_line = None
        current = ""
        for number, line in enumerate(self._lines, start=1):
            stripped = line.strip()
            if found := re.match(r"\[\s*([^\]]+?)\s*\]", stripped):
                current = found.group(1)
                header = number if current == table else header
            elif current == table and key and key_line is None and re.match(rf"\"?{re.escape(key)}\"?\s*=", stripped):
                key_line = number
        return key_line or header or 1
