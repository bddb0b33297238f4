"""What Lab 4's attention is asked with: drawn operands, and lengths of queries and keys."""

from __future__ import annotations

from typing import Any

from gradebox.fresh import Fresh
from grader.lab4.truth.reference import as_bfloat16


def case_of(fresh: Fresh) -> dict[str, Any]:
    """Operands that every format holds exactly, shared by all checks of one grading."""
    fresh = fresh.shared("lab4.attention")
    heads, width, longest = fresh.integer(2, 3), fresh.odd(9, 21), 45
    shape = (2, heads, longest, width)
    return {name: as_bfloat16(fresh.normal(*shape)) for name in ("q", "k", "v", "gradient")}


def calls_of(fresh: Fresh, dtypes: tuple[str, ...], **others: Any) -> list[dict[str, Any]]:
    """Causal and not; as many keys as queries, more and fewer; all lengths odd."""
    fresh = fresh.shared("lab4.lengths")
    short, middle, long = fresh.odd(9, 15), fresh.odd(23, 31), fresh.odd(37, 45)
    pairs = ((middle, middle), (short, long), (long, short), (1, middle))
    return [
        {"dtype": dtype, "queries": queries, "keys": keys, "causal": causal, **others}
        for dtype in dtypes
        for queries, keys in pairs
        for causal in (False, True)
    ]
