"""For tests of what is handed in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gradebook.intake.downloads import Downloads


@pytest.fixture
def downloads(tmp_path: Path) -> Downloads:
    return Downloads(tmp_path)
