"""What the engine's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gradebox.small_course import importing


@pytest.fixture
def _courses_are_forgotten() -> Iterator[None]:
    """For tests that import a small course."""
    with importing():
        yield
