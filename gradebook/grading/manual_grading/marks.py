"""`marks/`, a file for each submission with what graders gave it, and `history/`, with every change of it.

A mark is for one criterion and one content: what was given for other files does not count until somebody has looked
again. Several processes may write: each change is made under a lock, and only if nobody was faster.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from gradebook.command_name import command
from gradebook.grading.manual_grading import FOLDER, ManualGradingError
from gradebook.grading.manual_grading.comments import Comment
from gradebook.grading.manual_grading.rubric import Criterion
from gradebook.text_files import lock, paragraphs, quoted, replace_file
from gradebox.common import reading

MARKS, HISTORY, LOCK = "marks", "history", ".lock"
MAX_CHARACTERS = 20_000
_HEAD = "# What graders gave this submission, as `{command} manual` writes it.\n"
_UNSAFE = re.compile(r"[^a-z0-9.@+-]")


class ChangedMeanwhileError(ManualGradingError):
    """Somebody else changed the mark since it was read."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What one criterion of one submission was given."""

    criterion: str
    content: str
    """SHA-256 of the submission that was read."""
    comments: tuple[str, ...] = ()
    """Ids of reusable comments."""
    adjust: Decimal = Decimal(0)
    """Added to what the comments give."""
    of: Decimal | None = None
    """What the criterion was worth then; None if an earlier version wrote it."""
    text: str = ""
    """For this submission only."""
    done: bool = False
    """Whether the grader is finished; else it counts for nothing yet."""
    by: str
    at: datetime
    revision: int = 1
    """Counts the changes."""

    @property
    def given(self) -> tuple[object, ...]:
        """What was decided, without who and when."""
        return self.content, self.comments, self.adjust, self.text, self.done


@dataclass(frozen=True)
class _File:
    unit: str
    mark: tuple[Mark, ...] = ()


def points(criterion: Criterion, mark: Mark, comments: Mapping[str, Comment]) -> Decimal:
    """What a mark is worth now: from the comments as they stand, at least 0 and at most the criterion's points."""
    return min(criterion.points, max(Decimal(0), _given(criterion, mark, comments)))


def fits(criterion: Criterion, mark: Mark, comments: Mapping[str, Comment]) -> bool:
    """Whether points that somebody typed can still be given; not so once the criterion has fewer of them."""
    return not mark.adjust or 0 <= _given(criterion, mark, comments) <= criterion.points


def as_of_now(criterion: Criterion, mark: Mark) -> Mark:
    """The mark, whose typed points stay where the criterion has others by now: `adjust` counts from its maximum."""
    if criterion.start != "full" or not mark.adjust or mark.of is None:
        return mark
    return replace(mark, adjust=mark.adjust + mark.of - criterion.points, of=criterion.points)


def _given(criterion: Criterion, mark: Mark, comments: Mapping[str, Comment]) -> Decimal:
    mark = as_of_now(criterion, mark)
    start = criterion.points if criterion.start == "full" else Decimal(0)
    return start + mark.adjust + sum((comments[name].points for name in mark.comments), Decimal(0))


def load_all(folder: Path) -> dict[str, dict[str, Mark]]:
    """The marks of every submission, by its key and by criterion.

    Raises:
        ManualGradingError: a file cannot be used.
    """
    all_marks: dict[str, dict[str, Mark]] = {}
    for path in sorted((folder / FOLDER / MARKS).glob("*.toml")):
        unit, of_unit = _read(path)
        if unit in all_marks:
            raise ManualGradingError(f"{path}: the marks of {unit!r} are in another file as well; keep one")
        all_marks[unit] = of_unit
    return all_marks


def load(folder: Path, unit: str) -> dict[str, Mark]:
    """The marks of one submission by criterion; none where nobody has given any."""
    path = _path(folder, unit)
    return _read(path)[1] if path.exists() else {}


def change(folder: Path, unit: str, mark: Mark) -> Mark:
    """Replace the mark that has the revision before it; says what is there now, on disk.

    Args:
        folder: of the class.
        unit: the submission's key.
        mark: its revision is that of the mark that the grader saw, 0 where there was none.

    Raises:
        ChangedMeanwhileError: somebody else was faster.
        ManualGradingError: a file cannot be used.
    """

    def put(before: Mark | None) -> Mark:
        if (before.revision if before else 0) != mark.revision:
            raise ChangedMeanwhileError(f"{before.by if before else 'somebody'} has changed this meanwhile")
        return mark

    return _changed(folder, unit, mark.criterion, mark.by, put)


def keep(folder: Path, unit: str, content: str, by: str) -> tuple[Mark, ...]:
    """Let the marks of other content stand for `content`: somebody has looked again. Says which ones there were."""
    old = [mark for mark in load(folder, unit).values() if mark.content != content]
    made = []
    for mark in old:
        kept = replace(mark, content=content, by=by, at=_now())
        made.append(change(folder, unit, kept))
    return tuple(made)


def undo(folder: Path, unit: str, by: str) -> Mark | None:
    """Take back the last change that this grader made to a submission; None where there is nothing to take back.

    Raises:
        ChangedMeanwhileError: somebody changed the same mark since.
    """
    stack: list[dict[str, object]] = []
    for event in _history(folder, unit):
        if event["by"] == by:
            stack = stack[:-1] if event["undo"] else [*stack, event]
    of_unit = {name: mark.given for name, mark in load(folder, unit).items()}
    while stack and _never_came(stack[-1], of_unit):
        stack.pop()
    if not stack:
        return None
    event = stack[-1]
    criterion = str(event["criterion"])
    earlier, later = _from_event(event["before"], criterion), _from_event(event["after"], criterion)

    def put(now: Mark | None) -> Mark:
        if now is None or later is None or now.given != later.given:
            raise ChangedMeanwhileError(f"{now.by if now else 'somebody'} has changed this since, so it stays")
        return earlier or replace(now, comments=(), adjust=Decimal(0), text="", done=False)

    return _changed(folder, unit, criterion, by, put, is_undo=True)


def _changed(
    folder: Path, unit: str, criterion: str, by: str, put: Callable[[Mark | None], Mark], *, is_undo: bool = False
) -> Mark:
    with lock(folder / FOLDER / LOCK):
        of_unit = load(folder, unit)
        before = of_unit.get(criterion)
        made = replace(put(before), by=by, at=_now(), revision=(before.revision if before else 0) + 1)
        _remember(folder, unit, {"undo": is_undo, "before": _event(before), "after": _event(made)}, made)
        of_unit[criterion] = made
        text = f"{_HEAD.format(command=command())}unit = {quoted(unit)}\n" + "".join(
            map(_text, sorted(of_unit.values(), key=_by_criterion))
        )
        replace_file(_path(folder, unit), text)
    return made


def _never_came(event: Mapping[str, object], current: Mapping[str, tuple[object, ...]]) -> bool:
    """Whether the machine went down between the line of the history and the change itself."""
    name = str(event["criterion"])
    before, after = _from_event(event["before"], name), _from_event(event["after"], name)
    now = current.get(name)
    return now != (after.given if after else None) and now == (before.given if before else None)


def _by_criterion(mark: Mark) -> str:
    return mark.criterion


def _read(path: Path) -> tuple[str, dict[str, Mark]]:
    try:
        document = reading.toml(path)
        content = reading.into(_File, document)
        marks: dict[str, Mark] = {}
        for number, mark in enumerate(content.mark):
            if mark.criterion in marks:
                raise document.error(("mark", number), f"{mark.criterion} stands twice; keep one")
            marks[mark.criterion] = mark
    except reading.ReadingError as error:
        raise ManualGradingError(str(error)) from None
    return content.unit, marks


def _text(mark: Mark) -> str:
    of = "" if mark.of is None else f"of = {mark.of:f}\n"
    return (
        f"\n[[mark]]\ncriterion = {quoted(mark.criterion)}\ncontent = {quoted(mark.content)}\n"
        f"comments = [{', '.join(map(quoted, mark.comments))}]\nadjust = {mark.adjust:f}\n{of}"
        f"text = {paragraphs(mark.text)}\ndone = {str(mark.done).lower()}\nby = {quoted(mark.by)}\n"
        f"at = {mark.at.isoformat()}\nrevision = {mark.revision}\n"
    )


def _event(mark: Mark | None) -> dict[str, object] | None:
    if mark is None:
        return None
    of = {} if mark.of is None else {"of": f"{mark.of:f}"}
    return {"content": mark.content, "comments": list(mark.comments), "adjust": f"{mark.adjust:f}", **of,
            "text": mark.text, "done": mark.done, "by": mark.by}  # fmt: skip


def _from_event(event: object, criterion: str) -> Mark | None:
    if not isinstance(event, Mapping):
        return None
    return Mark(
        criterion=criterion, content=event["content"], comments=tuple(event["comments"]),
        adjust=Decimal(event["adjust"]), of=Decimal(event["of"]) if "of" in event else None, text=event["text"],
        done=event["done"], by=event["by"], at=_now(),
    )  # fmt: skip


def _remember(folder: Path, unit: str, event: Mapping[str, object], made: Mark) -> None:
    """Add a line to the submission's history, before the change itself is written."""
    path = folder / FOLDER / HISTORY / _path(folder, unit).with_suffix(".jsonl").name
    path.parent.mkdir(parents=True, exist_ok=True)
    line = {"at": made.at.isoformat(), "by": made.by, "criterion": made.criterion, **event}
    with path.open("a", encoding="utf-8") as history:
        history.write(json.dumps(line, ensure_ascii=False) + "\n")
        history.flush()
        os.fsync(history.fileno())


def _history(folder: Path, unit: str) -> list[dict[str, object]]:
    path = folder / FOLDER / HISTORY / _path(folder, unit).with_suffix(".jsonl").name
    if not path.exists():
        return []
    events = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            events.append(json.loads(line))
        except json.JSONDecodeError:
            continue  # the line that was being written when the machine went down
    return events


def _path(folder: Path, unit: str) -> Path:
    """A name that people recognise and that no other submission has, on any system."""
    digest = hashlib.sha256(unit.encode("utf-8", "replace")).hexdigest()[:8]
    name = _UNSAFE.sub("_", unit.partition(" ")[2].lower())[:60].strip(".-") or "submission"
    return folder / FOLDER / MARKS / f"{name}-{digest}.toml"


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
