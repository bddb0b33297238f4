"""What labs compare: the committed table is of the committed figures, and has the winners of real cards."""

from __future__ import annotations

import dataclasses
import json

import pytest

from benchmarks import lab_comparisons
from benchmarks.lab_comparisons import COMPARISONS
from benchmarks.measure import RESULTS
from benchmarks.published import figures


def committed() -> dict[str, list[dict[str, object]]]:
    result: dict[str, list[dict[str, object]]] = json.loads(
        (RESULTS / "lab_comparisons.json").read_text(encoding="utf-8")
    )
    return result


def test_the_table_is_of_the_committed_figures() -> None:
    """If figures change, `python -m benchmarks.lab_comparisons` has to run again."""
    known = committed()
    rows = [row for comparison in COMPARISONS for row in lab_comparisons.rows_of(comparison, lambda *_: 1.0)]
    assert len(rows) == len(known["rows"]) == len(COMPARISONS) * len(lab_comparisons.CARDS)
    for row, before in zip(rows, known["rows"], strict=True):
        assert row["title"] == before["title"]
        assert row["real"] == before["real"]
        if row["real"] is not None:
            assert row["virtual"] == before["virtual"], row
    assert list(lab_comparisons.published_pairs()) == known["pairs"]


def test_each_comparison_has_a_real_card_and_few_have_another_winner() -> None:
    rows = committed()["rows"]
    with_real = [row for row in rows if row["real"] is not None]
    assert {row["title"] for row in with_real} == {comparison.title for comparison in COMPARISONS}
    assert sum(map(lab_comparisons.right, with_real)) >= len(with_real) - 1
    pairs = committed()["pairs"]
    assert len(pairs) > 140
    assert sum(map(lab_comparisons.right, pairs)) >= 0.98 * len(pairs)


def test_a_pair_differs_in_one_thing() -> None:
    known = {figure.id: figure for figure in figures.load()}
    one, other = known["rn50e-t4-fp32-1"], known["rn50e-t4-fp32-8"]
    assert lab_comparisons.differ_in(one, other) == "batch size"
    assert lab_comparisons.differ_in(known["mm-v100-fp32-1024"], known["mm-v100-fp16-1024"]) == "type"
    # These are in NHWC as well.
    assert lab_comparisons.differ_in(one, known["rn50e-t4-amp-1"]) is None
    assert lab_comparisons.differ_in(other, known["rn50e-t4-amp-1"]) is None
    assert lab_comparisons.differ_in(one, known["rn50e-v100-fp32-1"]) is None
    assert lab_comparisons.differ_in(one, dataclasses.replace(other, source="another")) is None


@pytest.mark.parametrize(("real", "virtual", "expected"), [(2.0, 1.2, True), (2.0, 0.9, False), (1.1, 0.9, True)])
def test_close_calls_do_not_count(real: float, virtual: float, expected: bool) -> None:
    assert lab_comparisons.right({"real": real, "virtual": virtual}) is expected
