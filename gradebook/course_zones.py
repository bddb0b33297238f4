"""The time zone that a course names in `class.toml`, and names that mean another one than people think."""

from __future__ import annotations

import re
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gradebox.common.reading import Document

_WINTER = {"EST": "America/New_York", "MST": "America/Denver (or America/Phoenix, which has no summer time)"}
"""Names that people write for a zone with summer time, and that have none."""
_SIGNED = re.compile(r"(?:Etc/)?GMT([+-])(\d+)")


def zone(document: Document, name: str) -> ZoneInfo | None:
    """The zone of this name; None for no name. Raises ReadingError if it is none, or another one than is meant."""
    if name in _WINTER:
        text = f"timezone = {name!r} is {name} in summer as well, an hour off; write the course's city, {_WINTER[name]}"
        raise document.error(("timezone",), text)
    if match := _SIGNED.fullmatch(name):
        text = (
            f"timezone = {name!r} means UTC{'-' if match[1] == '+' else '+'}{match[2]}, with the other sign, all year"
        )
        raise document.error(("timezone",), f"{text}; write the course's city, like Europe/Berlin")
    try:
        return ZoneInfo(name) if name else None
    except (ZoneInfoNotFoundError, ValueError, OSError):
        text = f"timezone = {name!r}: this machine knows no such zone; write it like Europe/Berlin"
        raise document.error(("timezone",), f"{text} (or install tzdata: pip install tzdata)") from None
