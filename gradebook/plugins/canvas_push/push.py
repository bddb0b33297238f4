"""Sending a class to Canvas: find everybody, show what would change, send it in parts, look what has arrived.

May be stopped at any moment, and given again: what is there is not sent again, what was under way is asked for first.
Canvas carries out each part after it has answered (`Progress`); then all grades are read again, so that the next part
spares what somebody has changed there meanwhile.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from gradebook.export import feedback
from gradebook.export.view import Line, View
from gradebook.plugins.canvas_push import people
from gradebook.plugins.canvas_push.client import Client, PushError
from gradebook.plugins.canvas_push.differences import Change, Target, changes, comments_of, mark_of
from gradebook.plugins.canvas_push.memory import Keeper, Mark, Memory, Pending, Sent, digest
from gradebook.plugins.canvas_push.service import (
    Assignment,
    Canvas,
    Course,
    Grading,
    Person,
    Progress,
    Section,
    Submission,
)
from gradebox.common.texts import printable
from gradebox.report.document import points

_PART = 50
"""Students in one request."""
_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 1.0, 10.0
_PATIENCE_SECONDS = 900.0
_CUT_OFF_SECONDS = 120.0
"""So long after a request without an answer Canvas may still begin to carry it out, as far as we assume."""
_LONGEST_COMMENT = 8000
"""Signs; Canvas takes 64 KB, and nobody reads them."""


@dataclass(frozen=True, kw_only=True)
class PushRequest:
    """What is to be sent where."""

    folder: Path
    course: str
    assignment: str
    section: str = ""
    """Only students of this section; empty: all."""
    comments: bool = True
    replace: tuple[str, ...] = ()
    """Students whose grade may be replaced although it was given by hand, or `all`."""
    send: bool = False
    """Otherwise nothing is changed, neither there nor here."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What would change, or has."""

    course: Course
    assignment: Assignment
    planned: tuple[Change, ...]
    """As it was before the first request."""
    left: tuple[Change, ...]
    """What still differs, or was kept, afterwards; as `planned` where nothing was to be sent."""
    unknown: tuple[str, ...]
    """Students of the class whom the course does not have."""
    others: tuple[str, ...]
    """Students of the course who have no grade here, by name."""
    late_policy: tuple[str, ...]
    """Students from whose grade Canvas takes points by itself."""
    trouble: str = ""
    """What Canvas said when it could not carry out all."""
    sent: bool = False


def push(
    view: View,
    request: PushRequest,
    client: Client,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Report:
    """Carry out an request.

    Args:
        view: the class.
        request: what is to be done.
        client: the way to Canvas.
        say: takes lines about how far it is.
        sleep: waits for Canvas.
        clock: returns the time.

    Raises:
        PushError: it cannot be done, or not to the end; the message is one line.
    """
    canvas = Canvas(client, request.course)
    assignment = canvas.assignment(request.assignment)
    _check(assignment, view.result.max_score)
    section = canvas.section(request.section) if request.section else None
    run = _Run(canvas, assignment, canvas.me(), request, say, sleep, clock)
    targets, unknown, others = _wanted(view, canvas, request, section)
    if strange := [name for name in request.replace if name not in ("all", *(target.student for target in targets))]:
        raise PushError(
            f"--replace {strange[0]}: no such student is to be sent; write the name as this command shows it"
        )
    if assignment.grades_groups and view.held_back:
        run.held_back = people.match(view.held_back, canvas.students(), canvas.looked_up).users
    keeper = Keeper(request.folder, client.origin, canvas.course.id, assignment.id)
    with keeper if request.send else contextlib.nullcontext():
        return run.carry_out(targets, keeper, unknown, others)


class _Run:
    """One request on one assignment."""

    def __init__(
        self,
        canvas: Canvas,
        assignment: Assignment,
        me: int,
        request: PushRequest,
        say: Callable[[str], None],
        sleep: Callable[[float], None],
        clock: Callable[[], datetime],
    ) -> None:
        self._canvas, self._assignment, self._me, self._request = canvas, assignment, me, request
        self._say, self._sleep, self._clock = say, sleep, clock
        self.held_back: Mapping[str, int] = {}
        """Whose score must not reach Canvas, with their number there; only of an assignment of groups."""

    def carry_out(
        self, targets: Sequence[Target], keeper: Keeper, unknown: Sequence[str], others: Sequence[str]
    ) -> Report:
        memory, on_canvas = self._settled(keeper.load())
        planned = self._changes(targets, on_canvas, memory)
        if self._assignment.grades_groups:
            _check_groups(planned, on_canvas, self.held_back)
        trouble = ""
        if self._request.send:
            memory = replace(memory, students={**memory.students, **_known_there(planned, memory)})
            keeper.store(memory)
            memory, on_canvas, trouble = self._send(targets, on_canvas, memory, keeper)
        after = self._changes(targets, on_canvas, memory) if self._request.send else planned
        return Report(
            course=self._canvas.course,
            assignment=self._assignment,
            planned=tuple(planned),
            left=tuple(change for change in after if change.sends or change.kind in ("by hand", "not there")),
            unknown=tuple(unknown),
            others=tuple(others),
            late_policy=tuple(
                target.student
                for target in targets
                if target.user in on_canvas and on_canvas[target.user].points_deducted
            ),
            trouble=trouble,
            sent=self._request.send,
        )

    def _send(
        self, targets: Sequence[Target], on_canvas: dict[int, Submission], memory: Memory, keeper: Keeper
    ) -> tuple[Memory, dict[int, Submission], str]:
        """Send part after part until nothing is left that was not tried."""
        tried: set[int] = set()
        count = sum(change.sends for change in self._changes(targets, on_canvas, memory))
        while True:
            open_ones = [
                change
                for change in self._changes(targets, on_canvas, memory)
                if change.sends and change.target.user not in tried
            ]
            if not open_ones:
                return memory, on_canvas, ""
            part = open_ones[:_PART]
            self._say(
                f"sending {len(tried) + 1} to {len(tried) + len(part)} of {max(count, len(tried) + len(part))} ..."
            )
            users = {str(change.target.user): _after(change, memory) for change in part}
            memory = replace(memory, pending=Pending(self._clock(), users))
            keeper.store(memory)
            started = self._canvas.update(self._assignment, {change.target.user: _grading(change) for change in part})
            assert memory.pending is not None
            memory = replace(memory, pending=replace(memory.pending, progress=started.id))
            keeper.store(memory)
            progress = self._waited_for(started)
            on_canvas = self._canvas.submissions(self._assignment)
            memory = self._arrived(memory, on_canvas, progress)
            keeper.store(memory)
            tried |= {change.target.user for change in part}
            if progress.workflow_state == "failed":
                return (
                    memory,
                    on_canvas,
                    progress.message or "Canvas could not carry out all of it, and does not say why",
                )

    def _settled(self, memory: Memory) -> tuple[Memory, dict[int, Submission]]:
        """What an earlier run had under way, come to an end; and what Canvas has then."""
        pending = memory.pending
        if pending is None:
            return memory, self._canvas.submissions(self._assignment)
        self._say("an earlier run was stopped while it sent; looking what has arrived ...")
        if pending.progress is not None:
            progress = self._waited_for(self._canvas.progress(pending.progress))
            on_canvas = self._canvas.submissions(self._assignment)
            return self._arrived(memory, on_canvas, progress), on_canvas
        while True:  # Canvas may have got it and not yet begun
            on_canvas = self._canvas.submissions(self._assignment)
            seconds = _CUT_OFF_SECONDS - (self._clock() - pending.began).total_seconds()
            if seconds <= 0 or all(self._is_there(user, sent, on_canvas) for user, sent in pending.users.items()):
                return self._arrived(memory, on_canvas, None), on_canvas
            self._say(f"it is not all there; Canvas gets {seconds:.0f} s more for it")
            self._sleep(min(_LONGEST_LOOK_SECONDS, seconds))

    def _waited_for(self, progress: Progress) -> Progress:
        waited, wait = 0.0, _LOOK_SECONDS
        while not progress.over:
            if waited >= _PATIENCE_SECONDS:
                raise PushError("Canvas has not carried out what was sent yet; give the same command later: it goes on")
            self._sleep(wait)
            waited, wait = waited + wait, min(wait * 1.5, _LONGEST_LOOK_SECONDS)
            progress = self._canvas.progress(progress.id)
        return progress

    def _arrived(self, memory: Memory, on_canvas: Mapping[int, Submission], progress: Progress | None) -> Memory:
        """Remember what of the pending part Canvas has: everything that it has carried out to the end."""
        assert memory.pending is not None
        done = progress is not None and progress.workflow_state == "completed"
        students = dict(memory.students)
        for user, sent in memory.pending.users.items():
            now = on_canvas.get(int(user))
            if now is None:
                continue
            before = students.get(user, Sent(sent.student))
            if sent.mark is not None and mark_of(now).same_as(sent.mark):
                before = before.with_mark(sent.mark)
            for latest in sent.comments[-1:]:
                if done or latest in comments_of(now, self._me):
                    before = before.with_comment(latest)
            students[user] = before
        return Memory(students)

    def _is_there(self, user: str, sent: Sent, on_canvas: Mapping[int, Submission]) -> bool:
        now = on_canvas.get(int(user))
        if now is None:
            return False
        marked = sent.mark is None or mark_of(now).same_as(sent.mark)
        return marked and set(sent.comments[-1:]) <= set(comments_of(now, self._me))

    def _changes(self, targets: Sequence[Target], on_canvas: Mapping[int, Submission], memory: Memory) -> list[Change]:
        return changes(targets, on_canvas, memory.students, self._me, self._request.replace)


def comment(line: Line, title: str, max_score: Decimal) -> str:
    """What a student reads next to the grade: the result in a few lines of plain text."""
    head = (
        f"{title}: {points(line.result.score)} of {points(max_score)} points"
        if line.result.score is not None
        else title
    )
    lines = dict.fromkeys((head, *feedback.remarks(line), *feedback.summary(line)))  # which both say why nothing ran
    text = printable("\n".join(lines))
    return text if len(text) <= _LONGEST_COMMENT else f"{text[:_LONGEST_COMMENT]} ..."


def _wanted(
    view: View, canvas: Canvas, request: PushRequest, section: Section | None
) -> tuple[list[Target], tuple[str, ...], tuple[str, ...]]:
    """What everybody is to have; who is not in the course; who of the course has nothing here."""
    strangers = {line.student for line in view.strangers}
    rated = [line for line in view.lines if line.decided or line.excused_on_platforms]
    lines = [line for line in rated if line.student not in strangers]
    everybody = canvas.students()
    matched = people.match(lines, everybody, canvas.looked_up)
    here = {person.id: person for person in everybody if section is None or section.id in person.sections}
    targets = []
    for line in lines:
        user = matched.users.get(line.student)
        if user is not None and user in here:
            mark = Mark(excused=True) if line.excused_on_platforms else Mark(line.result.score)
            text = (
                comment(line, view.result.title, view.result.max_score) if request.comments and not mark.excused else ""
            )
            targets.append(Target(student=line.student, user=user, mark=mark, comment=text))
    ours = set(matched.users.values())
    return targets, matched.unknown, tuple(_named(person) for person in here.values() if person.id not in ours)


def _named(person: Person) -> str:
    return person.name or person.login_id or str(person.id)


def _check(assignment: Assignment, max_score: Decimal) -> None:
    """Raise `PushError` where grades that are sent would mean something else, or be refused one by one."""
    name = f"{assignment.name!r} ({assignment.id})"
    if assignment.published is False:
        raise PushError(f"{name} is not published on Canvas, which takes no grades for it; publish it first")
    if assignment.grading_type not in ("points", "percent"):
        raise PushError(f"{name} is graded by {assignment.grading_type!r} on Canvas; display its grade as points there")
    if assignment.points_possible != max_score:
        there = "no" if assignment.points_possible is None else points(assignment.points_possible)
        raise PushError(
            f"{name} has {there} points on Canvas and the class {points(max_score)}; give it {points(max_score)} there"
        )
    if assignment.moderated_grading and not assignment.grades_published:
        raise PushError(
            f"{name} is moderated on Canvas and takes no grades like this; turn moderation off, or import files"
        )
    if assignment.anonymize_students:
        raise PushError(
            f"{name} hides from you on Canvas who is who until grades are posted; turn anonymous grading off"
        )


def _check_groups(planned: Sequence[Change], on_canvas: Mapping[int, Submission], held_back: Mapping[str, int]) -> None:
    """Raise `PushError` where Canvas would give one member's grade to another one."""
    groups: dict[int, Change] = {}
    held = {
        group.id: student
        for student, user in held_back.items()
        if user in on_canvas and (group := on_canvas[user].group) is not None
    }
    for change in planned:
        group = on_canvas[change.target.user].group if change.target.user in on_canvas else None
        if group is None or group.id is None:
            continue
        if group.id in held:
            raise PushError(
                f"Canvas grades the group {group.name or group.id} as one, and {held[group.id]} in it is held back: "
                f"hold back {change.target.student} as well, or tick 'Assign Grades to Each Student Individually' there"
            )
        other = groups.setdefault(group.id, change)
        if not other.target.mark.same_as(change.target.mark):
            raise PushError(
                f"Canvas grades the group {group.name or group.id} as one, but {other.target.student} "
                f"and {change.target.student} have different grades: tick 'Assign Grades to Each Student Individually' "
                "there"
            )


def _known_there(planned: Sequence[Change], memory: Memory) -> dict[str, Sent]:
    """A grade that is there as it should be counts as ours, also from a file or an earlier version."""
    return {
        str(change.target.user): memory.students.get(str(change.target.user), Sent(change.target.student)).with_mark(
            change.target.mark
        )
        for change in planned
        if change.kind in ("same", "comment")
    }


def _after(change: Change, memory: Memory) -> Sent:
    """What a student will have been sent."""
    sent = memory.students.get(str(change.target.user), Sent(change.target.student))
    sent = sent.with_mark(change.target.mark) if change.sends_mark else replace(sent, marked=False)
    return sent.with_comment(digest(change.target.comment)) if change.sends_comment else replace(sent, comments=())


def _grading(change: Change) -> Grading:
    mark = change.target.mark
    return Grading(
        posted_grade=points(mark.score) if change.sends_mark and mark.score is not None else None,
        excuse=change.sends_mark and mark.excused,
        text_comment=change.target.comment if change.sends_comment else None,
    )
