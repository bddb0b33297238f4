"""What a time on a real GPU may be: as an H100 and its host took it, and not as a mistake makes it.

Numbers of an H100 in a virtual machine (docs/on-a-gpu.md): products back to back by events, and one by one as the
reference read them on its host's clock.
"""

from __future__ import annotations

from typing import Any

import pytest

from grader.lab1.truth import mistakes, timing

SEEN = {  # size: seconds of a product
    643: (20.6e-6, 57.5e-6),
    3547: (654e-6, 704e-6),
    4405: (3.863e-3, 4.155e-3),
}


def call(size: int, told: float, iterations: int = 7) -> tuple[timing.Call, dict[str, Any]]:
    products = [{"device": "cuda", "dtype": "float32", "flops": 2 * size**3, "count": iterations}]
    observed = {"result": {"seconds": told}, "products": products, "truth": list(SEEN[size]), "pace": None}
    return {"size": size, "iterations": iterations}, observed


@pytest.mark.parametrize("size", SEEN)
def test_either_method_is_right(size: int) -> None:
    alone, waited = SEEN[size]
    for told in (alone, 0.95 * alone, waited, 1.08 * waited, waited + 15e-6):
        asked, seen = call(size, told)
        interval = timing.expected("cuda", asked, seen)
        assert interval.low <= told <= interval.high
        assert mistakes.mistake_of("cuda", asked, seen) is None


@pytest.mark.parametrize("size", [3547, 4405])
def test_mistakes_are_seen_in_long_products(size: int) -> None:
    waited = SEEN[size][1]
    for told, cause in (
        (7 * waited, mistakes.TOTAL),
        (1e3 * waited, mistakes.MILLISECONDS),
        (waited / 7, mistakes.DIVIDED_TWICE),
        (12e-6, mistakes.NOT_WAITED),
        (1.5 * waited, mistakes.MORE),
    ):
        asked, seen = call(size, told)
        assert mistakes.mistake_of("cuda", asked, seen) is cause
