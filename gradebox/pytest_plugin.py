"""`pytest --grade`: every check is a pytest item; without the option the plugin does nothing. Hooks, and nothing else.

The pytest that a person starts only starts another one, the judge, in a folder of its own (`launch.py`). There the
items come from the course, and nothing on disk is collected.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradebox import launch
from gradebox.assertions import CheckFailed, NeedsReview
from gradebox.devices import DeviceError
from gradebox.front import Front, refuse
from gradebox.grade import CheckReport, ExitCode, Outcome
from gradebox.options import TIME_LIMIT_SECONDS, Options
from gradebox.run import Blocked, GradingError

options: Options | None = None
"""In the judge: what is asked."""
ended_with: int | None = None
"""In the judge: the exit code of the grading; None when it did not come to its end."""

_OPTIONS = {
    "submission": ("DIR", "labs", "folder to grade (default: labs)"),
    "lab": ("N[,N]", None, "grade only these labs, for example 1,3; or an exercise by its name"),
    "criterion": ("ID[,ID]", None, "grade only these criteria, after the checks that they build on"),
    "device": ("DEVICE", "auto", "auto, or a device that the course names (cuda, vgpu or vgpu:MODEL)"),
    "grade-seed": ("N", None, "repeat a grading with its printed seed"),
    "grade-report": ("DIR", "grade-report", "where grade.json and grade.html go (default: grade-report)"),
    "overrides": ("FILE", None, "points given by hand (default: overrides.toml of the course's checkout)"),
    "student": ("NAME", None, "whose overrides apply (default: the folder's name)"),
    "time-limit": ("SECONDS", None, f"for the whole grading (default: {TIME_LIMIT_SECONDS:g}; none on a real GPU)"),
}
_TYPES = {"grade-seed": int, "time-limit": float}


class Course:
    """Hooks of our own."""

    @pytest.hookspec(firstresult=True)
    def pytest_grade_course(self) -> Path | None:
        """The folder of the course that `--grade` grades; a course's own plugin says it."""


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(Course)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("grade", "grading labs")
    group.addoption("--grade", action="store_true", help="grade a submission against the course's rubric")
    for name, (metavar, default, text) in _OPTIONS.items():
        group.addoption(f"--{name}", metavar=metavar, default=default, help=text, type=_TYPES.get(name, str))


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Grade in a judge of its own, unless this is one: pytest here has found files of the folder it was started in."""
    if not early_config.known_args_namespace.grade or options is not None:
        return
    capturing = early_config.pluginmanager.getplugin("capturemanager")
    if capturing is not None:  # it has turned standard output into a file, which the judge would inherit
        capturing.suspend_global_capture(in_=True)
    sys.stdout.flush()
    raise SystemExit(launch.from_pytest(early_config))


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Refuse what cannot be graded, with one clear line and exit code 2, before anything runs."""
    if not config.option.grade or options is None:
        return None
    try:
        if config.inipath != Path(os.devnull) or not config.option.noconftest:
            raise GradingError("--grade needs its own configuration: leave out -c and --rootdir")
        if config.option.file_or_dir:
            named = config.option.file_or_dir[0]
            raise GradingError(f"--grade takes no test paths, but got {named}; name the folder as --submission=DIR")
        if getattr(config.option, "numprocesses", None):
            raise GradingError("grading needs no -n: it uses the cores that are there; leave it out")
        judging = _Judging(Front(options))
        config.add_cleanup(judging.close)
        judging.front.grading.__enter__()
    except (GradingError, DeviceError, ValueError) as error:
        return _end(refuse(str(error)))
    for name in ("xmlpath", "log_file", "basetemp"):  # what pytest itself writes is meant to be where the caller is
        if value := getattr(config.option, name, None):
            setattr(config.option, name, str(Path(options.origin) / value))
    config.option.tbstyle = "no"
    config.option.no_header = config.option.no_summary = True
    if config.option.verbose < 1:  # else pytest shows each check, and how it ended
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
        report: CheckReport | None = self.config.stash[_FRONT].grading.wait(self.name)
        if report is None:
            raise NeedsReview("it did not run")
        if report.outcome is not Outcome.PASSED:
            kind = {Outcome.FAILED: CheckFailed, Outcome.BLOCKED: Blocked}.get(report.outcome, NeedsReview)
            raise kind(report.message) if kind is not Blocked else Blocked(report.blocked_by, report.message)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        return str(excinfo.value)

    def reportinfo(self) -> tuple[Path, None, str]:
        return Path(self.name), None, self.name


_FRONT = pytest.StashKey[Front]()


class _Judging:
    """The hooks of a run in the judge."""

    def __init__(self, front: Front) -> None:
        self.front = front

    def close(self) -> None:
        self.front.close()
        self.front.grading.__exit__(None, None, None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        """The checks of the plan, instead of files."""
        config = session.config
        config.stash[_FRONT] = self.front
        session.items = [_Item.from_parent(session, name=one.id, nodeid=one.id) for one in self.front.grading.plan]
        config.hook.pytest_collection_modifyitems(session=session, config=config, items=session.items)
        self.front.grading.keep({item.name for item in session.items})
        session.testscollected = len(session.items)
        config.hook.pytest_collection_finish(session=session)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Iterator[None]:
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
        if ended_with is not None:
            session.exitstatus = ended_with
            return
        self.front.grading.stop("pytest has ended")
        if exitstatus == pytest.ExitCode.INTERRUPTED:
            self.front.abandon()
            # What pytest would add are lines of our own source, to somebody who asked for a grade.
            with contextlib.suppress(AttributeError):
                session.config.get_terminal_writer()._file = io.StringIO()
        good = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        session.exitstatus = _end(self.front.finish() if good else ExitCode.COULD_NOT_GRADE)
