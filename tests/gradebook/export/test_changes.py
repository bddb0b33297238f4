"""Which scores are other ones than in the exports before."""

from __future__ import annotations

from gradebook.export import changes


def test_who_has_lost_points_is_never_left_out_of_a_long_list() -> None:
    before = {f"s{number}": "5" for number in range(9)} | {"edited": "n/a"}
    after = {**dict.fromkeys(before, "6"), "s8": "4.5", "edited": "n/a"}

    def text(later: dict[str, str]) -> str:
        return changes.text(changes.Exported(before), changes.Exported(later), "gpulabs review spring")

    said = text(after)
    assert said.startswith("9 scores changed since the exports before: s0 5 → 6, ")
    assert (
        "and 4 more. Lower than before: s8 5 → 4.5. If nobody should lose points, gpulabs review spring --override"
        in said
    )
    assert "Lower" not in text({**after, "s8": "5"})
    assert text(before) == ""


def test_a_score_that_is_none_now_was_not_lowered_and_another_maximum_is_named() -> None:
    before, after = changes.Exported({"ada": "10", "bob": "7"}, "10"), changes.Exported({"ada": "", "bob": "8"}, "12")
    assert changes.text(before, after, "review") == (
        "the class can earn 12 points now, and 10 before; "
        "2 scores changed since the exports before: ada 10 → none, bob 7 → 8"
    )


def test_of_another_maximum_nobody_is_advised_to_give_points_back() -> None:
    before, after = changes.Exported({"ada": "20"}, "20"), changes.Exported({"ada": "10"}, "10")
    assert changes.text(before, after, "review").endswith("1 score changed since the exports before: ada 20 → 10")


def test_another_maximum_of_what_people_give_is_named() -> None:
    def text(before: str, after: str) -> str:
        return changes.text(changes.Exported({}, "10", before), changes.Exported({}, "10", after), "review")

    assert text("10", "8").startswith("people give 8 points now, and 10 before: marks that were given before keep")
    assert text("10", "10") == text("", "8") == text("8", "") == text("0", "8") == ""
