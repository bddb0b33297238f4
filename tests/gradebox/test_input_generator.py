"""Cases that are drawn so that values meet."""

from __future__ import annotations

import itertools

from gradebox.run.input_generator import InputGenerator

SPACE = {"dtype": ("float16", "bfloat16", "float32"), "window": (1, 2, 3, 9), "clipped": (False, True),
         "epochs": (1, 2), "loader": (False, True), "frozen": (False, True)}  # fmt: skip


def pairs(seeds: range, count: int) -> set[object]:
    rows = [row for seed in seeds for row in InputGenerator(seed, "a check").cases(SPACE, count)]
    return {pair for row in rows for pair in itertools.combinations(row.items(), 2)}


def test_ten_seeds_show_every_pair_of_values() -> None:
    everything = {
        ((name, left), (other, right))
        for name, other in itertools.combinations(SPACE, 2)
        for left, right in itertools.product(SPACE[name], SPACE[other])
    }
    assert pairs(range(70, 80), 2) == everything


def test_a_seed_has_the_same_rows_each_time_and_another_block_others() -> None:
    assert InputGenerator(7, "a check").cases(SPACE, 3) == InputGenerator(7, "a check").cases(SPACE, 3)
    assert InputGenerator(7, "a check").cases(SPACE, 3) != InputGenerator(17, "a check").cases(SPACE, 3)


def test_what_cannot_be_together_never_is() -> None:
    for seed in range(20):
        rows = InputGenerator(seed, "x").cases(SPACE, 2, lambda row: row["dtype"] == "float16" or not row["clipped"])
        assert all(row["dtype"] == "float16" for row in rows if row["clipped"])
