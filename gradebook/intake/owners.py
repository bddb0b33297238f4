"""Whose submissions are: students of a roster, teams, or nobody, of which the instructor hears. Not for finding them
(`handed_in.py`), nor for what identifies a student (`gradebook/roster.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gradebook.intake.handed_in import HandedIn, Person
from gradebook.moodle_words import PARTICIPANTS_IN_FILES
from gradebook.roster import Entry, Outsider, Roster
from gradebook.spelt_names import have_a_word_in_common
from gradebook.text_files import some
from gradebox.common.texts import printable


@dataclass(frozen=True)
class Theirs:
    """Something that was handed in, as that of one of those whose it is."""

    person: Person
    handed_in: HandedIn


_SEVERAL = 3
"""So many repositories that begin alike show how those of this assignment begin."""
_TEST_STUDENTS = {"studenttest": "Test Student", "teststudent": "Student Test"}
"""How Canvas spells the name of its Test Student in names of files, and the name."""


class Owners:
    """Those of one class."""

    def __init__(self, roster: Roster | None) -> None:
        """Without a roster everything belongs to who is named on it."""
        self._roster = roster
        self.notices: list[str] = []
        """What an instructor should look at; of several attachments the same more than once."""
        self._of_several: dict[tuple[str, str], dict[str, None]] = {}
        """What may be any of several students', by what they share and their keys."""
        if roster is not None and (column := roster.unused_teams):
            self.notices.append(
                f"the roster has a column {column!r}, which nothing here reads: if it says who works together, call it "
                "team, or (a list of Canvas or Moodle) name the file with teams in class.toml, too"
            )

    def of_students(self, things: Sequence[HandedIn]) -> list[HandedIn]:
        """What is handed in by students; of what staff and test students handed in, a notice each."""
        things = [thing for thing in things if not self._is_of_test_student(thing)]
        if self._roster is None:
            return things
        kept: list[HandedIn] = []
        labels: dict[Outsider, list[str]] = {outsider: [] for outsider in self._roster.outsiders if outsider.announced}
        for submission in things:
            outside = {person: self._roster.outsider(person.handles) for person in submission.people}
            people = tuple(person for person, outsider in outside.items() if outsider is None)
            if people:
                kept.append(replace(submission, people=people) if len(people) < len(submission.people) else submission)
                continue
            for outsider in dict.fromkeys(outside.values()):
                if outsider is not None:
                    labels.setdefault(outsider, []).append(submission.label)
        for outsider, theirs in labels.items():
            verb = "are" if len(theirs) > 1 else "is"
            what = f"{', '.join(theirs)} {verb} left out" if theirs else "no student of this class"
            self.notices.append(printable(f"{outsider.why}: {what}", lines=False))
        return kept

    def _is_of_test_student(self, thing: HandedIn) -> bool:
        """Whether Canvas's Student View handed it in, where no roster says so or knows somebody else of this name."""
        (person, *others) = thing.people
        if thing.platform != "Canvas" or others or person.name not in _TEST_STUDENTS:
            return False
        if self._roster is not None and (
            self._roster.owners(person.handles)
            or self._roster.outsider(person.handles)
            or any(self._roster.named(name) for name in _TEST_STUDENTS.values())
        ):
            return False
        self.notices.append(f"the Test Student of Canvas: {thing.label} is left out")
        return True

    def keys(self, person: Person, platform: str) -> list[str]:
        """The keys of those whose it is; what it calls itself where nobody knows."""
        if self._roster is None:
            return [person.key]
        owners = self._roster.owners(person.handles)
        entry = None if self._roster.team(person.handles) else self._roster.find(person.handles)
        if entry is not None and self._is_a_groups(person, entry, platform):
            owners = []
        elif not owners and (several := self._roster.several(person.handles)):
            keys = some([printable(repr(namesake.student), lines=False) for namesake in several])
            what = "identifier" if self._roster.shares_identifier(person.handles) else "name"
            self._of_several.setdefault((what, keys), {})[person.key] = None
        return [owner.student for owner in owners] or [person.key]

    def say_namesakes(self) -> None:
        """Name what belongs to nobody because several students share a name or an identifier."""
        for (what, keys), names in self._of_several.items():
            one = "it is nobody's: rename it" if len(names) == 1 else "they are nobody's: rename each"
            self.notices.append(
                f"{some(list(names))}: several students may be meant by this {what} ({keys}), so that {one} to the one "
                "whose it is"
            )

    def unmatched(self, by_key: Mapping[str, Sequence[Theirs]]) -> list[HandedIn]:
        """The folders that belong to nobody in the roster; none without a roster."""
        known = {entry.student for entry in self._roster.entries} if self._roster else by_key.keys()
        others = [owned.handed_in for key, theirs in by_key.items() if key not in known for owned in theirs]
        return [thing for thing in others if thing.kind == "folder"]

    def _is_a_groups(self, person: Person, entry: Entry, platform: str) -> bool:
        """Whether it is that of a group which only has the number of this student."""
        if not person.name or not entry.name or have_a_word_in_common(person.name, entry.name):
            return False
        if platform == "Moodle":
            if person.name.casefold() in PARTICIPANTS_IN_FILES:
                return False
            # It numbers groups as it numbers students.
            owner, called = (printable(text, lines=False) for text in (entry.student, entry.name))
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

    def set_apart_namesakes(self, by_key: dict[str, list[Theirs]]) -> None:
        """What only calls itself by a student's name does not count next to what has that student's identifier.

        It becomes a submission that matches nobody, for a person to look at.
        """
        if self._roster is None:
            return
        for key, ones in list(by_key.items()):
            sure = [owned for owned in ones if self._roster.identifies(owned.person.handles)]
            known = {entry.student for owned in sure if (entry := self._roster.find(owned.person.handles))}
            apart = [owned for owned in ones if owned not in sure and self._is_of(owned, known)]
            if apart:
                by_key[key] = [owned for owned in ones if owned not in apart]
                labels = ", ".join(sorted({owned.handed_in.label for owned in sure}))
                for owned in apart:
                    by_key.setdefault(owned.person.key, []).append(owned)
                    self.notices.append(
                        f"{owned.handed_in.label} only has the name of {key}, who handed in {labels} as well, so it is "
                        f"nobody's and does not count for {key}: remove one of them"
                    )

    def compare_beginnings(self, by_key: dict[str, list[Theirs]]) -> None:
        """Name repositories that begin otherwise than most: an organization on GitHub has those of all assignments.

        If most are called `lab1-LOGIN`, `lab1-mary-smith` is not of the student with the login smith.
        """
        if self._roster is None:
            return
        beginning = {
            owned.handed_in.label: self._roster.beginning(owned.person.handles)
            for theirs in by_key.values()
            for owned in theirs
        }
        count = Counter(start for start, _ in beginning.values() if start)
        usual = max(count, key=lambda start: count[start], default="")
        if count[usual] < _SEVERAL:
            return
        others = {label: start for label, (start, alone) in beginning.items() if alone and start not in ("", usual)}
        longer = [label for label, start in others.items() if start.startswith(usual)]
        for key, theirs in list(by_key.items()):
            for owned in [owned for owned in theirs if owned.handed_in.label in longer]:
                by_key[key] = [other for other in by_key[key] if other is not owned]
                by_key.setdefault(owned.person.key, []).append(owned)
        for key in [key for key, theirs in by_key.items() if not theirs]:
            del by_key[key]
        if longer:
            self.notices.append(
                f"{some(sorted(longer))}: most are called {usual!r} and a login, and what is behind {usual!r} there is "
                "no login of the roster, so that it is nobody's"
            )
        if elsewhere := sorted(set(others) - set(longer)):
            self.notices.append(
                f"{some(elsewhere)}: by the name perhaps another assignment's, because most begin with {usual!r}. Move "
                "away what is"
            )

    def _is_of(self, owned: Theirs, students: set[str]) -> bool:
        entry = self._roster.find(owned.person.handles) if self._roster else None
        return entry is not None and entry.student in students
