"""An audit hook that notes what a submission does beyond computing: files elsewhere, processes, sockets, frame walks.

Set in the child before the submission is imported. It prevents nothing and costs no points; `docs/threat-model.md` says
what it cannot see. An event counts only when the nearest frame that is not of the standard library belongs to the
submission, because torch itself uses ctypes, frames and sockets.
"""

from __future__ import annotations

import _thread
import json
import os
import sys
import sysconfig
from collections.abc import Callable
from types import FrameType
from typing import Any

MAX_NOTES = 64
_MAX_DETAIL = 200

_TRUTH = "vgpu.record"
"""Raised by the virtual GPU when somebody reads what it has recorded: who does has not measured by himself."""
_PATHS = frozenset(
    (
        *("open", "os.listdir", "os.scandir", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.chown"),
        *("os.link", "os.symlink", "os.truncate", "os.chdir", "os.utime", "shutil.rmtree"),
    )
)
_EVENTS = {
    "subprocess": (
        *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"),
        *("os.fork", "os.forkpty", "pty.spawn"),
    ),
    "signal": ("os.kill", "os.killpg"),
    "socket": ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo"),
    "frames": (
        *("sys._getframe", "sys._current_frames", "sys._current_exceptions"),
        *("sys.settrace", "sys.setprofile", "sys.addaudithook", "sys.monitoring.register_callback"),
    ),
    "gc": ("gc.get_objects", "gc.get_referrers", "gc.get_referents"),
    "import": ("import",),
    "truth": (_TRUTH,),
}
_KINDS = {event: kind for kind, events in _EVENTS.items() for event in events}
_FORBIDDEN_IMPORTS = frozenset({"grader", "solutions", "tests"})
_LOOPBACK = ("127.", "::1", "localhost")


def install(
    submission: str, allowed: tuple[str, ...], emit: Callable[[bytes], None], void: Callable[[str], None]
) -> None:
    """Start noting.

    Args:
        submission: folder of the submission's copy; frames of files below it are the submission's.
        allowed: folders it may open files in without a note.
        emit: takes one JSON line per note; each kind, detail and place is emitted once, `MAX_NOTES` in all.
        void: told, in plain words, that the submission read the truth instead of measuring.
    """
    # Everything the hook needs, as locals: a submission that replaces `os.getcwd` does not silence it.
    ident, frame_above, dumps, basename = _thread.get_ident, sys._getframe, json.JSONEncoder().encode, os.path.basename
    tell, kinds, paths = _detail, dict(_KINDS), frozenset(_PATHS)
    prefix = submission.rstrip("/") + "/"
    roots = tuple(os.path.realpath(path).rstrip("/") + "/" for path in (submission, *allowed))
    stdlib = tuple({sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib")})
    busy: set[int] = set()
    seen: set[tuple[str, str, str]] = set()

    def culprit(frame: FrameType | None, direct: bool) -> str | None:
        """Where the submission did it, or None when something else did."""
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(prefix):
                return f"{basename(name)}:{frame.f_lineno} in {frame.f_code.co_name}"
            if name.endswith("/platform.py"):
                return None  # asks `uname` on its own account, in answer to an innocent question
            library = name.startswith("<frozen") or (name.startswith(stdlib) and "-packages/" not in name)
            # namedtuple, logging and dataclasses walk one frame for everybody; only `inspect` walks on request.
            if not library or (direct and not name.endswith("/inspect.py")):
                return None
            frame = frame.f_back
        return None

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        kind = "open" if event in paths else kinds.get(event)
        if kind is None:
            if not event.startswith("ctypes."):
                return
            kind = "ctypes"
        me = ident()
        if me in busy or len(seen) >= MAX_NOTES:
            return
        busy.add(me)
        try:
            detail = tell(kind, event, arguments, roots)
            if detail is None:
                return
            # The virtual GPU raises its event in the property that was read: who read it is one frame above.
            where = culprit(frame_above(2 if kind == "truth" else 1), kind == "frames")
            if where is None or (kind, detail, where) in seen:
                return
            seen.add((kind, detail, where))
            if kind == "truth":
                void(detail)
            emit(dumps({"kind": kind, "detail": detail, "where": where}).encode() + b"\n")
        except Exception:
            # An exception here would surface inside the submission's call; a lost note is the smaller harm.
            return
        finally:
            busy.discard(me)

    sys.addaudithook(hook)


def _detail(
    kind: str,
    event: str,
    arguments: tuple[Any, ...],
    roots: tuple[str, ...],
    *,
    cwd: Callable[[], str] = os.getcwd,
    normpath: Callable[[str], str] = os.path.normpath,
) -> str | None:
    """What to say about an event, or None when it is harmless."""
    first = arguments[0] if arguments else None
    if kind == "open":
        if not isinstance(first, (str, bytes)):
            return None
        name = os.fsdecode(first)
        path = normpath(name if name.startswith("/") else f"{cwd()}/{name}")
        if (path + "/").startswith(roots) or path == "/dev/null":
            return None
        return f"{event} {path}"[:_MAX_DETAIL]
    if kind == "import":
        return f"import {first}"[:_MAX_DETAIL] if str(first).partition(".")[0] in _FORBIDDEN_IMPORTS else None
    if kind == "socket":
        address = arguments[0] if event == "socket.getaddrinfo" else arguments[1]
        host = address[0] if isinstance(address, tuple) and address else address
        if host is None or str(host).startswith(_LOOPBACK) or host == "":
            return None
        return f"{event} {address}"[:_MAX_DETAIL]
    if kind == "signal":
        return None if first == os.getpid() else f"{event} {arguments}"[:_MAX_DETAIL]
    if kind == "subprocess":
        return f"{event} {arguments[:2]}"[:_MAX_DETAIL] if arguments else event
    if kind == "truth":
        return f"the virtual GPU's record of {first}"[:_MAX_DETAIL]
    return event
