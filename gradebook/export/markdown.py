"""Text as parts of Markdown that mean nothing but themselves."""

from __future__ import annotations

import re

_SPECIAL = re.compile(r"([\\`*_\[\]#!|<>~&$])")
_ADDRESS = re.compile(r"(https?://[\w/:.?=&%#~+,;@-]+)")
"""Programs make a link of it by themselves, and take a backslash in it for a part."""
_BACKTICKS = re.compile(r"`+")


def escaped(text: str) -> str:
    """`text` as one line of Markdown that means nothing but itself."""
    parts = _ADDRESS.split(" ".join(text.split()))  # every second one is an address
    return "".join(part if place % 2 else _SPECIAL.sub(r"\\\1", part) for place, part in enumerate(parts))


def code_block(text: str) -> list[str]:
    """A block as part of a list item; its fence is longer than any in the text."""
    fence = "`" * max(3, 1 + max(map(len, _BACKTICKS.findall(text)), default=0))
    return [f"  {line}" for line in (f"{fence}text", *text.splitlines(), fence)]
