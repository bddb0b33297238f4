"""The similarity report as a page and as a table. Everything that comes from a submission is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import jinja2

from grader.exports import cells
from grader.integrity.similarity import Pair
from grader.texts import printable

_HEADER = ("module", "student", "other student", "share", "other share", "median of the module", "identical")


def write(
    pairs: Sequence[Pair], folder: Path, *, compared: int, shown: int, threshold: float, now: datetime
) -> list[Path]:
    """Write `similarity.html` (the first `shown` pairs, with excerpts) and `similarity.csv` (all); their paths."""
    rows = [
        (
            pair.module,
            *pair.students,
            *(f"{share:.3f}" for share in pair.shares),
            f"{pair.median:.3f}",
            "yes" if pair.identical else "no",
        )
        for pair in pairs
    ]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["printable"] = printable
    page = environment.get_template("similarity.html.jinja").render(
        pairs=pairs[:shown], total=len(pairs), compared=compared, threshold=threshold, now=now
    )
    return [
        cells.write(folder / "similarity.html", page),
        cells.write(folder / "similarity.csv", cells.to_csv(_HEADER, rows)),
    ]
