"""System calls that a submission has no use for, made as C would make them."""

import ctypes
import errno
import os
import platform
import socket
import subprocess
import sys

from labs.lab1_gpu_basics.programs import in_a_program

_libc = ctypes.CDLL(None, use_errno=True)
_COLUMN = {"x86_64": 0, "aarch64": 1}[platform.machine()]
_NUMBERS = {
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "io_uring_setup": (425, 425), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "pidfd_getfd": (438, 438),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "open_tree": (428, 428), "fsopen": (430, 430),
    "name_to_handle_at": (303, 264), "seccomp": (317, 277), "shmget": (29, 194), "mq_open": (240, 180),
    "splice": (275, 76), "tee": (276, 77), "vmsplice": (278, 75),
}  # fmt: skip


def _call(name, *arguments):
    """The call's error, or None where it succeeded."""
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    if _libc.syscall(ctypes.c_long(_NUMBERS[name][_COLUMN]), *wide) >= 0:
        return None
    return errno.errorcode[ctypes.get_errno()]


@in_a_program
def errors():
    """What each of them says, with arguments that are nonsense to it."""
    return {name: _call(name, 0, 0, 0, 0, 0) for name in _NUMBERS}


def families():
    """Which kinds of sockets there are."""
    found = []
    for family in range(1, 46):
        for protocol in (0, 15):  # 15: NETLINK_KOBJECT_UEVENT
            try:
                socket.socket(family, socket.SOCK_DGRAM, protocol).close()
            except OSError:
                continue
            found.append([family, protocol])
    return found


@in_a_program
def new_user_namespace():
    """clone with CLONE_NEWUSER, which is not unshare."""
    clone = {"x86_64": 56, "aarch64": 220}[platform.machine()]
    child = _libc.syscall(ctypes.c_long(clone), ctypes.c_long(0x10000000 | 17), None, None, None, None)
    if child == 0:
        os._exit(0)
    return "made" if child > 0 else errno.errorcode[ctypes.get_errno()]


@in_a_program
def own_filter():
    """prctl(PR_SET_SECCOMP), with which notes could be thrown away."""
    return None if _libc.prctl(22, 2, None, 0, 0) == 0 else errno.errorcode[ctypes.get_errno()]


@in_a_program
def leave_key(text):
    """A key in the keyrings of the process, the session, the user and the user's session."""
    data = text.encode()
    return [_call("add_key", b"user", b"gpulabs-answer", data, len(data), -ring) for ring in (2, 3, 4, 5)]


@in_a_program
def find_key():
    return _call("request_key", b"user", b"gpulabs-answer", None, 0)


def refused_in_a_program():
    """The filter holds for programs that the submission starts."""
    program = "import ctypes; c = ctypes.CDLL(None, use_errno=True); c.syscall(%d, 0); print(ctypes.get_errno())"
    return subprocess.run(
        [sys.executable, "-c", program % _NUMBERS["keyctl"][_COLUMN]], capture_output=True, text=True, check=True
    ).stdout


@in_a_program
def many_times(count):
    return {_call("keyctl", 0, 0, 0, 0, 0) for _ in range(count)} == {"EPERM"}


@in_a_program
def without_end():
    while _call("keyctl", 0, 0, 0, 0, 0) == "EPERM":
        pass
    return "the kernel refuses by itself"


def ids():
    return [os.getuid(), os.getgid()]
