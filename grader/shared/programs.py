"""What a lab's program must leave behind: a picture that shows something, and its results as JSON."""

from __future__ import annotations

import json
from typing import Any

from gradebox.assertions import require


def picture_and_json(seen: Any, what: str) -> list[Any]:
    """The rows of the one results file a program wrote; fails unless a picture that shows something lies beside it."""
    require(seen.exit_code in (0, None), f"{what} ended with exit code {seen.exit_code!r}, expected 0")
    require(bool(seen.json), f"{what} wrote no .json file into the folder given by --out")
    require(bool(seen.pictures), f"{what} wrote no .png file into the folder given by --out")
    for name, picture in seen.pictures.items():
        require(
            picture["width"] >= 200 and picture["height"] >= 150 and picture["colours"] >= 4,
            f"{name} shows nothing: {picture['width']} x {picture['height']} pixels, colours: {picture['colours']}",
            "draw before you save, and save the figure you drew on",
        )
    for text in seen.json.values():
        try:
            rows = json.loads(text)["results"]
        except (ValueError, KeyError, TypeError):
            continue
        if isinstance(rows, list):
            return rows
    require(False, f"no .json file of {what} has a list of results", "labkit.results.save_json writes the right form")
    return []
