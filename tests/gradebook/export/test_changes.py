"""Which scores are other ones than in the exports before."""

from __future__ import annotations

from gradebook.export import changes


def test_who_has_lost_points_is_never_left_out_of_a_long_list() -> None:
    before = {f"s{number}": "5" for number in range(9)} | {"edited": "n/a"}
    after = {**dict.fromkeys(before, "6"), "s8": "4.5", "edited": "n/a"}
    said = changes.text(before, after)
    assert said.startswith("9 scores changed since the exports before: s0 5 → 6, ")
    assert "and 4 more. Lower than before: s8 5 → 4.5. If nobody should lose points, " in said
    assert "Lower" not in changes.text(before, {**after, "s8": "5"})
    assert changes.text(before, before) == ""
