"""`pytest --grade` grades this course; how it does is `gradebox.pytest_plugin`."""

from pathlib import Path

pytest_plugins = ("gradebox.pytest_plugin",)


def pytest_grade_course() -> Path:
    """The folder of `course.toml`."""
    return Path(__file__).parent
