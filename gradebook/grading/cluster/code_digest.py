"""Whether a node has the same code as we: a digest of the files of all packages that take part, as they are.

Stricter than `versions.py`, which knows what decides an outcome: a comment counts here. It has to be computed on every
node for every submission, and takes a twentieth of the time.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path

from gradebox.course.course import Course

_OURS = ("gradebox", "gradebook")
_NOT_CODE = ("__pycache__",)


def code_digest(course: Course) -> str:
    """The same on two machines that grade alike."""
    root = course.folder.parent
    packages = sorted({*_OURS, course.package, *course.environment.importable})
    # Packages of others: those that submissions meet.
    computes = sorted({name.partition(".")[0] for name in course.environment.preload})
    parts = [f"{name} {_version(name)}" for name in computes]
    for package in packages:
        for path in sorted(_files(root / package)):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            parts.append(f"{path.relative_to(root).as_posix()} {content}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not set(_NOT_CODE) & set(path.parts)]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
