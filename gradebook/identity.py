"""Who is who over time: a record for each student with every identifier that rosters have named, and finding by any.

A student keeps the key of the first run for the whole class: marks by hand, extensions, overrides and reviews are
stored under it. A login, an address or a name may change from one roster to the next; a row is a student's if what
cannot change agrees (Canvas's ID, the SIS ID, GitHub's number), or else most of the rest. Not for whose a submission
is (`roster.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gradebook.results import Student
from gradebook.roster import Entry, Roster, cell_of, folded

_OWN = "key"
"""What a list of the instructor's own has, which may be what a platform calls something else."""
_KINDS = {
    "ID": "number", "SIS User ID": "SIS ID", "ID number": "SIS ID", "SID": "SIS ID", "OrgDefinedId": "SIS ID",
    "Student ID": "SIS ID", "github_id": "GitHub number",
    "student": _OWN, "identifier": _OWN, "SIS Login ID": "login", "Username": "login",
    "Identifier": "Moodle's number", "Email address": "e-mail address", "Email": "e-mail address",
    "email": "e-mail address", "username": "GitHub name", "github_username": "GitHub name",
}  # fmt: skip
"""What a roster's column holds, so that two rosters can be compared that call it differently."""
_ALSO_OWN = ("login", "SIS ID", "e-mail address", "GitHub name")
"""What instructors take for the key of a list of their own; not numbers that a platform counts."""
_PERMANENT = ("number", "SIS ID", "GitHub number")
_NAME = "name"
_AGREES = {True: 10, False: -10}
"""What an equal or a different permanent identifier says; others say `_LIKELY`, names less."""
_LIKELY = {True: 2, False: -1}
_CALLED = {True: 1, False: -1}


_SHOWN = 5
"""So many students are named whom a part of a name may mean."""


class UnknownStudentError(ValueError):
    """A name means no student of the class, or more than one; the message is one clause that says what to do."""


class GoneStudentError(UnknownStudentError):
    """A name means a student who was in the class, and is no longer in the roster."""


@dataclass(frozen=True)
class Record:
    """One student in every roster that the class has had."""

    student: str
    """The key in this class, which never changes."""
    keys: Mapping[str, tuple[str, ...]]
    """By kind of identifier: the present one first, then earlier ones. `name` is among them."""

    def has(self, text: str) -> bool:
        """Whether one of the identifiers, or the name, is or was this."""
        return any(folded(text) == folded(cell) for cells in self.keys.values() for cell in cells)

    def now(self, kind: str) -> str:
        return next(iter(self.keys.get(kind, ())), "")


def records(stored: Iterable[Mapping[str, object]], students: Iterable[Student]) -> tuple[Record, ...]:
    """The records of a gradebook; of students that were taken in before there were records, from their row."""
    known = {
        str(row["student"]): Record(str(row["student"]), {kind: tuple(cells) for kind, cells in row["keys"].items()})  # type: ignore[attr-defined]
        for row in stored
    }
    for student in students:
        if student.columns and student.student not in known:
            known[student.student] = Record(student.student, _keys(student.columns, student.name))
    return tuple(known.values())


def stored(known: Iterable[Record]) -> list[dict[str, object]]:
    """The records as plain data."""
    return [{"student": record.student, "keys": dict(record.keys)} for record in known]


@dataclass(frozen=True)
class Recognised:
    """A roster whose students have the keys that they have in the class."""

    roster: Roster
    records: tuple[Record, ...]
    notices: tuple[str, ...]
    """Whose identifiers have changed, and who needs a key of their own because another student had theirs."""


def recognise(roster: Roster, known: Sequence[Record]) -> Recognised:
    """Find every student of a roster among those that the class has had."""
    pairs = _pairs(roster.entries, known)
    by_key = {record.student: record for record in known}
    entries: list[Entry] = []
    notices: list[str] = []
    taken = set(by_key)
    for entry in roster.entries:
        record = pairs.get(entry.student)
        if record is None:
            key = _free_key(entry, taken)
            if key != entry.student:
                was = _called(by_key[entry.student])
                who = f"{entry.name or entry.student} is called {entry.student!r}, as {was} was"
                notices.append(f"{who}: in this class the key is {key!r}")
            record = Record(key, _keys(entry.columns, entry.name))
        else:
            key = record.student
            notices += _changed(record, entry)
            record = Record(key, _merged(record.keys, _keys(entry.columns, entry.name)))
        taken.add(key)
        by_key[key] = record
        current = {folded(cell) for cell in entry.columns.values()}
        former = tuple(
            cell
            for kind, cells in record.keys.items()
            for cell in cells
            if kind != _NAME and folded(cell) not in current
        )
        entries.append(replace(entry, student=key, former=former))
    return Recognised(Roster(entries, roster.strangers, roster.outsiders), tuple(by_key.values()), tuple(notices))


def _pairs(entries: Sequence[Entry], known: Sequence[Record]) -> dict[str, Record]:
    """By the entry's key: the record that fits it better than any other, and that no other entry fits as well."""
    by_handle: dict[tuple[str, str], set[int]] = {}
    for number, record in enumerate(known):
        for kind, cells in record.keys.items():
            for cell in cells if kind != _NAME else ():
                by_handle.setdefault((kind, folded(cell)), set()).add(number)
    scores: dict[tuple[int, int], int] = {}
    for place, entry in enumerate(entries):
        keys = _keys(entry.columns, entry.name)
        handles = [(kind, folded(cells[0])) for kind, cells in keys.items()]
        handles += [(_OWN, folded(cells[0])) for kind, cells in keys.items() if kind in _ALSO_OWN]
        handles += [(kind, folded(keys[_OWN][0])) for kind in _ALSO_OWN if _OWN in keys]
        for number in set().union(*(by_handle.get(handle, set()) for handle in handles)):
            score = _likeness(keys, known[number])
            if score > 0:
                scores[place, number] = score
    return {
        entries[place].student: known[number]
        for (place, number), score in scores.items()
        if all(score > other for (p, n), other in scores.items() if (p == place) != (n == number))
    }


def _likeness(keys: Mapping[str, tuple[str, ...]], record: Record) -> int:
    score = 0
    for kind, cells in keys.items():
        if before := record.now(kind):
            weights = _AGREES if kind in _PERMANENT else _CALLED if kind == _NAME else _LIKELY
            score += weights[folded(before) == folded(cells[0])]
    now = {kind: record.now(kind) for kind in record.keys}
    entry = {kind: cells[0] for kind, cells in keys.items()}
    for own, others in ((now, entry), (entry, now)):
        if own.get(_OWN) and not others.get(_OWN):
            same = any(folded(own[_OWN]) == folded(others[kind]) for kind in _ALSO_OWN if others.get(kind))
            score += _LIKELY[True] if same else 0
    return score


def _keys(columns: Mapping[str, str], name: str) -> dict[str, tuple[str, ...]]:
    keys: dict[str, tuple[str, ...]] = {}
    for column, kind in _KINDS.items():
        if cell := cell_of(columns, column).strip():
            keys.setdefault(kind, (cell,))
    return {**keys, **({_NAME: (name,)} if name else {})}


def _merged(before: Mapping[str, tuple[str, ...]], now: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    kinds = dict.fromkeys([*before, *now])
    return {kind: tuple(dict.fromkeys([*now.get(kind, ()), *before.get(kind, ())])) for kind in kinds}


def _changed(record: Record, entry: Entry) -> list[str]:
    """What of a student's identifiers is another than in the roster before."""
    now = _keys(entry.columns, "")
    different = [
        f"{kind} was {before!r} and is {cells[0]!r}"
        for kind, cells in now.items()
        if (before := record.now(kind)) and folded(before) != folded(cells[0])
    ]
    if not different:
        return []
    return [
        f"{entry.name or record.student}: {'; '.join(different)}. Marks, extensions and overrides stay with the "
        f"student, whose key in this class is still {record.student!r}"
    ]


def _free_key(entry: Entry, taken: set[str]) -> str:
    cells = [cell for column in _KINDS if (cell := cell_of(entry.columns, column).strip())]
    numbered = (f"{entry.student} ({number})" for number in range(2, len(taken) + 3))
    return next(key for key in (entry.student, *cells, *numbered) if key not in taken)


def _called(record: Record) -> str:
    name = record.now(_NAME)
    return f"{name} ({record.student})" if name else record.student


class Directory:
    """Finds students by what an instructor calls them: key, name, team, or any identifier of theirs."""

    def __init__(self, students: Iterable[Student], known: Iterable[Record] = ()) -> None:
        by_key = {record.student: record for record in known}
        self._students = {student.student: student for student in students}
        self._gone = {key: record for key, record in by_key.items() if key not in self._students}
        self._roster = Roster(
            Entry(
                student.student,
                student.name,
                student.columns,
                None,
                student.team,
                tuple(
                    cell
                    for kind, cells in (by_key[student.student].keys.items() if student.student in by_key else ())
                    for cell in cells
                    if kind != _NAME
                ),
            )
            for student in self._students.values()
        )

    def keys(self, name: str, *, recorded: bool = False) -> tuple[str, ...]:
        """The keys of whom this means: one student's, or those of a team.

        Args:
            name: as somebody wrote it.
            recorded: whether a command of ours wrote it, which names students by their keys: a key stays the
                student's, even if another one has that login by now.

        Raises:
            UnknownStudentError: nobody, or it cannot be known who.
        """
        if recorded and name in self._students:
            return (name,)
        if members := self._roster.team([name]):
            return tuple(member.student for member in members)
        return (self.key(name),)

    def key(self, name: str) -> str:
        """The key of one student. Raises as `keys` does."""
        text = name.strip()
        entries = {entry.student: entry for entry in self._roster.identified(text)}
        if (student := self._students.get(text)) is not None:
            own = {folded(cell) for cell in student.columns.values()}
            if folded(text) in own:
                return text
            if not own:  # the work of nobody in the roster, whose name students of the roster may have
                entries |= {entry.student: entry for entry in self._roster.named(text)}
            entries[text] = next(entry for entry in self._roster.entries if entry.student == text)
        matching = list(entries.values()) or self._roster.named(text)
        if len(matching) == 1:
            return matching[0].student
        if matching:
            who = ", ".join(f"{entry.student!r}{f' ({entry.name})' if entry.name else ''}" for entry in matching)
            raise UnknownStudentError(f"{name!r} may be {who}: write an identifier that only one has")
        if gone := [record for record in self._gone.values() if record.has(text)]:
            raise GoneStudentError(
                f"there is no such student in this class any more: {_called(gone[0])} is no longer in the roster"
            )
        word = folded(text)
        partly = [entry for entry in self._roster.entries if word and word in folded(entry.name).split()]
        if partly:
            who = ", ".join(f"{entry.student!r} ({entry.name})" for entry in partly[:_SHOWN])
            more = f" and {len(partly) - _SHOWN} more" if len(partly) > _SHOWN else ""
            raise UnknownStudentError(f"it is a part of a name only, of {who}{more}: write the whole name or the key")
        # No student with a similar name is suggested: another login by one digit is another person.
        raise UnknownStudentError(
            "there is no such student in this class; write the key of grades.csv, the name, the team, or an identifier "
            "of the roster"
        )
