"""The screen of `gpulabs watch`: the whole grade once, then after each save the changes."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.markup import escape
from rich.text import Text

from gradebox.authoring.watch.session import Round
from gradebox.report import terminal
from gradebox.report.console import Console
from gradebox.report.document import points
from gradebox.run.grade import CheckReport, LabResult, Outcome
from gradebox.run.grading import Watcher

_NAMED = 3


class Screen(Watcher):
    """Prints; hears of each check as it ends, so that the first answer does not wait for the last."""

    def __init__(self, titles: Mapping[str, str]) -> None:
        self._titles = titles
        self._console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._bar = terminal.Progress()
        self._before: Mapping[str, CheckReport] = {}
        self._same: list[str] = []

    def close(self) -> None:
        self._bar.close()

    # --- a round ----------------------------------------------------------------------------------------------------

    def first(self, checks: int) -> None:
        """The first round begins."""
        self._bar.open(checks)

    def saved(self, names: Sequence[str]) -> None:
        """A later one begins, because of these files."""
        shown = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        self._console.print(f"\n[bold]{time.strftime('%H:%M:%S')}  {escape(shown)}[/]")
        self._same.clear()

    def starting(self, check: str) -> None:
        self._bar.starting(self._titles[check])

    def finished(self, check: str, report_: CheckReport) -> None:
        self._bar.finished(report_)
        if not self._before:
            return
        before = self._before.get(check)
        if before is not None and before.outcome is report_.outcome and before.message == report_.message:
            self._same.append(check)
            return
        self._show(check, before, report_)

    def over(self, round_: Round) -> None:
        """The round is over, or was given up."""
        self._bar.close()
        first, self._before = not self._before, {**self._before, **round_.reports}
        if not round_.over:
            self._console.print("  [dim]saved again meanwhile: from the beginning[/]")
            return
        if first:
            terminal.show(round_.grade, (), (), partial=True, paged=False)
            return
        if not round_.asked:
            self._console.print("  [dim]no check reaches what has changed[/]")
        elif self._same:
            counts = Counter(terminal.MARK[round_.reports[name].outcome][0] for name in self._same)
            shown = ", ".join(f"{count} {mark}" for mark, count in counts.items())
            self._console.print(f"  [dim]as before: {shown}[/]")
            failing = [name for name in self._same if round_.reports[name].outcome is Outcome.FAILED]
            if len(self._same) == len(round_.asked) and failing:
                self._show(failing[0], None, round_.reports[failing[0]])
        labs = "   ".join(map(_standing, round_.grade.labs))
        self._console.print(f"  {escape(labs)}   [dim]{round_.seconds:.1f} s[/]")

    # --- what is printed --------------------------------------------------------------------------------------------

    def _show(self, check: str, before: CheckReport | None, now: CheckReport) -> None:
        mark, style = terminal.MARK[now.outcome]
        was = ""
        if before is not None and before.outcome is not now.outcome:
            was = f"{terminal.MARK[before.outcome][0]} → "
        row = Text.assemble("  ", (was, "dim"), (f"{mark} {self._titles[check]}", style), (f"  {check}", "dim"))
        self._console.print(row)
        if now.outcome in (Outcome.PASSED, Outcome.BLOCKED):
            return
        width = self._console.width if self._console.is_terminal else terminal.WIDTH
        self._console.print(terminal.indented(now.message, width, 8))
        if now.hint:
            self._console.print(terminal.indented(f"→ {now.hint}", width, 8), style="cyan")

    def broken(self, place: str, message: str) -> None:
        """A file that Python cannot read: nothing is asked until it can."""
        self._console.print(Text.assemble("  ", (f"✗ {place}: {message}", "red")))

    def refused(self, reason: str) -> None:
        """The folder cannot be graded as it is; the next save may fix that."""
        self._console.print(Text.assemble("  ", (f"cannot be graded as it is: {reason}", "red")))

    def say(self, text: str) -> None:
        self._console.print(f"[dim]{escape(text)}[/]")


def _standing(lab: LabResult) -> str:
    return f"{lab.title} {points(lab.points)}/{points(lab.max_points)}"
