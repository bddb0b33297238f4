"""What was taken in and may not be what is meant: for people to decide, in a line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradebook.intake.handed_in import HandedIn
from gradebook.intake.owners import Theirs
from gradebook.intake.repositories import shown
from gradebook.roster import Roster, folded
from gradebook.settings import Settings


def shared_repositories(by_key: Mapping[str, Sequence[Theirs]], roster: Roster | None) -> list[str]:
    """Students who have one repository without being a team: mostly an address was copied into another row."""
    teams = {entry.student: folded(entry.team) for entry in (roster.entries if roster else ())}
    owners: dict[str, list[str]] = {}
    for key, theirs in by_key.items():
        for address in {owned.handed_in.address for owned in theirs if owned.handed_in.address}:
            owners.setdefault(address, []).append(key)
    return [
        f"{', '.join(keys)} have one repository in the list, {shown(address)}, and one grade: correct the address, or "
        "put them into one team"
        for address, keys in owners.items()
        if len({teams.get(key) or key for key in keys}) > 1
    ]


def attempts_in_time(
    by_key: Mapping[str, Sequence[Theirs]], earlier: Sequence[HandedIn], settings: Settings
) -> list[str]:
    """Students whose last attempt counts and is late, although an earlier one was in time.

    Args:
        by_key: what counts, by student.
        earlier: the attempts that a later one has replaced.
        settings: of the class.
    """
    texts = []
    for key, theirs in by_key.items():
        deadline = settings.in_time_until(key)
        names = {(owned.handed_in.platform, owned.handed_in.key) for owned in theirs}
        moments = [owned.handed_in.submitted_at for owned in theirs if owned.handed_in.submitted_at]
        in_time = [
            (thing.submitted_at, thing.label)
            for thing in earlier
            if thing.submitted_at
            and (thing.platform, thing.key) in names
            and deadline
            and thing.submitted_at <= deadline
        ]
        if in_time and moments and deadline is not None and max(moments) > deadline:
            late, (moment, label) = settings.local(max(moments)), max(in_time)
            texts.append(
                f"{key}: the last attempt, of {late:%Y-%m-%d %H:%M %Z}, counts and is late; {label} of "
                f"{settings.local(moment):%Y-%m-%d %H:%M %Z} was in time. If that one should count, remove what came "
                "later from the submissions and run the command again"
            )
    return texts
