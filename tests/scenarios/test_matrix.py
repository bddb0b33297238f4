"""The table of planted bugs: what was graded lately joins what was recorded before."""

from __future__ import annotations

from dataclasses import replace

from tests.scenarios import matrix
from tests.scenarios.build import scenarios
from tests.scenarios.matrix import Row

ROW = Row("lab1", "bugs", "", "", "", {"lab1.memory": 1.5}, [], [], [], "", leads_there=True, problem="", seconds=1.0)


def test_new_rows_join_the_recorded_ones_in_order_and_what_is_gone_leaves() -> None:
    first, second, third, *_ = [bug.name for bug in scenarios("lab1/bugs")]
    recorded: dict[str, dict[str, object]] = {
        f"lab1/bugs/{name}": {"name": name, "date": "2026-01-01"} for name in ("no bug of this name", third, first)
    }
    rows = matrix._with_those(recorded, [replace(ROW, name=second)], ["1"])
    assert [row["name"] for row in rows] == [first, second, third]
    assert [row["date"] == "2026-01-01" for row in rows] == [True, False, True]
    assert rows[1]["lost"] == {"lab1.memory": 1.5}
    assert "fingerprint" not in rows[1]


def test_every_recorded_row_has_a_date() -> None:
    rows = matrix._recorded_rows()
    assert len(rows) > 400
    assert all(str(row["date"]).startswith("20") for row in rows.values())
