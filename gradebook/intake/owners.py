"""Whose each thing is that was handed in, by the roster, and what an instructor should know where that is not clear.

Not for who is in the class (`roster.py`), nor for what is taken (`collect.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradebook.intake import spelling
from gradebook.intake.handed_in import HandedIn, Person
from gradebook.intake.roster import Entry, Outsider, Roster
from gradebox.common.texts import printable


@dataclass(frozen=True)
class Theirs:
    """Something that was handed in, as that of one of those whose it is."""

    person: Person
    handed_in: HandedIn


class Owners:
    """Those of one class."""

    def __init__(self, roster: Roster | None) -> None:
        """Without a roster everything belongs to who is named on it."""
        self._roster = roster
        self.notices: list[str] = []
        """What an instructor should look at; of several attachments the same more than once."""
        if roster is not None and (column := roster.unused_teams):
            self.notices.append(
                f"the roster has a column {column!r}, which nothing here reads: if it says who works together, name "
                "the file with teams in class.toml, too"
            )

    def of_students(self, found: Sequence[HandedIn]) -> list[HandedIn]:
        """What is handed in by students; of what staff and test students handed in, a notice each."""
        if self._roster is None:
            return list(found)
        kept: list[HandedIn] = []
        labels: dict[Outsider, list[str]] = {one: [] for one in self._roster.outsiders if one.told}
        for one in found:
            outside = {person: self._roster.outsider(person.handles) for person in one.people}
            people = tuple(person for person, outsider in outside.items() if outsider is None)
            if people:
                kept.append(replace(one, people=people) if len(people) < len(one.people) else one)
                continue
            for outsider in dict.fromkeys(outside.values()):
                if outsider is not None:
                    labels.setdefault(outsider, []).append(one.label)
        for outsider, theirs in labels.items():
            verb = "are" if len(theirs) > 1 else "is"
            what = f"{', '.join(theirs) or 'it'} {verb} left out"
            self.notices.append(printable(f"{outsider.why}: {what}", lines=False))
        return kept

    def keys(self, person: Person, platform: str) -> list[str]:
        """The keys of those whose it is; what it calls itself where nobody knows."""
        if self._roster is None:
            return [person.key]
        owners = self._roster.owners(person.handles)
        entry = None if self._roster.team(person.handles) else self._roster.find(person.handles)
        if entry is not None and self._is_a_groups(person, entry, platform):
            owners = []
        elif not owners and (several := self._roster.several(person.handles)):
            keys = ", ".join(printable(repr(one.student), lines=False) for one in several)
            self.notices.append(
                f"{person.key}: several students have this name ({keys}), so that it is nobody's: rename it to the one "
                "whose it is"
            )
        return [one.student for one in owners] or [person.key]

    def _is_a_groups(self, person: Person, entry: Entry, platform: str) -> bool:
        """Whether it is that of a group which only has the number of this student."""
        if not person.name or not entry.name or spelling.have_a_word_in_common(person.name, entry.name):
            return False
        if platform == "Moodle":
            # It numbers groups as it numbers students.
            owner, called = (printable(one, lines=False) for one in (entry.student, entry.name))
            self.notices.append(
                f"{person.key}: its number is {owner}'s in the roster, who has another name there ({called}); "
                f"it is taken for a group's, and is nobody's: rename it to {owner!r} if it is theirs, or say who "
                "is in the group with teams in class.toml"
            )
            return True
        if platform == "Canvas" and not entry.team:
            name = printable(person.name, lines=False)
            self.notices.append(
                f"{entry.student} handed in as {name!r}; if that is a group, say who is in it: name a list "
                "with teams in class.toml"
            )
        return False

    def set_apart_namesakes(self, found: dict[str, list[Theirs]]) -> None:
        """What only calls itself by a student's name does not stand beside what has that student's identifier.

        It becomes a submission that matches nobody, for a person to look at.
        """
        if self._roster is None:
            return
        for key, ones in list(found.items()):
            sure = [one for one in ones if self._roster.identifies(one.person.handles)]
            known = {entry.student for one in sure if (entry := self._roster.find(one.person.handles))}
            apart = [one for one in ones if one not in sure and self._is_of(one, known)]
            if apart:
                found[key] = [one for one in ones if one not in apart]
                for one in apart:
                    found.setdefault(one.person.key, []).append(one)

    def _is_of(self, one: Theirs, students: set[str]) -> bool:
        entry = self._roster.find(one.person.handles) if self._roster else None
        return entry is not None and entry.student in students
