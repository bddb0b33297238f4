"""The numbers by which people call a course's labs: in `--lab 10`, in `class.toml` and in folders of submissions."""

from __future__ import annotations

import re
from collections.abc import Sequence


def of(labs: Sequence[str]) -> list[tuple[str, int]]:
    """Labs with their numbers: 10 for `lab10`, if all names have one; else their places."""
    own = [int(match[1]) for name in labs if (match := re.fullmatch(r"[a-z_]+([1-9][0-9]*)", name))]
    return list(zip(labs, own if len(set(own)) == len(labs) else range(1, len(labs) + 1), strict=True))
