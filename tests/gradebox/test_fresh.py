"""Cases that are drawn so that values meet."""

from __future__ import annotations

import itertools

from gradebox.fresh import Fresh

SPACE = {"dtype": ("float16", "bfloat16", "float32"), "window": (1, 2, 3, 9), "clipped": (False, True),
         "epochs": (1, 2), "loader": (False, True), "frozen": (False, True)}  # fmt: skip


def pairs(seeds: range, count: int) -> set[object]:
    rows = [row for seed in seeds for row in Fresh(seed, "a check").cases(SPACE, count)]
    return {pair for row in rows for pair in itertools.combinations(row.items(), 2)}


def test_ten_seeds_show_every_pair_of_values() -> None:
    everything = {
        ((one, left), (other, right))
        for one, other in itertools.combinations(SPACE, 2)
        for left, right in itertools.product(SPACE[one], SPACE[other])
    }
    assert pairs(range(70, 80), 2) == everything


def test_a_seed_has_the_same_rows_each_time_and_another_block_others() -> None:
    assert Fresh(7, "a check").cases(SPACE, 3) == Fresh(7, "a check").cases(SPACE, 3)
    assert Fresh(7, "a check").cases(SPACE, 3) != Fresh(17, "a check").cases(SPACE, 3)


def test_what_cannot_be_together_never_is() -> None:
    for seed in range(20):
        rows = Fresh(seed, "x").cases(SPACE, 2, lambda row: row["dtype"] == "float16" or not row["clipped"])
        assert all(row["dtype"] == "float16" for row in rows if row["clipped"])
