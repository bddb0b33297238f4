"""One grading as a person sees it: a bar while it goes on, the report at the end, and one of four exit codes."""

from __future__ import annotations

import contextlib
import shlex
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from gradebox import report
from gradebox.common.configuration import as_seen_from, own_subcommand
from gradebox.common.exit_codes import ExitCode, refuse
from gradebox.course import hints
from gradebox.report import html, progress
from gradebox.report.terminal import Progress
from gradebox.run.grade import CheckReport, Grade
from gradebox.run.grading import Grading, Watcher
from gradebox.run.options import Options
from gradebox.run.request import GradingError
from gradebox.run.request_builder import build_request

_LATE_SHARE, _LATE_SECONDS = 1.2, 60.0
"""How much later than its time limit a judge is ended."""
_SAVE_SECONDS, _SAVE_SHARE = 1.0, 0.01
"""How often at most what was graded so far is written down, in case that this process is killed, and which share of the
time that may take: of a large course it is the whole document, 40 ms each time."""


class Presenter(Watcher):
    """Opens a grading, shows its progress, and reports its end."""

    def __init__(self, options: Options, *, alone: bool = False) -> None:
        """Raises what `Options.order` and `Grading` raise.

        With `alone` this process does nothing else, and is ended when the grading goes on long after its time limit.
        """
        self._options = options
        self.order = build_request(options)
        limit = self.order.time_limit_seconds if alone else None
        self._watched = limit is not None
        if limit is not None:
            _end_after(limit)
        self.grading = Grading(self.order, self)
        self._titles = {check.id: check.title for check in self.grading.plan}
        self._bar = Progress()
        self._save_at = time.monotonic() + _SAVE_SECONDS
        self._earlier: progress.Earlier | None = None

    def close(self) -> None:
        if self._watched:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._bar.close()

    # --- while it goes on -------------------------------------------------------------------------------------------

    def begins(self, total: int) -> None:
        self._bar.open(total)
        threading.Thread(target=html.prepare, daemon=True).start()  # the first sandbox takes a while to start

    def starting(self, check: str) -> None:
        self._bar.starting(self._titles[check])

    def finished(self, check: str, report_: CheckReport) -> None:
        self._bar.finished(report_)
        if (began := time.monotonic()) < self._save_at:
            return
        result = self.grading.result("the grader was ended before the grading was over")
        self._what_was_before(result)
        with contextlib.suppress(OSError):  # said at the end, when it matters
            report.save(result, self._options.report_folder)
        ended = time.monotonic()
        self._save_at = ended + max(_SAVE_SECONDS, (ended - began) / _SAVE_SHARE)

    # --- the end ----------------------------------------------------------------------------------------------------

    def finish(self, incomplete: str = "") -> ExitCode:
        """Write and show the grade; returns the exit code for the shell."""
        self._bar.close()
        result = self.grading.result(incomplete)
        earlier = self._what_was_before(result)
        partial = any(lab not in self.order.rubric.labs for lab in self.order.labs)
        code = result.exit_code
        folder = self._options.report_folder
        try:
            paths: Sequence[Path] = report.write(
                result,
                folder,
                earlier,
                partial=partial,
                then=self._on_a_page(),
                hints=hints.known(self.order.course),
                contact=self.order.course.contact,
            )
        except OSError as error:
            refuse(
                f"the report cannot be written to {folder} ({error.strerror}); "
                "free space there or name another folder: --grade-report=DIR"
            )
            paths, code = (), ExitCode.COULD_NOT_GRADE
        report.show(
            result,
            self.grading.isolation,
            paths,
            earlier,
            partial=partial,
            folder=Path(self._options.origin),
            then=self._next(folder),
            contact=self.order.course.contact,
            hints=hints.known(self.order.course),
        )
        return code

    def _next(self, report_folder: Path) -> str:
        """The command that says what to do next, with what differs from its defaults."""
        course, folder = self.order.course, Path(self._options.origin)
        words = [own_subcommand(course.command, course.folder, "next", folder)]
        if self._options.submission != "labs":
            words.append(shlex.quote(self._options.submission))
        if len(self.order.labs) == 1:  # else it would begin with the first lab
            words += ["--lab", self.order.labs[0].option]
        if report_folder.resolve() != (folder / "grade-report").resolve():
            words += ["--report", shlex.quote(as_seen_from(folder, report_folder))]
        return " ".join(words)

    def _on_a_page(self) -> str:
        """The same as a page can say it, which may be read on another machine: without any path."""
        guide, labs = self.order.course.guide, self.order.labs
        typed = guide.typed if guide is not None and guide.typed else self.grading.command_next
        if len(labs) > 1:
            return typed
        if guide is not None and guide.typed_for:
            return guide.typed_for.format(lab=labs[0].option)
        # The course's command may take no options; this one does.
        return f"{self.grading.command_next} --lab {labs[0].option}"

    def abandon(self, broken: str = "") -> None:
        """Write down what was graded before the grading was interrupted, or `broken` says why it could not go on."""
        if self.grading.reported:
            self.finish(broken or "it was interrupted")
        elif not broken:
            refuse("it was interrupted before the first check")

    def _what_was_before(self, result: Grade) -> progress.Earlier:
        """What gradings before this one left in the folder, read before anything is written there."""
        if self._earlier is None:
            self._earlier = progress.read(self._options.report_folder, result)
        return self._earlier


def grade(options: Options, *, alone: bool = False) -> ExitCode:
    """Grade as `gpulabs grade` does, in this process. Takes and raises what `Presenter` does."""
    front = Presenter(options, alone=alone)
    try:
        with front.grading:
            try:
                front.grading.carry_out()
            except GradingError as error:
                refuse(str(error))
                front.grading.stop(str(error))
                front.abandon(str(error))
                return ExitCode.COULD_NOT_GRADE
            except KeyboardInterrupt:
                front.grading.stop("it was interrupted")
                front.abandon()
                return ExitCode.COULD_NOT_GRADE
            return front.finish()
    finally:
        front.close()


def _end_after(seconds: float) -> None:
    """Let the kernel end this process when so much time has passed, whatever it does: a pattern, a parser, a slow disk.

    Its time limit has left out what remains long before, if it could look at the clock.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds * _LATE_SHARE + _LATE_SECONDS)
