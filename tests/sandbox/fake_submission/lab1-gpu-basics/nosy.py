"""What the audit hook should note."""

import contextlib
import ctypes
import gc
import inspect
import os
import socket
import subprocess
import sys


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
