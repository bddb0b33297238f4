"""Figures that the README states, from recorded results, so that they cannot differ (`make generated`).

A page says where: `<!-- figures -->`, and `<!-- end of figures -->` below.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

_RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
_MARKED = re.compile(r"(<!-- figures -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def with_figures(page: str) -> str:
    """The Markdown page with every marked place filled in; without recorded results it stays as it is."""
    if not _RESULTS.is_dir():  # students get no results
        return page
    return _MARKED.sub(lambda match: f"{match[1]}\n{_figures()}\n\n{match[2]}", page)


def _figures() -> str:
    cost, bugs, published = (_recorded(name) for name in ("grade_cost", "planted_bugs", "published"))
    rows = [row for row in bugs["rows"] if row["kind"] == "bugs"]
    noticed = sum(bool(row["lost"]) for row in rows)
    figures = published["figures"].items()
    sizes = [abs(math.log(figure["ratio"])) for name, figure in figures if not name.startswith("mem-")]
    off = 100 * math.expm1(statistics.median(sizes))
    return "\n".join(
        [
            f"- Grading the reference solution takes {cost['all_labs']['wall_seconds']['median']:.0f} seconds on"
            f" {cost['machine']['cores']} cores without a GPU ([how it was measured](benchmarks/NOTES.md)).",
            f"- The grader notices {noticed} of {len(rows)} planted bugs"
            " ([every bug](benchmarks/results/planted_bugs.json)).",
            f"- Simulated times differ from published times of real GPUs by {off:.0f} %"
            f" (median of {len(sizes)}; [how we know](docs/how-we-know.md)).",
        ]
    )


def _recorded(name: str) -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads((_RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return recorded
