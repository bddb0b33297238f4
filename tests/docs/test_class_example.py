"""What the page for instructors shows of `class.toml` can be used as it stands."""

from __future__ import annotations

from pathlib import Path

from gradebook import settings
from gradebook.export import everything

PAGE = Path(__file__).parents[2] / "docs" / "class-grading.md"


def test_the_example_loads() -> None:
    (text,) = [part.partition("```")[0] for part in PAGE.read_text().split("```toml\n")[1:] if "[late]" in part]
    configuration = settings.parse(text, PAGE.with_name("class.toml"))
    assert configuration.title == "GPU lab 1"
    assert everything.options(configuration.exports).canvas_assignment_id == 4711
