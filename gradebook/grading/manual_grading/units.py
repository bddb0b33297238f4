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
        names = ", ".join(member.name or member.student for member in self.members)
        if self.team:
            return f"{self.team}: {names}"
        return f"{names} ({self.student})" if self.has_namesakes else names

    @property
    def submitted_at(self) -> datetime | None:
        return max((member.submitted_at for member in self.members if member.submitted_at), default=None)


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
    for student in students:
        contents.setdefault(student.team, set()).add(student.content)
    groups: dict[tuple[str, str, str], list[Student]] = {}
    for student in students:
        if student.content is not None and student.student not in excused:
            team = student.team if len(contents[student.team]) == 1 else ""  # of one member older work may count
            # Of teammates without a name of the team, the first stands for all.
            first = "" if team else min(student.student, *student.teammates) if student.teammates else student.student
            groups.setdefault((first, team, student.content), []).append(student)
    called = Counter(student.name for student in students if student.name)
    return tuple(
        Unit(
            student=first,
            team=team,
            members=tuple(members),
            content=content,
            has_namesakes=any(called[member.name] > 1 for member in members),
        )
        for (first, team, content), members in groups.items()
    )
