"""One mistake, one charge: which failing checks of a criterion follow from another one, and keep their points.

A check that fails may name the *cause* that it recognised (`gradebox.run.assertions.Cause`). Of the checks of a
criterion that fail for the same cause, one is charged, and the others follow from it: the one that the cause belongs
to, or else the one that is worth most. What is kept in this way is never more than what the checks that passed are
worth: where little works, little can be said to follow.

A check that fails for a reason that nobody named, and builds on another one that failed as well, follows from that one,
where at least half of the criterion's points are earned: it asked about what is known to be wrong.

A crash, an open task or a check that waits for another one shows nothing of what would come after, and is charged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from decimal import Decimal


def deduplicate(
    points: Mapping[str, Decimal],
    passed: Collection[str],
    causes: Mapping[str, tuple[str, str]],
    built_on: Mapping[str, str] | None = None,
) -> tuple[dict[str, str], frozenset[str]]:
    """What follows from what, in one criterion.

    Args:
        points: of all its checks, in the rubric's order.
        passed: those that passed.
        causes: of those that failed and recognised one: its name, and the check that it belongs to, or nothing.
        built_on: of those that failed and recognised none, a failed check that they build on.

    Returns:
        By check, the one that it follows from; and which of them are not charged.
    """
    # A cause is charged at the check that it belongs to, if that one failed: its title names the mistake. Else at the
    # one worth most, so that nobody gains by which of several checks happens to recognise it.
    charged: dict[str, str] = {}
    for check in sorted(causes, key=lambda name: (causes[name][1] != name, -points[name], list(points).index(name))):
        charged.setdefault(causes[check][0], check)
    follows = {
        check: charged[causes[check][0]] for check in points if check in causes and charged[causes[check][0]] != check
    }
    # What is kept is paid for by what passed. Without this limit a submission in which one recognised mistake fails all
    # checks would keep nearly every point although nothing works.
    left = earned = sum((points[check] for check in points if check in passed), Decimal(0))
    # `builds_on` is the author's guess, not an observation. It is only believed of work that is right for the larger
    # part.
    if 2 * earned >= sum(points.values(), Decimal(0)):
        for check, ground in (built_on or {}).items():
            if check in points and ground in points and check not in causes:
                follows[check] = follows.get(ground, ground)
    # In the rubric's order, so that the same failures always keep the same points.
    kept = set()
    for check in follows:
        if points[check] <= left:
            kept.add(check)
            left -= points[check]
    return follows, frozenset(kept)
