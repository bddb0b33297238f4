"""Disk, shared memory, memory, cores, ports on loopback, and what isolation the sandbox can have here."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from gradebox.common import resources
from grader.doctor.fact import ROOT, Fact, gigabytes, note, ok, python, wrong

INSTALL_BYTES = 9e9
"""What PyTorch with its CUDA libraries takes while it is installed."""
WORK_BYTES, WORK_TIGHT_BYTES = 3e8, 2e9
"""Results, checkpoints and the sandbox's copy; below the second it is worth knowing."""
SHARED_BYTES = 5e8
"""Batches that worker processes of a DataLoader hand over; Docker's default is 64 MB."""
MEMORY_BYTES, MEMORY_TIGHT_BYTES = 1.5e9, 4e9
"""The largest check of Lab 1 needs 0.83 GB, and the browser and editor next to it want some, too."""
MONITOR_PORT, TORCHRUN_PORT = 9400, 29500
_MOVED = "export TMPDIR=$HOME/tmp && mkdir -p $TMPDIR"
_TRIED_BYTES = 1 << 20
_SANDBOX_SECONDS = 60.0
_LOOK_AT_SANDBOX = """
import tempfile
from gradebox.sandbox.machine import Config, explore
with tempfile.TemporaryDirectory() as home:
    found = explore(Config(home, "auto", (), (), {}))
print("namespaces" if found.namespaces else found.reason)
"""
_TRY_SANDBOX = """
import tempfile
import grader
from gradebox.run import device_trial
from gradebox.sandbox import Sandbox
course = grader.course()
course.prepare()
with tempfile.TemporaryDirectory() as empty, Sandbox(empty, course.environment) as sandbox:
    tried = (device_trial.problem(sandbox, course.trial, device, course.fix) for device in ("vgpu:T4", "cpu"))
    print(next(filter(None, tried), ""))
    print("namespaces" if sandbox.isolation.mode == "namespaces" else sandbox.isolation.reason)
"""
"""As a grading begins: first what is wrong, an empty line where nothing is."""


def examine(*, torch_is_there: bool) -> list[Fact]:
    return [
        _disk("disk", ROOT, torch_is_there),
        _temporary(),
        _shared_memory(),
        _memory(),
        _cores(),
        _ports(),
        _sandbox(torch_is_there),
    ]


def _temporary() -> Fact:
    """Python takes the first of several folders that can be written to."""
    try:
        folder = Path(tempfile.gettempdir())
    except OSError:
        text = "no folder for temporary files can be written to: the disk is full, or all of them belong to others"
        return wrong("temporary files", text, _MOVED)
    return _disk("temporary files", folder, True)


def _disk(name: str, folder: Path, torch_is_there: bool) -> Fact:
    free = _free(folder)
    clear = (f"{python()} -m pip cache purge", "uv cache clean", f"du -xh {folder} | sort -h | tail -n 20")
    fix = (_MOVED,) if name == "temporary files" else clear
    if not _writable(folder):
        text = f"nothing can be written to {folder}" + (f", {gigabytes(free)} are free" if free is not None else "")
        return wrong(name, text, *fix)
    if free is None:
        return ok(name, f"{folder} can be written to")
    text = f"{gigabytes(free)} free in {folder}"
    if free < WORK_BYTES:
        return wrong(name, f"{text}: too little to work with", *fix)
    if not torch_is_there and free < INSTALL_BYTES:
        return wrong(name, f"{text}: too little to install PyTorch ({gigabytes(INSTALL_BYTES)})", *fix)
    if free < WORK_TIGHT_BYTES:
        return note(name, f"{text}: enough for now, not for long", *fix)
    return ok(name, text)


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(str(folder)).free
    except OSError:
        return None


def _writable(folder: Path) -> bool:
    """Whether a file can really be written: quotas and read-only mounts do not show in the free space."""
    try:
        descriptor, name = tempfile.mkstemp(dir=str(folder), prefix=".gpulabs-doctor-")
    except OSError:
        return False
    try:
        whole = os.write(descriptor, b"\1" * _TRIED_BYTES) == _TRIED_BYTES
        os.fsync(descriptor)
    except OSError:
        return False
    finally:
        os.close(descriptor)
        os.unlink(name)
    return whole


def _shared_memory() -> Fact:
    shared = Path("/dev/shm")
    name = "shared memory"
    if not shared.is_dir():
        return ok(name, "no /dev/shm on this system, and none needed") if sys.platform != "linux" else _no_shared(name)
    free = _free(shared)
    if free is None or not os.access(str(shared), os.W_OK):
        return _no_shared(name)
    if free < SHARED_BYTES:
        text = f"{gigabytes(free)} free in /dev/shm: DataLoader workers (Lab 5) may die with a bus error"
        return note(
            name, text, "in a container: docker run --shm-size=2g ...", "sudo mount -o remount,size=2g /dev/shm"
        )
    return ok(name, f"{gigabytes(free)} free in /dev/shm")


def _no_shared(name: str) -> Fact:
    text = "/dev/shm cannot be written to: ranks and DataLoader workers hand tensors over there"
    return wrong(name, text, "sudo mount -t tmpfs -o size=2g tmpfs /dev/shm")


def _memory() -> Fact:
    total = resources.memory_bytes()
    if total is None:
        return ok("memory", "this system does not report it")
    if total < MEMORY_BYTES:
        text = f"{gigabytes(total)}: too little for PyTorch and a check next to it"
        return wrong(
            "memory", text, "in a container: docker run --memory 4g ...", "else: more swap, or another machine"
        )
    if total < MEMORY_TIGHT_BYTES:
        return note(
            "memory", f"{gigabytes(total)}: enough if little else runs; grade one lab at a time", "make grade LAB=1"
        )
    return ok("memory", gigabytes(total))


def _cores() -> Fact:
    count = resources.cores()
    if count < 2:
        return note("cores", "1 core: grading takes about twice as long as it says anywhere", "make grade LAB=1")
    return ok("cores", str(count))


def _ports() -> Fact:
    name = "ports"
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            probe.listen()
            with socket.create_connection(probe.getsockname(), timeout=5):
                pass
    except OSError as error:
        text = f"processes cannot meet on 127.0.0.1 ({error.strerror or error}): Labs 3 and 5 need that"
        return wrong(name, text, "sudo ip link set lo up")
    taken = [port for port in (MONITOR_PORT, TORCHRUN_PORT) if not _is_free(port)]
    if MONITOR_PORT in taken:
        text = f"port {MONITOR_PORT} is taken, which Lab 5's monitor is shown on; take another one"
        return note(name, text, f"{python()} -m labs.lab5_production.watch --port {MONITOR_PORT + 1}")
    if TORCHRUN_PORT in taken:
        text = f"port {TORCHRUN_PORT} is taken, torchrun's own; with --standalone it finds a free one"
        return note(name, text, "torchrun --standalone --nproc-per-node 2 ...")
    return ok(name, f"{MONITOR_PORT} (monitor) and {TORCHRUN_PORT} (torchrun) are free on 127.0.0.1")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _sandbox(torch_is_there: bool) -> Fact:
    name = "sandbox"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TRY_SANDBOX if torch_is_there else _LOOK_AT_SANDBOX],
            cwd=str(ROOT),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_SANDBOX_SECONDS,
            check=False,
        )
        said = done.stdout.decode("utf-8", "replace").splitlines()
    except subprocess.TimeoutExpired:
        said = []
    if len(said) > 1 and said[0]:
        return wrong(name, said[0][:400], "make clean grade")
    if said and said[-1] == "namespaces":
        return ok(name, "full isolation (Linux namespaces)")
    if not said:
        return note(name, "could not be tried; grading says what it has in every report")
    text = f"process limits only, which is fine for your own work ({said[-1][:160]})"
    restricted = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    try:
        if restricted.read_text().strip() == "1":
            return note(name, text, "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0")
    except OSError:
        pass
    return note(name, text)
