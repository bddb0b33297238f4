"""Whose a file or folder is by the name that a learning platform gave it, and what kind of thing it is.

Not for what lies in it (`pieces.py`), nor for Gradescope, which tells by a file of its own (`gradescope_export.py`).

| named | from |
|---|---|
| `lovelaceada_123_456_labs.zip`, `lovelaceada_LATE_123_456_labs.zip` | Canvas: a file; name, ID of user, ID of file |
| `lovelaceada_123_text.html`, `lovelaceada_123_link.html` | Canvas: a text entry, a website URL |
| `projectgroup1_123_456_labs.zip` | Canvas: a group's, with the ID of one of its members |
| `group_3_123_456_labs.zip` | the same, of a group whose name ends in a number |
| `anon_Xy7Zq_456_labs.zip`, `LATE_anon_Xy7Zq_456_labs.zip` | Canvas: graded anonymously |
| `Ada Lovelace_123_assignsubmission_file/labs.zip` | Moodle: a folder for each student (or `..._file_labs.zip`) |
| `Ada Lovelace_123_assignsubmission_onlinetext/onlinetext.html` | Moodle: online text |
| `Participant_123_assignsubmission_file/` | Moodle: graded anonymously |
| `Team 1_45_assignsubmission_file/`, `Default group_assignsubmission_file/` | Moodle: a group's |
| `Team 1-Ada Lovelace_123_assignsubmission_file/` | Moodle: a group's, as its member's (`Roster` parts the two names) |

Sources, read in November 2026: `get_filename`, `add_text_or_url` and `add_upload_submission` in Canvas's
`lib/content_zipper.rb` (a name keeps letters, digits and `_`, and holds no number between two `_`; files of one
name get `-1`, `-2`), and `get_student_prefix` in Moodle's `mod/assign/classes/downloader.php` (a name never holds `_`).

A student chooses what stands behind these marks, so the first mark in a name counts and later ones are the student's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from gradebook.intake.roster import CanvasGroup, CanvasId, MoodleId

_MOODLE = re.compile(
    r"(?P<name>[^_]+)(?:_(?P<id>[0-9]+))?_assignsubmission_(?P<type>file|onlinetext)(?:_(?P<rest>.*))?", re.DOTALL
)
_CANVAS = re.compile(
    r"(?P<name>.+?)(?P<late>_LATE)?_(?P<id>[0-9]+)_(?:[0-9]+_(?P<rest>.+)|(?P<type>text|link)\.html)", re.DOTALL
)
_ID_MORE = re.compile(r"[0-9]+_")
"""Behind two numbers there is a third: the first may be the end of a group's name."""
_CANVAS_ANONYMOUS = re.compile(
    r"(?P<late>LATE_)?(?P<name>anon_?[0-9A-Za-z]+)_(?:[0-9]+_(?P<rest>.+)|(?P<type>text|link)\.html)", re.DOTALL
)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What a platform's name says."""

    platform: Literal["Canvas", "Moodle"]
    key: str
    """The same for everything that one student or group handed in."""
    handles: tuple[str, ...]
    """What a roster may know them by."""
    kind: Literal["file", "text", "link"]
    whose: str
    """The name of the student or group, as far as a file's name shows it."""
    late: bool = False
    """Whether Canvas marked it as late."""
    name: str = ""
    """What the student called it; empty for a folder of the platform's."""


def mark(name: str) -> Mark | None:
    """What this name says; None where no platform gave it."""
    if found := _MOODLE.fullmatch(name):
        number, group = found["id"], found["name"]
        return Mark(
            platform="Moodle",
            key=f"{group}_{number}" if number else group,
            handles=(MoodleId(number), group) if number else (group,),
            kind="text" if found["type"] == "onlinetext" else "file",
            whose=group,
            name=found["rest"] or "",
        )
    found = _CANVAS.fullmatch(name)
    handles: tuple[str, ...]
    if found is not None and not name.startswith("LATE_"):
        key, handles = f"{found['name']}_{found['id']}", (CanvasId(found["id"]),)
        if found["late"] is None and _ID_MORE.match(found["rest"] or ""):
            handles = (*handles, CanvasGroup(f"{found['name']}_{found['id']}"))
    elif (found := _CANVAS_ANONYMOUS.fullmatch(name)) is not None:
        key, handles = found["name"], (found["name"],)
    else:
        return None
    kind: Literal["file", "text", "link"] = "file"
    if found["type"]:
        kind = "text" if found["type"] == "text" else "link"
    return Mark(
        platform="Canvas",
        key=key,
        handles=handles,
        kind=kind,
        whose=found["name"],
        late=bool(found["late"]),
        name=found["rest"] or "",
    )
