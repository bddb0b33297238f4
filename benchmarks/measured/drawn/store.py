"""The file of entries: read, added to, and replaced as a whole, so that an interruption leaves a valid file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.measured.drawn.timing import real_seconds

SCHEMA = 1
_SECONDS_BETWEEN_WRITES = 1.0
Entry = dict[str, Any]


class Store:
    """Entries of one machine. As a context manager it writes what is left when the block ends, however it does."""

    def __init__(self, path: Path, machine: dict[str, Any]) -> None:
        """Keep the entries of a file that exists.

        Raises:
            ValueError: the file holds no document of this schema, or measurements of another GPU.
        """
        self._path, self._machine = path, machine
        before: dict[str, Any] = document_of(path) if path.exists() else {"machine": machine, "entries": []}
        if _gpu(before["machine"]) != _gpu(machine):
            raise ValueError(f"{path} holds measurements of {_gpu(before['machine'])}, not of {_gpu(machine)}")
        self._entries: list[Entry] = before["entries"]
        self._written = real_seconds()

    def ids(self) -> set[str]:
        """Ids of all entries."""
        return {entry["id"] for entry in self._entries}

    def add(self, entry: Entry) -> None:
        """Keep the entry; it is on the disk a second later at most if others follow."""
        self._entries.append(entry)
        if real_seconds() - self._written >= _SECONDS_BETWEEN_WRITES:
            self.write()

    def write(self) -> None:
        """Write next to the file, then put it in its place."""
        document = {"schema": SCHEMA, "machine": self._machine, "entries": self._entries}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        beside.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        os.replace(beside, self._path)
        self._written = real_seconds()

    def __enter__(self) -> Store:
        self.write()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.write()


def _gpu(machine: dict[str, Any]) -> str:
    return f"{'a virtual' if machine.get('virtual') else 'a real'} {machine.get('gpu')}"


def document_of(path: Path) -> dict[str, Any]:
    """What a file holds.

    Raises:
        ValueError: it holds no document of this schema.
    """
    document = json.loads(path.read_text(encoding="utf-8"))
    if (
        not isinstance(document, dict)
        or document.get("schema") != SCHEMA
        or not {"machine", "entries"} <= set(document)
    ):
        raise ValueError(f"{path} holds no drawn measurements of schema {SCHEMA}")
    return dict(document)


def ids_of(paths: Iterable[Path]) -> set[str]:
    """Ids of all entries of these files, whatever machine they are of."""
    return {entry["id"] for path in paths for entry in document_of(path)["entries"]}
