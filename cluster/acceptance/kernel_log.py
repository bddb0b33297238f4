"""XID errors in the kernel's log: which GPU, which number, which record. Reads /dev/kmsg, or a file of its format.

Sources: the kernel's Documentation/ABI/testing/dev-kmsg; NVIDIA, XID Errors (docs.nvidia.com/deploy/xid-errors).
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that a user's program causes by itself, as NVIDIA's device plugin for Kubernetes has them."""
_RECORD = re.compile(
    r"^\d+,(?P<sequence>\d+),\d+,[^;]*;.*NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\): (?P<number>\d+)"
)
_MOST_BYTES = 8192
"""Of one record (the kernel's CONSOLE_EXT_LOG_MAX)."""


@dataclass(frozen=True)
class Xid:
    """One report of the driver."""

    sequence: int
    """Number of the record since the kernel was booted."""
    bus: str
    """PCI domain, bus and device: "0000:17:00"."""
    number: int


def read(path: Path) -> list[Xid]:
    """All XIDs that the log still holds, oldest first.

    Raises:
        OSError: it cannot be read, which takes root (CAP_SYSLOG) or a mount in a container.
    """
    return [
        Xid(int(match["sequence"]), match["bus"].lower(), int(match["number"]))
        for record in _records(path)
        if (match := _RECORD.match(record))
    ]


def _records(path: Path) -> list[str]:
    if path.is_file():
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    records: list[str] = []
    device = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                record = os.read(device, _MOST_BYTES)
                if not record:  # the end of what is no kernel's log: /dev/null, a pipe
                    return records
                records.append(record.decode("utf-8", "replace").partition("\n")[0])
            except BrokenPipeError:  # the record was overwritten before it was read; the next one is there
                continue
            except BlockingIOError:
                return records
    finally:
        os.close(device)
