"""The similarity report as a page and as a table. Everything that comes from a submission is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

from gradebook import text_files
from gradebook.export.similarity import clusters
from gradebook.export.similarity.similarity import Pair
from gradebox.report import html

_HEADER = (
    "module",
    "student",
    "other student",
    "share",
    "other share",
    "median of the module",
    "identical",
    "earlier year",
    "name",
    "other name",
)


def write(
    pairs: Sequence[Pair],
    folder: Path,
    *,
    compared: int,
    threshold: float,
    now: datetime,
    earlier: int = 0,
    names: Mapping[str, str] = MappingProxyType({}),
) -> list[Path]:
    """Write `similarity.html` (the pairs with passages) and `similarity.csv` (all); their paths.

    `earlier` is how many submissions of other years there were; `names` are students' for people, by their key.
    """
    rows = [
        (
            pair.module,
            *pair.students,
            *(f"{share:.3f}" for share in pair.shares),
            f"{pair.median:.3f}",
            "yes" if pair.identical else "no",
            f"{pair.archive} (the same student)" if pair.same_student else pair.archive,
            *(names.get(student, "") for student in pair.students),  # of a team it has the team
        )
        for pair in pairs
    ]
    page = (
        html.environment(Path(__file__).parent)
        .get_template("similarity.html.jinja")
        .render(
            pairs=[(number, pair) for number, pair in enumerate(pairs, start=1) if pair.passages],
            clusters=clusters.of(pairs),
            shown={number for number, pair in enumerate(pairs) if pair.passages},
            total=len(pairs),
            compared=compared,
            earlier=earlier,
            threshold=threshold,
            now=now,
            names=names,
        )
    )
    return [
        text_files.write_file(folder / "similarity.html", page),
        text_files.write_file(folder / "similarity.csv", text_files.for_spreadsheets(text_files.to_csv(_HEADER, rows))),
    ]
