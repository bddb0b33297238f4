"""What a job is, what it may use, and what it returns; and the digest of the content that its result holds for."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.on_a_gpu.worker import Tools

ROOT = Path(__file__).parents[2]
_CONTENT = frozenset({".py", ".toml", ".jsonl", ".json", ".md", ".txt"})
"""Suffixes of the files that decide what a job does; a report of a submission is one."""


@dataclass(frozen=True)
class Finding:
    """What a job returns."""

    passed: bool
    summary: str
    """For a table: `100 of 100 in 58 s`."""
    details: dict[str, Any] = field(default_factory=dict)
    complete: bool = True
    """False: the job has more to do in another visit."""


@dataclass(frozen=True)
class Job:
    """One thing to find out."""

    name: str
    """Unique, in the words of file names: `style-lab1-terse`."""
    title: str
    """For people."""
    group: str
    """The letter under which the jobs' order is documented."""
    seconds: float
    """How long it usually takes on a GPU, until a result says so."""
    depends: tuple[str, ...]
    """Files and folders, as paths in the checkout, whose content the result holds for."""
    run: Callable[[Tools], Finding]
    is_elastic: bool = False
    """Whether it does as much as there is time for, and the rest on another visit."""
    shortest: float = 20.0
    """Seconds that an elastic job takes at least."""
    share: float = 120.0
    """Seconds that an elastic job takes at most while other jobs wait."""

    @property
    def digest(self) -> str:
        """Of what the result depends on, PyTorch's version included."""
        return digest(self.depends)


@functools.cache
def digest(depends: tuple[str, ...]) -> str:
    """The same for the same content of these files and folders and the same version of PyTorch."""
    sha = hashlib.sha256(version("torch").encode())
    for path in sorted(set(_files(depends))):
        sha.update(f"\0{path.relative_to(ROOT).as_posix()}\0".encode())
        sha.update(_sha256(path))
    return sha.hexdigest()[:16]


def _files(depends: Sequence[str]) -> Iterator[Path]:
    for name in depends:
        path = ROOT / name
        if path.is_file():
            yield path
            continue
        if not path.is_dir():
            raise FileNotFoundError(f"a job depends on {name}, which is not there")
        yield from (
            file
            for file in path.rglob("*")
            if file.suffix in _CONTENT and "__pycache__" not in file.parts and file.is_file()
        )


@functools.cache
def _sha256(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()
