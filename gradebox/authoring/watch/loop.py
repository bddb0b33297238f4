"""Waits for a file to be saved, grades, shows, and waits again, until it is interrupted."""

from __future__ import annotations

import ast
import time
from collections.abc import Mapping
from pathlib import Path

from gradebox.authoring.watch.screen import Screen
from gradebox.authoring.watch.session import Round, Session
from gradebox.common.exit_codes import ExitCode, refuse
from gradebox.run.options import Options
from gradebox.run.request import GradingError, GradingRequest
from gradebox.run.request_builder import build_request
from gradebox.sandbox import SandboxError, copying

_LOOK_SECONDS = 0.2
"""Between looks at the folder. Looking finds saves on any file system, a shared one and one of another system, too."""
_SETTLED_SECONDS = 0.1
"""Editors write a file in several steps: so long nothing may change."""

_Files = Mapping[str, tuple[int, int]]
"""Size and time of the last change, by path in our layout."""


def watch(options: Options) -> ExitCode:
    """Grade whenever a file of the submission is saved; returns when it is interrupted.

    Raises:
        GradingError, ValueError, DeviceError: nothing can be graded; the message is one line.
    """
    order = build_request(options)
    try:
        session = Session(order)
    except SandboxError as error:
        raise GradingError(str(error)) from None
    screen = Screen(session.titles)
    try:
        with session:
            _watch(session, screen)
    except KeyboardInterrupt:
        screen.close()
        screen.say("\nno longer watching; no grade was written")
    except SandboxError as error:
        return refuse(str(error))
    finally:
        screen.close()
    return ExitCode.PASSED


def _watch(session: Session, screen: Screen) -> None:
    """Raises GradingError where not even the first round works."""
    order = session.order
    criteria = ", ".join(criterion.id for lab in order.labs for criterion in lab.criteria)
    screen.say(f"watching {order.name} for {criteria} on {order.device.label}; Ctrl-C ends it")
    before: _Files = {}
    begun = False
    while True:
        try:
            now = _settled(order, before)
        except SandboxError as error:  # the folder is gone, or too large
            if not begun:
                raise GradingError(str(error)) from None
            screen.refused(str(error))
            time.sleep(5 * _LOOK_SECONDS)
            continue
        changed = sorted(name for name in {*now, *before} if now.get(name) != before.get(name))
        before = now
        screen.saved(changed) if begun else screen.first(len(session.plan))
        begun = _round(session, screen, before, begun) is not None or begun


def _round(session: Session, screen: Screen, files: _Files, begun: bool) -> Round | None:
    """Grade once; None where that could not be done.

    Raises:
        GradingError: not even the first time.
    """
    try:
        if (broken := _broken(session.order)) is not None:
            screen.close()
            screen.broken(*broken)
            return None
        round_ = session.again(screen, stale=lambda: _files(session.order) != files)
    except (GradingError, SandboxError) as error:
        screen.close()
        if not begun:
            raise GradingError(str(error)) from None
        screen.refused(str(error))
        return None
    screen.over(round_)
    return round_


def _settled(order: GradingRequest, before: _Files) -> _Files:
    """What the folder holds when it is something else than `before`, and has been for a moment."""
    while (now := _files(order)) == before:
        time.sleep(_LOOK_SECONDS)
    while True:
        time.sleep(_SETTLED_SECONDS)
        if (later := _files(order)) == now:
            return now
        now = later


def _files(order: GradingRequest) -> _Files:
    """Raises SandboxError: the folder cannot be graded."""
    entries = copying.scan(order.submission, order.course.environment.labs)
    return {entry.target: (entry.size_bytes, entry.modified_ns) for entry in entries}


def _broken(order: GradingRequest) -> tuple[str, str] | None:
    """The first file of the labs that are graded which Python cannot read, with its line, and why."""
    packages = {lab.package for lab in order.labs}
    for entry in copying.scan(order.submission, order.course.environment.labs):
        if entry.target.partition("/")[0] not in packages or not entry.target.endswith(".py"):
            continue
        try:
            ast.parse(Path(entry.source).read_bytes())
        except OSError:
            continue
        except SyntaxError as error:
            return f"{entry.target}:{error.lineno or 1}", error.msg
        except (ValueError, RecursionError) as error:
            return entry.target, str(error)
    return None
