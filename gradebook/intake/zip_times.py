"""Times of files in zip archives, which have no zone. Only the standard library, as `archives.py` says."""

from __future__ import annotations

import time
import zipfile
from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo


def as_plain(zone: tzinfo | None) -> str | float | None:
    """A zone in a form for another process: its name, or its offset in seconds."""
    name = getattr(zone, "key", None)
    offset = zone.utcoffset(None) if zone is not None else None
    return str(name) if name else None if offset is None else offset.total_seconds()


def zone(plain: str | float | None) -> tzinfo | None:
    """The zone that `as_plain` made this of."""
    if plain is None:
        return None
    return ZoneInfo(plain) if isinstance(plain, str) else timezone(timedelta(seconds=plain))


def changed(info: zipfile.ZipInfo, zone: tzinfo | None) -> float | None:
    """When a member was changed, in seconds since the epoch; None where it says no real moment.

    By the clock of `zone`, else by this machine's, as `unzip` takes it.
    """
    try:
        if zone is not None:
            return datetime(*info.date_time, tzinfo=zone).timestamp()
        return time.mktime((*info.date_time, 0, 0, -1))
    except (OverflowError, ValueError):
        return None
