"""What a lab's program must leave behind: a picture that shows something, and its results as JSON."""

from __future__ import annotations

import json
from typing import Any

from gradebox.assertions import require

_LEAST_GROUND = 0.02
"""Share of a plot's pixels that has the colour of its ground; of random pixels none has as much."""
_LEAST_POINTS = 2
"""Of data, in a figure that shows a result."""


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
        require(
            picture["ground"] >= _LEAST_GROUND,
            f"{name} is no plot: its commonest colour covers {picture['ground']:.2%} of it",
            "draw results on axes; what is between lines and bars stays empty",
        )
    drawn = getattr(seen, "drawn", [])
    require(
        not drawn or max(drawn) >= _LEAST_POINTS,
        f"{what} saved figures with {', '.join(map(str, drawn))} points of data: axes without results",
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
