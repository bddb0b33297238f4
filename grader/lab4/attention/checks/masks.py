"""The mistakes in a mask, a scale or an operand that checks of Lab 4's attention recognise, each with its hint."""

from __future__ import annotations

from collections.abc import Mapping

from gradebox.run.assertions import Cause
from grader.lab4.attention.reference import Mistake

_CORNER = "Let query i see key j if j <= i + keys - queries, so that the last query sees the last key."
_SCALE = "Divide the scores by the square root of head_dim, once."
_TEXTS: Mapping[Mistake, tuple[str, str]] = {
    "one_key_too_many": ("each query sees one key too many", _CORNER),
    "one_key_too_few": ("each query sees one key too few", _CORNER),
    "mask_from_the_other_corner": (
        "the causal mask begins at the first query and key, as PyTorch's is_causal does",
        f"{_CORNER} With other numbers of queries and keys, is_causal is another mask.",
    ),
    "no_mask": ("every query sees all keys: the causal mask is left out", _CORNER),
    "nothing_seen_is_nan": (
        "a query that sees no key gives NaN",
        "Give a query that sees no key an output of 0: its sum is 0, and 0 / 0 is NaN.",
    ),
    "scale_forgotten": ("the scores are not divided by the square root of head_dim", _SCALE),
    "scale_without_the_root": ("the scores are divided by head_dim itself, without the root", _SCALE),
    "keys_for_values": ("the keys are weighed instead of the values", "Multiply the weights with V, not with K."),
}


def cause_of(mistake: Mistake | None, function: str) -> Cause | None:
    """The mistake as a hint that names it; in another function it is another mistake."""
    if mistake is None:
        return None
    text, hint = _TEXTS[mistake]
    check = f"lab4.attention.{function.removesuffix('_attention')}_equals_reference"
    return Cause(f"{mistake} in {function}", hint, check, mistake=f"In {function}(), {text}")
