"""What points are given for: labs, their criteria, and the checks of those. `lab.toml` and `criterion.toml` state them.

Not for scoring: `grade.py` counts points over what this module returns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from gradebox.common import layout, reading
from gradebox.common.reading import Document, ReadingError
from gradebox.course import evidence

NAME = re.compile(r"[a-z][a-z0-9_]*")
"""What labs, criteria and checks are called."""

_NUMBER = re.compile(r"\d{1,4}(\.\d{1,2})?", re.ASCII)

RubricError = ReadingError
"""A rubric contradicts itself; the message names file, line and cause."""


@dataclass(frozen=True)
class Check:
    """One graded behaviour, `lab1.benchmark.warmed_up`, and what it is worth."""

    id: str
    points: Decimal
    title: str = field(default="", compare=False)
    """What it asks, in words, which decide nothing; empty if its docstring says it."""
    functions: tuple[str, ...] = field(default=(), compare=False)
    """The functions of the submission that it runs, as `criterion.toml` names them."""
    evidence: tuple[str, ...] = field(default=(), compare=False)
    """Where what it judges comes from: some of `evidence.EVIDENCE`; empty if `criterion.toml` does not say."""
    forgery: str = field(default="", compare=False)
    """For "notes": how a submission could still write them, and what notices it."""
    noticed_by: str = field(default="", compare=False)
    """For "notes": one of `evidence.NOTICED_BY`."""

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
class Hours:
    """How long something takes a student, at least and at most."""

    least: Decimal
    most: Decimal

    def __str__(self) -> str:
        """As a rubric writes it: "3-4", or "3" if both agree."""
        return self.in_words.replace(" to ", "-")

    @property
    def in_words(self) -> str:
        """For people: "3 to 4"."""
        least, most = f"{self.least:f}", f"{self.most:f}"
        return least if least == most else f"{least} to {most}"


@dataclass(frozen=True)
class Lab:
    """One lab package with its criteria."""

    id: str
    """The name of its folder in the course, `lab1`."""
    number: int
    """Its place among the labs, from 1 on; 0 of an exercise that is graded alone."""
    title: str
    package: str
    points: Decimal
    criteria: tuple[Criterion, ...]
    hours: Hours | None = None
    """How long it takes a student; None: its rubric does not say."""

    @property
    def option(self) -> str:
        """What `--lab` takes for it: its number, or its name where it has none."""
        return str(self.number) if self.number else self.id


@dataclass(frozen=True)
class Rubric:
    """The whole evaluation: labs in order, and the share of points needed to pass."""

    version: str
    points: Decimal
    pass_percent: Decimal
    labs: tuple[Lab, ...]

    def select(self, numbers: Collection[int] | None) -> tuple[Lab, ...]:
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
        """The labs that an option of a command names: `1,3`, or `lab1,lab3`.

        Raises:
            ValueError: a part of it is no number and no name, or no lab has it.
        """
        names = {lab.id: lab.number for lab in self.labs}
        try:
            numbers = {names[part] if part in names else int(part) for part in map(str.strip, option.split(","))}
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
            whole = name.rpartition(".")[0]
            if name not in known and whole in known:
                raise ValueError(f"{name} is one check; ask for its criterion, {whole}")
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

    def to_text(self) -> str:
        """The rubric as a text that `from_text` reads, the same for the same rubric."""
        labs = {
            lab.id: {
                "number": lab.number, "title": lab.title, "package": lab.package, "points": lab.points,
                **({"hours": str(lab.hours)} if lab.hours else {}),
                **{_key(criterion.id): _table(criterion) for criterion in lab.criteria},
            }
            for lab in self.labs
        }  # fmt: skip
        head = {"version": self.version, "points": self.points, "pass_percent": self.pass_percent}
        return json.dumps(reading.plain({"rubric": head, **labs}), ensure_ascii=False, indent=1) + "\n"


def _key(criterion: str) -> str:
    """A criterion's name in the table of its lab; the whole identifier where the lab has a key of that name."""
    name = criterion.rpartition(".")[2]
    return criterion if name in {key.name for key in fields(_LabTable)} else name


def _table(criterion: Criterion) -> dict[str, Any]:
    """A criterion as `from_text` reads it; without `checks` where none are written yet."""
    checks = {check.id.rpartition(".")[2]: check.points for check in criterion.checks}
    return {"title": criterion.title, "points": criterion.points} | ({"checks": checks} if checks else {})


def from_text(text: str) -> Rubric:
    """What `Rubric.to_text` wrote; also the single file in TOML that courses had before each lab had its own.

    Raises:
        RubricError: it is neither.
    """
    path = Path("rubric.json")
    if text.lstrip().startswith("{"):
        document = Document(path, text, json.loads(text, parse_float=Decimal))
    else:
        document = reading.toml(Path("rubric.toml"), text)
    head = document.data["rubric"]
    names = [name for name in document.data if name != "rubric"]
    labs = tuple(
        lab_of(document, name, document.data[name].get("number", index), name)
        for index, name in enumerate(names, start=1)
    )
    return Rubric(head["version"], Decimal(str(head["points"])), Decimal(str(head["pass_percent"])), labs)


@dataclass(frozen=True)
class CheckTable:
    """What a `criterion.toml` says of one check; for its hints see `gradebox.course.hints`."""

    points: Decimal
    title: str
    task: str = ""
    functions: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    """Beginnings of the sentences that a new check is about, for a course that keeps account of them."""
    evidence: tuple[str, ...] = ()
    """Some of `evidence.EVIDENCE`."""
    forgery: str = ""
    """With "notes": how a submission could still write them, and what notices it."""
    noticed_by: str = ""
    """With "notes": one of `evidence.NOTICED_BY`."""


@dataclass(frozen=True)
class _CriterionFile:
    title: str
    points: Decimal
    checks: Mapping[str, CheckTable] | None = None


@dataclass(frozen=True)
class _LabFile:
    title: str
    package: str
    points: Decimal = Decimal(0)
    criteria: tuple[str, ...] = ()
    hours: str = ""


@dataclass(frozen=True)
class _CriterionTable:
    title: str
    points: Decimal
    checks: Mapping[str, Decimal] | None = None


@dataclass(frozen=True)
class _LabTable:
    title: str
    package: str
    points: Decimal
    number: int = 0
    hours: str = ""
    criteria: Mapping[str, _CriterionTable] = field(default_factory=dict, metadata=reading.REST)


_BY_PEOPLE = "what people grade is no part of a course, but of the class's rubric: gradebook manual init"


def load_folder(folder: Path, lab_id: str, number: int) -> Lab:
    """The lab whose folder has a `lab.toml`, and one folder for each criterion.

    Raises:
        RubricError: for TOML that does not parse, unknown or missing keys, points that do not add up, or names that
            are not identifiers or have no folder. The message begins with `FILE:LINE:`.
    """
    document = reading.toml(folder / layout.LAB_FILE)
    table = reading.into(_LabFile, document)
    _require_folders(document, folder, table.criteria)
    criteria = tuple(_of_folder(folder / name, f"{lab_id}.{name}") for name in table.criteria)
    points = _positive(document, ("points",), table.points) if criteria else table.points
    lab = Lab(
        lab_id, number, table.title, table.package, points, criteria,
        hours_of(document, ("hours",), table.hours),
    )  # fmt: skip
    require_sum(document, (), "the criteria", lab.points, [criterion.points for criterion in criteria])
    _require_package(document, lab)
    return lab


def _require_folders(document: Document, folder: Path, names: tuple[str, ...]) -> None:
    """Raise unless `criteria` names each folder with a criterion once, and nothing else."""
    place = ("criteria",)
    for name in names:
        if not NAME.fullmatch(name):
            raise document.error(place, f"a criterion's name is lower_case_with_underscores, not {name!r}")
        if name == layout.SHARED:
            raise document.error(place, f"{name}/ is for what several criteria have in common")
        if names.count(name) > 1:
            raise document.error(place, f"{name} is named twice")
        if not (file := folder / name / layout.CRITERION_FILE).is_file():
            raise document.error(place, f"there is no {file}")
    for file in sorted(folder.glob(f"*/{layout.CRITERION_FILE}")):
        if file.parent.name not in names:
            raise document.error(place, f"criteria lacks {file.parent.name!r}, but there is {file}")


def _of_folder(folder: Path, criterion: str) -> Criterion:
    document = reading.toml(folder / layout.CRITERION_FILE)
    table = reading.into(_CriterionFile, document)
    points = _positive(document, ("points",), table.points)
    checks = []
    for name, check in (table.checks or {}).items():
        where = ("checks", name)
        if not NAME.fullmatch(name):
            raise document.error(where, f"a check's name is lower_case_with_underscores, not {name!r}")
        if not check.title.strip():
            raise document.error((*where, "title"), "a check's title says what it asks, in one line")
        worth = _positive(document, (*where, "points"), check.points)
        for key, cause in evidence.mistakes(check.evidence, check.forgery, check.noticed_by):
            raise document.error((*where, key) if key else where, cause)
        checks.append(
            Check(
                f"{criterion}.{name}", worth, check.title, check.functions,
                check.evidence, check.forgery, check.noticed_by,
            )
        )  # fmt: skip
    if table.checks is not None:
        if not checks:
            raise document.error(("checks",), "checks must be tables like [checks.returns_result]")
        require_sum(document, (), "its checks", points, [check.points for check in checks])
    return Criterion(criterion, table.title, points, tuple(checks))


def _require_package(document: Document, lab: Lab) -> None:
    """A folder of a submission belongs to a lab by how its name begins."""
    if not lab.package.startswith(f"{lab.id}_"):
        raise document.error(("package",), f"package = {lab.package!r}: expected a name that begins with {lab.id}_")


def lab_of(document: Document, lab_id: str, number: int, *place: str) -> Lab:
    """The lab whose table is at `place` of a document. Raises as `load_folder` does."""
    table = reading.into(_LabTable, document, *place)
    criteria = tuple(
        _criterion(document, (*place, name), f"{lab_id}.{name.removeprefix(f'{lab_id}.')}", entry)
        for name, entry in table.criteria.items()
    )
    points = _positive(document, (*place, "points"), table.points) if criteria else table.points
    lab = Lab(
        lab_id, number, table.title, table.package, points, criteria,
        hours_of(document, (*place, "hours"), table.hours),
    )  # fmt: skip
    require_sum(document, place, "the criteria", lab.points, [criterion.points for criterion in criteria])
    return lab


def hours_of(document: Document, place: tuple[str, ...], text: str) -> Hours | None:
    """The hours at `place` of a document, "3-4" or "3"; None for an empty text.

    Raises:
        RubricError: it is something else.
    """
    if not text:
        return None
    least, dash, most = text.partition("-")
    if not (_NUMBER.fullmatch(least) and _NUMBER.fullmatch(most if dash else least)):
        raise document.error(place, f'hours = "{text}": expected a number of hours or a range, like "3-4"')
    hours = Hours(Decimal(least), Decimal(most if dash else least))
    if not 0 < hours.least <= hours.most:
        raise document.error(place, f'hours = "{text}": expected a range from less to more, above 0, like "3-4"')
    return hours


def _criterion(document: Document, place: tuple[str, ...], name: str, table: _CriterionTable) -> Criterion:
    if not NAME.fullmatch(name.rpartition(".")[2]):
        raise document.error(place, "a criterion's name is lower_case_with_underscores")
    points = _positive(document, (*place, "points"), table.points)
    checks = []
    for check, worth in (table.checks or {}).items():
        where = (*place, "checks", check)
        if not NAME.fullmatch(check):
            raise document.error(where, f"a check's name is lower_case_with_underscores, not {check!r}")
        checks.append(Check(f"{name}.{check}", _positive(document, where, worth)))
    if table.checks is not None:
        if not checks:
            raise document.error((*place, "checks"), "checks must be a table of `name = points`")
        require_sum(document, place, "its checks", points, [check.points for check in checks])
    return Criterion(name, table.title, points, tuple(checks))


def _positive(document: Document, place: tuple[str, ...], value: Decimal) -> Decimal:
    if value <= 0:
        text = f"{place[-1]} must be a positive number of points, not {value}"
        raise document.error(place, text if value else f"{text}; {_BY_PEOPLE}")
    return value


def require_sum(document: Document, place: tuple[Any, ...], parts: str, total: Decimal, points: list[Decimal]) -> None:
    """Raise RubricError unless `points` add up to `total`, which `place` states."""
    if sum(points) != total:
        where = f"[{'.'.join(place)}]" if place else "it"
        raise document.error((*place, "points"), f"{where} states {total} points, but {parts} add up to {sum(points)}")
