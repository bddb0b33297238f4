"""Attempts to reach what is outside; each function reports what it got."""

import ctypes
import os
import socket

from labs.lab1_gpu_basics.programs import in_a_program

_libc = ctypes.CDLL(None, use_errno=True)
MS_REMOUNT, MS_BIND, MNT_DETACH = 32, 4096, 2
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000


def _mount_attempts():
    attempts = {
        "unmount /usr/lib": lambda: _libc.umount2(b"/usr/lib", MNT_DETACH),
        "unmount /": lambda: _libc.umount2(b"/", MNT_DETACH),
        "unmount grader": lambda: _libc.umount2(os.fsencode(GRADER), MNT_DETACH),
        "remount / writable": lambda: _libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REMOUNT | MS_BIND), None),
        "remount /usr/lib writable": lambda: _libc.mount(
            b"none", b"/usr/lib", None, ctypes.c_ulong(MS_REMOUNT | MS_BIND), None
        ),
        "write to /usr/lib": lambda: os.close(os.open("/usr/lib/escaped", os.O_CREAT | os.O_WRONLY)) or 0,
        "write to /submission": lambda: os.close(os.open("/submission/escaped", os.O_CREAT | os.O_WRONLY)) or 0,
    }
    return [name for name, attempt in attempts.items() if _succeeds(attempt)]


GRADER = "/"


def _succeeds(attempt):
    try:
        return attempt() == 0
    except OSError:
        return False


@in_a_program
def mounts(grader):
    global GRADER
    GRADER = grader
    return _mount_attempts()


@in_a_program
def mounts_from_a_nested_user_namespace(grader):
    """As before, with every capability a new user namespace gives."""
    global GRADER
    GRADER = grader
    uid = os.getuid()
    nested = _libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0
    if nested:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {os.getgid()} 1")):
            try:
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
            except OSError:
                continue
    return _mount_attempts()


def write_to(paths):
    written = []
    for path in paths:
        try:
            with open(path, "w") as file:
                file.write("escaped")
        except OSError:
            continue
        written.append(path)
    return written


def read_from(paths):
    found = []
    for path in paths:
        if os.path.lexists(path):
            found.append(path)
    return found


def list_folder(path):
    return sorted(os.listdir(path))


def connect_to(host, port):
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError as error:
        return type(error).__name__
    return "connected"


def kill_everyone():
    """Every process we may signal, ourselves included."""
    os.kill(-1, 9)


def kill_the_parent():
    os.kill(os.getppid(), 9)
    os.kill(os.getppid(), 15)
    return "still here"


def trace_the_parent():
    """PTRACE_ATTACH to the supervisor, and its memory and environment."""
    return trace(parent=os.getppid())


@in_a_program
def trace(parent):
    got = []
    if _libc.ptrace(16, parent, None, None) == 0:
        got.append("ptrace")
    for name in ("mem", "environ", "maps", "fd/3"):
        try:
            with open(f"/proc/{parent}/{name}", "rb") as file:
                file.read(1)
        except OSError:
            continue
        got.append(name)
    return got


def visible_processes():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def privileges():
    with open("/proc/self/status") as file:
        status = dict(line.split(":\t") for line in file.read().splitlines() if ":\t" in line)
    return {name: status[name] for name in ("CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Uid")}


def environment():
    with open("/proc/self/environ", "rb") as file:
        return file.read().decode(errors="replace") + "\0".join(f"{k}={v}" for k, v in os.environ.items())


def make_a_device():
    try:
        os.mknod("/tmp/device", 0o600 | 0o020000, os.makedev(1, 1))
    except OSError:
        return False
    return True


def inner_loopback():
    """Loopback inside works: gloo needs it."""
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname(), timeout=1)
    client.close()
    server.close()
    return "connected"


def open_descriptors():
    return sorted(os.readlink(f"/proc/self/fd/{number}").split(":")[0] for number in range(3, 64) if _is_open(number))


def _is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def opened(paths):
    return [path for path in paths if _ends_well(lambda path=path: open(path).close())]


def read_in_native_code(paths):
    """Those of the files that PyTorch can map, which raises no audit event."""
    import torch

    return [path for path in paths if _ends_well(lambda path=path: torch.UntypedStorage.from_file(path, False, 8))]


def _ends_well(attempt):
    try:
        attempt()
    except (OSError, RuntimeError):
        return False
    return True
