"""What the doctor found out about one thing, and how to call an installer here."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""

OK, NOTE, TO_DO, WRONG = "ok", "note", "to do", "wrong"


@dataclass(frozen=True)
class Fact:
    """One line: what was looked at, how it is, and the commands that fix it."""

    name: str
    state: str
    """`OK`; `NOTE`: the labs can be worked on, and something is worth knowing; `WRONG`: they cannot.
    `TO_DO`: they cannot yet, because nobody has installed the course here."""
    text: str
    fix: tuple[str, ...] = ()
    """Commands to type, or what else to do, in their order. Never where all is well."""


def ok(name: str, text: str) -> Fact:
    return Fact(name, OK, text)


def note(name: str, text: str, *fix: str) -> Fact:
    return Fact(name, NOTE, text, fix)


def to_do(name: str, text: str, *fix: str) -> Fact:
    return Fact(name, TO_DO, text, fix)


def wrong(name: str, text: str, *fix: str) -> Fact:
    return Fact(name, WRONG, text, fix)


def python() -> str:
    """This interpreter as one would type it here."""
    path = os.path.abspath(sys.executable)
    inside = os.path.relpath(path)
    return shlex.quote(path if inside.startswith("..") else inside)


def is_here(module: str) -> bool:
    """Whether a module can be found; one whose finder fails cannot."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def install(*what: str) -> str:
    """The command that installs `what` into this interpreter's environment, with uv: its pip chooses PyTorch's CUDA."""
    first = "" if is_here("uv") else f"{python()} -m pip install uv && "
    return f"{first}{python()} -m uv pip install --python {python()} {' '.join(what)}"


def install_torch() -> str:
    """The command that installs a PyTorch that fits this machine's driver."""
    return install("--reinstall", "torch", "torchvision", "--torch-backend=auto")


def gigabytes(count: float) -> str:
    """`3.2 GB`, and `64 MB` for less than one."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
