"""Where labs lie in a folder that somebody handed in: in it, in its `labs`, or in the folders around them.

Not for what is taken from there (`pieces.py`), nor for how labs are called (`lab_names.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePath

from gradebook.intake.names import Refused
from gradebox.sandbox import copying

_DEPTH = 24
"""So many folders around everything are looked through; `copying.scan` takes as many."""
IsLab = Callable[[str], bool]
"""Whether a folder of this name is a lab."""


def holds_labs(folder: Path) -> bool:
    """Whether lab folders lie in it, or in its folder `labs`."""
    return _labs_at(folder, copying.is_lab) is not None


def place_of(top: Path, is_lab: IsLab) -> Path | None:
    """The folder in which labs lie: `top`, its `labs`, or one below it; where there is but one, also below that.

    Raises:
        Refused: there are several.
    """
    for folder in (top, *wrappers(top)):
        if (found := _labs_at(folder, is_lab)) is not None:
            return found
        found_below = [(path, labs) for path in inner(folder) if (labs := _labs_at(path, is_lab)) is not None]
        if len(found_below) > 1:
            names = ", ".join(repr(path.name) for path, _ in found_below)
            raise Refused(f"holds labs in several folders, {names}; hand in one of them")
        if found_below:
            return found_below[0][1]
    return None


def _labs_at(folder: Path, is_lab: IsLab) -> Path | None:
    for place in (folder, folder / "labs"):
        if not place.is_symlink() and any(is_lab(path.name) for path in folders(place)):
            return place
    return None


def code_of(top: Path) -> Path | None:
    """Where the code of a lab lies that has no folder of its own; None where there is none."""
    places = [place for folder in (top, *wrappers(top)) for place in (folder / "labs", folder)]
    return next((place for place in places if not place.is_symlink() and place.is_dir() and holds_code(place)), None)


def holds_code(folder: Path) -> bool:
    """Whether modules lie in it."""
    return any(path.suffix == ".py" for path in files(folder))


def wrappers(top: Path) -> list[Path]:
    """The one folder in `top`, where it is the only one, the one folder in that, and so on, a few times."""
    found: list[Path] = []
    while len(found) < _DEPTH and len(below := inner(found[-1] if found else top)) == 1:
        found.append(below[0])
    return found


def around(top: Path) -> list[Path]:
    """The files in `top` and in the folders that are around everything, without hidden ones."""
    return [path for folder in (top, *wrappers(top)) for path in files(folder) if not is_hidden(path)]


def innermost(lab: Path, stands_for_it: IsLab) -> Path:
    """`lab`, or the folder in it that stands for it and has its code: as where an archive of it was unpacked into a
    folder of its own name."""
    here = lab
    for _ in range(_DEPTH):
        below = [path for path in inner(here) if stands_for_it(path.name)]
        if len(below) != 1 or holds_code(here):
            break
        here = below[0]
    return here if holds_code(here) else lab


def inner(folder: Path) -> list[Path]:
    """The folders in it, without what systems and tools leave there."""
    return [path for path in folders(folder) if not is_hidden(path) and not (path / "pyvenv.cfg").exists()]


def folders(folder: Path) -> list[Path]:
    """All folders in it; none where it cannot be read."""
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []


def files(folder: Path) -> list[Path]:
    """The files in it; without links."""
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())


def is_hidden(path: PurePath) -> bool:
    """Whether systems and tools made it, and people do not see it."""
    return path.name in copying.LEFT_BEHIND or path.name.startswith((".", "__MACOSX"))
