"""The judge's pytest: its items are the checks of a course, and nothing on disk is collected. Hooks, and nothing else.

Not for grading (`run.py`): an item waits for what the grading, which goes on at the same time, says of its check.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradebox.common.exit_codes import ExitCode, refuse
from gradebox.report.presenter import Presenter
from gradebox.run.assertions import CheckFailed, NeedsReview
from gradebox.run.check_reports import Blocked
from gradebox.run.grade import Outcome
from gradebox.run.options import Options
from gradebox.run.request import GradingError
from gradebox.sandbox.devices import DeviceError

options: Options | None = None
"""What is asked; `launch.judge` says it."""
ended_with: int | None = None
"""The exit code of the grading; None when it did not come to its end."""


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Refuse what cannot be graded, with one clear line and exit code 2, before anything runs."""
    assert options is not None
    try:
        if config.inipath != Path(os.devnull) or not config.option.noconftest:
            raise GradingError("--grade needs its own configuration: leave out -c and --rootdir")
        if config.option.file_or_dir:
            named = config.option.file_or_dir[0]
            raise GradingError(f"--grade takes no test paths, but got {named}; name the folder as --submission=DIR")
        if getattr(config.option, "numprocesses", None):
            raise GradingError("grading needs no -n: it uses the cores that are there; leave it out")
        judging = _Judging(Presenter(options, alone=True))
        config.add_cleanup(judging.close)
        if not config.option.collectonly:
            judging.front.grading.__enter__()
    except (GradingError, DeviceError, ValueError) as error:
        return _end(refuse(str(error)))
    for name in ("xmlpath", "log_file", "basetemp"):  # what pytest itself writes is meant to be where the caller is
        if value := getattr(config.option, name, None):
            setattr(config.option, name, str(Path(options.origin) / value))
    config.option.tbstyle = "no"
    config.option.no_header = config.option.no_summary = True
    if config.option.verbose < 1 and not config.option.collectonly:  # else pytest shows each check, and how it ended
        config.option.verbose = -2
    config.pluginmanager.register(judging, "grading")
    return None


def _end(code: int) -> int:
    global ended_with
    ended_with = int(code)
    return ended_with


class _Item(pytest.Item):
    """A check: waits for what the grading says of it."""

    def runtest(self) -> None:
        report = self.config.stash[_FRONT].grading.wait(self.name)
        if report is None:
            raise NeedsReview("it did not run")
        if report.outcome is not Outcome.PASSED:
            kind = {Outcome.FAILED: CheckFailed, Outcome.BLOCKED: Blocked}.get(report.outcome, NeedsReview)
            raise kind(report.message) if kind is not Blocked else Blocked(report.blocked_by, report.message)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        return str(excinfo.value)

    def reportinfo(self) -> tuple[Path, None, str]:
        return Path(self.name), None, ""


_FRONT = pytest.StashKey[Presenter]()


class _Judging:
    """The hooks of a run in the judge."""

    def __init__(self, front: Presenter) -> None:
        self.front = front

    def close(self) -> None:
        self.front.close()
        self.front.grading.__exit__(None, None, None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        """The checks of the plan, instead of files."""
        config = session.config
        config.stash[_FRONT] = self.front
        session.items = [
            _Item.from_parent(session, name=check.id, nodeid=check.id) for check in self.front.grading.plan
        ]
        config.hook.pytest_collection_modifyitems(session=session, config=config, items=session.items)
        self.front.grading.keep({item.name for item in session.items})
        session.testscollected = len(session.items)
        report = pytest.CollectReport(session.nodeid, "passed", None, [*session.items])
        config.hook.pytest_collectreport(report=report)  # for who counts them
        config.hook.pytest_collection_finish(session=session)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        if not session.config.option.collectonly:
            self.front.grading.begin()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        try:
            return (yield)
        except GradingError as error:
            refuse(str(error))
            self.front.grading.stop(str(error))
            self.front.abandon(str(error))
            pytest.exit("nothing more can be graded", returncode=_end(ExitCode.COULD_NOT_GRADE))

    def pytest_report_teststatus(self, report: Any, config: pytest.Config) -> tuple[str, str, str] | None:
        return None if config.option.verbose >= 1 else (report.outcome, "", "")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if session.config.option.collectonly:
            _end(ExitCode.PASSED)
        if ended_with is not None:
            session.exitstatus = ended_with
            return
        self.front.grading.stop("pytest has ended")
        if exitstatus == pytest.ExitCode.INTERRUPTED:
            self.front.abandon()
            # Pytest would add lines of our own source, and the reader wants a grade.
            with contextlib.suppress(AttributeError):
                session.config.get_terminal_writer()._file = io.StringIO()
        good = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        early = str(session.shouldfail or session.shouldstop or "")  # for -x: what else was asked by then is chance
        session.exitstatus = _end(self.front.finish(early) if good else ExitCode.COULD_NOT_GRADE)
