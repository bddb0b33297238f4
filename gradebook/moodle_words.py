"""Moodle's offline grading worksheet in any language: its titles, and what it calls participants and groups.

A roster has the English titles inside, so that everything finds them; what goes back to Moodle has the titles that its
file had. The words are in `moodle_titles.toml`. Not for what is in the columns.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

OWN_TITLES = "(Moodle's titles)"
"""A column of ours, next to those of the file: as JSON, the file's own title by the English one."""

_LANGUAGES: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    Path(__file__).with_name("moodle_titles.toml").read_text(encoding="utf-8")
)
_NEEDED = ("Identifier", "Last modified (grade)")
_NO_TITLES = ("language", "participant", "no_group", "default_group")


def _every(kind: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for words in _LANGUAGES.values() for word in words[kind]))


LANGUAGES = tuple(str(words["language"]) for words in _LANGUAGES.values())
PARTICIPANTS = _every("participant")
"""What stands before a participant's number."""
PARTICIPANTS_IN_FILES = tuple(word.replace("/", "").casefold() for word in PARTICIPANTS)
"""The same in names of files, which have no slash, small: all that a download for anonymous grading says of anybody."""
NO_GROUP = tuple(word.casefold() for word in _every("no_group"))
"""What is in the column of groups for who is in none, small."""
ALONE = ("none", "n/a", "#n/a", "na", "nan", "null", "nil", "no team", "no group", "kein team", "keine gruppe")
"""The same as people and spreadsheets write it."""
DASHES = " -\u2010\u2011\u2012\u2013\u2014/.?"
"""Signs that say nothing by themselves."""
DEFAULT_GROUPS = tuple(word.casefold() for word in _every("default_group"))
"""The group of who is in none, where an assignment is handed in by groups, small."""
MODIFIED = tuple(title.casefold() for title in _every("Last modified (submission)"))
"""Titles of the column that says when a submission was changed, small."""

NO = (
    *("no", "nein", "non", "não", "nee", "nej", "nie", "нет", "ні", "όχι", "ez", "nu", "لا", "いいえ", "아니오", "否"),
    "hayır",  # noqa: RUF001
)
"""What is in the column after the maximum grade where a grade cannot be changed, small."""
DRAFTS = (
    *("draft (not submitted)", "entwurf (nicht abgegeben)", "brouillon (non remis)", "kladwerk (nog niet ingestuurd)"),
    *("borrador (no enviado)", "rascunho (não enviado)", "مسودة (غير مسلمة)", "下書き (未提出)"),
)
"""How a status begins of who has not pressed the button for handing in, small."""


def titles_of(titles: Collection[str]) -> dict[str, str]:
    """The titles of a worksheet, by the English ones; empty where they are these, or the file is no worksheet.

    Columns that the file lacks are there as well, with what its language calls them now.
    """
    for words in _LANGUAGES.values():
        columns = {english: forms for english, forms in words.items() if english not in _NO_TITLES}
        if all(any(form in titles for form in columns[english]) for english in _NEEDED):
            own: dict[str, str] = {}
            for english, forms in columns.items():
                title = next((form for form in forms if form in titles), forms[0])
                # Of two columns that may be called the same it is the first: Italian has one word for full and first.
                if english != title and title not in own.values():
                    own[english] = title
            return own
    return {}


def as_moodle_wrote(titles: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """English titles of a roster as its file had them."""
    own = json.loads(next((str(row[OWN_TITLES]) for row in rows if row.get(OWN_TITLES)), "{}"))
    return [own.get(title, title) for title in titles]
