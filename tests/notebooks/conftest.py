"""A lab package to export into, and notebooks made of cells."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

MODULE = '''"""Task 1.2: a module of a lab."""

import math

SIZES = (128, 256)


def area(size: int) -> int:
    """Of a square.

    Returns:
        size x size.
    """
    # TODO(task 1.2): multiply.
    raise NotImplementedError("Task 1.2 is open: write area in labs/lab9_shapes/square.py (about 1 line)")


def root(value: float) -> float:
    """Given."""
    return math.sqrt(value)


if __name__ == "__main__":
    print(area(2))
'''


@pytest.fixture
def labs(tmp_path: Path) -> Path:
    folder = tmp_path / "labs"
    (folder / "lab9_shapes").mkdir(parents=True)
    (folder / "lab9_shapes" / "square.py").write_text(MODULE)
    return folder


@pytest.fixture
def notebook(tmp_path: Path) -> Callable[..., Path]:
    """Write a notebook whose code cells are marked for export to lab9_shapes/square.py."""

    def write(*cells: str, path: str = "lab9_shapes/square.py") -> Path:
        file = tmp_path / "lab9.ipynb"
        content = [{"cell_type": "code", "source": f"# export: {path}\n{cell}"} for cell in cells]
        content.append({"cell_type": "code", "source": "print('not marked')"})
        file.write_text(json.dumps({"cells": content}))
        return file

    return write
