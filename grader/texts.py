"""Text that a submission had a hand in, made fit to be shown: in a terminal, a page or a table."""

from __future__ import annotations

import unicodedata

_INVISIBLE = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))
"""Unicode categories of what moves the cursor, reverses the direction of writing, or cannot be written at all."""


def printable(text: str) -> str:
    """`text` with control characters, escapes of terminals and marks of direction written out: `\\x1b[2J`.

    Line ends and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character in "\n\t" or unicodedata.category(character) not in _INVISIBLE
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
