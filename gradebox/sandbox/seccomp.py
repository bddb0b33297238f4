"""System calls that no lab needs, refused in the kernel: a classic BPF filter over a worker and all that it starts.

Keyrings outlive a process and carried answers from one student to the next; the others only widen what of the kernel
a submission can attack. A refused call fails with EPERM, and if the kernel informs a listener (Linux 5.0), the
supervisor notes its name. Not for files, networks and limits (`root.py`, `supervisor.py`, `worker.py`); what is not on
the list is allowed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import json
import os
import platform
import select
import socket
import struct
import sys

MAX_ANSWERED = 1000
"""Refused calls that one rank's supervisor answers; after these the kernel refuses by itself, with ENOSYS."""
_MOST_NAMED = 20
"""Kinds of refused calls, after which a socket is reported without its arguments."""
KIND = "syscall"
"""The kind of the notes about refused calls."""

# (x86_64, aarch64); None: there is no such call. From the kernel's arch/x86/entry/syscalls/syscall_64.tbl and
# include/uapi/asm-generic/unistd.h.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # Objects that outlive a process, and that the next student's could find.
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    # Kernel interfaces with a long history of holes.
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "fanotify_init": (300, 262),
    # Other processes.
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438), "kcmp": (312, 272),
    # The kernel counts no bytes that they move as written (wchar of /proc/self/io).
    "splice": (275, 76), "tee": (276, 77), "vmsplice": (278, 75),
    # Namespaces, mounts and files by handle.
    "unshare": (272, 97), "setns": (308, 268), "chroot": (161, 51), "pivot_root": (155, 41),
    "mount": (165, 40), "umount2": (166, 39), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "open_tree": (428, 428), "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    # The machine as a whole; most want privileges that a worker lacks anyway.
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "acct": (163, 89),
    "swapon": (167, 224), "swapoff": (168, 225), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "syslog": (103, 116), "lookup_dcookie": (212, 18), "nfsservctl": (180, 42), "vhangup": (153, 58),
    "sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "uselib": (134, None), "iopl": (172, None),
    "ioperm": (173, None), "modify_ldt": (154, None),
    # A filter of the submission's own could answer the writes of notes and results in the kernel's place.
    "seccomp": (317, 277),
}  # fmt: skip
_LOOKED_AT = {"clone": (56, 220), "clone3": (435, 435), "socket": (41, 198), "socketpair": (53, 199),
              "ioctl": (16, 29), "prctl": (157, 167)}  # fmt: skip
"""Calls whose arguments decide."""
_TRIED_BY_LIBRARIES = frozenset({"io_uring_setup", "io_uring_enter", "io_uring_register"})
"""Refused without a note: libuv, on which PyTorch's TCPStore runs, tries them and does without."""
_NEEDED_BY_CUDA = frozenset({"pidfd_getfd"})
"""PyTorch shares expandable segments between processes with it (c10/cuda/CUDACachingAllocator.cpp)."""
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine to its column above and its AUDIT_ARCH."""
_X32 = 0x40000000
"""Set in the numbers of x86_64's second, 32-bit interface."""

_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* that clone(2) knows: NS, CGROUP, UTS, IPC, USER, PID, NET
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, 10)  # 10: AF_INET6
_AF_NETLINK, _NETLINK_ROUTE = 16, 0  # getifaddrs, which gloo calls, asks the routing tables and nothing else
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX type into a terminal
_PR_SET_SECCOMP = 22

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16
_ALLOW, _ERRNO, _NOTIFY = 0x7FFF0000, 0x00050000, 0x7FC00000
_SET_MODE_FILTER, _NEW_LISTENER = 1, 8
_NOTIFICATION, _RESPONSE = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
_RECEIVE, _SEND = 0xC0002100 | _NOTIFICATION.size << 16, 0xC0002101 | _RESPONSE.size << 16
_PR_SET_NO_NEW_PRIVS = 38


@functools.cache
def program(machine: str, *, cuda: bool, listened: bool) -> bytes:
    """The filter, as `struct sock_filter`s.

    Args:
        machine: as `platform.machine()` says.
        cuda: leave open what PyTorch needs with a real GPU.
        listened: refused calls go to a listener that answers; else the kernel says EPERM by itself.

    Raises:
        OSError: the numbers of this machine's system calls are not known here.
    """
    if machine not in _MACHINES:
        raise OSError(f"the system calls of {machine} are not known")
    column, architecture = _MACHINES[machine]
    refuse = _NOTIFY if listened else _ERRNO | errno.EPERM
    names = [name for name in _REFUSED if not (cuda and name in _NEEDED_BY_CUDA)]
    rules = [
        (number, "refuse in silence" if name in _TRIED_BY_LIBRARIES else "refuse")
        for name in names
        if (number := _REFUSED[name][column]) is not None
    ]
    rules += [(numbers[column], name.removesuffix("pair")) for name, numbers in _LOOKED_AT.items()]
    # Blocks in the order in which they stand; jumps only lead forward, and over 255 instructions at most.
    blocks: dict[str, list[tuple[int, int, str, str]]] = {
        "clone": [_argument(0), (_JUMP_ANY_BIT, _NEW_NAMESPACES, "refuse", "allow")],
        "socket": [
            _argument(0),
            *((_JUMP_EQUAL, family, "allow", "") for family in _FAMILIES),
            (_JUMP_EQUAL, _AF_NETLINK, "", "refuse"),
            _argument(2),
            (_JUMP_EQUAL, _NETLINK_ROUTE, "allow", "refuse"),
        ],
        "prctl": [_argument(0), (_JUMP_EQUAL, _PR_SET_SECCOMP, "refuse", "allow")],
        "ioctl": [_argument(1), *((_JUMP_EQUAL, request, "refuse", "") for request in _TERMINAL_INPUT)],
        "allow": [(_RETURN, _ALLOW, "", "")],
        "refuse": [(_RETURN, refuse, "", "")],
        "refuse in silence": [(_RETURN, _ERRNO | errno.EPERM, "", "")],
        # So that glibc falls back to clone, whose flags can be seen.
        "clone3": [(_RETURN, _ERRNO | errno.ENOSYS, "", "")],
    }
    head = [
        (_LOAD, _MACHINE_AT, "", ""),
        (_JUMP_EQUAL, architecture, "", "refuse"),
        (_LOAD, _NUMBER_AT, "", ""),
        (_JUMP_AT_LEAST, _X32, "refuse", ""),
        *((_JUMP_EQUAL, number, block, "") for number, block in rules),
        (_JUMP_AT_LEAST, 0, "allow", "allow"),
    ]
    places, lines = {}, head
    for name, block in blocks.items():
        places[name] = len(lines)
        lines = lines + block
    return b"".join(
        struct.pack("=HBBI", code, *(places[to] - at - 1 if to else 0 for to in (yes, no)), value)
        for at, (code, value, yes, no) in enumerate(lines)
    )


def _argument(index: int) -> tuple[int, int, str, str]:
    """Load the lower half of an argument; both machines are little-endian."""
    return _LOAD, _ARGUMENTS_AT + 8 * index, "", ""


def install(*, cuda: bool, listened: bool) -> int | None:
    """Filter this thread's system calls from now on, and those of what it starts; the listener's descriptor.

    Raises:
        OSError: this kernel or machine cannot, or (with `listened`) has another listener already.
    """
    code = program(platform.machine(), cuda=cuda, listened=listened)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, *(ctypes.c_ulong(value) for value in (1, 0, 0, 0))) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    held = ctypes.create_string_buffer(code)
    filled = struct.pack("@HP", len(code) // 8, ctypes.addressof(held))
    number = _REFUSED["seccomp"][_MACHINES[platform.machine()][0]]
    flags = ctypes.c_uint(_NEW_LISTENER if listened else 0)
    got = libc.syscall(ctypes.c_long(number or 0), ctypes.c_uint(_SET_MODE_FILTER), flags, filled)
    if got < 0:
        problem = ctypes.get_errno()
        raise OSError(problem, f"seccomp: {os.strerror(problem)}")
    return int(got) if listened else None


def enter(control: int, *, cuda: bool) -> None:
    """In a worker: install the filter, and send the listener through socket `control`.

    Raises:
        OSError: no filter could be installed at all.
    """
    with socket.socket(fileno=control) as way_out:
        try:
            listener = install(cuda=cuda, listened=True)
        except OSError:  # an older kernel, or a container whose own filter has the only listener
            install(cuda=cuda, listened=False)
            return
        assert listener is not None
        socket.send_fds(way_out, [b"x"], [listener])
        os.close(listener)


def attempt() -> None:
    """In a process that ends afterwards: install the filter and see that it refuses.

    Raises:
        OSError: it cannot be had here.
    """
    if sys.platform != "linux":
        raise OSError(f"{sys.platform} has no seccomp")
    install(cuda=False, listened=False)
    try:
        socket.socket(38, socket.SOCK_SEQPACKET).close()  # AF_ALG, which an ordinary user may have otherwise
    except PermissionError:
        return
    except OSError as error:
        raise OSError(f"a refused call failed with {error.strerror} instead") from None
    raise OSError("a refused call went through")


def prepare() -> None:
    """Build the filters once, for a process whose forked children install them."""
    for cuda in (False, True):
        for listened in (False, True):
            program(platform.machine(), cuda=cuda, listened=listened)


class Refusals:
    """What the filter of one rank refused, seen from its supervisor, which answers each such call with EPERM."""

    def __init__(self, control: socket.socket) -> None:
        self._control: socket.socket | None = control
        self._listener = -1
        self._counts: dict[str, int] = {}

    @property
    def descriptor(self) -> int:
        """What to poll; -1 when there is nothing to wait for."""
        return self._control.fileno() if self._control is not None else self._listener

    def answer(self, events: int) -> None:
        """Deal with what `poll` said about `descriptor`. Never waits."""
        if self._control is not None:
            with self._control as control:
                self._control = None
                _, descriptors, _, _ = socket.recv_fds(control, 1, 1, socket.MSG_DONTWAIT)
                self._listener = descriptors[0] if descriptors else -1
        elif events & select.POLLIN and sum(self._counts.values()) < MAX_ANSWERED:
            self._refuse()
        else:  # nobody is left to call, or somebody calls without end
            self.close()

    def _refuse(self) -> None:
        notification = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, notification)
            identity, _, _, number, architecture, _, *arguments = _NOTIFICATION.unpack(notification)
            name = _name(number, architecture)
            if name.startswith("socket") and len(self._counts) < _MOST_NAMED:
                # Which one says whether somebody meant harm.
                name += f"({', '.join(str(argument & 0xFFFFFFFF) for argument in arguments[:3])})"
            self._counts[name] = self._counts.get(name, 0) + 1
            fcntl.ioctl(self._listener, _SEND, bytearray(_RESPONSE.pack(identity, 0, -errno.EPERM, 0)))
        except OSError:  # ENOENT: the caller is gone
            return

    def close(self) -> None:
        if self._listener >= 0:
            os.close(self._listener)
            self._listener = -1
        if self._control is not None:
            self._control.close()
            self._control = None

    @property
    def notes(self) -> str:
        """One JSON line for each call, as the audit hook writes its own."""
        lines = [
            {"kind": KIND, "detail": f"{name} was refused" + (f" {count} times" if count > 1 else ""), "where": ""}
            for name, count in self._counts.items()
        ]
        return "".join(json.dumps(line) + "\n" for line in lines)


def _name(number: int, architecture: int) -> str:
    column, native = _MACHINES[platform.machine()]
    if architecture != native or number >= _X32:
        return "a 32-bit system call"
    known = {numbers[column]: name for name, numbers in {**_REFUSED, **_LOOKED_AT}.items()}
    return known.get(number, f"system call {number}")
