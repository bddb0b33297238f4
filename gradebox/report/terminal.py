"""The grade in the terminal (rich), and the progress line while it is being earned."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from gradebox.common.configuration import as_seen_from
from gradebox.course.contact import NOBODY, Contact
from gradebox.course.hints import POINTER
from gradebox.report.console import Console
from gradebox.report.document import points
from gradebox.run.grade import CheckReport, CheckResult, CriterionResult, Grade, IntegrityNote, LabResult, Outcome

MARK = {
    Outcome.PASSED: ("✓", "green"),
    Outcome.FAILED: ("✗", "red"),
    Outcome.BLOCKED: ("·", "yellow"),
    Outcome.NEEDS_REVIEW: ("?", "magenta"),
}
_FOLLOWS = ("↳", "yellow")
WIDTH = 100


def _mark(check: CheckResult) -> tuple[str, str]:
    return _FOLLOWS if check.follows_from else MARK[check.outcome]


class Progress:
    """A bar on terminals, silence elsewhere; drawn between checks only, so that it needs no thread."""

    def __init__(self) -> None:
        self._bar: RichProgress | None = None
        self._task = TaskID(0)

    def open(self, total: int) -> None:
        console = Console(stderr=True)
        if not console.is_terminal:
            return
        self._bar = RichProgress(
            TextColumn("grading"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            auto_refresh=False,
            transient=True,
        )
        self._task = self._bar.add_task("starting the sandbox", total=total)
        self._bar.start()
        self._bar.refresh()

    def starting(self, check: str) -> None:
        if self._bar:
            self._bar.update(self._task, description=check, refresh=True)

    def finished(self, report: CheckReport) -> None:
        if self._bar:
            self._bar.advance(self._task)
            self._bar.refresh()

    def close(self) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None


def show(
    grade: Grade,
    isolation: Sequence[str],
    paths: Sequence[Path],
    progress: str = "",
    *,
    partial: bool = False,
    folder: Path | None = None,
    then: str = "",
    paged: bool = True,
    contact: Contact = NOBODY,
) -> None:
    """Print the whole grade: per lab and criterion, the first problem of each, notes, and the result.

    `progress` is one line on what changed since the last run; empty where there is none. A `partial` grade is of some
    criteria of a lab. Paths are shown as one would type them in `folder`, the current one without it. `then` is the
    command that says what to do next. `paged` says that there is a page with all that is left out here.
    `contact` is shown if a person has to look.
    """
    folder = folder or Path.cwd()
    console = Console(file=sys.stdout, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(file=sys.stdout, highlight=False, width=WIDTH)
    console.print()
    console.print(f"[bold]{escape(grade.submission)}[/] on {escape(grade.device)}", soft_wrap=True)
    for lab in grade.labs:
        _show_lab(console, grade, lab, paged, then)
    _show_notes(console, grade.integrity)
    for line in isolation:
        console.print(f"[{'dim' if grade.isolation == 'namespaces' else 'yellow'}]{escape(line)}[/]")
    _show_result(console, grade, partial)
    if contact and (grade.needs_review or grade.incomplete):
        console.print(indented(f"Course staff: {contact.line()}", WIDTH, 0), soft_wrap=True)
    if progress:
        console.print(escape(progress), soft_wrap=True)
    for path in paths:
        console.print(f"[dim]report[/] {escape(as_seen_from(folder, path))}", soft_wrap=True)
    console.print(f"[dim]repeat with[/] --grade-seed {grade.seed}   [dim]took[/] {grade.seconds:.1f} s")
    if then and (partial or grade.score < grade.max_score):
        console.print(f"[dim]what to do next:[/] {escape(then)}", soft_wrap=True)


def _show_lab(console: Console, grade: Grade, lab: LabResult, paged: bool, then: str) -> None:
    number = lab.id.removeprefix("lab")
    if not lab.available:
        console.print(f"\n[dim]Lab {number}  {lab.title}: not available yet ({points(lab.max_points)} points)[/]")
        return
    console.print(f"\n[bold]Lab {number}  {lab.title}[/]  {points(lab.points)}/{points(lab.max_points)}")
    for criterion in lab.criteria:
        _show_criterion(console, grade, criterion, paged, then)


def _show_criterion(console: Console, grade: Grade, criterion: CriterionResult, paged: bool, then: str) -> None:
    if not criterion.available:
        console.print(f"  [dim]- {criterion.title}: not available yet[/]")
        return
    row = Table.grid(padding=(0, 1))
    row.add_column(width=5, justify="right")
    row.add_column(width=3)
    row.add_column(width=32)
    row.add_column()
    marks = Text.assemble(*(_mark(check) for check in criterion.checks))
    full = criterion.points == criterion.max_points
    row.add_row(
        Text(points(criterion.points), style="green" if full else "bold red"),
        f"/ {points(criterion.max_points)}",
        criterion.title,
        marks,
    )
    console.print(row)
    if criterion.override is not None:
        text = (
            f"given by the instructor instead of {points(criterion.override.automatic_points)}: "
            f"{criterion.override.reason}"
        )
        console.print(indented(text, console.width, 10), style="magenta", soft_wrap=True)
    problem = criterion.first_problem
    if problem is None:
        return
    mark, style = MARK[problem.outcome]
    review = "  needs review" if problem.outcome is Outcome.NEEDS_REVIEW else ""
    suffix = (f"  {problem.id}", "dim") if problem.title else ""
    console.print(Text.assemble((f"{' ' * 10}{mark} {problem.name}{review}", style), suffix), soft_wrap=True)
    console.print(indented(problem.message, console.width, 12), soft_wrap=True)
    if problem.hint:
        console.print(indented(f"→ {_typed(problem.hint, then)}", console.width, 12), style="cyan", soft_wrap=True)
    others = [check for check in criterion.checks if check.outcome is not Outcome.PASSED and check is not problem]
    waiting = sum(check.outcome is Outcome.BLOCKED for check in others)
    for check in others:
        if check.follows_from:
            _show_following(console, check, grade.follows(check))
        elif check.outcome is not Outcome.BLOCKED:
            _show_in_a_line(console, check, problem)
    if waiting:
        blocked, style = MARK[Outcome.BLOCKED]
        text = f"{waiting} more wait{'s' if waiting == 1 else ''} for another check"
        text += ", all in grade.html" if paged else ""
        console.print(Text.assemble((f"{' ' * 10}{blocked} ", style), (text, "dim")), soft_wrap=True)


def _typed(hint: str, then: str) -> str:
    """A hint that says how to ask for one, as it can be typed here: by the command that `then` begins with."""
    command, separator, _ = then.partition(" next")
    rest = hint.removeprefix(POINTER)
    if not separator or rest == hint:
        return hint
    return f"{POINTER}{command} next{rest.partition(' next')[2]}"


def _show_following(console: Console, check: CheckResult, cause: str) -> None:
    mark, style = _FOLLOWS
    console.print(Text.assemble((f"{' ' * 10}{mark} {check.name}", style), (f": {cause}", "dim")), soft_wrap=True)


def _show_in_a_line(console: Console, check: CheckResult, first: CheckResult) -> None:
    """Another check that did not pass, and what was seen, as far as a line goes; all of it is in grade.html."""
    mark, style = MARK[check.outcome]
    text = ": the same" if check.message == first.message else f": {' '.join(check.message.split())}"
    row = Text.assemble((f"{' ' * 10}{mark} {check.name}", style), (text, "dim"))
    row.truncate(console.width, overflow="ellipsis")
    console.print(row, soft_wrap=True)


def indented(text: str, width: int, indent: int) -> Text:
    """Folded at words, without padding, so that it can be copied."""
    margin = " " * indent
    lines = [
        textwrap.fill(line, max(40, width), initial_indent=margin, subsequent_indent=margin, break_long_words=False)
        for line in text.splitlines()
    ]
    return Text("\n".join(lines))


def _show_notes(console: Console, notes: Sequence[IntegrityNote]) -> None:
    if not notes:
        return
    console.print("\n[bold]For the instructor's eyes[/] (notes never cost points by themselves)")
    for note in notes:
        where = f" at {note.where}" if note.where else ""
        console.print(indented(f"{note.kind}: {note.detail}{where}  [{note.check}]", console.width, 2), soft_wrap=True)


def _show_result(console: Console, grade: Grade, partial: bool) -> None:
    verdict, style = ("passed", "bold green") if grade.passed else ("not passed", "bold red")
    end = f"[{style}]{verdict}[/]  [dim](pass at {points(grade.pass_score)})[/]"
    if grade.incomplete:
        end = "[bold red]incomplete[/]"
    elif partial:
        end = "[dim]of the criteria that were asked for; labs are passed as a whole[/]"
    console.print(f"\n[bold]Grade {points(grade.score)}/{points(grade.max_score)}[/]  {end}")
    if grade.incomplete:
        console.print(indented(f"This grading is not over: {grade.incomplete}. Its points are no result.", WIDTH, 0))
    elif grade.needs_review:
        count = len(grade.needs_review)
        console.print(
            f"[magenta]{count} of the checks could not be decided and earn{'s' if count == 1 else ''} 0 for now: "
            "an instructor has to look.[/]"
        )
