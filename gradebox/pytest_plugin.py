"""The pytest plugin: `pytest --grade` grades a submission; without the option it does nothing.

Only hooks and their order live here. Scoring is `grade.py`, running students' code `submission.py`, showing the result
`report/`. The judging process never collects, imports or reads configuration from a submission.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradebox import hooks, launch, overrides
from gradebox import rubric as rubrics
from gradebox.configuration import ROOT, own_inifile, own_rootdir
from gradebox.devices import DeviceError
from gradebox.devices import parse as parse_device
from gradebox.fresh import Fresh, new_seed
from gradebox.grade import ExitCode
from gradebox.session import COULD_NOT_GRADE, TIME_LIMIT_SECONDS, GradingError, GradingSession
from gradebox.submission import Submission
from gradebox.texts import printable
from grader import extensions

CHECKS = Path(__file__).with_name("checks")

ended_with: int | None = None
"""The exit code of this process's last grading, as `launch.judge` reads it; None when none came to its end."""

_session = pytest.StashKey[GradingSession]()


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("grade", "grading labs")
    group.addoption("--grade", action="store_true", help="grade a submission against the 100-point rubric")
    group.addoption("--submission", metavar="DIR", default="labs", help="folder to grade (default: labs)")
    group.addoption("--lab", metavar="N[,N]", default=None, help="grade only these labs, for example 1,3; or container")
    group.addoption(
        "--criterion",
        metavar="ID[,ID]",
        default=None,
        help="grade only these criteria, for example lab3.accumulation, after the checks that they build on",
    )
    group.addoption(
        "--device",
        default="auto",
        metavar="DEVICE",
        help="auto (a real GPU, else the virtual one), cuda, vgpu or vgpu:MODEL",
    )
    group.addoption("--grade-seed", type=int, default=None, metavar="N", help="repeat a grading with its printed seed")
    group.addoption(
        "--grade-report",
        metavar="DIR",
        default="grade-report",
        help="where grade.json and grade.html go (default: grade-report)",
    )
    group.addoption(
        "--overrides",
        metavar="FILE",
        default=None,
        help=f"points that an instructor gave by hand (default: {overrides.DEFAULT_FILE} of the course's checkout)",
    )
    group.addoption(
        "--student", metavar="NAME", default=None, help="whose overrides apply (default: the folder's name)"
    )
    group.addoption(
        "--time-limit",
        type=float,
        default=None,
        metavar="SECONDS",
        help=f"for the whole grading (default: {TIME_LIMIT_SECONDS:g} on the virtual GPU, none on a real one)",
    )
    group.addoption("--grade-from", metavar="DIR", default=None, help=argparse.SUPPRESS)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Grade in a judge of its own, unless this is one: pytest here has found files of the folder it was started in."""
    option = early_config.known_args_namespace
    if not option.grade:
        return
    own = early_config.inipath == own_inifile() and early_config.rootpath == own_rootdir() and option.noconftest
    if own:
        return
    capturing = early_config.pluginmanager.getplugin("capturemanager")
    if capturing is not None:  # it has turned standard output into a file, which the judge would inherit
        capturing.suspend_global_capture(in_=True)
    sys.stdout.flush()
    raise SystemExit(_start_over(early_config))


def _start_over(early_config: pytest.Config) -> int:
    """Let `launch` grade with the arguments of this run; the exit code."""
    option, origin = early_config.known_args_namespace, Path(early_config.invocation_params.dir)
    if option.grade_from is not None:
        return launch.refuse("--grade needs the course's own configuration: leave out -c and --rootdir")
    submission = origin / option.submission
    found = early_config.inipath
    if found is not None and found.resolve().is_relative_to(submission.resolve()):
        return launch.refuse(
            f"pytest has read {found}, which belongs to the submission; write --submission={option.submission}, "
            "with an equals sign, or grade with gpulabs"
        )
    if (file := launch.loaded_from(origin, submission)) is not None:
        return launch.refuse(
            f"Python has executed {file}, which belongs to the submission or lies beside it, before the grader began; "
            "start in another folder, or grade with gpulabs"
        )
    arguments = [str(argument) for argument in early_config.invocation_params.args]
    return launch.run(arguments, submission=submission, report=origin / option.grade_report)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Refuse what cannot be graded, with one clear line and exit code 2, before anything runs."""
    if not config.option.grade:
        return None
    try:
        config.stash[_session] = session = _open_session(config)
        config.add_cleanup(session.close)
        if config.option.grade_from is not None and session.time_limit_seconds is not None:
            launch.end_after(session.time_limit_seconds)
        session.start()
    except (GradingError, DeviceError, rubrics.RubricError, ValueError) as error:  # an OverrideError is a ValueError
        return launch.refuse(str(error))
    _make_absolute(config, _origin(config))
    return None


def _origin(config: pytest.Config) -> Path:
    """The folder that whoever asks for the grade is in; the judge's own is another one."""
    return Path(config.option.grade_from or config.invocation_params.dir)


def _make_absolute(config: pytest.Config, origin: Path) -> None:
    """What pytest itself writes is meant to be where the caller is."""
    for name in ("xmlpath", "log_file", "basetemp"):
        if value := getattr(config.option, name, None):
            setattr(config.option, name, str(origin / value))


def _open_session(config: pytest.Config) -> GradingSession:
    option = config.option
    if option.file_or_dir:
        raise GradingError(
            f"--grade takes no test paths, but got {option.file_or_dir[0]}; name the folder as --submission=DIR"
        )
    if getattr(option, "numprocesses", None):
        raise GradingError("grading runs in one process; leave out -n")
    if option.grade_seed is not None and option.grade_seed < 0:
        raise GradingError(f"--grade-seed {option.grade_seed}: a seed is 0 or larger, as a report prints it")
    if option.time_limit is not None and not option.time_limit > 0:
        raise GradingError(f"--time-limit {option.time_limit:g}: expected seconds, more than 0")
    rubric = rubrics.load(_course(config)[0])
    folder = _origin(config) / option.submission
    return GradingSession.open(
        name=str(option.submission),
        rubric=rubric,
        labs=_selected(rubric, option.lab, option.criterion),
        folder=folder,
        device=parse_device(option.device),
        seed=option.grade_seed if option.grade_seed is not None else new_seed(),
        report_folder=_origin(config) / option.grade_report,
        kept=config.hook.pytest_grade_sandbox(folder=folder),
        overrides=_overrides_for(config, folder, rubric),
        time_limit_seconds=option.time_limit,
        caller_folder=_origin(config),
    )


def _course(config: pytest.Config) -> tuple[Path, Path]:
    """The rubric, and the folder of its checks."""
    if extension := _extension(config):
        return extensions.rubric_file(extension), extensions.checks_folder(extension)
    return config.hook.pytest_grade_course() or (rubrics.RUBRIC_FILE, CHECKS)


def _overrides_for(config: pytest.Config, folder: Path, rubric: rubrics.Rubric) -> tuple[overrides.Override, ...]:
    student = config.option.student or folder.resolve().name
    if (file := config.option.overrides) is not None:
        path = _origin(config) / file
        if path.resolve().is_relative_to(folder.resolve()):
            raise overrides.OverrideError(
                f"{path} lies in the submission: overrides are the instructor's, keep them outside"
            )
    else:
        # Not the one of the folder somebody happens to be in: that may be the submission's, or beside it.
        path = ROOT / overrides.DEFAULT_FILE
        if not path.is_file() or path.resolve().is_relative_to(folder.resolve()):
            return ()
    return tuple(override for override in overrides.load(path, rubric) if override.student == student)


def _extension(config: pytest.Config) -> str | None:
    """The exercise outside the 100 points that is to be graded, if one is."""
    return config.option.lab if config.option.lab in extensions.NAMES else None


def _selected(rubric: rubrics.Rubric, labs: str | None, criteria: str | None) -> tuple[rubrics.Lab, ...]:
    if criteria is None:
        return rubric.labs if labs in extensions.NAMES else rubric.select(_lab_numbers(labs))
    if labs is not None:
        raise GradingError("--lab and --criterion exclude each other: a criterion's name begins with its lab's")
    return rubric.select_criteria([name.strip() for name in criteria.split(",")])


def _lab_numbers(option: str | None) -> tuple[int, ...] | None:
    if option is None:
        return None
    try:
        return tuple(int(part) for part in option.split(","))
    except ValueError:
        names = " or ".join(extensions.NAMES)
        raise GradingError(
            f"--lab {option}: expected numbers separated by commas, for example --lab 1,3; or {names}"
        ) from None


def pytest_configure(config: pytest.Config) -> None:
    if (session := config.stash.get(_session, None)) is None:
        return
    config.args = [str(_course(config)[1])]
    config.option.tbstyle = "no"
    config.option.no_header = config.option.no_summary = True
    config.option.verbose = -2
    config.pluginmanager.register(_Grading(session), "grading")


class _Grading:
    """The hooks of a run with `--grade`."""

    def __init__(self, session: GradingSession) -> None:
        self.session = session

    @pytest.fixture
    def submission(self, request: pytest.FixtureRequest) -> Submission:
        """The submission under judgement."""
        return self.session.submission

    @pytest.fixture
    def fresh(self, request: pytest.FixtureRequest) -> Fresh:
        """Random inputs of this check."""
        return Fresh(self.session.seed, self.session.check_id(request.node))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            print(printable(f"could not grade: the checks do not load\n{report.longreprtext}"), file=sys.stderr)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        with _ends_the_run():
            self.session.arrange(items)
            self.session.try_the_machine()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.session.bar.starting(self.session.ids[nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        check_id = self.session.check_id(item)
        started = time.monotonic()
        try:
            self.session.stop_if_blocked(item)
            self.session.begin(check_id)
            yield
        except BaseException as error:
            with _ends_the_run():
                self.session.record_problem(check_id, error, time.monotonic() - started)
            raise
        self.session.record_pass(check_id, time.monotonic() - started)

    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str]:
        return report.outcome, "", ""

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        global ended_with
        if exitstatus == pytest.ExitCode.INTERRUPTED:
            self.session.abandon()
            # What pytest would add are lines of our own source, to somebody who asked for a grade.
            session.config.get_terminal_writer()._file = io.StringIO()
        if exitstatus in COULD_NOT_GRADE:
            session.exitstatus = ended_with = int(ExitCode.COULD_NOT_GRADE)
            return
        session.exitstatus = ended_with = int(self.session.finish())


@contextlib.contextmanager
def _ends_the_run() -> Iterator[None]:
    """Nothing more can be graded: one line, and exit code 2."""
    try:
        yield
    except GradingError as error:
        launch.refuse(str(error))
        pytest.exit("nothing more can be graded", returncode=int(ExitCode.COULD_NOT_GRADE))
