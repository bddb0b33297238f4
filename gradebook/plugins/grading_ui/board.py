"""What the page shows and does, as plain values: the class, one submission, marks, comments and answers.

Reads the class's folder again for every question, because other graders write into it too. Not for HTTP (`server.py`).
"""

from __future__ import annotations

import hashlib
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from gradebook.command_name import command
from gradebook.grading import class_summary
from gradebook.grading.manual_grading import (
    FOLDER,
    ManualGradingError,
    code_files,
    comments,
    line_comments,
    marks,
    reports,
    requests,
    units,
)
from gradebook.grading.manual_grading.comments import Comment
from gradebook.grading.manual_grading.marks import LOCK, ChangedMeanwhileError, Mark
from gradebook.grading.manual_grading.merging import ManualGrading
from gradebook.grading.manual_grading.rubric import Rubric
from gradebook.grading.manual_grading.units import Unit
from gradebook.intake.collect import STORE, Store
from gradebook.plugins.grading_ui import presence, report
from gradebook.store import Gradebook
from gradebook.text_files import lock
from gradebox.common import reading
from gradebox.common.texts import printable, printable_document

_CENT = Decimal("0.01")
SIMILARITY = "similarity"
"""The folder of the class in which the page of similar submissions is."""


class NotThereError(ManualGradingError):
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


@dataclass(frozen=True)
class _OfLine:
    """A comment on a line as the page sends it."""

    content: str
    file: str
    line: int
    text: str


class Board:
    """One grader's view of a class."""

    def __init__(self, folder: Path, grader: str) -> None:
        """Read the class once, so that what is wrong is said before the page opens.

        Raises:
            ManualGradingError: there is no rubric, a file cannot be used, or the rubric names other graders.
            GradebookError: there is no gradebook.
        """
        report.check_libraries()
        self.folder = folder
        self.grader = grader.strip()
        if not self.grader:
            raise ManualGradingError("say who grades: --as NAME")
        self._store = Store(folder / STORE)
        self._units()
        points = self._rubric()
        if points.graders and self.grader not in points.graders:
            raise ManualGradingError(f"--as {self.grader}: the rubric names {', '.join(points.graders)} as graders")
        ManualGrading.load(folder)
        requests.load(folder)

    def overview(self) -> Any:
        """The class: its rubric, comments, and how far each submission is."""
        points, manual, all_units = self._rubric(), ManualGrading.load(self.folder), self._units()
        open_by = presence.others(self.folder, self.grader)
        regrade_requests = requests.load(self.folder)
        used = Counter(name for of_unit in manual.marks.values() for mark in of_unit.values() for name in mark.comments)
        rows: list[dict[str, Any]] = []
        graded: Counter[str] = Counter()
        for unit in all_units.values():
            of_unit = manual.marks.get(unit.key, {})
            members = {member.student for member in unit.members}
            states = {criterion.id: self._state(unit, of_unit.get(criterion.id)) for criterion in points.criterion}
            graded.update(mark.by for mark in of_unit.values() if mark.done and mark.content == unit.content)
            rows.append(
                {
                    "id": unit.id,
                    "label": self._label(unit, points),
                    "states": states,
                    "revisions": {name: mark.revision for name, mark in of_unit.items()},
                    "open_by": open_by.get(unit.id, ""),
                    "requests": sum(
                        request.answered_at is None for request in requests.once(regrade_requests, members)
                    ),
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
                "comments": [{**vars(comment), "used": used[comment.id]} for comment in manual.comments.values()],
                "units": rows,
                "graded": dict(sorted(graded.items())),
                "gone": sorted(manual.marks.keys() - {unit.key for unit in all_units.values()})
                if not points.blind
                else [],
            }
        )

    def unit(self, name: str) -> Any:
        """One submission: its reports and pictures, and what it was given."""
        points, unit = self._rubric(), self._unit(name)
        labs = self._store.path(unit.content)
        shown, texts = report.pictures(labs), report.reports(labs)
        address = f"unit/{unit.id}/picture/"
        of_unit = self._marks(marks.load(self.folder, unit.key).values())
        old = next((mark for mark in of_unit.values() if mark.content != unit.content), None)
        members = {member.student for member in unit.members}
        return _plain(
            {
                "id": unit.id,
                "label": self._label(unit, points),
                "content": unit.content,
                "submitted_at": None if points.blind else unit.submitted_at,
                "reports": [{"name": text.name, "html": report.to_html(text, shown, address)} for text in texts],
                "compared": (self.folder / SIMILARITY / "similarity.html").is_file() and not points.blind,
                "pictures": [{"name": picture.name, "address": f"{address}{n}"} for n, picture in enumerate(shown)],
                "marks": of_unit,
                "automatic": self._automatic(unit),
                "anew": old
                and {
                    "by": old.by,
                    "at": old.at,
                    "changes": report.difference(report.reports(self._store.path(old.content)), texts),
                },
                "requests": [
                    {**vars(request), "student": "" if points.blind else request.student}
                    for request in requests.once(requests.load(self.folder), members)
                ],
            }
        )

    def code(self, name: str) -> Any:
        """The code of one submission, line by line, and what was said about lines of it, where they are now."""
        unit = self._unit(name)
        texts = code_files.read(self._store.path(unit.content))
        said = line_comments.placed(line_comments.load(self.folder, unit.key), texts)
        comments_of = [{**vars(place.comment), "file": place.file, "line": place.line} for place in said]
        rows = [
            {"name": printable(file, lines=False), "lines": code_files.highlighted(file, lines)}
            for file, lines in texts.items()
        ]
        hidden = code_files.left_out(self._store.path(unit.content))
        return _plain({"content": unit.content, "files": rows, "comments": comments_of, "left_out": hidden})

    def say(self, name: str, body: Mapping[str, Any]) -> Any:
        """Comment on a line. Raises `ChangedMeanwhileError` if other files are there now."""
        unit, sent = self._unit(name), _read(_OfLine, body)
        if sent.content != unit.content:
            raise ChangedMeanwhileError("another version was handed in meanwhile: look at that one")
        lines = code_files.read(self._store.path(unit.content)).get(sent.file)
        if lines is None:
            raise NotThereError(f"there is no file {printable(sent.file)} to comment on")
        return _plain(line_comments.add(self.folder, unit.key, sent.file, sent.line, lines, sent.text, self.grader))

    def say_again(self, name: str, comment: str, body: Mapping[str, Any]) -> Any:
        """Change a comment on a line, or remove it with an empty text."""
        text = str(body.get("text", ""))
        return _plain(line_comments.change(self.folder, self._unit(name).key, comment, text, self.grader))

    def similarity(self) -> Path:
        """The page that `similarity` has written for this class. Raises `NotThereError`."""
        path = self.folder / SIMILARITY / "similarity.html"
        if self._rubric().blind:
            raise NotThereError("graders see no names, which the page of similar submissions has")
        if not path.is_file():
            raise NotThereError(
                f"nobody has compared the submissions yet: {command()} similarity {shlex.quote(str(self.folder))}"
            )
        return path

    def picture(self, name: str, number: int) -> report.Picture:
        """A picture of a submission. Raises `NotThereError`."""
        shown = report.pictures(self._store.path(self._unit(name).content))
        if number >= len(shown):
            raise NotThereError("there is no such picture")
        return shown[number]

    def give(self, name: str, criterion: str, body: Mapping[str, Any]) -> Any:
        """Record a mark. Raises `ChangedMeanwhileError` where another grader was faster."""
        unit, sent = self._unit(name), _read(_Given, body)
        rubric_criterion = self._rubric().find(criterion)
        if sent.content != unit.content:
            raise ChangedMeanwhileError("another version was handed in meanwhile: look at that one")
        if len(sent.text) > marks.MAX_CHARACTERS:
            raise ManualGradingError(f"a text has at most {marks.MAX_CHARACTERS} characters")
        if not sent.adjust.is_finite() or abs(sent.adjust) > comments.MAX_POINTS:
            raise ManualGradingError(f"{sent.adjust} is no sensible number of points")
        known = comments.load(self.folder)
        if unknown := [
            comment
            for comment in sent.comments
            if comment not in known or known[comment].criterion != rubric_criterion.id
        ]:
            raise ManualGradingError(
                f"there is no comment {unknown[0]!r} for {rubric_criterion.title}; it may have been removed"
            )
        mark = Mark(
            criterion=rubric_criterion.id, content=sent.content, comments=tuple(dict.fromkeys(sent.comments)),
            adjust=sent.adjust.quantize(_CENT), of=rubric_criterion.points, text=sent.text, done=sent.done,
            by=self.grader, at=_now(), revision=sent.revision,
        )  # fmt: skip
        return _plain(marks.change(self.folder, unit.key, mark))

    def now(self, name: str, criterion: str) -> Any:
        """The mark that is there, for who came too late."""
        return _plain(self._marks(marks.load(self.folder, self._unit(name).key).values()).get(criterion))

    def undo(self, name: str) -> Any:
        """Take back this grader's last change to a submission; None where there is none."""
        undone = marks.undo(self.folder, self._unit(name).key, self.grader)
        return _plain(undone and self._marks([undone])[undone.criterion])

    def keep(self, name: str) -> Any:
        """Let marks for an earlier version stand for the one that is there now."""
        unit = self._unit(name)
        return _plain(list(self._marks(marks.keep(self.folder, unit.key, unit.content, self.grader)).values()))

    def _marks(self, recorded: Iterable[Mark]) -> dict[str, Mark]:
        """Marks by criterion, as the page counts them: from what criteria are worth now."""
        criteria = {criterion.id: criterion for criterion in self._rubric().criterion}
        return {
            mark.criterion: marks.as_of_now(criteria[mark.criterion], mark) if mark.criterion in criteria else mark
            for mark in recorded
        }

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
        """Remove a comment that nobody has. Raises `ManualGradingError` where somebody does."""
        with lock(self.folder / FOLDER / LOCK):
            known = comments.load(self.folder)
            gone = _comment(known, name)
            users = sum(
                name in mark.comments for of_unit in marks.load_all(self.folder).values() for mark in of_unit.values()
            )
            if users:
                raise ManualGradingError(
                    f"{users} submissions have this comment: take it away there first, or change it"
                )
            comments.save(self.folder, [comment for comment in known.values() if comment is not gone])

    def answer(self, name: str, body: Mapping[str, Any]) -> Any:
        """Answer a request."""
        asker = next((request.student for request in requests.load(self.folder) if request.id == name), "")
        mates = {
            member.student
            for unit in self._units().values()
            for member in unit.members
            if asker in {other.student for other in unit.members} and member.student != asker
        }
        answered, *_ = requests.answer(self.folder, name, str(body.get("text", "")), self.grader, mates)
        return _plain(replace(answered, student="") if self._rubric().blind else answered)

    def _rubric(self) -> Rubric:
        whole = reports.whole_rubric(self.folder)
        if whole is None:
            raise ManualGradingError(
                f"nothing is graded by hand here: {command()} manual init {shlex.quote(str(self.folder))} writes a "
                "rubric"
            )
        return whole

    def _units(self) -> dict[str, Unit]:
        with Gradebook(self.folder, locked=False) as gradebook:
            students, labs = gradebook.students(), gradebook.plan().labs
            left_out = class_summary.left_out(gradebook, labs)
        return {unit.id: unit for unit in units.of(students, left_out)}

    def _unit(self, name: str) -> Unit:
        unit = self._units().get(name)
        if unit is None:
            raise NotThereError("there is no such submission any more")
        return unit

    def _automatic(self, unit: Unit) -> list[dict[str, Any]]:
        """What the automatic check of each report found that people grade instead."""
        with Gradebook(self.folder, locked=False) as gradebook:
            plan = gradebook.plan()
            graded_reports = reports.of_labs(reports.load(self.folder, reports.settings_of(plan.settings)), plan.labs)
            if graded_reports is None:
                return []
            counting = gradebook.counting(plan, unit.content)
        rows = []
        for graded in graded_reports.reports:
            recorded = counting.get(graded.check.rpartition(".")[0])
            checks = recorded.grade.checks if recorded is not None and recorded.grade is not None else ()
            check = next((check for check in checks if check.id == graded.check), None)
            if check is not None:
                rows.append(
                    {"lab": graded.lab, "outcome": check.outcome, "title": check.name, "message": check.message}
                )
        return rows

    def _label(self, unit: Unit, points: Rubric) -> str:
        return f"Submission {unit.id[:4].upper()}" if points.blind else unit.label

    def _state(self, unit: Unit, mark: Mark | None) -> Any:
        if mark is None:
            return {"state": "open", "by": ""}
        if mark.content != unit.content:
            return {"state": "anew", "by": mark.by, "at": mark.at}
        return {"state": "done" if mark.done else "begun", "by": mark.by, "at": mark.at}


def _comment(known: Mapping[str, Comment], name: str) -> Comment:
    if name not in known:
        raise NotThereError("somebody removed this comment meanwhile")
    return known[name]


def _read(kind: Any, body: Mapping[str, Any]) -> Any:
    """What the page sent. Raises `ManualGradingError` where it is something else."""
    try:
        return reading.value(kind, body, Path("request.json"))
    except reading.ReadingError as error:
        raise ManualGradingError(str(error)) from None


def _plain(value: Any) -> Any:
    """A value as JSON has it, with printable texts."""
    return printable_document(reading.plain(value))


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
