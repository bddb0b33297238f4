"""Writes the rubric's points into pages that state them, so that nobody writes them twice.

    python -m grader.rubric_table docs/labs/*.md README.md

A page says where: `<!-- points: lab1 -->` (the checks of a lab) or `<!-- points: all -->` (the labs of the course), and
`<!-- end of points -->` below. Not for grading: `rubric.py` reads the rubric, `grade.py` counts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

from gradebox.rubric import Criterion, Lab
from grader import course

_MARKED = re.compile(r"(<!-- points: (\w+) -->\n).*?(<!-- end of points -->)", re.DOTALL)


def with_points(page: str) -> str:
    """The Markdown page with every marked place filled in.

    Raises:
        KeyError: for a mark that names neither a lab, nor an exercise, nor `all`.
    """
    return _MARKED.sub(lambda found: f"{found[1]}\n{_table(found[2])}\n\n{found[3]}", page)


def out_of_date(pages: list[Path]) -> list[Path]:
    """The pages whose points are not the rubric's."""
    return [page for page in pages if with_points(text := page.read_text(encoding="utf-8")) != text]


def _table(name: str) -> str:
    if name == "all":
        return "\n".join(_labs(course().labs))
    return "\n".join(_checks({lab.id: lab for lab in course().all_labs}[name]))


def _labs(labs: tuple[Lab, ...]) -> Iterator[str]:
    yield "| lab | points | for |"
    yield "|---|---:|---|"
    for lab in labs:
        criteria = ", ".join(f"{_in_a_list(criterion.title)} {_number(criterion.points)}" for criterion in lab.criteria)
        yield f"| [{lab.number} {lab.title}](docs/labs/{lab.id}.md) | {_number(lab.points)} | {criteria} |"


def _checks(lab: Lab) -> Iterator[str]:
    yield "| criterion | points | check, and what it is worth |"
    yield "|---|---:|---|"
    for criterion in lab.criteria:
        yield f"| **{criterion.title}** `{criterion.id}` | {_number(criterion.points)} | {_list(criterion)} |"


def _list(criterion: Criterion) -> str:
    names = (f"{check.id.rpartition('.')[2].replace('_', ' ')} {_number(check.points)}" for check in criterion.checks)
    return " · ".join(names)


def _in_a_list(title: str) -> str:
    """`Memory profiling` with a small letter; `AMP implementation` as it is."""
    return title if title[:2].isupper() else title[0].lower() + title[1:]


def _number(points: Decimal) -> str:
    return f"{points.normalize():f}"


def main(names: list[str]) -> None:
    for page in out_of_date([Path(name) for name in names]):
        page.write_text(with_points(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
