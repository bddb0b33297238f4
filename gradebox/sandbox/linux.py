"""The few Linux calls Python does not offer on every version we support: namespaces, mounts, capabilities, prctl.

Only thin wrappers that raise `OSError` with the name of the call; what to do with them is decided in `root.py`,
`supervisor.py` and `server.py`. Importable everywhere, usable on Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import signal
import socket
import struct
import sys
from collections.abc import Collection

AVAILABLE = sys.platform == "linux"

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

_CLONE_VM = 0x00000100
_CLONE_VFORK = 0x00004000

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4

_SYS_MOUNT_SETATTR = 442  # the same number on every architecture
_SYS_KEYCTL = {"x86_64": 250, "aarch64": 219, "ppc64le": 271, "s390x": 280}
_KEYCTL_JOIN_SESSION_KEYRING = 1
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "ppc64le": 203, "s390x": 217}
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 0x1
_MOUNT_ATTR_NOSUID = 0x2
_CAPABILITY_VERSION_3 = 0x20080522
_MADV_COLLAPSE = 25
_HUGE_PAGE_BYTES = 2 * 2**20

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        shown = " ".join(a.decode(errors="replace") for a in arguments if isinstance(a, bytes))
        raise OSError(number, f"{name} {shown}".strip() + f": {os.strerror(number)}")


def _prctl(option: int, argument: int = 0) -> None:
    _call("prctl", option, *(ctypes.c_ulong(value) for value in (argument, 0, 0, 0)))


def unshare(flags: int) -> None:
    _call("unshare", flags)


def setns(descriptor: int, flags: int) -> None:
    _call("setns", descriptor, flags)


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str | None = None) -> None:
    _call(
        "mount",
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() if options else None,
    )


def pivot_root_here() -> None:
    """Make the current directory the root and let go of the old one."""
    number = _SYS_PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError(f"no pivot_root number known for {platform.machine()}")
    _call("syscall", ctypes.c_long(number), b".", b".")
    _call("umount2", b".", MNT_DETACH)
    os.chdir("/")


def make_read_only(path: str) -> None:
    """`path` and every mount below it, which a read-only bind alone would not reach (Linux 5.12)."""
    _mount_setattr(path, _AT_RECURSIVE, add=_MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID)


def make_writable(path: str) -> None:
    """The one mount at `path`, not those below it."""
    _mount_setattr(path, 0, remove=_MOUNT_ATTR_RDONLY)


def _mount_setattr(path: str, flags: int, *, add: int = 0, remove: int = 0) -> None:
    attributes = struct.pack("=QQQQ", add, remove, 0, 0)
    _call(
        "syscall",
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        -1,
        os.fsencode(path),
        ctypes.c_uint(flags),
        attributes,
        ctypes.c_size_t(len(attributes)),
    )


def map_own_ids(uid: int, gid: int) -> None:
    """After unsharing a user namespace: keep our own ids inside it. The process must be dumpable."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def id_is_mapped(uid: int) -> bool:
    """Whether this user namespace knows `uid`; in rootless containers only a range exists."""
    with open("/proc/self/uid_map") as file:
        ranges = [[int(word) for word in line.split()] for line in file]
    return any(first <= uid < first + count for first, _, count in ranges)


def raise_loopback() -> None:
    """Bring `lo` up in a fresh network namespace."""
    get_flags, set_flags, up = 0x8913, 0x8914, 0x1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        interface = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack_from("h", fcntl.ioctl(handle, get_flags, interface), 16)
        fcntl.ioctl(handle, set_flags, struct.pack("16sh14x", b"lo", flags | up))


def drop_privileges(uid: int | None) -> None:
    """Take `uid` (None: keep ours), then give up every capability for good."""
    if AVAILABLE:
        for capability in range(64):
            try:
                _prctl(_PR_CAPBSET_DROP, capability)
            except OSError:  # EINVAL ends the list of known ones; EPERM: not ours to drop
                break
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    if not AVAILABLE:
        return
    with contextlib.suppress(OSError):  # kernels without ambient capabilities have none to clear
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _call("capset", header, struct.pack("=6I", *[0] * 6))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    # Changing the uid made /proc/self unreadable to ourselves; the profiler and the allocator read it.
    set_dumpable(True)


def syscall(number: int, *arguments: object) -> int:
    """A system call by its number, and what it returns.

    Raises:
        OSError: it failed.
    """
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"system call {number}: {os.strerror(code)}")
    return result


def inotify() -> int:
    """A descriptor from which events of files can be read; reading does not wait."""
    descriptor = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"inotify_init1: {os.strerror(number)}")
    return int(descriptor)


def inotify_add(descriptor: int, folder: str, mask: int) -> int:
    """Watch `folder`; the number under which its events come."""
    watch = _libc.inotify_add_watch(descriptor, os.fsencode(folder), ctypes.c_uint32(mask))
    if watch < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"inotify_add_watch {folder}: {os.strerror(number)}")
    return int(watch)


def set_dumpable(dumpable: bool) -> None:
    """A process that is not dumpable cannot be traced, nor its memory read, by others of the same user."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable))


def come_first() -> None:
    """Run before ordinary processes, if we may: a process that ends a flood must not wait its turn among it.

    Children start with ordinary priority.
    """
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def join_fresh_keyring() -> None:
    """A session keyring of our own, which ends with us: later processes share the one we inherited.

    A kernel without keyrings, or a container that refuses them, has nothing to share.
    """
    number = _SYS_KEYCTL.get(platform.machine())
    if number is not None:
        _libc.syscall(ctypes.c_long(number), ctypes.c_int(_KEYCTL_JOIN_SESSION_KEYRING), None)


def die_with_parent(signal_number: int) -> None:
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends: nothing escapes by a double fork."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def close_all_but(keep: Collection[int]) -> None:
    """Close every other descriptor of this process."""
    names = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else [str(number) for number in range(1024)]
    for number in {int(name) for name in names}.difference(keep):
        with contextlib.suppress(OSError):  # the one that listed the folder is closed already
            os.close(number)


def skip_pids(count: int) -> None:
    """Use up the next `count` numbers of this pid namespace, which gives them to processes one after the other.

    Each is a process that shares our memory and ends at once, in C, so that neither a page is copied nor one of
    Python's at-fork handlers called.
    """
    stack = ctypes.create_string_buffer(2**14)
    top = ctypes.c_void_p((ctypes.addressof(stack) + len(stack)) & ~0xF)
    end = ctypes.cast(_libc._exit, ctypes.c_void_p)
    for _ in range(count):
        child = _libc.clone(end, top, _CLONE_VM | _CLONE_VFORK | signal.SIGCHLD, None)
        if child < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"clone: {os.strerror(number)}")
        os.waitpid(child, 0)


def collapse_memory() -> None:
    """Move large private mappings to huge pages (Linux 6.1), because fork copies a page table per small page.

    Measured with torch and torch._dynamo loaded (420 MiB): 10.5 ms a fork before, 3.8 ms after, 1.2 s once.
    Merely a matter of speed, so a kernel that refuses is left alone.
    """
    with open("/proc/self/maps") as file:
        lines = file.read().splitlines()
    for line in lines:
        span, mode, _, _, inode, *_ = line.split()
        if inode != "0" or not mode.startswith("rw-p"):
            continue
        start, end = (int(word, 16) for word in span.split("-"))
        start = -(-start // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
        end = end // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
        if end > start:
            _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_COLLAPSE)
