"""The process that unpacks one archive of a stranger: limits first, then `archives.extract`, then one line of JSON.

Started by `unpacking.py`, with the archive as an open file and an empty folder as its working directory. It is cheap to
start: only the standard library, `archives.py` and what that names are imported. It ends with its parent, however that
ends: standard input stays open as long as the parent lives. Not for deciding what a failure means (`unpacking.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import threading
from pathlib import Path
from typing import Any

from gradebook.intake import archives
from gradebook.intake.names import Refused

_OPEN_FILES = 32
_GRACE_SECONDS = 5
"""Of processor time between the signal that ends the process and the one that it could not ignore."""


def main() -> None:
    """Carry out the order on the first line of standard input; the answer is one line on standard output."""
    order = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _limit(order)
    print(json.dumps(_outcome(order)), flush=True)


def _outcome(order: dict[str, Any]) -> dict[str, str]:
    try:
        with open(order["archive"], "rb") as file:
            archives.extract(
                file,
                Path(),
                named_so=order["named_so"],
                files=order["files"],
                limit_bytes=order["limit_bytes"],
                left_behind=order["left_behind"],
            )
    except Refused as refusal:
        return {"refused": str(refusal)}
    except archives.CannotStore as error:
        return {"cannot_store": str(error)}
    except MemoryError:
        return {"needs": "memory"}
    return {"unpacked": ""}


def _limit(order: dict[str, Any]) -> None:
    """What nobody can exceed, whatever an archive makes Python's readers do. A system may refuse a limit: go on."""
    os.umask(0o022)
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_FSIZE, order["limit_bytes"]),
        (resource.RLIMIT_AS, order["memory_bytes"]),
    ):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (order["cpu_seconds"], order["cpu_seconds"] + _GRACE_SECONDS))


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)
