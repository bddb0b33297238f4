"""Replies of the sandbox, kept on disk under `build/`: what was asked before is not asked again.

An entry's name is a digest of everything that decides the reply (`asking.py` says what). Entries are JSON and
safetensors, are written whole or not at all, and are forgotten when nobody has asked for them for weeks, so that
workers and runs can share a folder. What is damaged is not there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import time
from pathlib import Path
from typing import Any

from gradebox.sandbox import Note, RankReply, Reply, codec
from gradebox.sandbox.types import KINDS

_WEEKS_SECONDS = 4 * 7 * 24 * 3600.0
_MAX_BYTES = 2 * 2**30
_TOUCH_SECONDS = 24 * 3600.0
"""So much older than now, an entry that is used is marked as used."""


class Store:
    """A folder of replies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._added: list[Path] = []

    def get(self, key: str) -> Reply | None:
        """The reply that is kept under `key`."""
        file = self._file(key)
        try:
            reply = decode(file.read_bytes())
            if time.time() - file.stat().st_mtime > _TOUCH_SECONDS:
                os.utime(file)
        except OSError:
            return None
        except (ValueError, TypeError, KeyError):
            file.unlink(missing_ok=True)
            return None
        return reply

    def put(self, key: str, reply: Reply) -> None:
        """Keep a reply; a disk that is full keeps nothing."""
        file = self._file(key)
        new = file.with_name(f"{file.name}.{secrets.token_hex(4)}.new")
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            new.write_bytes(encode(reply))
            new.replace(file)
            self._added.append(file)

    def begin(self) -> None:
        """From here on, what is added is of one test."""
        self._added = []

    def forget(self) -> None:
        """Forget what was added since `begin`: of a test that failed nothing is kept, so that it asks again."""
        for file in self._added:
            file.unlink(missing_ok=True)
        self._added = []

    def tidy(self, max_bytes: int = _MAX_BYTES, max_seconds: float = _WEEKS_SECONDS) -> None:
        """Forget what was not used for long; of what is too much, that which was not used for longest."""
        entries = []
        for file in self.folder.glob("??/*"):
            with contextlib.suppress(OSError):
                state = file.stat()
                entries.append((state.st_mtime, state.st_size, file))
        room = max_bytes
        for used, size, file in sorted(entries, reverse=True):
            room -= size
            if room < 0 or time.time() - used > max_seconds:
                file.unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        return self.folder / key[:2] / key[2:]


def encode(reply: Reply) -> bytes:
    """A reply as bytes."""
    table = dataclasses.asdict(dataclasses.replace(reply, ranks=()))
    ranks = [{entry.name: getattr(rank, entry.name) for entry in dataclasses.fields(rank)} for rank in reply.ranks]
    arrays = [{name: codec.numbers_of(array) for name, array in rank.pop("tensors").items()} for rank in ranks]
    tensors = [codec.dump_tensors(by_name) for by_name in arrays]
    return codec.join(codec.dump_json(codec.to_json({**table, "ranks": ranks})), *tensors)


def decode(data: bytes) -> Reply:
    """The inverse of `encode`.

    Raises:
        ValueError, TypeError, KeyError: these bytes are no reply.
    """
    head, *parts = codec.split(data)
    table: dict[str, Any] = codec.load_json(head)
    tensors = [codec.load_tensors(part) for part in parts]
    ranks = [
        RankReply(**rank, tensors=codec.as_they_were(arrays, rank["dtypes"]))
        for rank, arrays in zip(table["ranks"], tensors, strict=True)
    ]
    if not ranks or not {table["kind"], *(rank.kind for rank in ranks)} <= KINDS:
        raise ValueError("no reply")
    notes = tuple(Note(**note) for note in table["notes"])
    return Reply(table["kind"], tuple(ranks), table["seconds"], notes)
