"""The grade in the terminal (rich), and the progress line while it is being earned.

A report begins with the mistakes: nobody should read rows of points to find out what to do.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from gradebox.common.configuration import as_seen_from
from gradebox.course.contact import NOBODY, Contact
from gradebox.course.hints import POINTER, Hint
from gradebox.report import failing
from gradebox.report.console import Console
from gradebox.report.document import points
from gradebox.report.failing import Mistake, OpenTasks
from gradebox.report.harmless import harmless_reasons
from gradebox.run.grade import CheckReport, CheckResult, CriterionResult, Grade, IntegrityNote, LabResult, Outcome

MARK = {
    Outcome.PASSED: ("✓", "green"),
    Outcome.FAILED: ("✗", "red"),
    Outcome.BLOCKED: ("·", "yellow"),
    Outcome.NEEDS_REVIEW: ("?", "magenta"),
}
_FOLLOWS = ("↳", "yellow")
WIDTH = 100
_MOST_SHOWN = 8
"""Mistakes in the terminal, if there is a page with all."""
_NO_HINTS: Mapping[str, Hint] = {}


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
    hints: Mapping[str, Hint] = _NO_HINTS,
) -> None:
    """Print the whole grade: the mistakes, then the points of each criterion, the result, and the facts of the run.

    Args:
        grade: the grade.
        isolation: how the submission was isolated, a line each.
        paths: the files that were written, shown as one would type them in `folder`.
        progress: one line on what changed since the last run; empty if there is none.
        partial: the grade is of some criteria of a lab.
        folder: the current one if it is None.
        then: the command that says what to do next.
        paged: there is a page with everything, so that less costly mistakes may be left to it.
        contact: shown if a person has to look.
        hints: of the course, by check.
    """
    folder = folder or Path.cwd()
    console = Console(file=sys.stdout, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(file=sys.stdout, highlight=False, width=WIDTH)
    console.print()
    console.print(f"[bold]{escape(grade.submission)}[/] on {escape(grade.device)}", soft_wrap=True)
    _show_mistakes(console, failing.mistakes(grade, hints), paged, then)
    _show_undecided(console, grade.needs_review, then)
    _show_open(console, failing.open_tasks(grade))
    for lab in grade.labs:
        _show_lab(console, lab)
    _show_notes(console, grade.integrity)
    _show_result(console, grade, partial)
    if contact and (grade.needs_review or grade.incomplete):
        console.print(indented(f"Course staff: {contact.line()}", WIDTH, 0), soft_wrap=True)
    if progress:
        console.print(escape(progress), soft_wrap=True)
    for path in paths:
        console.print(f"[dim]report[/] {escape(as_seen_from(folder, path))}", soft_wrap=True)
    for line in isolation:
        console.print(f"[{'dim' if grade.isolation == 'namespaces' else 'yellow'}]{escape(line)}[/]")
    console.print(f"[dim]repeat with[/] --grade-seed {grade.seed}   [dim]took[/] {grade.seconds:.1f} s")
    if then and (partial or grade.score < grade.max_score):
        console.print(f"[dim]what to do next:[/] {escape(then)}", soft_wrap=True)


def _show_lab(console: Console, lab: LabResult) -> None:
    number = lab.id.removeprefix("lab")
    if not lab.available:
        console.print(f"\n[dim]Lab {number}  {lab.title}: not available yet ({points(lab.max_points)} points)[/]")
        return
    console.print(f"\n[bold]Lab {number}  {lab.title}[/]  {points(lab.points)}/{points(lab.max_points)}")
    for criterion in lab.criteria:
        _show_criterion(console, criterion)


def _show_criterion(console: Console, criterion: CriterionResult) -> None:
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


def _show_mistakes(console: Console, mistakes: Sequence[Mistake], paged: bool, then: str) -> None:
    """Each mistake with what was seen and what to do, whole; the ones that cost least are left to the page."""
    if not mistakes:
        return
    console.print("\n[bold]What to fix[/]")
    shown = mistakes[:_MOST_SHOWN] if paged else mistakes
    for mistake in shown:
        mark, style = MARK[Outcome.FAILED]
        place = f" ({mistake.place})" if mistake.place else ""
        costs = f": {_counted(mistake.points, 'point')}"
        costs += f", seen in {mistake.count} checks" if mistake.count > 1 else ""
        waiting = len(mistake.waiting)
        costs += f"; {waiting} more wait{'s' if waiting == 1 else ''} for it" if waiting else ""
        console.print(Text.assemble((f"  {mark} {mistake.title}", f"bold {style}"), f"{place}{costs}"), soft_wrap=True)
        if mistake.title != mistake.check.id:
            console.print(Text(f"    {mistake.check.id}", style="dim"), soft_wrap=True)
        _show_finding(console, mistake.check.message, mistake.hint, then)
    if len(mistakes) > len(shown):
        left = mistakes[len(shown) :]
        lost = sum((mistake.points for mistake in left), Decimal(0))
        text = f"  and {len(left)} more, {_counted(lost, 'point')}: all in grade.html"
        console.print(Text(text, style="dim"), soft_wrap=True)


def _show_undecided(console: Console, undecided: Sequence[CheckResult], then: str) -> None:
    """The checks that a person has to look at; those with one reason together."""
    if not undecided:
        return
    console.print("\n[bold]What needs review[/]")
    reasons: dict[tuple[str, str], list[CheckResult]] = {}
    for check in undecided:
        reasons.setdefault((check.message, check.hint), []).append(check)
    mark, style = MARK[Outcome.NEEDS_REVIEW]
    for (message, hint), checks in reasons.items():
        for check in checks:
            name = (f"  {check.id}", "dim") if check.title else ""
            console.print(Text.assemble((f"  {mark} {check.name}", style), name), soft_wrap=True)
        _show_finding(console, message, hint, then)


def _show_finding(console: Console, message: str, hint: str, then: str) -> None:
    console.print(indented(message, console.width, 4), soft_wrap=True)
    if hint:
        console.print(indented(f"→ {_typed(hint, then)}", console.width, 4), style="cyan", soft_wrap=True)


def _show_open(console: Console, tasks: Sequence[OpenTasks]) -> None:
    """Of each lab with open tasks, the one to begin with."""
    if not tasks:
        return
    console.print("\n[bold]What is not begun[/]")
    for row in tasks:
        number = row.lab.id.removeprefix("lab")
        more = f"  [{_counted(Decimal(row.count), 'open task')}, {_counted(row.points, 'point')}]"
        text = f"Lab {number}: {row.begin}"
        console.print(Text.assemble(indented(text, console.width, 2), (more, "dim")), soft_wrap=True)


def _counted(amount: Decimal, what: str) -> str:
    return f"{points(amount)} {what}{'' if amount == 1 else 's'}"


def _typed(hint: str, then: str) -> str:
    """A hint that says how to ask for one, as it can be typed here: by the command that `then` begins with."""
    command, separator, _ = then.partition(" next")
    rest = hint.removeprefix(POINTER)
    if not separator or rest == hint:
        return hint
    return f"{POINTER}{command} next{rest.partition(' next')[2]}"


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
    for kind, reason in harmless_reasons(notes):
        console.print(indented(f"{kind}: {reason}", console.width, 2), style="dim", soft_wrap=True)


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
