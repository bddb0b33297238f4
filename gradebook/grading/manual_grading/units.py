"""What is graded by hand at once: one student's submission, or that of a team."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from gradebook.results import Student


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One submission as graders see it."""

    student: str = ""
    """The key of whose it is; empty of a team."""
    team: str = ""
    members: tuple[Student, ...]
    content: str
    """SHA-256 of the submission that is there now."""
    has_namesakes: bool = False
    """Whether somebody else in the class is called as its member is."""

    @property
    def key(self) -> str:
        return key_of(self.student, self.team)

    @property
    def id(self) -> str:
        """What names it in addresses and when graders see no names; says nothing about whose it is."""
        return hashlib.sha256(f"{self.key}\n".encode("utf-8", "replace")).hexdigest()[:12]

    @property
    def label(self) -> str:
        """For people."""
        names = ", ".join(one.name or one.student for one in self.members)
        if self.team:
            return f"{self.team}: {names}"
        return f"{names} ({self.student})" if self.has_namesakes else names

    @property
    def submitted_at(self) -> datetime | None:
        return max((one.submitted_at for one in self.members if one.submitted_at), default=None)


def key_of(student: str, team: str) -> str:
    """The name of a unit among all."""
    return f"team {team}" if team else f"student {student}"


def of(students: Sequence[Student], excused: Collection[str] = ()) -> tuple[Unit, ...]:
    """Every submission that there is to read, by the key of its first member.

    Args:
        students: everybody in the class.
        excused: those whose work does not count.
    """
    contents: dict[str, set[str | None]] = {}
    for one in students:
        contents.setdefault(one.team, set()).add(one.content)
    groups: dict[tuple[str, str, str], list[Student]] = {}
    for one in students:
        if one.content is not None and one.student not in excused:
            team = one.team if len(contents[one.team]) == 1 else ""  # of one member older work may count
            # Of teammates without a name of the team, the first stands for all.
            first = "" if team else min(one.student, *one.teammates) if one.teammates else one.student
            groups.setdefault((first, team, one.content), []).append(one)
    called = Counter(one.name for one in students if one.name)
    return tuple(
        Unit(
            student=first,
            team=team,
            members=tuple(members),
            content=content,
            has_namesakes=any(called[one.name] > 1 for one in members),
        )
        for (first, team, content), members in groups.items()
    )
