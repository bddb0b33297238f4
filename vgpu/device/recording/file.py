"""A recording as a file: JSON, compressed, that says what it is. Not here: what the entries mean (`entries`)."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgpu.device.kernel_work import KINDS, Convolution, KernelWork, Product
from vgpu.device.recording import entries
from vgpu.device.recording.entries import Entry

SUFFIX = ".vgpu"
_FORMAT, _SCHEMA = "vgpu recording", 2


class RecordingError(Exception):
    """A file that is no recording, or cannot be written; the text says why and what to do."""


@dataclass(frozen=True)
class Recording:
    """One process's run. Bytes and seconds are of the card that it was recorded on."""

    gpu: str
    interconnect: str
    gpus: int
    rank: int | None
    ranks: int
    program: str
    torch: str
    seconds: float
    """From attach to the end of everything."""
    allocated_bytes: int
    reserved_bytes: int
    """The most at any moment on the GPU that needed most."""
    works: tuple[KernelWork, ...]
    entries: Sequence[Entry]
    path: str = ""


def check_path(path: str | os.PathLike[str]) -> Path:
    """The path, when it ends as a recording does; raises ValueError."""
    checked = Path(path)
    if checked.suffix != SUFFIX:
        raise ValueError(f"{checked}: a recording ends in {SUFFIX}")
    return checked


def save(recording: Recording, path: str | os.PathLike[str]) -> Path:
    """Write it. Raises OSError, and ValueError for another suffix."""
    target = check_path(path)
    table = {
        name: getattr(recording, name)
        for name in Recording.__dataclass_fields__
        if name not in ("works", "entries", "path")
    }
    document = {
        "format": _FORMAT, "schema": _SCHEMA, **table, "works": [list(work) for work in recording.works],
        "entries": recording.entries,
    }  # fmt: skip
    with gzip.open(target, "wt", encoding="utf-8", compresslevel=5) as file:
        json.dump(document, file, separators=(",", ":"))
    return target


def load(path: str | os.PathLike[str]) -> Recording:
    """Read one. Raises RecordingError for anything else."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            document = json.load(file)
    except FileNotFoundError:
        raise RecordingError(f"no such file: {path}") from None
    except (OSError, EOFError, ValueError) as error:
        raise RecordingError(f"{path} is no recording ({error}); `python -m vgpu record` makes them") from None
    if not isinstance(document, dict) or document.pop("format", None) != _FORMAT:
        raise RecordingError(f"{path} is no recording; `python -m vgpu record` makes them")
    if (schema := document.pop("schema", None)) != _SCHEMA:
        raise RecordingError(f"{path} has schema {schema!r}, and this version reads {_SCHEMA}: record it again")
    try:
        works = tuple(_work(row) for row in document.pop("works"))
        if unknown := {entry[0] for entry in document["entries"]} - entries.KINDS:
            raise ValueError(f"unknown entry {unknown.pop()!r}")
        return Recording(**document, works=works, path=str(path))
    except (TypeError, KeyError, ValueError, IndexError) as error:
        raise RecordingError(f"{path} is damaged ({error}): record it again") from None


def _work(row: Sequence[Any]) -> KernelWork:
    work = KernelWork(*row)
    if work.kind not in KINDS:
        raise ValueError(f"unknown kind {work.kind!r}")
    return work._replace(
        shapes=tuple(tuple(shape) for shape in work.shapes),
        product=None if work.product is None else _product(work.product),
        programs=None,  # a replay only takes time
    )


def _product(row: Sequence[Any]) -> Product:
    product = Product(*row)
    if product.convolution is None:
        return product
    convolution = Convolution(*product.convolution)
    return product._replace(convolution=convolution._replace(passes=tuple(convolution.passes)))
