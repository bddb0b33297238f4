"""Text that a submission had a hand in, made fit to be shown: in a terminal, a page, a table or a document.

Every way out of the grader uses `printable`, at the edge where it writes: consoles (`report/console.py`), `echo` of the
commands, templates (`report/html.py`), cells (`exports/cells.py`), Markdown, and the strings of JSON documents
(`printable_document`). Not for escaping markup; each format does that for itself.
"""

from __future__ import annotations

import unicodedata
from typing import Any

_INVISIBLE = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))
"""Unicode categories of what moves the cursor, reverses the direction of writing, or cannot be written at all."""
_FILLERS = frozenset("\u115f\u1160\u3164\uffa0")
"""Letters by category, but nothing is seen of them."""
_JOINERS = frozenset("\u200c\u200d")
"""Zero-width joiner and non-joiner: part of many emoji, and of spelling in the scripts below."""
_JOINING_SCRIPTS = range(0x0600, 0x1C00)
"""From Arabic to the scripts of South Asia; Latin, Greek, Cyrillic, Chinese and Japanese know no joiners."""
_MODIFIERS = frozenset(("Mn", "Mc", "Sk"))
"""What may stand between an emoji or a letter and its joiner: skin tones, variation selectors, vowel signs."""


def printable(text: str, *, lines: bool = True) -> str:
    """`text` with control characters, escapes of terminals and marks of direction written out: `\\x1b[2J`.

    Line ends and tabs stay, unless `lines` is false: then they are written out, too, because the text is part of a
    line of ours. Zero-width joiners stay where they join emoji, or letters of a script that is spelt with them.
    """
    bare = text.replace("\n", "").replace("\t", "") if lines else text
    if bare.isprintable() and _FILLERS.isdisjoint(bare):
        return text
    kept = "\n\t" if lines else ""
    return "".join(
        character if character in kept or not _is_hidden(text, position) else _written_out(character)
        for position, character in enumerate(text)
    )


def sentence(text: str) -> str:
    """With a capital letter at its beginning and a full stop at its end; empty where it is."""
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def printable_document(value: Any) -> Any:
    """A JSON document with every text in it printable, keys included; tuples become lists."""
    match value:
        case str():
            return printable(value)
        case dict():
            return {printable_document(key): printable_document(inner) for key, inner in value.items()}
        case list() | tuple():
            return [printable_document(inner) for inner in value]
    return value


def is_printable(text: str) -> bool:
    """Whether `printable` leaves `text` as it is, as part of a line."""
    return printable(text, lines=False) == text


def _written_out(character: str) -> str:
    if character in _FILLERS:
        return f"\\u{ord(character):04x}"
    return character.encode("unicode_escape").decode("ascii")


def _is_hidden(text: str, position: int) -> bool:
    character = text[position]
    if character in _JOINERS:
        return not _joins(text, position)
    return character in _FILLERS or unicodedata.category(character) in _INVISIBLE


def _joins(text: str, position: int) -> bool:
    """Whether the joiner there stands where people write one: between two emoji, or inside a word."""
    before = position - 1
    while before > 0 and unicodedata.category(text[before]) in _MODIFIERS and not _is_letter(text[before]):
        before -= 1
    if before < 0 or position + 1 == len(text):
        return False
    left, right = text[before], text[position + 1]
    return (_is_emoji(left) and _is_emoji(right)) or (_is_letter(left) and _is_letter(right))


def _is_emoji(character: str) -> bool:
    return unicodedata.category(character) == "So"


def _is_letter(character: str) -> bool:
    return ord(character) in _JOINING_SCRIPTS and unicodedata.category(character) in ("Lo", "Mn", "Mc")
