"""Tables of a class that somebody has edited since they were written: kept, because the next ones take their place.

Their digests are in `.exports.json` of the class, which is written before the tables, with the digests of those that
were there: so a command that was stopped midway makes no table an edited one. Not for feedback, which nobody edits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from gradebook.text_files import write_file

_DIGESTS = ".exports.json"


def keep(folder: Path, exports: Path, texts: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Give each table that somebody has edited another name, and note what is written now.

    Args:
        folder: of the class.
        exports: of the exports.
        texts: what will be written, by name.
        say: takes a line about each.
    """
    known = _known(folder / _DIGESTS)
    digests: dict[str, list[str]] = {}
    for name, text in texts.items():
        path = exports / name
        digests[name] = [_digest(text.encode("utf-8", "replace"))]
        if not path.is_file():
            continue
        data = path.read_bytes()
        ours = known.get(name)
        if ours is not None and _digest(data) not in (*ours, *digests[name]):
            kept = _free(path)
            path.replace(kept)
            say(f"{path} was edited since it was written: the edited one is {kept.name} now, and nothing reads it")
        else:
            digests[name].append(_digest(data))
    _store(folder, digests)


def note(folder: Path, texts: Mapping[str, str]) -> None:
    """Note what was written, to its end."""
    _store(folder, {name: [_digest(text.encode("utf-8", "replace"))] for name, text in texts.items()})


def _store(folder: Path, digests: Mapping[str, list[str]]) -> None:
    write_file(folder / _DIGESTS, json.dumps(digests, indent=1) + "\n")


def _known(path: Path) -> dict[str, list[str]]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # of an earlier version, or never written
    return {name: list(digests) for name, digests in known.items()} if isinstance(known, dict) else {}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _free(path: Path) -> Path:
    """The name of a file that is not there: `grades.edited.csv`, `grades.edited-2.csv`."""
    names = (f"{path.stem}.edited{'' if number == 1 else f'-{number}'}{path.suffix}" for number in range(1, 10_000))
    return next(free for name in names if not (free := path.with_name(name)).exists())
