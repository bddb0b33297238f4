"""The report of one check: run it, ask again where that decides whose fault a failure is, or blame the machine.

Knows nothing of order, threads and progress (`grading.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gradebox.course.criterion import CheckFunction
from gradebox.run import chance, device_steadiness, device_trial, source_scan
from gradebox.run.check_reports import Blocked, of_disturbance, of_error
from gradebox.run.device_use import DeviceUse
from gradebox.run.endings import ProbeFailed
from gradebox.run.grade import CheckReport, Outcome
from gradebox.run.input_generator import InputGenerator
from gradebox.run.probe_cache import ProbeCache, ProbeCall
from gradebox.run.request import GradingError, GradingRequest
from gradebox.run.submission import Submission
from gradebox.sandbox import Sandbox, SandboxError
from gradebox.sandbox.devices import CPU


class CheckRunner:
    """Runs the checks of one grading, each with the sandbox that it is given; several threads may ask at once."""

    def __init__(
        self,
        order: GradingRequest,
        probe_cache: ProbeCache,
        device_use: DeviceUse,
        titles: Mapping[str, str],
        reports: Mapping[str, CheckReport],
        is_stopped: Callable[[], bool],
    ) -> None:
        """Take up a grading.

        Args:
            order, probe_cache, device_use: the grading's.
            titles: of its checks.
            reports: what has come in so far, by check; the grading adds to it.
            is_stopped: whether no more is asked, so that a check may have lost its sandbox.
        """
        self._order = order
        self._probe_cache = probe_cache
        self._device_use = device_use
        self._titles = titles
        self._reports = reports
        self._is_stopped = is_stopped
        self._lock = threading.Lock()
        self._draws: dict[str, chance.Draw] = {}
        """By package."""

    def report(self, check: CheckFunction, box: Sandbox) -> CheckReport | None:
        """The report of a check; None when it lost its sandbox, because the grading was stopped meanwhile.

        Raises:
            GradingError: the machine is to blame, and not the submission.
        """
        started = time.monotonic()
        report = self._judge(check, box)
        if report is not None and report.answered and (measured := self._probe_cache.measured(check.id)):
            report = self._measure_again(check, box, report, measured)
        if report is not None and report.outcome is Outcome.FAILED and (draw := self._draw(check, box)).place:
            report = self._ask_again(check, box, report, draw)
        if report is not None and report.answered and not report.cause and (premises := self._failed_premises(check)):
            report = self._control(check, box, report, premises)
        return None if report is None else replace(report, seconds=time.monotonic() - started)

    def require_answers(self, box: Sandbox) -> None:
        """Ask a probe of our own first, on each device that checks use.

        Raises:
            GradingError: it does not give what it must, so nothing that a submission does could be seen.
        """
        devices = [self._order.device.name, *([CPU] if self._order.course.trial else [])]
        for device in dict.fromkeys(devices):
            if problem := device_trial.problem(box, self._order.course.trial, device, self._order.course.fix):
                raise GradingError(problem)

    def _failed_premises(self, check: CheckFunction) -> list[str]:
        """The checks that this one builds on and that failed with a wrong answer."""
        reports = {name: self._reports[name] for name in check.builds_on if name in self._reports}
        return [name for name, report in reports.items() if report.outcome is Outcome.FAILED and report.answered]

    def _control(
        self, check: CheckFunction, box: Sandbox, failed: CheckReport, premises: Sequence[str]
    ) -> CheckReport | None:
        """The report of a check that failed next to others that it builds on: of the same without what those are about.

        If that passes, the failure is theirs. If it fails, that failure is of the check's own mistake: it is what the
        student is shown, because it has nothing of the other mistake in it.
        """
        names = frozenset(name.rpartition(".")[2] for name in premises)
        own = self._judge(check, box, names)
        if own is None or own.outcome is Outcome.FAILED:
            return own
        if own.outcome is Outcome.PASSED:
            return replace(failed, built_on=premises[0])
        return failed

    def _judge(self, check: CheckFunction, box: Sandbox, without: frozenset[str] = frozenset()) -> CheckReport | None:
        """Run a check once; None when the grading was stopped meanwhile."""
        try:
            self._stop_if_blocked(check)
            submission = Submission(self._order.device, box, self._probe_cache, check.id)
            generator = InputGenerator(self._order.seed, check.id)
            check.run(submission=submission, generator=generator, without=without)
        except Exception as error:
            if self._is_stopped():
                return None
            report = self._report_of(error, box)
            if check.timeline and report.answered and report.picture is None:
                submission.run_expected(dict(check.expected_timelines))
                report = replace(report, picture=self._probe_cache.timeline(check.id))
            return report
        return CheckReport(Outcome.PASSED)

    def _measure_again(
        self, check: CheckFunction, box: Sandbox, failed: CheckReport, measured: Sequence[ProbeCall]
    ) -> CheckReport | None:
        """The report of a check that failed by what it measured on a real device: of a second measurement.

        If that fails as well and something disturbed the device, a person decides: nobody loses points for it.
        """
        for call in measured:
            with call.lock:
                call.reply = None
        again = self._judge(check, box)
        if again is None or not again.answered:
            return again
        disturbances = [text for call in measured for text in call.disturbances]
        if not disturbances and (unsteady := device_steadiness.problem(self._device_use, box, self._order.course.pace)):
            disturbances = [unsteady]
        if not disturbances:
            return again
        return of_disturbance(again, disturbances)

    def _draw(self, check: CheckFunction, box: Sandbox) -> chance.Draw:
        """Where the lab of a check draws at random, so that another run may differ."""
        lab = next(lab for lab in self._order.labs if check.id.startswith(f"{lab.id}."))
        with self._lock:
            if lab.package not in self._draws:
                files = box.python_files()
                self._draws[lab.package] = source_scan.draw(files, lab.package)
            return self._draws[lab.package]

    def _ask_again(self, check: CheckFunction, box: Sandbox, failed: CheckReport, draw: chance.Draw) -> CheckReport:
        """The report of a check that failed with code that may behave differently in each run: whether it does."""
        calls = self._probe_cache.of_submission(check.id)
        first = [call.reply for call in calls]
        again: CheckReport | None = failed
        for _ in draw.runs():
            for call in calls:
                with call.lock:
                    call.reply = None
            again = self._judge(check, box)
            # Two wrong answers in other words may be two measurements of one thing.
            if again is None or (again.outcome, again.answered) != (failed.outcome, failed.answered):
                break
        for call, reply in zip(calls, first, strict=True):  # other checks have judged it, or will
            with call.lock:
                call.reply = reply
        return failed if again is None else draw.reported(failed, again)

    def _stop_if_blocked(self, check: CheckFunction) -> None:
        """Raise `Blocked` when a check that this one builds on has no answer to judge: no code, a crash, no end."""
        for needed in check.requires:
            report = self._reports.get(needed)
            if report is not None and report.answered:
                continue  # the code runs, and more can be asked of it
            if report is None or report.outcome is not Outcome.PASSED:
                cause = report.message if report else "it did not run"
                if report is not None and report.outcome is Outcome.BLOCKED:
                    raise Blocked(report.blocked_by, cause)
                raise Blocked(needed, f"blocked by '{self._titles[needed]}' ({needed}): {cause}")

    def _report_of(self, error: Exception, box: Sandbox) -> CheckReport:
        """What a check's exception means.

        Raises:
            GradingError: the machine is to blame, and not the submission.
        """
        report = of_error(error, self._order.course.folder)
        if isinstance(error, SandboxError | ProbeFailed):
            device_trial.forget(box)
            with self._device_use.shared(box):
                self.require_answers(box)  # it worked at the start, and the fault may be this check's alone
        return report
