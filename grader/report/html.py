"""The grade as one self-contained HTML page: no script, no external asset, readable in print and in the dark."""

from __future__ import annotations

from pathlib import Path

import jinja2

from grader.grade import Grade, Outcome
from grader.report.document import points

_MARKS = {Outcome.PASSED: "✓", Outcome.FAILED: "✗", Outcome.BLOCKED: "·", Outcome.NEEDS_REVIEW: "?"}


def render(grade: Grade) -> str:
    """The page's text. Everything that comes from a submission is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["points"] = points
    environment.filters["mark"] = _MARKS.__getitem__
    return environment.get_template("grade.html.jinja").render(grade=grade)
