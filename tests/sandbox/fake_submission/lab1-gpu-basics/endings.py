"""Every way not to return."""

import contextlib
import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time


def exit_hard():
    os._exit(0)


def exit_softly():
    sys.exit(3)


def crash():
    faulthandler._sigsegv()


def kill_myself():
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_nobody():
    threading.Event().wait()


def spin():
    while True:
        pass


def swallow_everything():
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(0.01)


def ignore_sigterm():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(0.01)


def long_c_call():
    return sum(range(10**12))


def eat_memory():
    hoard = []
    while True:
        hoard.append(bytearray(b"x") * (16 * 2**20))


def eat_memory_in_programs():
    """Several programs of their own, none of them large."""
    source = "x = bytearray(b'x') * (96 * 2**20); import time; time.sleep(100)"
    programs = [subprocess.Popen([sys.executable, "-S", "-c", source]) for _ in range(8)]
    return [program.wait() for program in programs]


def share_memory_with_forks():
    """Six processes that share one block: it is there once."""
    block = bytearray(b"x") * (128 * 2**20)
    children = []
    for _ in range(6):
        child = os.fork()
        if child == 0:
            time.sleep(0.5)
            os._exit(len(block) % 2)
        children.append(child)
    return [os.waitpid(child, 0)[1] for child in children]


def ask_for_too_much():
    return len(bytearray(2**45))


def print_forever():
    while True:
        print("x" * 10000)


def print_a_lot():
    for _ in range(200_000):
        print("x" * 100)
    print("the end")
    return 1


def return_too_much():
    return "x" * (3 * 2**20)


def write_to_every_descriptor():
    """Flood whatever is open, the result's pipe included."""
    while True:
        for descriptor in range(3, 30):
            try:
                os.write(descriptor, b"x" * 65536)
            except OSError:
                continue


def fill_the_disk():
    with open("big", "wb") as file:
        while True:
            file.write(b"x" * 2**20)


def fill_the_disk_with_many_files():
    number = 0
    while True:
        number += 1
        with open(f"big{number}", "wb") as file:
            file.write(b"x" * 2**20)


def fork_without_end():
    while True:
        os.fork()


def fork_swallowing_errors():
    while True:
        with contextlib.suppress(OSError):
            os.fork()


def start_threads_without_end():
    while True:
        threading.Thread(target=time.sleep, args=(100,), daemon=True).start()


def leave_a_daemon(name):
    """Double fork, new session, and a name to be found by."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)
            time.sleep(1000)
        os._exit(0)
    os.wait()
    time.sleep(0.05)
    return "done"


def leave_a_thread():
    threading.Thread(target=spin).start()
    return "done"


def raise_oddly():
    class Odd(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    raise Odd


def deep_result():
    value = []
    for _ in range(500):
        value = [value]
    return value
