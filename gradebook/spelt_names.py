"""Names and identifiers in the form in which they are compared, and names in files that say more than the name.

Not for identifiers, nor for what two students share (`roster.py`).
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

_SIGNS = str.maketrans({**dict.fromkeys("\u2018\u2019\u02bc\u00b4\uff07", "'"), **dict.fromkeys("\u2010\u2011", "-")})
"""Apostrophes and hyphens that keyboards, word processors and telephones write for `'` and `-`."""
_COPY = re.compile(r"( \(\d{1,2}\)| - copy| copy( \d{1,2})?)+$", re.IGNORECASE)
"""What browsers and desktops write behind the name of a second file of the same name."""
_LAB = re.compile(r"lab\d*|\d{1,2}")
_WORD = re.compile(r"[^\W_]+")
_ACCENT = re.compile("[\u0300-\u036f]")
_LETTERS = str.maketrans(
    {"ł": "l", "đ": "d", "ð": "d", "ø": "o", "\u0131": "i", "ħ": "h", "æ": "ae", "œ": "oe", "þ": "th"}
)
"""Letters that Unicode does not take for others with an accent, as people write them on other keyboards."""
_SPELT_OUT = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "å": "aa", "ø": "oe"})
_SHORT = 2
"""So long words are no names alone."""


class _Named(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def columns(self) -> Mapping[str, str]: ...


_Student = TypeVar("_Student", bound=_Named)


def folded(text: str) -> str:
    """A cell or a name in the form in which they are compared: as people see it, whatever spaces are in it."""
    if not text.isascii():
        # macOS takes accents apart in names of files; keyboards of East Asia write letters and digits in full width.
        text = unicodedata.normalize("NFKC", text)
        # Web pages and spreadsheets leave marks that nobody sees in what is copied from them.
        text = "".join(sign for sign in text if unicodedata.category(sign) != "Cf").translate(_SIGNS)
    return " ".join(text.split()).casefold()


def folded_name(text: str) -> str:
    """A name of a person or a team, whose `_` Moodle writes as spaces."""
    return folded(text.replace("_", " "))


def folded_person(text: str) -> str:
    """The same of a person, whom Canvas calls "Lovelace, Ada" in its gradebook."""
    last, comma, first = folded_name(text).partition(",")
    return f"{first.strip()} {last.strip()}" if comma and first.strip() else last


def in_plain_letters(text: str) -> tuple[str, str]:
    """Without accents and case; and so with ä, ö, ü, å and ø as Germans and Danes write them where these lack.

    It is for suggestions alone: two people may have names that differ in nothing else.
    """
    composed = unicodedata.normalize("NFC", text).casefold()
    first, second = (
        unicodedata.normalize("NFKD", form).translate(_LETTERS) for form in (composed, composed.translate(_SPELT_OUT))
    )
    return _ACCENT.sub("", first), _ACCENT.sub("", second)


def have_a_word_in_common(name: str, other: str) -> bool:
    """Whether a word of the name `other` is in `name`, however its accents and umlauts are written."""
    words = {word for form in in_plain_letters(other) for word in re.findall(r"\w+", form)}
    return any(word in form for form in in_plain_letters(name) for word in words)


def may_be_of(file: str, name: str, key: str) -> bool:
    """Whether a file's name has a word of a student's name, or the whole key."""
    words = {word for form in in_plain_letters(file) for word in _WORD.findall(form)}
    own = {word for form in in_plain_letters(name) for word in _WORD.findall(form) if len(word) > _SHORT}
    parts = set(_WORD.findall(in_plain_letters(key.partition("@")[0])[0]))
    return bool(words & own) or (bool(parts) and parts <= words)


def of_file(name: str) -> tuple[str, ...]:
    """Whose name a file's may be: itself, or without the number that a browser gave a second download."""
    return tuple(dict.fromkeys((name, _COPY.sub("", name))))


def meant(name: str, entries: Sequence[_Student], identifiers: Sequence[str]) -> list[_Student]:
    """Whose name is in a file's name, next to what says nothing else; several if it may be either's.

    These are the last name first (`Lovelace Ada`), a platform's `Lovelace_Ada_al001_4711` (ILIAS) and
    `Lovelace, Ada(al001)` (Sakai), and `Ada Lovelace - labs` (Google Classroom);
    and an identifier with a lab, `s1234567_lab1`. With one student's name and another one's number it may be either's.

    Args:
        name: of the file or folder.
        entries: of the roster.
        identifiers: titles of the columns that hold any.
    """
    words, parts = _words(name), [folded_person(part) for part in name.split(" - ")]
    parts = parts if len(parts) > 1 else []
    named = [
        entry
        for entry in entries
        if (entry.name and (folded_person(entry.name) in parts or _says_no_more(words, entry, identifiers)))
        or _is_of_lab(words, entry, identifiers)
    ]
    # A number next to a name says nothing, unless it is another student's.
    numbers = {word for word in words if word.isdigit() and len(word) > _SHORT}
    if not named or not numbers:
        return named
    return [
        entry
        for entry in entries
        if entry in named or any(folded(entry.columns.get(title, "")) in numbers for title in identifiers)
    ]


def _is_of_lab(words: Counter[str], entry: _Named, identifiers: Sequence[str]) -> bool:
    """Whether it is an identifier next to the number of a lab: `s1234567_lab1`."""
    cells = (entry.columns.get(title, "") for title in identifiers)
    rest = (words - own for cell in cells if (own := _words(cell)) and not own - words)
    return any(other and all(_LAB.fullmatch(word) for word in other) and "lab" in "".join(other) for other in rest)


def _says_no_more(words: Counter[str], entry: _Named, identifiers: Sequence[str]) -> bool:
    own = _words(entry.name)
    known = {word for title in identifiers if entry.columns.get(title) for word in _words(entry.columns[title])}
    if own - words:
        return _says_so_plainly(words, entry, known, identifiers)
    rest = set(words - own)
    if any(not word.isdigit() and word not in known for word in rest):
        return False
    # One word alone may be part of another name, unless it is all that there is, as in `Madonna .`.
    return own.total() > 1 or (bool(own) and words == own) or any(word in known - set(own) for word in rest)


def _says_so_plainly(words: Counter[str], entry: _Named, known: set[str], identifiers: Sequence[str]) -> bool:
    """Whether a whole identifier is next to the name in plain letters, as ILIAS writes `Mueller_Zoe_zoe12_4711`."""
    cells = [_words(entry.columns.get(title, "")) for title in identifiers]
    if not any(cell and not cell - words and not all(word.isdigit() for word in cell) for cell in cells):
        return False
    for form in in_plain_letters(entry.name):
        own = Counter(_WORD.findall(form))
        if own and not own - words and all(word.isdigit() or word in known for word in words - own):
            return any(word in known for word in words - own)
    return False


@functools.lru_cache(maxsize=2**14)  # of each student, for each name that is in no list: a class has hundreds of both
def _words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(folded(text)))
