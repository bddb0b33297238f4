"""What an instructor sees while a class is graded: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from gradebook.results import Grading, Task
from gradebox.report.document import points
from gradebox.run.grade import Outcome


class ClassProgress:
    """Follows one run. Call in this order: `intake`, `open`, `started` and `finished` for each task, `close`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._row = TaskID(0)
        self._total = self._done = self._failed = self._taken = 0
        self._running: dict[str, str] = {}
        self._begun = time.monotonic()

    def intake(self, name: str) -> None:
        """A submission is being taken in."""
        self._taken += 1
        if self._console.is_terminal:
            if self._bar is None:
                self._bar = Progress(TextColumn("{task.description}"), console=self._console, transient=True)
                self._row = self._bar.add_task("")
                self._bar.start()
            self._bar.update(self._row, description=_plain(f"taking in {self._taken}: {name}"))

    def open(self, total: int, already: int) -> None:
        """So many submissions are to be graded; `already` others are."""
        self.close()
        self._total, self._done = total, 0
        self._begun = time.monotonic()
        known = f", {already} already are" if already else ""
        self.say(f"{total} submission{'' if total == 1 else 's'} to grade{known}")
        if total and self._console.is_terminal:
            columns = (BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn("{task.description}"))
            self._bar = Progress(TextColumn("grading"), *columns, console=self._console, transient=True)
            self._row = self._bar.add_task("", total=total)
            self._bar.start()

    def started(self, task: Task) -> None:
        self._running[task.content] = task.label
        if self._bar is None and not self._done:  # later the line of each that is done says what goes on
            self.say(f"grading {task.label}")
        self._show()

    def finished(self, task: Task, grading: Grading) -> None:
        self._running.pop(task.content, None)
        self._done += 1
        seconds = (grading.ended - grading.started).total_seconds()
        if grading.grade is None:
            self._failed += 1
            self.say(f"{task.label}: could not grade: {grading.problem}")
        elif self._bar is None:
            score, most = points(grading.grade.score), points(grading.grade.max_score)
            open_checks = _open(grading)
            review = f", {open_checks} to review" if open_checks else ""
            now = f"; now {self._now()}" if self._running else ""
            took = f"{seconds:.0f} s{self._left()}{now}"
            part = "" if task.whole else f" in {', '.join(lab.id for lab in grading.grade.labs)}"
            self.say(f"{self._done}/{self._total} {task.label}: {score}/{most}{part}{review} ({took})")
        if self._bar is not None:
            self._bar.advance(self._row)
        self._show()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _show(self) -> None:
        if self._bar is not None:
            failed = f", {self._failed} failed" if self._failed else ""
            self._bar.update(self._row, description=_plain(f"{failed}{self._left()}  {self._now()}".strip(", ")))

    def _now(self) -> str:
        """Who is being graded."""
        return ", ".join(sorted(self._running.values()))

    def _left(self) -> str:
        if not self._done or self._done == self._total:
            return ""
        seconds = (time.monotonic() - self._begun) / self._done * (self._total - self._done)
        return f", about {_duration(seconds)} left"


def _open(grading: Grading) -> int:
    checks = grading.grade.checks if grading.grade else ()
    return sum(check.outcome is Outcome.NEEDS_REVIEW for check in checks)


def _plain(text: str) -> str:
    """Names of students are not markup."""
    return Text(text).markup


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return "1 min"
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min"
