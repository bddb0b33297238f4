"""What the page shows and does, as plain values: the class, one submission, marks, comments and answers.

Reads the class's folder anew for every question, because other graders write into it too. Not for HTTP (`server.py`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from gradebook import excused
from gradebook.desk import presence, report
from gradebook.hands import FOLDER, HandsError, comments, marks, reports, requests, units
from gradebook.hands.comments import Comment
from gradebook.hands.marks import LOCK, ChangedMeanwhileError, Mark
from gradebook.hands.merging import Hands
from gradebook.hands.rubric import Rubric
from gradebook.hands.units import Unit
from gradebook.intake.collect import STORE, Store
from gradebook.store import Gradebook
from gradebook.toml_text import lock
from gradebox.common import reading
from gradebox.common.texts import printable_document

_CENT = Decimal("0.01")


class NotThereError(HandsError):
    """There is no such submission, picture, comment or request."""


@dataclass(frozen=True)
class _Given:
    """A mark as the page sends it."""

    revision: int
    content: str
    comments: tuple[str, ...]
    adjust: Decimal
    text: str
    done: bool


@dataclass(frozen=True)
class _Said:
    """A comment as the page sends it."""

    text: str
    points: Decimal
    criterion: str = ""


class Board:
    """One grader's view of a class."""

    def __init__(self, folder: Path, grader: str) -> None:
        """Read the class once, so that what is wrong is said before the page opens.

        Raises:
            HandsError: there is no rubric, a file cannot be used, or the rubric names other graders.
            GradebookError: there is no gradebook.
        """
        report.check_libraries()
        self.folder = folder
        self.grader = grader.strip()
        if not self.grader:
            raise HandsError("say who grades: --as NAME")
        self._store = Store(folder / STORE)
        self._units()
        points = self._rubric()
        if points.graders and self.grader not in points.graders:
            raise HandsError(f"--as {self.grader}: the rubric names {', '.join(points.graders)} as graders")
        Hands.load(folder)
        requests.load(folder)

    def overview(self) -> Any:
        """The class: its rubric, comments, and how far each submission is."""
        points, hands, found = self._rubric(), Hands.load(self.folder), self._units()
        open_by = presence.others(self.folder, self.grader)
        asked = requests.load(self.folder)
        used = Counter(name for given in hands.marks.values() for mark in given.values() for name in mark.comments)
        rows: list[dict[str, Any]] = []
        graded: Counter[str] = Counter()
        for unit in found.values():
            given = hands.marks.get(unit.key, {})
            members = {one.student for one in unit.members}
            states = {one.id: self._state(unit, given.get(one.id)) for one in points.criterion}
            graded.update(mark.by for mark in given.values() if mark.done and mark.content == unit.content)
            rows.append(
                {
                    "id": unit.id,
                    "label": self._label(unit, points),
                    "states": states,
                    "revisions": {name: mark.revision for name, mark in given.items()},
                    "open_by": open_by.get(unit.id, ""),
                    "requests": sum(one.answered_at is None and one.student in members for one in asked),
                }
            )
        rows.sort(key=lambda row: str(row["id"] if points.blind else row["label"].casefold()))
        return _plain(
            {
                "title": points.title,
                "me": self.grader,
                "room": hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:12],
                "blind": points.blind,
                "released": points.released,
                "criteria": points.criterion,
                "comments": [{**vars(one), "used": used[one.id]} for one in hands.comments.values()],
                "units": rows,
                "graded": dict(sorted(graded.items())),
                "gone": sorted(hands.marks.keys() - {unit.key for unit in found.values()}) if not points.blind else [],
            }
        )

    def unit(self, name: str) -> Any:
        """One submission: its reports and pictures, and what it was given."""
        points, unit = self._rubric(), self._unit(name)
        labs = self._store.path(unit.content)
        shown, texts = report.pictures(labs), report.reports(labs)
        address = f"unit/{unit.id}/picture/"
        given = marks.load(self.folder, unit.key)
        old = next((mark for mark in given.values() if mark.content != unit.content), None)
        members = {one.student for one in unit.members}
        return _plain(
            {
                "id": unit.id,
                "label": self._label(unit, points),
                "content": unit.content,
                "submitted_at": None if points.blind else unit.submitted_at,
                "reports": [{"name": one.name, "html": report.to_html(one, shown, address)} for one in texts],
                "pictures": [{"name": one.name, "address": f"{address}{n}"} for n, one in enumerate(shown)],
                "marks": given,
                "automatic": self._automatic(unit),
                "anew": old
                and {
                    "by": old.by,
                    "at": old.at,
                    "changes": report.difference(report.reports(self._store.path(old.content)), texts),
                },
                "requests": [
                    {**vars(one), "student": "" if points.blind else one.student}
                    for one in requests.load(self.folder)
                    if one.student in members
                ],
            }
        )

    def picture(self, name: str, number: int) -> report.Picture:
        """A picture of a submission. Raises `NotThereError`."""
        shown = report.pictures(self._store.path(self._unit(name).content))
        if number >= len(shown):
            raise NotThereError("there is no such picture")
        return shown[number]

    def give(self, name: str, criterion: str, body: Mapping[str, Any]) -> Any:
        """Record a mark. Raises `ChangedMeanwhileError` where another grader was faster."""
        unit, sent = self._unit(name), _read(_Given, body)
        found = self._rubric().find(criterion)
        if sent.content != unit.content:
            raise ChangedMeanwhileError("another version was handed in meanwhile: look at that one")
        if len(sent.text) > marks.MAX_CHARACTERS:
            raise HandsError(f"a text has at most {marks.MAX_CHARACTERS} characters")
        if not sent.adjust.is_finite() or abs(sent.adjust) > comments.MAX_POINTS:
            raise HandsError(f"{sent.adjust} is no sensible number of points")
        known = comments.load(self.folder)
        if unknown := [one for one in sent.comments if one not in known or known[one].criterion != found.id]:
            raise HandsError(f"there is no comment {unknown[0]!r} for {found.title}; it may have been removed")
        wanted = Mark(
            criterion=found.id, content=sent.content, comments=tuple(dict.fromkeys(sent.comments)),
            adjust=sent.adjust.quantize(_CENT), text=sent.text, done=sent.done, by=self.grader, at=_now(),
            revision=sent.revision,
        )  # fmt: skip
        return _plain(marks.change(self.folder, unit.key, wanted))

    def now(self, name: str, criterion: str) -> Any:
        """The mark that is there, for who came too late."""
        return _plain(marks.load(self.folder, self._unit(name).key).get(criterion))

    def undo(self, name: str) -> Any:
        """Take back this grader's last change to a submission; None where there is none."""
        return _plain(marks.undo(self.folder, self._unit(name).key, self.grader))

    def keep(self, name: str) -> Any:
        """Let marks for an earlier version stand for the one that is there now."""
        unit = self._unit(name)
        return _plain(marks.keep(self.folder, unit.key, unit.content, self.grader))

    def open(self, name: str) -> None:
        """Say that this grader has a submission open."""
        presence.tell(self.folder, self.grader, name)

    def add_comment(self, body: Mapping[str, Any]) -> Any:
        """A new reusable comment."""
        sent = _read(_Said, body)
        criterion = self._rubric().find(sent.criterion).id
        with lock(self.folder / FOLDER / LOCK):
            known = comments.load(self.folder)
            made = comments.added(known, criterion, sent.text, sent.points, self.grader)
            comments.save(self.folder, [*known.values(), made])
        return _plain(made)

    def change_comment(self, name: str, body: Mapping[str, Any]) -> Any:
        """Another text or other points, for everybody who has the comment."""
        sent = _read(_Said, body)
        with lock(self.folder / FOLDER / LOCK):
            known = comments.load(self.folder)
            made = comments.changed(_comment(known, name), sent.text, sent.points)
            comments.save(self.folder, list({**known, name: made}.values()))
        return _plain(made)

    def remove_comment(self, name: str) -> None:
        """Remove a comment that nobody has. Raises `HandsError` where somebody does."""
        with lock(self.folder / FOLDER / LOCK):
            known = comments.load(self.folder)
            gone = _comment(known, name)
            users = sum(
                name in mark.comments for given in marks.load_all(self.folder).values() for mark in given.values()
            )
            if users:
                raise HandsError(f"{users} submissions have this comment: take it away there first, or change it")
            comments.save(self.folder, [one for one in known.values() if one is not gone])

    def answer(self, name: str, body: Mapping[str, Any]) -> Any:
        """Answer a request."""
        return _plain(requests.answer(self.folder, name, str(body.get("text", "")), self.grader))

    def _rubric(self) -> Rubric:
        found = reports.whole_rubric(self.folder)
        if found is None:
            raise HandsError(f"nothing is graded by hand here: gpulabs hands init {self.folder} writes a rubric")
        return found

    def _units(self) -> dict[str, Unit]:
        with Gradebook(self.folder, locked=False) as gradebook:
            students, labs = gradebook.students(), gradebook.plan().labs
        left_out = excused.wholly(excused.load(self.folder), labs)
        return {unit.id: unit for unit in units.of(students, left_out)}

    def _unit(self, name: str) -> Unit:
        found = self._units().get(name)
        if found is None:
            raise NotThereError("there is no such submission any more")
        return found

    def _automatic(self, unit: Unit) -> list[dict[str, Any]]:
        """What the automatic check of each report found that people grade instead."""
        with Gradebook(self.folder, locked=False) as gradebook:
            plan = gradebook.plan()
            found = reports.of_labs(reports.load(self.folder, reports.settings_of(plan.settings)), plan.labs)
            if found is None:
                return []
            counting = gradebook.counting(plan, unit.content)
        rows = []
        for one in found.reports:
            recorded = counting.get(one.check.rpartition(".")[0])
            checks = recorded.grade.checks if recorded is not None and recorded.grade is not None else ()
            check = next((check for check in checks if check.id == one.check), None)
            if check is not None:
                rows.append({"lab": one.lab, "outcome": check.outcome, "title": check.name, "message": check.message})
        return rows

    def _label(self, unit: Unit, points: Rubric) -> str:
        return f"Submission {unit.id[:4].upper()}" if points.blind else unit.label

    def _state(self, unit: Unit, mark: Mark | None) -> Any:
        if mark is None:
            return {"state": "open", "by": ""}
        if mark.content != unit.content:
            return {"state": "anew", "by": mark.by}
        return {"state": "done" if mark.done else "begun", "by": mark.by}


def _comment(known: Mapping[str, Comment], name: str) -> Comment:
    if name not in known:
        raise NotThereError("somebody removed this comment meanwhile")
    return known[name]


def _read(kind: Any, body: Mapping[str, Any]) -> Any:
    """What the page sent. Raises `HandsError` where it is something else."""
    try:
        return reading.value(kind, body, Path("request.json"))
    except reading.ReadingError as error:
        raise HandsError(str(error)) from None


def _plain(value: Any) -> Any:
    """A value as JSON has it, with printable texts."""
    return printable_document(reading.plain(value))


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
