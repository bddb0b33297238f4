"""Unpack what strangers packed: zip and tar files into an empty folder, or one line that says why not.

Every archive is unpacked by a process of its own, with limits of time and memory: no archive can stop or slow down a
class by more than itself. What is counted here stops honest mistakes and most bombs with good words; those limits stop
the rest. The process is cheap to start, so this module imports the standard library and little else.

A student whose file silently vanished would lose points, so what cannot be unpacked is refused, never skipped. Archives
inside of archives stay packed. Not for the formats themselves (`zip_and_tar.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from datetime import tzinfo
from pathlib import Path
from typing import IO, Any

from gradebook.intake import zip_times
from gradebook.intake.accepted_files import CannotStore, Refused
from gradebook.intake.zip_and_tar import extract, has_suffix, stream_bytes
from gradebox.common.configuration import ROOT

_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from gradebook.intake import archives; archives.unpacking_process()"
)
_LEAST_SECONDS = 30
_SLOWEST_BYTES_PER_SECOND = 4 * 2**20
"""An unpacking this slow is still waited for: bzip2, the slowest, makes 20 MiB/s and more of one core."""
_WALL_RATIO = 4
"""Other work may have the machine meanwhile."""
_MEMORY_BYTES = 512 * 2**20
"""What xz needs at its highest level, six times over."""
_MEMORY_BYTES_PER_FILE = 8 * 2**10
_ANSWER_BYTES = 2**16


def unpack(archive: Path, target: Path, *, files: int, limit_bytes: int, zone: tzinfo | None = None) -> bool:
    """Unpack a zip or tar file, whatever its name says, into the folder `target`, which is empty.

    `zone` is that of the times in a zip file, which say none; None: this machine's. It is true if there is a
    repository's own folder in it, which stays packed.

    Raises:
        Refused: it is no such file, is damaged, is too large, holds what is never unpacked, or takes more time or
            memory than any archive of labs does.
        CannotStore: our own machine fails us.
        OSError: the archive cannot be opened.
    """
    from gradebox.sandbox.copying import LEFT_BEHIND  # imports NumPy, which the process that unpacks does without

    seconds = cpu_seconds(limit_bytes)
    memory_bytes = _MEMORY_BYTES + files * _MEMORY_BYTES_PER_FILE
    clock = zip_times.as_plain(zone)
    what = {"named_so": has_suffix(archive.name), "files": files, "limit_bytes": limit_bytes, "zone": clock}
    order = {"extract": {**what, "left_behind": sorted(LEFT_BEHIND)}, "cpu_seconds": seconds}
    order["memory_bytes"] = memory_bytes
    with archive.open("rb") as file:
        code, answer, said = _run(file, target, order, _WALL_RATIO * seconds)
    match answer:
        case {"unpacked": str(history)}:
            return bool(history)
        case {"refused": str(reason)}:
            raise Refused(reason)
        case {"cannot_store": str(reason)}:
            raise CannotStore(reason)
        case {"needs": "memory"}:
            raise Refused(
                f"needs more than {memory_bytes // 2**20} MiB of memory to be unpacked; pack it as an ordinary .zip"
            )
    raise _ended(code, said, seconds)


def cpu_seconds(limit_bytes: int) -> int:
    """How long unpacking so much may take, of one core."""
    return _LEAST_SECONDS + stream_bytes(limit_bytes) // _SLOWEST_BYTES_PER_SECOND


def _ended(code: int | None, said: str, seconds: int) -> Exception:
    """What it means that the process gave no answer: None for a `code` is our own patience."""
    if code is None or -code in (signal.SIGXCPU, signal.SIGXFSZ):
        return Refused(f"takes more than {seconds} s to be unpacked; pack the labs only, as an ordinary .zip")
    if -code in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL):
        return Refused(f"ends the program that unpacks it ({signal.Signals(-code).name}); pack it as an ordinary .zip")
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return CannotStore(
        f"what unpacks submissions ended with {how}{f' ({said})' if said else ''}, which is no fault of a submission: "
        "see that the machine has memory left, and run it again"
    )


def _run(file: IO[bytes], target: Path, order: dict[str, Any], seconds: float) -> tuple[int | None, Any, str]:
    """Exit code (None: it was ended for taking too long), answer (None: it gave none), and its last words."""
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", "-c", _START, str(ROOT)],
            cwd=target, stdin=subprocess.PIPE, stdout=answer, stderr=words, pass_fds=(file.fileno(),),
            start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        try:
            # Left open: it ends when we do.
            process.stdin.write(json.dumps({**order, "archive": file.fileno()}).encode() + b"\n")
            process.stdin.flush()
            code: int | None = process.wait(seconds)
        except BrokenPipeError:
            code = process.wait()
        except subprocess.TimeoutExpired:
            code = None
        finally:
            process.kill()
            process.wait()
            with contextlib.suppress(BrokenPipeError):  # what was not read is flushed again
                process.stdin.close()
        return code, _read(answer), _last_line(words)


def _read(answer: IO[bytes]) -> Any:
    answer.seek(0)
    try:
        return json.loads(answer.read(_ANSWER_BYTES))
    except (ValueError, RecursionError):
        return None


def _last_line(words: IO[bytes]) -> str:
    words.seek(-min(_ANSWER_BYTES, words.seek(0, os.SEEK_END)), os.SEEK_END)
    lines = words.read().decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else ""


# --- the process that unpacks -----------------------------------------------------------------------------------------

_OPEN_FILES = 32
_GRACE_SECONDS = 5
"""Of processor time between the signal that ends the process and the one that it could not ignore."""


def unpacking_process() -> None:
    """Carry out the order on the first line of standard input; the answer is one line on standard output."""
    order = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _limit_process(order)
    print(json.dumps(_outcome(order)), flush=True)


def _outcome(order: dict[str, Any]) -> dict[str, str]:
    try:
        with open(order["archive"], "rb") as file:
            has_history = extract(file, Path(), **order["extract"])
    except Refused as refusal:
        return {"refused": str(refusal)}
    except CannotStore as error:
        return {"cannot_store": str(error)}
    except MemoryError:
        return {"needs": "memory"}
    return {"unpacked": ".git" if has_history else ""}


def _limit_process(order: dict[str, Any]) -> None:
    """What nobody can exceed, whatever an archive makes Python's readers do. A system may refuse a limit: go on."""
    os.umask(0o022)
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_FSIZE, order["extract"]["limit_bytes"]),
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
