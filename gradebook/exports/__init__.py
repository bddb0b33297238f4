"""What leaves the gradebook: tables for Canvas, Moodle and spreadsheets, results for Gradescope, feedback, pages.

Everything here reads a `ClassResult` and writes files; nothing grades or changes a gradebook.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradebook.results import ClassResult

FOLDER = "exports"
"""Where the exports lie, below the folder of the class."""


def write_all(result: ClassResult, folder: Path, *, configuration: Mapping[str, Any] | None = None) -> list[Path]:
    """Write every export of a class into `folder/exports`, each file whole or not at all, and return their paths.

    Args:
        result: the class.
        folder: that of the class: it holds the gradebook, and `reviews.toml` if somebody has reviewed.
        configuration: the table `[exports]` of `class.toml`; `everything.Options` lists what it may hold.

    Raises:
        ValueError: the table or `reviews.toml` cannot be used; the message is one line.
    """
    from gradebook.exports import everything

    return everything.write(result, folder, configuration=configuration)
