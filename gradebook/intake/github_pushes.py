"""When commits reached GitHub: its list of a repository's activity, as a table of pushes for `submitted`.

Asks by GitHub's own program `gh`, which knows the instructor's login; reads only. GitHub's "List repository activities"
gives each push with its moment, its branch and the newest commit (`timestamp`, `ref`, `after`). Not for reading the
table (`times.py`).
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gradebook.intake.handed_in import HandedIn, IntakeError
from gradebook.intake.repositories import shown
from gradebook.repository_names import repository_name
from gradebook.text_files import to_csv

HEADER = ("repository", "commit", "pushed_at", "branch", "kind")
_SECONDS = 120.0
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_ADDRESS = re.compile(
    r"(?:https://|ssh://git@|git@)(?:www\.)?github\.com[/:](?P<owner>[^/]+)/(?P<name>[^/]+?)(?:\.git)?/?"
)
_ELSEWHERE = re.compile(r"[a-z+]+://|[\w.-]+@[\w.-]+:", re.IGNORECASE)
"""How an address begins that names a server; those of GitHub are known before."""


_REMEDIES = {
    "rate limit": ". Wait an hour, then run the command again",
    "HTTP 404": ". Correct the name or --org; or log gh in as somebody who may read the repository",
    "HTTP 403": ". Log gh in as an owner of the organization: gh auth login",
    "error connecting": ". Run the command again when the network is back",
}
"""What to do about what `gh` says."""


class PushesError(ValueError):
    """GitHub cannot be asked; the message is one line that says what to do."""


@dataclass(frozen=True)
class Pushes:
    """What GitHub said."""

    rows: tuple[tuple[str, ...], ...]
    """As `HEADER`, the newest first in each repository."""
    failures: tuple[str, ...]
    """Of which repositories GitHub said nothing, and why."""

    def to_csv(self) -> str:
        return to_csv(HEADER, self.rows)


def repositories(things: Sequence[HandedIn], owner: str | None) -> list[str]:
    """The repositories among submissions as OWNER/NAME: by their addresses, or by their folders' names.

    Raises:
        PushesError: nobody says whose they are on GitHub, or there is none.
    """
    names = list(dict.fromkeys(name for thing in things if (name := _name(thing, owner))))
    if not names:
        raise PushesError("there is no git repository among the submissions")
    if homeless := [name for name in names if "/" not in name]:
        raise PushesError(f"whose is {homeless[0]} on GitHub? Say it with --org")
    return names


def _name(thing: HandedIn, owner: str | None) -> str:
    if thing.kind != "repository":
        return ""
    if thing.address and (match := _ADDRESS.fullmatch(thing.address)):
        return f"{match['owner']}/{match['name']}"
    if thing.address and _ELSEWHERE.match(thing.address):
        return thing.address
    name = repository_name(thing.address or thing.label)
    return f"{owner}/{name}" if owner else name


def ask(names: Sequence[str], announce: Callable[[str], None]) -> Pushes:
    """Ask GitHub about each repository.

    Args:
        names: as OWNER/NAME.
        announce: is called with each name before GitHub is asked.

    Raises:
        PushesError: there is no `gh`, or nobody is logged in.
    """
    rows: list[tuple[str, ...]] = []
    failures: list[str] = []
    for name in names:
        announce(shown(name))
        if _ELSEWHERE.match(name):
            failures.append(f"{shown(name)}: it is not on GitHub; give its times in a table of students")
            continue
        if not all(_PART.fullmatch(part) for part in name.split("/", 1)):
            failures.append(f"{shown(name)}: it is no name of a repository")
            continue
        try:
            theirs = [_row(name, activity) for activity in _activities(name)]
        except IntakeError as error:
            failures.append(f"{name}: {error}")
            continue
        rows += theirs
        if not theirs:
            failures.append(f"{name}: GitHub recorded no push; the student may have handed in nothing")
    return Pushes(tuple(rows), tuple(failures))


def _activities(name: str) -> Iterator[dict[str, Any]]:
    command = ["gh", "api", "--paginate", f"repos/{name}/activity?per_page=100"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False)
    except FileNotFoundError:
        raise PushesError("gh is not installed: get it from https://cli.github.com, then run gh auth login") from None
    except subprocess.TimeoutExpired:
        raise IntakeError(f"GitHub gave no answer within {_SECONDS:g} s") from None
    said = done.stderr.decode(errors="replace")
    if done.returncode == 4 or "gh auth login" in said:
        raise PushesError("gh is not logged in: run gh auth login")
    if done.returncode:
        remedy = next((remedy for mark, remedy in _REMEDIES.items() if mark in said), "")
        raise IntakeError(shown(said or f"gh ended with exit code {done.returncode}") + remedy)
    text, place = done.stdout.decode(errors="replace"), 0
    try:
        while rest := text[place:].lstrip():  # one list a page
            page, length = json.JSONDecoder().raw_decode(rest)
            place = len(text) - len(rest) + length
            if not isinstance(page, list) or not all(isinstance(activity, dict) for activity in page):
                raise TypeError
            yield from page
    except (json.JSONDecodeError, TypeError):
        raise IntakeError("what GitHub answered is no list of activities") from None


def _row(name: str, activity: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table; of a branch that was deleted with the commit 000..., which nobody reads as a push."""
    values = (str(activity.get(key) or "") for key in ("after", "timestamp", "ref", "activity_type"))
    return (name, *values)
