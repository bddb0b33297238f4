"""Starts a grading: the judge is a process of its own that sees nothing of the folder it was started from.

`gpulabs grade`, `gpulabs next --grade` and `pytest --grade` all come here. The judge runs in an empty private folder,
without any `conftest.py` or configuration but our own, and without variables that choose what Python or pytest run. Its
search path has neither the current folder nor the submission. However it ends, the caller gets one of the documented
exit codes. Not for grading (`run.py`).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any

from gradebox.common import files, prefork
from gradebox.common.configuration import ROOT
from gradebox.common.exit_codes import ExitCode, refuse
from gradebox.run import workdir
from gradebox.run.options import Options

_KEPT_OF_PYTHON = ("PYTHONHOME", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONUNBUFFERED", "PYTHONHASHSEED")
"""Variables of Python's that say how to run; all others could say what to run, or spoil it."""
_PROGRAM = """
import sys
sys.path[:0] = {first!r}
sys.path += [path for path in {last!r} if path not in sys.path]
from gradebox.launch import judge
sys.exit(judge(sys.argv[1:]))
"""
_PYTEST = ("-c", os.devnull, "--rootdir", os.curdir, "--noconftest", "--capture=no", "-p", "no:cacheprovider",
           "-p", "no:warnings", "-p", "gradebox.pytest_plugin")  # fmt: skip
"""The options that make pytest read nothing of a submission, nor of the folder it is started in."""
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ENDED = 100
"""Added to the exit code of a judge that came to its end; Python's and pytest's own codes mean other things."""
_IMPATIENCE = 3
"""So many wishes to stop, and the judge is killed."""
_TIDY_SECONDS = 30.0
"""After one wish to stop the judge has so long: a long call in C keeps it from noticing."""
_UNDER_PYTEST = "under pytest"
JUDGE = "gradebox.pytest_judge"
"""The plugin of the judge's pytest."""
_LIBRARIES = ("site-packages", "dist-packages")


def run(options: Options, pytest_arguments: Sequence[str] | None = None, *, rounds: str = "") -> int:
    """Grade in a judge of its own and wait for it; the exit code, one of `ExitCode`.

    Args:
        options: what is asked, except for `origin`, which becomes the current folder.
        pytest_arguments: those of a `pytest --grade`, which the judge then runs under pytest; without them it does not.
        rounds: "watch" to grade again whenever a file is saved, "answer" whenever a line on standard input asks for it.
    """
    origin = Path.cwd()
    options = replace(options, origin=str(origin))
    if (name := Path(options.course).name) in sys.stdlib_module_names:  # the judge would find it instead of Python's
        return refuse(f"the course's folder {options.course} needs another name: Python itself has a module {name}")
    place = contextlib.ExitStack()
    try:
        folder, lock = place.enter_context(workdir.locked_workdir())
    except OSError as error:
        return refuse(
            f"no folder for temporary files can be made: {error.strerror or error}; "
            "free space, or name a folder that has some: TMPDIR=/path"
        )
    first = _search_path(sys.path, origin, options.folder)
    # Last, so that what happens to lie next to the course is taken for no module that Python has.
    program = _PROGRAM.format(first=first, last=[os.path.realpath(Path(options.course).parent)])
    command = [sys.executable, "-P", "-c", program, json.dumps(asdict(options))]
    command += [] if pytest_arguments is None else [_UNDER_PYTEST, *pytest_arguments]
    command += [rounds] if rounds else []
    before = _written_at(options.report_folder)
    with place:
        # The judge holds its folder, too: it may live a little longer than a front that was killed.
        code = _wait(subprocess.Popen(command, cwd=folder, env=_environment(os.environ), pass_fds=(lock,)))
    if code - _ENDED in list(ExitCode):
        return code - _ENDED
    if code < 0:
        report = options.report_folder
        return refuse(_killed(-code) + (_kept(report) if _written_at(report) != before else ""))
    return int(ExitCode.COULD_NOT_GRADE)  # it has said why


def from_pytest(config: Any) -> int:
    """Grade with the options of a pytest that somebody started; refuses where it has run what it should not."""
    option, origin = config.known_args_namespace, Path(config.invocation_params.dir)
    submission = origin / option.submission
    path = config.inipath
    if path is not None and path.resolve().is_relative_to(submission.resolve()):
        return refuse(
            f"pytest has read {path}, which belongs to the submission; write --submission={option.submission}, "
            "with an equals sign, or grade with gpulabs"
        )
    if (file := loaded_from(origin, submission)) is not None:
        return refuse(
            f"Python has executed {file}, which belongs to the submission or is next to it, before the grader began; "
            "start in another folder, or grade with gpulabs"
        )
    course = config.hook.pytest_grade_course()
    if course is None:
        return refuse("no course is installed that could be graded: pytest --grade needs a course's own plugin")
    options = Options(
        course=str(course),
        submission=option.submission,
        lab=option.lab,
        criterion=option.criterion,
        device=option.device,
        seed=option.grade_seed,
        report=option.grade_report,
        overrides=option.overrides,
        student=option.student,
        time_limit=option.time_limit,
    )
    return run(options, [str(argument) for argument in config.invocation_params.args])


def judge(arguments: list[str]) -> int:
    """Be the judge: what runs in the process that `run` starts."""
    prefork.begin()
    if sys.platform == "linux":
        from gradebox.sandbox import linux

        linux.die_with_parent(signal.SIGTERM)
    for number in _STOPPING:
        signal.signal(number, _interrupt)
    options = Options(**json.loads(arguments[0]))
    if _UNDER_PYTEST in arguments[1:2]:
        import pytest

        from gradebox import pytest_judge

        pytest_judge.options = options
        pytest.main([*_PYTEST, "-p", JUDGE, *arguments[2:]])
        code = pytest_judge.ended_with
        return int(ExitCode.COULD_NOT_GRADE) if code is None else _ENDED + code
    try:
        from gradebox.judge import carry_out  # not in `run`'s process, which would wait for its imports first

        return _ENDED + carry_out(options, *arguments[1:2])
    except KeyboardInterrupt:
        return _ENDED + refuse("it was interrupted before the first check")


def loaded_from(origin: Path, submission: Path) -> str | None:
    """A file that this process has executed although it belongs to the submission or to the folder around it.

    `python -m pytest` searches the current folder first, and a `pytest.ini` may name plugins: both happen before us.
    """
    here, theirs = os.path.realpath(origin), os.path.realpath(submission)
    around = (_inside(here, theirs) or _inside(theirs, here)) and here != os.path.realpath(ROOT)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or any(f"/{library}/" in file for library in _LIBRARIES):
            continue
        path = os.path.realpath(file)
        root = os.path.dirname(path)
        for _ in range(name.count(".") + path.endswith("__init__.py")):
            root = os.path.dirname(root)
        if _inside(path, theirs) or (around and root == here):
            return path
    return None


def _interrupt(number: int, frame: FrameType | None) -> None:
    """One wish to stop is enough: the next ones must not interrupt the tidying up."""
    for each in _STOPPING:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def _killed(number: int) -> str:
    if number == signal.SIGALRM:
        return "the grading went on long after its time limit, and was ended"
    name = signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"
    why = ", perhaps for lack of memory" if number == signal.SIGKILL else ""
    return f"the grader itself was ended from outside ({name}{why})"


def _kept(report: Path) -> str:
    return f"; what was graded until then is in {report / 'grade.json'}, marked incomplete"


def _wait(process: subprocess.Popen[bytes]) -> int:
    """The process's exit code; a wish to stop is passed on, and its end waited for, so that it can tidy up."""
    wishes = 0
    deadline = math.inf

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal wishes, deadline
        wishes += 1
        deadline = min(deadline, time.monotonic() + _TIDY_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number if wishes < _IMPATIENCE else signal.SIGKILL)

    previous = {number: signal.signal(number, stop) for number in _STOPPING}
    try:
        while True:
            try:
                return process.wait(1.0 if deadline < math.inf else None)
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    process.kill()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _environment(environment: os._Environ[str]) -> dict[str, str]:
    """Without what Python and pytest would take orders from."""
    return {
        name: value
        for name, value in environment.items()
        if name in _KEPT_OF_PYTHON or not name.startswith(("PYTHON", "PYTEST_", "PY_", "COVERAGE_", "COV_"))
    }


def _search_path(path: Iterable[str], origin: Path, submission: Path) -> list[str]:
    """Our own folder, then what this process searches of libraries.

    Left out are the current folder, the submission, and everything in them or above the submission: libraries are
    elsewhere. The interpreter adds its own folders.
    """
    theirs = [os.path.realpath(folder) for folder in (submission, origin)]
    kept = [str(ROOT)]
    for entry in path:
        real = os.path.realpath(entry)
        foreign = any(_inside(real, folder) for folder in theirs) or _inside(theirs[0], real)
        library = os.path.basename(real) in _LIBRARIES
        if os.path.isabs(entry) and os.path.isdir(entry) and entry not in kept and (library or not foreign):
            kept.append(entry)
    return kept


def _inside(path: str, folder: str) -> bool:
    return (path + os.sep).startswith(folder.rstrip(os.sep) + os.sep)


def _written_at(report: Path) -> int | None:
    """When the grade in `report` was written; None where there is none that can be read."""
    file = report / "grade.json"
    try:
        json.loads(files.read_text(file))
        return file.stat().st_mtime_ns
    except (OSError, ValueError):
        return None
