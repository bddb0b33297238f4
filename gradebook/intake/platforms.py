"""Whose a file or folder is by the name that a learning platform gave it, and what kind of thing it is.

Gradescope's export names them in a file of its own, see `load_export`. Not for what lies in it (`pieces.py`).

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
| `Lab 1_al001_attempt_2026-03-01-23-59-00_labs.zip` | Blackboard: column, login, moment; the last attempt counts |
| `Lab 1_al001_attempt_2026-03-01-23-59-00.txt` | Blackboard's own: who, when, and a text if one was typed |
| `ada@uni.example_10_labs.zip` | Autolab: address, version, file; the last version counts |
| `123456+987654_file1_submission2` | A+: numbers of all members, file, version; the file's name is lost |
| `[1] - ada - walks.py`, `[1] - ada - prompt_0.txt` | edX: number of the assignment, login, file or text |
| `7-42 - Ada Lovelace - Mar 1, 2026 1159 PM/` | Brightspace: numbers of user and submission, name, moment |

Sources, read in November 2026: `get_filename`, `add_text_or_url` and `add_upload_submission` in Canvas's
`lib/content_zipper.rb` (a name keeps letters, digits and `_`, and holds no number between two `_`; files of one
name get `-1`, `-2`), and `get_student_prefix` in Moodle's `mod/assign/classes/downloader.php` (a name never holds `_`).

A student chooses what stands behind these marks, so the first mark in a name counts and later ones are the student's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from gradebook.roster import CanvasGroup, CanvasId, MoodleId
from gradebox.common.texts import printable

_MOODLE = re.compile(
    r"(?P<name>[^_]+)(?:_(?P<id>[0-9]+))?_assignsubmission_(?P<type>file|onlinetext)(?:_(?P<rest>.*))?", re.DOTALL
)
_CANVAS = re.compile(
    r"(?P<name>.+?)(?P<late>_LATE)?_(?P<id>[0-9]+)_(?:[0-9]+_(?P<rest>.+)|(?P<type>text|link)\.html)", re.DOTALL
)
_BLACKBOARD = re.compile(
    r"(?P<head>.+)_attempt_(?P<when>\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d)(?:_(?P<rest>.+)|(?P<info>\.txt))", re.DOTALL
)
_BRIGHTSPACE = re.compile(
    r"(?P<id>\d+)-\d+ ?- (?P<name>.+?) ?- (?P<when>[A-Z][a-z]{2,8}\.? \d{1,2}, \d{4} \d{1,2}[:.]?\d\d [AP]M)", re.DOTALL
)
_AUTOLAB = re.compile(r"(?!annotated_)(?P<address>[^@\s]+@[^@\s_]+)_(?P<version>\d+)_(?P<rest>.+)", re.DOTALL)
"""https://github.com/autolab/Autolab: `Submission#handin_filename`, read in November 2026; a domain has no `_`."""
_EDX = re.compile(r"\[(?:\d+|x)\] - (?P<login>\S+) - (?:(?P<text>prompt_\d+\.txt)|(?P<rest>.+))", re.DOTALL)
"""https://github.com/openedx/edx-ora2: `OraDownloadData`, read in November 2026."""
_APLUS = re.compile(r"(?P<numbers>\d+(?:\+\d+)*)_file\d+_submission(?P<version>\d+)")
"""https://github.com/apluslms/a-plus, pull request 1407."""
_CLOCK = re.compile(r"(\d{1,2})[:.]?(\d\d) ([AP]M)")
_TYPED = re.compile(r"Submission Field:\s*(?P<text>.*?)\s*(?:Comments:|Files:|$)", re.DOTALL)
_NOTHING_TYPED = "There is no student submission text data"
_ID_MORE = re.compile(r"[0-9]+_")
"""Behind two numbers there is a third: the first may be the end of a group's name."""
_CANVAS_ANONYMOUS = re.compile(
    r"(?P<late>LATE_)?(?P<name>anon_?[0-9A-Za-z]+)_(?:[0-9]+_(?P<rest>.+)|(?P<type>text|link)\.html)", re.DOTALL
)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What a platform's name says."""

    platform: Literal["Canvas", "Moodle", "Blackboard", "Brightspace", "Autolab", "edX", "A+"]
    key: str
    """The same for everything that one student or group handed in."""
    handles: tuple[str, ...]
    """What a roster may know them by."""
    kind: Literal["file", "text", "link", "info"]
    """`info`: the platform's own word about a submission."""
    whose: str
    """The name of the student or group, as far as a file's name shows it."""
    late: bool = False
    """Whether Canvas marked it as late."""
    name: str = ""
    """What the student called it; empty for a folder of the platform's."""
    when: str = ""
    """The moment in words that `moments.parse` reads; of two attempts, the later one counts."""
    version: str = ""
    """Its number, where attempts have one instead of a moment."""
    members: tuple[str, ...] = ()
    """Who handed it in, if it names several."""


def mark(name: str) -> Mark | None:
    """What this name says; None where no platform gave it."""
    if match := _MOODLE.fullmatch(name):
        number, group = match["id"], match["name"]
        return Mark(
            platform="Moodle",
            key=f"{group}_{number}" if number else group,
            handles=(MoodleId(number), group) if number else (group,),
            kind="text" if match["type"] == "onlinetext" else "file",
            whose=group,
            name=match["rest"] or "",
        )
    if match := _BLACKBOARD.fullmatch(name):
        return _of_blackboard(match)
    if match := _BRIGHTSPACE.fullmatch(name):
        when = _CLOCK.sub(_with_a_colon, match["when"])
        return Mark(
            platform="Brightspace",
            key=f"{match['name']}_{match['id']}",
            handles=(match["name"],),
            kind="file",
            whose=match["name"],
            when=when,
        )
    if match := _AUTOLAB.fullmatch(name):
        address, version = match["address"], match["version"]
        return Mark(
            platform="Autolab", key=address, handles=(address,), kind="file", whose="", name=match["rest"],
            version=version,
        )  # fmt: skip
    if match := _EDX.fullmatch(name):
        login = match["login"]
        return Mark(
            platform="edX", key=login, handles=(login,), kind="text" if match["text"] else "file", whose="",
            name=match["rest"] or "",
        )  # fmt: skip
    if match := _APLUS.fullmatch(name):
        numbers = tuple(match["numbers"].split("+"))
        return Mark(
            platform="A+", key=match["numbers"], handles=numbers[:1], kind="file", whose="", version=match["version"],
            members=numbers,
        )  # fmt: skip
    match = _CANVAS.fullmatch(name)
    handles: tuple[str, ...]
    if match is not None and not name.startswith("LATE_"):
        key, handles = f"{match['name']}_{match['id']}", (CanvasId(match["id"]),)
        if match["late"] is None and _ID_MORE.match(match["rest"] or ""):
            handles = (*handles, CanvasGroup(f"{match['name']}_{match['id']}"))
    elif (match := _CANVAS_ANONYMOUS.fullmatch(name)) is not None:
        key, handles = match["name"], (match["name"],)
    else:
        return None
    kind: Literal["file", "text", "link"] = "file"
    if match["type"]:
        kind = "text" if match["type"] == "text" else "link"
    return Mark(
        platform="Canvas",
        key=key,
        handles=handles,
        kind=kind,
        whose=match["name"],
        late=bool(match["late"]),
        name=match["rest"] or "",
    )


def _of_blackboard(match: re.Match[str]) -> Mark:
    """Its mark. The column's title and the login may both hold `_`, so that every end of the head may be the login."""
    head = match["head"]
    parts = head.split("_")
    day, clock = match["when"][:10], match["when"][11:].replace("-", ":")
    return Mark(
        platform="Blackboard",
        key=head,
        handles=tuple("_".join(parts[place:]) for place in range(len(parts))),
        kind="info" if match["info"] else "file",
        whose="",
        name=match["rest"] or "",
        when=f"{day} {clock}",
    )


def _with_a_colon(match: re.Match[str]) -> str:
    return f"{match[1]}:{match[2]} {match[3]}"


def blackboard_person(path: Path) -> tuple[str, ...]:
    """The login and the name in Blackboard's own file about the attempt; empty if there is none."""
    match = _BLACKBOARD.fullmatch(path.name)
    if match is None:
        return ()
    info = path.with_name(f"{match['head']}_attempt_{match['when']}.txt")
    try:
        first = info.read_text(encoding="utf-8-sig", errors="replace").partition("\n")[0].strip()
    except OSError:
        return ()
    named = re.fullmatch(r"(?:[^:]+: *)?(?P<name>.*?) *\((?P<login>[^()]+)\)", first)
    # Another file with this name would be the student's own.
    if named is None or not match["head"].endswith(f"_{named['login'].strip()}"):
        return ()
    return tuple(filter(None, (named["login"].strip(), named["name"])))


def typed_text(info: Path) -> str:
    """The text that a student typed into Blackboard, from its own file about an attempt; empty if there is none."""
    try:
        text = info.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        return ""
    match = _TYPED.search(text)
    typed = match["text"].strip() if match else ""
    return "" if typed.startswith(_NOTHING_TYPED) else typed


SAKAI_ATTACHMENTS = "Submission attachment(s)"
"""Where Sakai puts what a student handed in, next to its own files and the instructor's feedback."""
_SAKAI_TIME = re.compile(r"(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)(?:\d{3})?")


def sakai_moment(folder: Path) -> str:
    """When a student handed in by Sakai's own file next to the attachments, as ISO 8601; empty if none says it.

    Sakai writes UTC, in earlier versions as 20260301225900000.
    """
    if not folder.name.endswith(")") or not (folder / SAKAI_ATTACHMENTS).is_dir():
        return ""
    try:
        text = (folder / "timestamp.txt").read_text(encoding="utf-8-sig", errors="replace").strip()
    except OSError:
        return ""
    match = _SAKAI_TIME.fullmatch(text)
    return "{}-{}-{}T{}:{}:{}Z".format(*match.groups()) if match else text


# --- Gradescope's export ----------------------------------------------------------------------------------------------

EXPORT_FILE = "submission_metadata.yml"
_KEY = re.compile(r"""(?P<quote>['"]?)(?P<name>[^\s'":][^'":]*)(?P=quote):\s*""")
_SECTION = re.compile(r"  (?P<name>:\w+):\s*(?P<value>.*)")
_SUBMITTER = re.compile(r"  (?P<first>- |  )(?P<name>:\w+):\s*(?P<value>.*)")
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.\d+)? (Z|[+-]\d\d:\d\d)")


class ExportError(ValueError):
    """The file cannot be read; the message is one line that says what to do."""


@dataclass(frozen=True)
class Submitter:
    """One of those who handed a submission in."""

    name: str = ""
    sid: str = ""
    email: str = ""

    @property
    def key(self) -> str:
        """What to call them where no roster knows them."""
        return printable(self.sid or self.email or self.name, lines=False)

    @property
    def handles(self) -> tuple[str, ...]:
        return tuple(handle for handle in (self.sid, self.email, self.name) if handle)


@dataclass(frozen=True)
class Exported:
    """One submission."""

    folder: str
    submitters: tuple[Submitter, ...]
    created_at: datetime | None


def load_export(file: Path) -> tuple[Exported, ...]:
    """Read the file.

    Raises:
        ExportError: it cannot be read, names no submission, or has a time that is none.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    except OSError as error:
        raise ExportError(f"{file} cannot be read: {error.strerror}") from None
    submissions = tuple(_submissions(lines, file))
    if not submissions:
        raise ExportError(f"{file} names no submission; export the submissions from Gradescope again")
    return submissions


def _submissions(lines: list[str], file: Path) -> Iterator[Exported]:
    folder, section = "", ""
    submitters: list[dict[str, str]] = []
    created_at: datetime | None = None
    for number, line in enumerate([*lines, "end:"], start=1):
        if (key := _KEY.fullmatch(line)) is not None:
            if folder:
                yield Exported(
                    folder,
                    tuple(Submitter(**submitter) for submitter in submitters if any(submitter.values())),
                    created_at,
                )
            folder, section, submitters, created_at = key["name"], "", [], None
        elif (match := _SECTION.fullmatch(line)) is not None:
            section = match["name"]
            if section == ":created_at":
                created_at = _moment(match["value"])
                if created_at is None and _text(match["value"]):
                    raise ExportError(
                        f"{file}, line {number}: {_text(match['value'])!r} is no time as Gradescope writes it, such as "
                        "2026-03-01 10:00:00.000000000 Z; export the submissions again, and do not edit the file"
                    )
        elif section == ":submitters" and (match := _SUBMITTER.fullmatch(line)) is not None:
            if match["first"] == "- ":
                submitters.append({})
            name = match["name"].removeprefix(":")
            if submitters and name in ("name", "sid", "email"):
                submitters[-1][name] = _text(match["value"])


def _text(value: str) -> str:
    """A scalar as Ruby writes it: plain, in single quotes with '' for one, or in double ones with escapes."""
    value = value.strip()
    if value in ("", "~", "null", "!!null"):
        return ""
    if len(value) > 1 and value[0] == value[-1] == "'":
        return value[1:-1].replace("''", "'").strip()
    if len(value) > 1 and value[0] == value[-1] == '"':
        try:
            return str(json.loads(re.sub(r"\\x([0-9A-Fa-f]{2})", r"\\u00\1", value))).strip()
        except ValueError:
            return value[1:-1].strip()
    return value


def _moment(value: str) -> datetime | None:
    match = _MOMENT.fullmatch(_text(value))
    return None if match is None else datetime.fromisoformat(f"{match[1]}T{match[2]}{match[3]}").astimezone(UTC)
