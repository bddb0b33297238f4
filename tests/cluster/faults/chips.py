"""Compute capability of the boards in the stories, and the precisions that their chips have."""

from __future__ import annotations

PRECISIONS = ("float16", "bfloat16")
CAPABILITIES = {
    "V100": [7, 0], "T4": [7, 5], "GB300": [10, 3], "B300": [10, 3], "B200": [10, 0], "RTX 50": [12, 0],
    "RTX 40": [8, 9], "L40": [8, 9], "L4": [8, 9], "L20": [8, 9], "A100": [8, 0], "A800": [8, 0], "A30": [8, 0],
    "A10": [8, 6], "A40": [8, 6],
}  # fmt: skip
"""By what is in the name; all others here are of Hopper."""


def capability(name: str) -> list[int]:
    return next((list(own) for words, own in CAPABILITIES.items() if words in name), [9, 0])


def precisions(name: str) -> tuple[str, ...]:
    return PRECISIONS if capability(name)[0] >= 8 else PRECISIONS[:1]
