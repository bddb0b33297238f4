"""Runs `ib_write_bw` (linux-rdma/perftest) on one adapter, as its server, its client, or both; judges nothing.

Host memory is written, not a GPU's: it is the adapter, its slot, cable and switch that are measured. Each program is
bound to the processors of the adapter's NUMA node, and ended by coreutils' `timeout`. Waits are real seconds, also if
a virtual GPU has a clock of its own.
"""

import os
import re
import select
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PROGRAM = "ib_write_bw"
MESSAGE_BYTES = 128 * 2**10
MESSAGES = 10_000
"""Of each of QUEUE_PAIRS: 5 GB in all, a tenth of a second at 400 Gbit/s, four seconds at 10."""
QUEUE_PAIRS = 4
SECONDS = 12
"""For one program, its start included."""
RETRIES, RETRY_SECONDS = 20, 0.25
"""For a server to listen: it opens the device first."""
NOT_YET = re.compile(r"[Cc]ouldn't connect|[Cc]onnection refused|[Uu]nable to (connect|init the socket)")
UNITS = {"Gb/sec": 1.0, "MB/sec": 8 * 2**20 / 1e9, "MiB/sec": 8 * 2**20 / 1e9}
"""perftest's MB are MiB."""


class PerftestError(Exception):
    """The program gave no rate, with what it said."""


def installed() -> bool:
    """Whether the program can be run here."""
    return shutil.which(PROGRAM) is not None and shutil.which("timeout") is not None


def free_port() -> int:
    """A TCP port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def serve(adapter: str, port: int, root: Path) -> "subprocess.Popen[str]":
    """Start the server on an adapter ("mlx5_0/1"); it ends after one client, or SECONDS."""
    return _start(_command(adapter, port), adapter, root)


def client(adapter: str, address: str, port: int, root: Path) -> float:
    """Gbit/s from this adapter to a server.

    Raises:
        PerftestError: the server never listened, or the program said no rate.
    """
    for _ in range(RETRIES):
        process = _start([*_command(adapter, port), address], adapter, root)
        output, _ = process.communicate()
        if process.returncode == 0:
            return gigabits(output)
        if not NOT_YET.search(output):
            break
        select.select([], [], [], RETRY_SECONDS)
    raise PerftestError(f"{PROGRAM} ended with {process.returncode}: {_last_words(output)}")


def alone(adapter: str, root: Path) -> float:
    """Gbit/s from this adapter to itself.

    Raises:
        PerftestError: as `client`; where the server said why, with its words.
    """
    port = free_port()
    server = serve(adapter, port, root)
    try:
        rate = client(adapter, "127.0.0.1", port, root)
    except PerftestError as error:
        said = end(server)
        raise PerftestError(f"{error}; server: {said}" if said else str(error)) from None
    end(server)
    return rate


def end(server: "subprocess.Popen[str]") -> str:
    """End a server, if it is not at its end; returns its last words."""
    if server.poll() is None:
        server.terminate()
    output, _ = server.communicate()
    return _last_words(output) if server.returncode not in (0, -15) else ""


def gigabits(output: str) -> float:
    """Average Gbit/s by the table that the program prints.

    Raises:
        PerftestError: there is no such table.
    """
    unit = None
    for line in output.splitlines():
        if header := re.search(r"BW average\[([^]]+)\]", line):
            unit = UNITS.get(header[1])
        elif unit is not None and re.match(r"\s*\d+\s+\d+\s+[\d.]+\s+[\d.]+", line):
            return float(line.split()[3]) * unit
    raise PerftestError(f"{PROGRAM} printed no rate: {_last_words(output)}")


def _command(adapter: str, port: int) -> list[str]:
    device, _, number = adapter.partition("/")
    command = ["timeout", "--kill-after=1", str(SECONDS), PROGRAM, "--report_gbits", "-F", "-d", device]
    command += ["-i", number or "1", "-p", str(port), "-s", str(MESSAGE_BYTES), "-n", str(MESSAGES)]
    command += ["-q", str(QUEUE_PAIRS)]
    # RoCE: the address that the user gave to NCCL.
    return command + (["-x", index] if (index := os.environ.get("NCCL_IB_GID_INDEX")) else [])


def _start(command: Sequence[str], adapter: str, root: Path) -> "subprocess.Popen[str]":
    with _near_processors(adapter, root):
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace",
        )  # fmt: skip


@contextmanager
def _near_processors(adapter: str, root: Path) -> Iterator[None]:
    """Bind what this thread starts to the adapter's NUMA node: from another one it reaches a part of its rate."""
    if not hasattr(os, "sched_setaffinity"):  # Linux alone binds processes
        yield
        return
    own = os.sched_getaffinity(0)
    path = root / "class" / "infiniband" / adapter.partition("/")[0] / "device" / "local_cpulist"
    try:
        near = _processors(path.read_text(encoding="utf-8")) & own
    except (OSError, ValueError):
        near = set()
    os.sched_setaffinity(0, near or own)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def _processors(text: str) -> set[int]:
    """Of "0-3,8"."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def _last_words(output: str) -> str:
    """The last line that is no rule of the table."""
    lines = [line.strip() for line in output.splitlines() if line.strip(" -")]
    return lines[-1][:200] if lines else "it printed nothing"
