"""What the audit hook should note."""

import asyncio
import bdb
import collections
import contextlib
import ctypes
import gc
import inspect
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path


def look_around():
    with contextlib.suppress(OSError):
        open("/proc/self/maps").close()
    with contextlib.suppress(OSError):
        os.listdir("/")
    with contextlib.suppress(OSError):
        subprocess.run(["/bin/true"], check=False)
    with contextlib.suppress(OSError):
        socket.create_connection(("192.0.2.1", 80), timeout=0.01)
    ctypes.CDLL(None)
    sys._getframe(1)
    inspect.stack()
    gc.get_objects()
    with contextlib.suppress(ImportError):
        import solutions  # noqa: F401
    return 1


def a_socket_with_the_name_of_an_address():
    with socket.socket(socket.AF_UNIX) as line:
        line.bind("127.0.0.1")


def a_file_in_a_librarys_folder():
    Path(".cache").mkdir()
    Path(".cache/kept").write_text("")


def then_exit():
    gc.get_objects()
    os._exit(0)


def many_times():
    for _ in range(1000):
        gc.get_objects()
    for number in range(1000):
        with contextlib.suppress(OSError):
            open(f"/nowhere/{number}").close()
    return 1


def junk_first():
    many_times()
    gc.get_objects()
    return 1


def floods_the_notes():
    """Junk written to the pipe itself, which is the second of three."""
    pipes = [number for number in range(3, 64) if _is_pipe(number)]
    for _ in range(100):
        os.write(pipes[1], b"junk\n" * 1000)
    return 1


def replaces_the_notes_pipe():
    _silence()
    return 1


def silent_for_a_while():
    """The pipe is back before anybody looks."""
    pipe, kept = _silence()
    gc.get_objects()
    os.dup2(kept, pipe)
    return 1


def full_notes_pipe():
    """A note that would have to wait is dropped by the kernel."""
    pipe = [number for number in range(3, 64) if _is_pipe(number)][1]
    _, other = os.pipe()
    os.set_blocking(other, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(other, bytes(4096))
    kept = os.dup(pipe)
    os.dup2(other, pipe)
    gc.get_objects()
    os.dup2(kept, pipe)
    return 1


def replaces_it_and_leaves():
    _silence()
    os._exit(0)


def closes_everything_in_a_child():
    """As daemons do; nothing of it is the rank's."""
    child = os.fork()
    if child == 0:
        os.closerange(3, 256)
        os._exit(0)
    os.waitpid(child, 0)
    return 1


def _silence():
    pipe = [number for number in range(3, 64) if _is_pipe(number)][1]
    kept = os.dup(pipe)
    os.dup2(os.open(os.devnull, os.O_WRONLY), pipe)
    return pipe, kept


def _is_pipe(number):
    try:
        return os.readlink(f"/proc/self/fd/{number}").startswith("pipe:")
    except OSError:
        return False


def names_with_methods():
    """A str and a bytes that would run code of their own inside the hook."""
    ran = []

    class Name(str):
        def startswith(self, *arguments):
            ran.append("startswith")
            return True

        def __format__(self, how):
            ran.append("format")
            return "harmless"

    class Raw(bytes):
        def decode(self, *arguments):
            ran.append("decode")
            return "/tmp/harmless"

    for name in (Name("/proc/self/maps"), Raw(b"/proc/self/status")):
        with contextlib.suppress(OSError):
            open(name).close()
    with contextlib.suppress(OSError):
        socket.create_connection((Name("192.0.2.1"), 80), timeout=0.01)
    return ran


def frames_through_a_library():
    from torch.utils._pytree import tree_map

    tree_map(sys._getframe, [0])
    tree_map(inspect.currentframe, [])
    return 1


def frames_of_walk_stack():
    for frame, _ in traceback.walk_stack(None):
        frame.f_locals  # noqa: B018
    return 1


def frames_of_walk_tb():
    try:
        raise ValueError
    except ValueError as error:
        return [frame.f_lineno for frame, _ in traceback.walk_tb(error.__traceback__)] and 1


def frames_of_logging():
    return logging.currentframe().f_lineno and 1


def frames_of_asyncio():
    async def stack():
        return asyncio.current_task().get_stack()

    return len(asyncio.run(stack())) and 1


def frames_of_bdb():
    try:
        raise ValueError
    except ValueError as error:
        return len(bdb.Bdb().get_stack(None, error.__traceback__)) and 1


def frames_of_torchscript():
    from torch._jit_internal import createResolutionCallbackFromFrame

    return createResolutionCallbackFromFrame(2)("student") is not None and 1


def frames_of_the_deepest_call():
    """Asked where a hook may be called and can call nothing."""

    def dive(calls):
        return dive(calls - 1) if calls else sys._getframe() is not None

    for calls in range(sys.getrecursionlimit(), 0, -1):
        with contextlib.suppress(RecursionError):
            return dive(calls) and 1
    return 0


def frames_of_a_hook_that_is_interrupted():
    """By a handler that runs while the hook looks at the name of a file."""
    asked = []
    signal.signal(signal.SIGVTALRM, lambda *_: asked.append(sys._getframe() is not None))
    name = "/tmp" + "/a/.." * 5_000_000
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.01)
    with contextlib.suppress(OSError, ValueError):
        open(name).close()
    return len(asked)


def moves_bytes_by_a_librarys_ctypes():
    """Without an import, or a call that raises an event."""
    import numpy as np

    library = vars(np.ctypeslib)["cty" + "pes"]
    word = np.zeros(1, np.int64)
    vars(library)["memmove"](word.__array_interface__["data"][0], id(word), 8)
    return int(word[0]) > 0


def looks_elsewhere_within_the_hook():
    """By a callback of the collector, which runs when the hook makes its second container."""
    began = []

    def called_back(phase, _):
        began.append(phase)
        if began.count("start") == 2 and phase == "start":
            os.listdir("/proc")

    before = gc.get_threshold()
    gc.callbacks.append(called_back)
    gc.set_threshold(1)
    sys.audit("os.chdir", "/etc/nothing/is/there")
    gc.set_threshold(*before)
    gc.callbacks.remove(called_back)
    return began.count("start") >= 2


def frame_of_a_handler():
    """What a handler is given."""
    given = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: given.append((number, frame)))
    handler = signal.getsignal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    was_kept = handler(0, 1) is None and given.pop() == (0, 1)
    signal.signal(signal.SIGUSR1, before)
    return [was_kept, given == [(signal.SIGUSR1, None)], signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL]


def traces_by_bdb(note):
    bdb.Bdb().set_trace()
    note()
    return 1


def traces_and_stops(note):
    sys.setprofile(lambda *_: None)
    sys.setprofile(None)
    return 1


def handler_by_a_module_of_its_own(note):
    """Set by the function in C, which hands it frames."""
    import importlib.util

    spec = importlib.util.find_spec("_signal")
    own = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own)
    own.signal(signal.SIGUSR1, lambda *_: None)
    note()
    return 1


def needles_in_the_frames():
    """What the variables of all frames hold, as `capture_locals` shows them, and what lies in them."""
    frame, found = sys._getframe(), set()
    while frame is not None:
        for value in list(frame.f_locals.values()):
            for one in (value, getattr(value, "__dict__", None)):
                found.update(re.findall("needle-[0-9]+", repr(one)))
        frame = frame.f_back
    return sorted(found)


def prints_and_logs():
    """As honest code does; nobody walks."""
    try:
        raise ValueError
    except ValueError:
        traceback.print_exc()
        logging.getLogger("labs").exception("it happened")
    logging.getLogger("labs").warning("once")
    return collections.namedtuple("Pair", "one two")(1, 2).one


def code_in_anothers_name():
    import torch

    exec(compile("open('/proc/self/maps').close()", torch.__file__, "exec"), {})
    return 1
