"""Names of people as platforms, archives and file systems spell them: with accents, without, or spelt out."""

from __future__ import annotations

import re
import unicodedata

_WORD = re.compile(r"\w+")
_ACCENT = re.compile("[\u0300-\u036f]")
_SPELT_OUT = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "å": "aa", "ø": "oe"})


def have_a_word_in_common(name: str, other: str) -> bool:
    """Whether a word of the name `other` stands in `name`, however its accents and umlauts are written."""
    words = {word for form in _plain(other) for word in _WORD.findall(form)}
    return any(word in form for form in _plain(name) for word in words)


def _plain(name: str) -> tuple[str, str]:
    """The name without accents, and with ä, ö, ü, å and ø as Germans and Danes write them where these lack."""
    composed = unicodedata.normalize("NFC", name).casefold()
    forms = (composed, composed.translate(_SPELT_OUT))
    first, second = (unicodedata.normalize("NFKD", form) for form in forms)
    return _ACCENT.sub("", first), _ACCENT.sub("", second)
