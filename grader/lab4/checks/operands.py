"""What Lab 4's attention is asked with: drawn operands, and lengths of queries and keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradebox.run.input_generator import InputGenerator
from grader.lab4.truth.reference import as_bfloat16
from grader.shared.cases import full_rows


def case_of(generator: InputGenerator) -> dict[str, Any]:
    """Operands that every format holds exactly, shared by all checks of one grading."""
    generator = generator.shared("lab4.attention")
    heads, width, longest = generator.integer(2, 3), generator.odd(9, 21), 45
    shape = (2, heads, longest, width)
    return {name: as_bfloat16(generator.normal(*shape)) for name in ("q", "k", "v", "gradient")}


def calls_of(generator: InputGenerator, dtypes: tuple[str, ...], **others: Any) -> list[dict[str, Any]]:
    """Causal and not; as many keys as queries, more and fewer; all lengths odd."""
    generator = generator.shared("lab4.lengths")
    short, middle, long = generator.odd(9, 15), generator.odd(23, 31), generator.odd(37, 45)
    pairs = ((middle, middle), (short, long), (long, short), (1, middle))
    return [
        {"dtype": dtype, "queries": queries, "keys": keys, "causal": causal, **others}
        for dtype in dtypes
        for queries, keys in pairs
        for causal in (False, True)
    ]


def standard_calls(generator: InputGenerator) -> list[dict[str, Any]]:
    """Calls of standard attention: in float64, with large scores, and in both 16-bit types."""
    calls = calls_of(generator, ("float64",))
    large = [{**call, "factor": 256} for call in calls[:2]]
    half = [{**call, "dtype": "float16"} for call in calls[4:6]]
    return [*calls, *large, *half, *({**call, "dtype": "bfloat16"} for call in calls[:4])]


def flash_calls(generator: InputGenerator) -> list[dict[str, Any]]:
    """Calls of flash attention in the types that kernels have, some with a query that does not see everything."""
    calls = calls_of(generator, ("float32", "float16"))
    few = {**calls[-1], "queries": 2}
    return [*calls, few, *({**call, "dtype": "bfloat16"} for call in calls[:2])]


_LENGTHS = {"equal": (19, 19), "fewer": (9, 25), "more": (25, 9), "one query": (1, 17), "one key": (7, 1)}
_SHORT = {"equal": (5, 5), "fewer": (4, 7), "more": (7, 4), "one query": (1, 6), "one key": (5, 1)}
"""With tiles of one key: who goes through them one by one, for strips of as many queries, takes long."""
_DIMENSIONS: dict[str, Sequence[Any]] = {
    "lengths": tuple(_LENGTHS),
    "causal": (False, True),
    "dtype": ("float64", "float32", "float16", "bfloat16"),
    "factor": (1, 256),
    "transposed": (False, True),
    "needed": ("QKV", "Q", "KV"),
    "alone": (False, True),
}


def mixed_calls(generator: InputGenerator, function: str) -> list[dict[str, Any]]:
    """Calls in which lengths, types, large scores, views and needed gradients meet."""
    dimensions = {**_DIMENSIONS, "block_size": (1, 4, 9, 64)} if function == "tiled_attention" else _DIMENSIONS

    def allowed(row: Mapping[str, Any]) -> bool:
        # Where scores are rounded to 16 bits, as they may be, large ones tell nothing; tiles are computed in float32.
        return row["factor"] == 1 or row["dtype"] not in ("float16", "bfloat16") or function == "tiled_attention"

    calls = []
    for row in full_rows(generator.shared(f"lab4.mixed.{function}"), dimensions, 7, allowed):
        lengths = _LENGTHS if row.get("block_size") != 1 else _SHORT
        queries, keys = lengths[row.pop("lengths")]
        calls.append({**row, "queries": queries, "keys": keys})
    return calls
