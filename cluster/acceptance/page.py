"""The report as a page for people: self-contained, no script. The facts are those of the JSON report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from cluster.acceptance.records import readable
from cluster.acceptance.verdict import PARTS


def page(document: dict[str, Any]) -> str:
    """The page's text: self-contained, no script; everything that was measured or said is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["bytes"] = readable
    environment.filters["curve"] = curve
    environment.filters["figure"] = figure
    return environment.get_template("report.html.jinja").render(report=document, parts=PARTS)


def figure(value: float | str, form: str) -> str:
    """A number in a `%` format; what is no number ("NaN") as it is."""
    return value if isinstance(value, str) else form % value


def curve(values: Sequence[float | str], width: int = 640, height: int = 120) -> str:
    """Points of an SVG polyline through `values`, from 0 at the bottom to the largest at the top."""
    numbers = [value for value in values if not isinstance(value, str)]
    top = max(numbers, default=0.0) or 1.0
    step = width / max(1, len(numbers) - 1)
    return " ".join(f"{index * step:.1f},{height - height * value / top:.1f}" for index, value in enumerate(numbers))
