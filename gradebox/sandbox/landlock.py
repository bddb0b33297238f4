"""Files that a worker cannot read where there are no namespaces: Landlock, which needs no privileges (Linux 5.13).

Landlock knows only what is allowed. So everything is allowed but the protected folders: what is next to them on each
level, from the root on. A kernel without it protects nothing here; reports say whether there was one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterable, Iterator

from gradebox.sandbox import linux

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_READ = _READ_FILE | _READ_DIR
_PATH_BENEATH = 1
_VERSION_FLAG = 1


def available() -> bool:
    """Whether this kernel has Landlock, and it is switched on."""
    if not linux.AVAILABLE:
        return False
    with contextlib.suppress(OSError):
        return linux.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG)) > 0
    return False


def protect(folders: Iterable[str], but: Iterable[str]) -> None:
    """From now on, this process and what it starts can read no file in `folders`, save for what is in `but`.

    Names of files can still be listed: an import looks for them. Privileges must have been given up before. A file
    that appears later next to a folder above a protected one cannot be read either, unless it is in `but`.

    Raises:
        OSError: this kernel does not allow it.
    """
    secret = {os.path.realpath(folder) for folder in folders if os.path.isdir(folder)}
    attributes = struct.pack("=Q", _READ)
    ruleset = linux.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    try:
        for path in {*_beside(secret), *map(os.path.realpath, but)}:
            _allow(ruleset, path, _READ)
        for folder in secret:
            _allow(ruleset, folder, _READ_DIR)
        linux.syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _beside(secret: set[str]) -> Iterator[str]:
    """All paths that are next to a secret folder, or next to one that a secret folder is in."""
    above = {parent for folder in secret for parent in _parents(folder)}
    for folder in above:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                if path not in above and path not in secret:
                    yield path


def _parents(folder: str) -> Iterator[str]:
    while folder != "/":
        folder = os.path.dirname(folder)
        yield folder


def _allow(ruleset: int, path: str, access: int) -> None:
    """Allow `access` to the file or folder at `path`; one that is gone, or cannot be opened, needs no rule."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            rule = struct.pack("=Qi", access if os.path.isdir(path) else access & _READ_FILE, descriptor)
            linux.syscall(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint32(0))
        finally:
            os.close(descriptor)
