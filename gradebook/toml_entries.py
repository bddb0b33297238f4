"""Files of TOML that people may edit next to us: entries go, and everything else in the file stays.

Not for reading such files (`gradebox/common/reading.py`), nor for changing single values of an entry.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any


def without(text: str, table: str, is_meant: Callable[[Mapping[str, Any]], bool]) -> str:
    """The file without the entries `[[table]]` that are meant; comments between entries stay, even of those.

    Args:
        text: of the file.
        table: the name of the entries, without brackets.
        is_meant: takes the keys of one entry.
    """
    lines = text.splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if line.strip().startswith(f"[[{table}]]")]
    kept = lines[: starts[0]] if starts else lines
    for start, stop in pairwise([*starts, len(lines)]):
        block = lines[start:stop]
        try:
            (entry,) = tomllib.loads("".join(block))[table]
            is_gone = is_meant(entry)
        except (tomllib.TOMLDecodeError, KeyError, ValueError):
            is_gone = False
        kept += _behind(block) if is_gone else block
    return "".join(kept)


def _behind(block: list[str]) -> list[str]:
    """The comments behind the last line of an entry: they may belong to the next one."""
    last = max(number for number, line in enumerate(block) if line.strip() and not line.strip().startswith("#"))
    behind = block[last + 1 :]
    return behind if any(line.strip() for line in behind) else []
