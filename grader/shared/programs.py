"""What a lab's program must leave behind: a picture that shows something, and its results as JSON."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from gradebox.run.assertions import require
from gradebox.sandbox.devices import Device

_LEAST_GROUND = 0.02
"""Share of a plot's pixels that has the colour of its ground; of random pixels none has as much."""
_LEAST_POINTS = 2
"""Of data, in a figure that shows a result."""
_SAVE = "Write the file with labkit.results.save_json."


ProgramSeen: TypeAlias = Any
"""What a probe saw of a program (`run_program` of the probes): `exit_code`, `json` and `pictures`; some have `drawn`
and `words`, too."""
Json: TypeAlias = Any
"""What a program wrote as JSON: each lab knows what it must be."""


def picture_and_json(actual: ProgramSeen, what: str) -> list[Json]:
    """The rows of the one results file a program wrote; fails unless a picture that shows something is next to it."""
    require(actual.exit_code in (0, None), f"{what} ended with exit code {actual.exit_code!r}, expected 0")
    require(bool(actual.json), f"{what} wrote no .json file into the folder given by --out")
    require(bool(actual.pictures), f"{what} wrote no .png file into the folder given by --out")
    for name, picture in actual.pictures.items():
        require(
            picture["width"] >= 200 and picture["height"] >= 150 and picture["colours"] >= 4,
            f"{name} shows nothing: {picture['width']} x {picture['height']} pixels, colours: {picture['colours']}",
            "Draw before you save, and save the figure that you drew on.",
        )
        require(
            picture["ground"] >= _LEAST_GROUND,
            f"{name} is no plot: its commonest colour covers {picture['ground']:.2%} of it",
            "Draw results on axes, and leave the space between lines and bars empty.",
        )
    drawn = getattr(actual, "drawn", [])
    require(
        not drawn or max(drawn) >= _LEAST_POINTS,
        f"{what} saved figures with {', '.join(map(str, drawn))} points of data: axes without results",
        "Draw before you save, in colours that differ from the ground, and save the figure that you drew on.",
    )
    files = [rows for text in actual.json.values() if (rows := _rows(text)) is not None]
    require(bool(files), f"no .json file of {what} has a list of results", _SAVE)
    return files[0]


def rows_of(text: str, what: str) -> list[Json]:
    """The rows of a results file; fails if it has none."""
    rows = _rows(text)
    require(bool(rows), f"{what} has no list of results", _SAVE)
    return rows or []


def _rows(text: str) -> list[Json] | None:
    try:
        rows = json.loads(text)["results"]
    except (ValueError, KeyError, TypeError):
        return None
    return rows if isinstance(rows, list) else None


def require_provenance(actual: ProgramSeen, what: str, *, simulated: bool) -> None:
    """Fail unless the results files that a program wrote say whether its GPUs were virtual."""
    provenances = {name: is_simulated(text) for name, text in actual.json.items()}
    require(
        simulated in provenances.values() and (not simulated) not in provenances.values(),
        f"{what}: provenance.simulated is {provenances}, expected {simulated}",
        "Pass device.provenance() to labkit.results.save_json.",
    )


def require_simulated_pictures(actual: ProgramSeen, what: str) -> None:
    """Fail unless a picture of a program on virtual GPUs says that it is simulated.

    GPUs that the program opens itself are gone when its block ends, and with them the word in the picture.
    """
    require(
        any("simulated" in text.casefold() for texts in actual.words for text in texts),
        f"{what}: {', '.join(sorted(actual.pictures))} shows work of virtual GPUs, and does not say "
        "that it is simulated",
        (
            "Save the plot with labkit.plotting.save_png inside the `with open_device(...)` "
            'block: there it writes "simulated".'
        ),
    )


def own_gpu(device: Device) -> list[str]:
    """What to call a program with, so that it opens virtual GPUs by itself, in a probe without one: when its block
    ends they are gone, as in a student's shell, and with them the word in pictures that are drawn then."""
    return ["--device", device.name] if device.simulated else []


def is_simulated(text: str) -> Json:
    """What the provenance of saved results says; None where there is none."""
    try:
        return json.loads(text)["provenance"]["simulated"]
    except (ValueError, KeyError, TypeError):
        return None
