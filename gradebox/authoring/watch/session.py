"""Gradings of the same folder, one after the other, that run only the checks that a change can reach.

A check runs again if code that its requests can reach (`gradebox/authoring/code_dependencies.py`), or a text that it
reads, has changed. Only the affected requests reach the sandbox. Not for showing
(`screen.py`).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from gradebox.authoring.code_dependencies import DependencyGraph
from gradebox.course.criterion import CheckFunction
from gradebox.course.rubric import Lab
from gradebox.run.endings import timed_out
from gradebox.run.grade import CheckReport, Grade, Outcome
from gradebox.run.grading import Grading, Watcher
from gradebox.run.probe_cache import CheckInputs, key_of
from gradebox.run.request import GradingError, GradingRequest, check_groups, plan_of, titles_of
from gradebox.sandbox import Reply, Request, Sandbox, SandboxError, copying

_REPLIES = 4000
"""How many are kept; all labs ask 230."""


@dataclass(frozen=True)
class Round:
    """What one grading of a session came to."""

    grade: Grade
    reports: Mapping[str, CheckReport]
    """Of all checks, in the rubric's order, those that were not asked again included."""
    asked: tuple[str, ...]
    """The checks that were asked, in the rubric's order."""
    seconds: float
    over: bool
    """False where it was given up, because the files changed again."""


@dataclass(frozen=True)
class _Kept:
    """A check's report, and the digests of what it follows from."""

    report: CheckReport
    grounds: CheckInputs
    digests: tuple[str, ...]


class _Version:
    """The submission as it is at one time."""

    def __init__(self, reach: DependencyGraph, contents: Mapping[str, bytes]) -> None:
        self._code = reach.read(contents)
        self._whole = hashlib.sha256(repr(sorted(contents.items())).encode()).hexdigest()

    def digest(self, request: Request, *, lines: bool) -> str:
        """Of all that can take part in the answer to a request: of everything, where reading leaves a doubt."""
        return self._code.digest(request, lines=lines) or self._whole


class _Remembering(Sandbox):
    """A sandbox that asks nothing twice while the code that a question can reach stays the same."""

    version: _Version | None = None
    replies: dict[tuple[str, str], Reply]
    """Shared with clones, each of which has a thread of its own; every access is one operation of a dictionary."""

    def run(self, request: Request) -> Reply:
        if self.version is None:
            return super().run(request)
        narrow, wide = (self.version.digest(request, lines=lines) for lines in (False, True))
        question = f"{key_of(request)} {request.limits}"
        for digest in (narrow, wide):
            if (kept := self.replies.get((question, digest))) is not None:
                return kept
        reply = super().run(request)
        if not any(map(timed_out, reply.ranks)):  # they may come in time the next time
            # An answer that went wrong names lines.
            plain = reply.kind == "ok" and not reply.notes
            self.replies[question, narrow if plain else wide] = reply
            if len(self.replies) > _REPLIES:
                self.replies.pop(next(iter(list(self.replies))), None)
        return reply


class Session:
    """Use as a context manager; its sandbox's server runs until the end."""

    def __init__(self, order: GradingRequest) -> None:
        """Take up the submission.

        Raises:
            GradingError, SandboxError: it cannot be graded; the message is one line.
        """
        self.order = order
        self.plan = plan_of(order)
        self.titles = titles_of(order, self.plan)
        self._reach = DependencyGraph(order.course)
        self._kept: dict[str, _Kept] = {}
        if not order.submission.is_dir():
            raise GradingError(f"there is no folder {order.submission}; name the folder with your labs")
        self._box = _Remembering(order.submission, order.course.environment)
        self._box.replies = {}
        self._clones: list[Sandbox] = []

    def __enter__(self) -> Self:
        """Start the sandboxes, as many as the order asks for.

        Raises:
            SandboxError: there is no room for a copy of the submission.
        """
        count = max(1, min(self.order.jobs, len(check_groups(self.plan))))
        self._box.side_by_side = count
        self._box.__enter__()
        try:
            self._clones += [self._box.clone() for _ in range(count - 1)]
        except SandboxError:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        for box in (*self._clones, self._box):
            box.close()

    def again(
        self, watcher: Watcher, stale: Callable[[], bool] = lambda: False, *, labs: tuple[Lab, ...] | None = None
    ) -> Round:
        """Grade the folder as it is now; `watcher` hears of the checks that are asked.

        Args:
            stale: whether to give up, asked between checks.
            labs: instead of those of the order; see `Course.select`.

        Raises:
            GradingError, SandboxError: it cannot be graded as it is.
        """
        started = time.monotonic()
        version = _Version(self._reach, _contents(self.order.submission, self.order.course.environment.labs))
        for box in (self._box, *self._clones):
            assert isinstance(box, _Remembering)
            box.version = version
        self._box.set_submission(self.order.submission)
        order = self.order if labs is None else replace(self.order, labs=labs)
        plan = plan_of(order)
        known = self._unchanged(version, plan)
        listening = _Listening(watcher, stale)
        grading = Grading(order, listening, sandbox=self._box, clones=self._clones, known=known)
        listening.grading = grading
        with grading:
            grading.carry_out()
            reports = grading.reports
            for check in listening.heard:
                grounds = grading.grounds(check)
                self._kept[check] = _Kept(reports[check], grounds, _digests(version, grounds, reports[check]))
            result = grading.result()
        return Round(
            grade=result,
            reports={check.id: reports[check.id] for check in plan if check.id in reports},
            asked=tuple(check.id for check in plan if check.id in listening.heard),
            seconds=time.monotonic() - started,
            over=not listening.gave_up,
        )

    def _unchanged(self, version: _Version, plan: Sequence[CheckFunction]) -> dict[str, CheckReport]:
        """The reports that still hold."""
        reports: dict[str, CheckReport] = {}
        for check in plan:
            kept = self._kept.get(check.id)
            if (
                kept is not None
                and kept.report.outcome in (Outcome.PASSED, Outcome.FAILED)
                and not kept.grounds.remarkable
                and all(needed in reports for needed in check.requires)
                and kept.digests == _digests(version, kept.grounds, kept.report)
                and all(self._box.read_text(path) == text for path, text in kept.grounds.texts.items())
            ):
                reports[check.id] = kept.report
        return reports


class _Listening(Watcher):
    """Hands on what it hears, and gives a grading up."""

    def __init__(self, watcher: Watcher, stale: Callable[[], bool]) -> None:
        self._watcher = watcher
        self._stale = stale
        self.heard: list[str] = []
        self.gave_up = False
        self.grading: Grading | None = None

    def starting(self, check: str) -> None:
        self._watcher.starting(check)

    def finished(self, check: str, report: CheckReport) -> None:
        self.heard.append(check)
        self._watcher.finished(check, report)
        if self.grading is not None and self._stale():
            self.gave_up = True
            self.grading.stop("the files have changed again")


def _digests(version: _Version, grounds: CheckInputs, report: CheckReport) -> tuple[str, ...]:
    lines = report.outcome is Outcome.FAILED
    return tuple(version.digest(request, lines=lines) for request in grounds.requests)


def _contents(folder: Path, labs: tuple[str, ...]) -> dict[str, bytes]:
    """What of the folder would be copied, by path in our layout; what vanishes meanwhile is left out."""
    contents = {}
    for entry in copying.scan(folder, labs):
        try:
            contents[entry.target] = Path(entry.top, entry.source).read_bytes()
        except OSError:
            continue
    return contents
