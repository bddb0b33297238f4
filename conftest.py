"""Loads the grading plugin; `pyproject.toml` names it too, so that its options are known in time."""

pytest_plugins = ["grader.plugin"]
