"""The mistakes in a mask that checks of Lab 4's attention recognise, each with its hint."""

from __future__ import annotations

from collections.abc import Mapping

from gradebox.run.assertions import Cause
from grader.lab4.attention.reference import Mistake

_CORNER = "query i sees key j if j <= i + keys - queries"
_HINTS: Mapping[Mistake, str] = {
    "one_key_too_many": f"each query sees one key too many: {_CORNER}",
    "one_key_too_few": f"each query sees one key too few: {_CORNER}",
    "mask_from_the_other_corner": (
        f"the mask begins at the first query and key, as PyTorch's is_causal does: {_CORNER}"
    ),
    "nothing_seen_is_nan": "a query that sees no key has an output of 0: it divides 0 by 0, or worse",
}


def cause_of(mistake: Mistake | None) -> Cause | None:
    """The mistake as a hint that names it."""
    return None if mistake is None else Cause(mistake, _HINTS[mistake])
