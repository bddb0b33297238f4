"""What the page for instructors shows of `class.toml` can be used as it stands."""

from __future__ import annotations

import tomllib
from pathlib import Path

from gradebook import settings
from gradebook.export import everything

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "courses" / "random_walks" / "README.md"
PAGE = Path(__file__).parents[2] / "docs" / "class-grading.md"


def test_a_page_that_compares_submissions_installs_what_that_needs() -> None:
    """`make grade` installs what students need, and the comparison needs one library more."""
    (needed,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["class"]
    in_the_demo, in_the_repository = f"uv pip install '{needed}'", ".venv/bin/uv pip install -e '.[class]'"
    pages = {
        PAGE.with_name("class-first-run.md"): in_the_demo,
        PAGE.with_name("class-statistics.md"): in_the_repository,
        DEMO: in_the_demo,
    }
    for page, command in pages.items():
        text = page.read_text()
        assert command in text[: text.index(" similarity ")], page


def test_the_example_loads() -> None:
    (text,) = [part.partition("```")[0] for part in PAGE.read_text().split("```toml\n")[1:] if "[late]" in part]
    configuration = settings.parse(text, PAGE.with_name("class.toml"))
    assert configuration.title == "GPU lab 1"
    assert everything.options(configuration.exports).canvas_assignment_id == 4711
