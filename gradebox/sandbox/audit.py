"""An audit hook that notes what a submission does beyond computing: files elsewhere, processes, sockets, frame walks.

Set in the child before the submission is imported. Notes prevent nothing and cost no points. A submission voids the
check only if it reads or changes what a simulator measures with. `docs/threat-model-limits.md` has what it cannot see.
A noted event counts only when the nearest frame that is not of a library belongs to the submission, because libraries
themselves use ctypes, frames and sockets.
"""

from __future__ import annotations

import _thread
import functools
import json
import linecache
import os
import sys
import tokenize
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any

from gradebox.sandbox import byte_access, frames, memory_acts, native_code, simulator_access
from gradebox.sandbox.frames import ATTRIBUTE, FRAME_ATTRIBUTES
from gradebox.sandbox.identity import number_of
from gradebox.sandbox.safe_text import plain_ascii, safe
from gradebox.sandbox.trusted_code import TrustedCode, foreign_mode
from gradebox.sandbox.types import LISTED, NOTED, VOID

MAX_NOTES_OF_A_KIND = 12
_MAX_DETAIL = 200
_MAX_PLACE = 120

_CHANGES = ("object.__setattr__", "object.__delattr__")
_OF_FUNCTIONS = frozenset({"__code__", "__defaults__", "__kwdefaults__"})
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
        *("sys._getframe", "sys._current_frames", "sys._current_exceptions", ATTRIBUTE),
        *("sys.settrace", "sys.setprofile", "sys.addaudithook", "sys.monitoring.register_callback"),
    ),
    "gc": ("gc.get_objects", "gc.get_referrers", "gc.get_referents"),
    "import": ("import", "sqlite3.load_extension"),
    "interpreter": ("cpython.PyInterpreterState_New",),
    "disguise": ("compile", "code.__new__", "function.__new__", "marshal.loads"),
}
_KINDS = {event: kind for kind, events in _EVENTS.items() for event in events}
_OF_FRAMES = frozenset({"frames", "gc"})
"""Kinds that a library may do for the submission (`frames.py`)."""
_MORE_FRAMES = 200
_TRACING = frozenset({"sys.settrace", "sys.setprofile"})
_STEPS = "the probe's steps, by a trace function"
_FORBIDDEN_IMPORTS = frozenset(
    (
        *("gradebox", "gradebook", "solutions", "tests"),
        # Of Python's own tests, and other interpreters: doors to its insides that no program needs.
        *("_testcapi", "_testinternalcapi", "_testlimitedcapi", "_testbuffer", "_ctypes_test"),
        *("_xxsubinterpreters", "_interpreters", "_xxinterpchannels", "_interpchannels", "_interpqueues"),
    )
)
"""And the course's package."""
_LINES = (tokenize.open.__code__, linecache.updatecache.__code__)
"""By which `traceback` opens a file, for the lines that it shows."""
_HANDLER = "__torch_function__"
"""By which a mode answers."""
_LOOPBACK = ("127.", "::1", "localhost")


def install(
    ours: TrustedCode,
    functions: Mapping[int, str],
    folders: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]],
    emit: Callable[[bytes], None],
    void: Callable[[str], None],
    look: Callable[[bool], list[str]],
    modes: tuple[object, ...] = (),
) -> Callable[[], None]:
    """Start noting; what this returns says how many notes of each kind were left out.

    Args:
        ours: who is trusted; everything else is the submission's.
        functions: labels, by id, of those that nobody may give other code or defaults.
        folders: those it may open files in without a note, those of all native code that there is already, and those
            in the first that libraries alone write to.
        emit: takes one JSON line per note; each kind, detail and place once, `MAX_NOTES_OF_A_KIND` of a kind.
        void: called with plain words: the submission read reference values instead of measuring, or what it changed.
            Emitted as well, without any limit, as a note of kind `VOID`: a process that the submission forked
            cannot report otherwise.
        look: labels of the instruments that are not what they were; it is told whether to compare all. Called whenever
            a probe notes something, so that nobody can exchange one just for as long as it is used.
        modes: those of the simulator's, which may be on then.
    """
    # Everything the hook needs, as locals: a submission that replaces `os.getcwd` does not silence it. An audit hook
    # cannot be removed, and Python calls it before the act; that is why it, and no patched function, is the watch.
    ident, frame_above, dumps = _thread.get_ident, sys._getframe, json.JSONEncoder().encode
    about, kinds = ours.about, _KINDS | dict.fromkeys(_CHANGES, "change") | dict.fromkeys((NOTED, LISTED), "noted")
    of_functions = _OF_FUNCTIONS
    title = "" if about is None else about.title
    if about is not None:
        # A submission that reads a simulator's record has not measured by itself.
        kinds |= {about.record_event: "record", about.launch_event: "launch", about.broken_event: "broken"}
    tell, paths, innocent, culprit, plain = _detail, frozenset(_PATHS), simulator_access.innocent, _culprit, plain_ascii
    of_profiler, interrupts, depth, set_depth = (
        frames.is_profilers, frames.interrupts, sys.getrecursionlimit, sys.setrecursionlimit
    )  # fmt: skip
    traced, by_hand, reaches, asker = (
        frames.is_traced,
        simulator_access.is_by_hand,
        frames.reaches_hidden,
        frames.culprit,
    )
    foreign, between = _is_foreign, byte_access.BETWEEN
    of_memory, act_of, within_hook = memory_acts.EVENTS, memory_acts.act_of, _OF_FRAMES
    shows_lines = functools.partial(_shows_lines, lines=_LINES)
    maker = functools.partial(foreign_mode, ours, modes, _HANDLER)
    roots, caches = native_code.folders(folders[0]), native_code.folders(folders[2])
    native, native_roots = native_code.file_of, native_code.folders(folders[1])
    # Threads that are inside of the hook. The hook itself raises events as well (it may look at a frame), and
    # they must not be noted, nor call the hook for ever.
    busy: set[int] = set()
    deep: set[int] = set()
    noted: set[tuple[str, str, str]] = set()
    counts: dict[str, int] = {}

    def write(kind: str, detail: str, where: str) -> None:
        note = {"kind": kind, "detail": plain(detail, _MAX_DETAIL), "where": plain(where, _MAX_PLACE)}
        emit(dumps(note).encode() + b"\n")

    def make_void(what: str, frame: FrameType | None) -> None:
        where = culprit(frame, ours) or ""
        if (VOID, what, where) not in noted:
            noted.add((VOID, what, where))
            void(what)
            write(VOID, what, where)

    def note(kind: str, event: str, arguments: tuple[Any, ...], frame: FrameType | None) -> None:
        of_frames = kind in _OF_FRAMES
        if event in of_memory and (act := act_of(event, arguments, frame, ours)):
            make_void(*act)
        if of_frames and (hidden := reaches(event, arguments, ours)):
            make_void(f"{hidden}, by a way around it", frame)
        if kind == "interpreter":
            # It would have no hook, and the same memory.
            make_void("another interpreter in the same process", frame)
        if native_roots and (file := native(event, arguments, native_roots, frame, ours)):
            make_void(f"native code of its own, {file}", frame)
        if event in _TRACING and traced():  # one that is taken away before a probe looks
            make_void(_STEPS, frame)
        detail = tell(kind, event, arguments, roots, caches, ours)
        if detail is None or (event == "open" and shows_lines(frame, arguments[0], ours)):
            return
        if event == "sys.setprofile" and about is not None and _file_of(frame).endswith(about.profilers):
            return
        if kind == "disguise":
            # Code that claims a library's file would pass for ours wherever only names can be compared.
            if not foreign(frame, ours):
                return  # every import of a library compiles it
            if ours.folder and ours.folder in detail:
                make_void(f"{title}, by code in the name of its files", frame)
        while frame is not None and frame.f_code in between:
            frame = frame.f_back
        if kind == "ctypes":
            # By itself: libraries use it for anybody, and what they are handed voids the check.
            where = culprit(frame, ours) if foreign(frame, ours) else None
        else:
            where = asker(frame, ours, _function_of(event, arguments)) if of_frames else culprit(frame, ours)
        if where is None or (kind, detail, where) in noted:
            return
        if event == "sys.monitoring.register_callback" and not of_profiler(arguments):
            make_void(_STEPS, frame)
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] <= MAX_NOTES_OF_A_KIND:
            noted.add((kind, detail, where))
            write(kind, detail, where)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        # The commonest events first, and out: the hook runs tens of thousands of times in a grading.
        if event == ATTRIBUTE and arguments[1] not in FRAME_ATTRIBUTES:
            return
        kind = "open" if event in paths else kinds.get(event)
        if kind is None:
            if not event.startswith("ctypes."):
                return
            kind = "ctypes"
        if kind == "change":
            if arguments[1] in of_functions and id(arguments[0]) in functions:
                make_void(functions[id(arguments[0])], frame_above(1))
            return
        me = ident()
        if kind == "noted":
            within = me in busy
            busy.add(me)
            try:
                for label in (*look(event == LISTED), *[made for made in map(maker, arguments) if made]):
                    make_void(label, frame_above(1))
                if traced():
                    make_void(_STEPS, frame_above(1))
            finally:
                if not within:
                    busy.discard(me)
            return
        if kind == "launch":
            within = me in busy
            busy.add(me)
            try:
                # By identity of the code objects on the stack, never by names: a submission can give its code any name
                # of a file or function, but it cannot have a code object that existed before it.
                frame = frame_above(1)
                if by_hand(frame, ours, is_query=bool(arguments)):
                    what = f"{title}, asked by hand" if arguments else "kernels that never ran, launched by hand"
                    make_void(what, frame)
            finally:
                if not within:
                    busy.discard(me)
            return
        if kind == "broken":
            make_void(f"{title}, whose {safe(arguments[0] if arguments else None, 'parts')} somebody has written", None)
            return
        if kind == "record":
            # Even from within this hook: code that got into it must not read unseen.
            within = me in busy
            busy.add(me)
            try:
                frame = frame_above(1)
                what = f"{title}'s record of " + safe(arguments[0] if arguments else None, "something")
                # A trace function sees the locals of every frame, the record's among them, without asking for it.
                if traced():
                    make_void(what + ", under a trace function", frame)
                elif not innocent(frame, ours):
                    make_void(what, frame)
            finally:
                if not within:
                    busy.discard(me)
            return
        if me in busy:
            # The hook's own events; or those of code that interrupted it: a signal's handler, a finalizer, a callback
            # of the collector. Such code may be interrupted as well, so only the look at a frame is passed over.
            if me in deep:
                return
            deep.add(me)
            try:
                frame = frame_above(1)
            finally:
                deep.discard(me)
            if interrupts(frame, ours, own_code):
                if kind in within_hook and asker(frame, ours, _function_of(event, arguments)):
                    make_void(f"frames and values of the sandbox, by {event} while it looks", frame)
                note(kind, event, arguments, frame)
            return
        busy.add(me)
        try:
            note(kind, event, arguments, frame_above(1))
        except RecursionError:
            # Called so deep down that nothing could be noted, perhaps on purpose.
            limit = depth()
            set_depth(limit + _MORE_FRAMES)
            try:
                note(kind, event, arguments, frame_above(1))
            finally:
                set_depth(limit)
        except Exception:
            # An exception here would surface inside the submission's call; a lost note is the smaller harm.
            return
        finally:
            busy.discard(me)

    def finish() -> None:
        for kind, count in counts.items():
            if count > MAX_NOTES_OF_A_KIND:
                write(kind, f"{count - MAX_NOTES_OF_A_KIND} more of this kind were left out", "")

    own_code = hook.__code__
    byte_access.announce()
    sys.addaudithook(hook)
    return finish


def _shows_lines(frame: FrameType | None, file: object, ours: TrustedCode, *, lines: tuple[CodeType, ...]) -> bool:
    """Whether Python opens a file of trusted code to show lines of it: an error that a probe raised may be logged."""
    for code in lines:
        if frame is None or frame.f_code is not code:
            return False
        frame = frame.f_back
    return type(file) is str and file.startswith(ours.libraries) and "/../" not in file


def _file_of(frame: FrameType | None) -> str:
    return "" if frame is None else safe(frame.f_code.co_filename, "")


def _culprit(frame: FrameType | None, ours: TrustedCode) -> str | None:
    """Where the submission did it, or None when something else did.

    Args:
        frame: of the call that raised the event.
        ours: whose code is whose.
    """
    while frame is not None:
        code = frame.f_code
        if number_of(code) == ours.top:
            break
        name = safe(code.co_filename, "?")
        if _is_foreign(frame, ours):
            return f"{name.rpartition('/')[2]}:{frame.f_lineno} in {safe(code.co_name, '?')}"
        if name.endswith("/platform.py"):
            return None  # asks `uname` on its own account, in answer to an innocent question
        if not (name.startswith("<frozen") or (name.startswith(ours.libraries[:2]) and "-packages/" not in name)):
            return None
        frame = frame.f_back
    return None


def _is_foreign(frame: FrameType | None, ours: TrustedCode) -> bool:
    """Whether the code of a frame is the submission's, or of nobody we know."""
    name = frame.f_code.co_filename if frame is not None else ""
    return type(name) is not str or not name.startswith(ours.libraries)


def _function_of(event: str, arguments: tuple[Any, ...]) -> str:
    return str(arguments[1]) if event == ATTRIBUTE else event.rpartition(".")[2]


def _detail(
    kind: str,
    event: str,
    arguments: tuple[Any, ...],
    roots: tuple[str, ...],
    caches: tuple[str, ...],
    ours: TrustedCode,
    *,
    cwd: Callable[[], str] = os.getcwd,
    normpath: Callable[[str], str] = os.path.normpath,
    getpid: Callable[[], int] = os.getpid,
) -> str | None:
    """What to say about an event, or None when it is harmless."""
    first = arguments[0] if arguments else None
    if kind == "open":
        if first is None or type(first) is int:
            return None
        name = safe(first, "")
        path = normpath(name if name.startswith("/") else f"{cwd()}/{name}")
        within = (path + "/").startswith(roots) and not (path + "/").startswith(caches)
        if type(first) in (str, bytes) and (within or path == "/dev/null"):
            return None
        return f"{event} {path}" if type(first) in (str, bytes) else f"{event} {path}, named by an object of its own"
    if kind == "import":
        name = safe(first, "")
        top = name.partition(".")[0]
        is_native = "._C" in name  # of a library, which is asked for it by its own code alone
        return f"import {name}" if is_native or top in _FORBIDDEN_IMPORTS or (top and top == ours.course) else None
    if kind == "socket":
        address = arguments[0] if event == "socket.getaddrinfo" else arguments[1]
        if event == "socket.getaddrinfo" or type(address) is tuple:  # else it is a file's name, which nobody counts
            host = safe(address[0] if type(address) is tuple and address else address, "an object")
            if host in ("", "None") or host.startswith(_LOOPBACK):
                return None
        return f"{event} {safe(address, 'an object')}"
    if kind == "signal":
        return None if first == getpid() else f"{event} {safe(arguments, '')}"
    if kind == "subprocess":
        return f"{event} {safe(arguments[:2], '')}" if arguments else event
    if kind == "disguise":
        # "compile" names its file second, "code.__new__" too.
        name = safe(arguments[1], "") if len(arguments) > 1 else ""
        return f"{event} as {name}" if name else event
    names = {ATTRIBUTE: 1, byte_access.EVENT: 0}
    return f"{event} {safe(arguments[names[event]], '')}" if event in names else event
