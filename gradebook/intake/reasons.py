"""What to say of what was handed in and cannot count, and what to do. Not for whether it counts (`pieces.py`)."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path

from gradebook.intake import places
from gradebook.intake.lab_names import LabNames
from gradebook.intake.unread import NOTEBOOK, OTHER_ARCHIVES

_LINK = re.compile(r"""https?://[^\s"'<>]+""")
_LINK_BYTES = 2**16
_SHOWN = 3


def no_lab(top: Path, names: LabNames) -> str:
    """What is there where a lab should be, and what to do."""
    found = [path for path in sorted(top.iterdir()) if path.name != "__MACOSX"]
    files = places.around(top)
    if other := [path for path in files if path.suffix.lower() in OTHER_ARCHIVES]:
        return f"holds no lab, but {other[0].name!r}, which {what_of(other[0], names)}"
    only_notebooks = all(path.suffix.lower() == NOTEBOOK for path in files)
    if files and only_notebooks and not any(map(places.inner, places.inner(top))):
        return f"holds no lab, but {files[0].name!r}, which {what_of(files[0], names)}"
    what = f"only {some([repr(path.name) for path in found])}" if found else "nothing at all"
    return f"holds no lab, {what}: hand in the lab's folder, as {names.example}, with all that is in it"


def what_of(file: Path, names: LabNames, *, is_beside: bool = False) -> str:
    """What a file is that cannot count, and what to do; `is_beside`: there are labs that count."""
    suffix = file.suffix.lower()
    if suffix in OTHER_ARCHIVES:
        return f"is a {suffix} file, and such are not unpacked here: pack the labs as .zip or .tar.gz"
    if suffix == NOTEBOOK:
        return f"is a notebook, and notebooks are not graded: hand in the lab's folder, as {names.example}"
    if suffix == ".py":
        return f"is a file alone: put it into its lab's folder, as {names.example}, and pack that"
    if is_beside:
        return "lies in no lab's folder: put it into one, if it belongs there, and pack that"
    return "is neither a zip nor a tar file; pack the labs as one of them"


def text(name: str) -> str:
    """Of a text that was typed into a platform."""
    return f"a text was handed in, {name!r}, which nothing here grades: a person has to read it"


def link(path: Path, name: str) -> str:
    """Of a link, and where it leads to."""
    with path.open("rb") as file:
        found = _LINK.search(html.unescape(file.read(_LINK_BYTES).decode("utf-8", "replace")))
    where = f" to {found[0]}" if found else ""
    return (
        f"a link was handed in, {name!r}{where}, and links are not followed: hand in files; what is a repository "
        "can be graded from a list of repositories"
    )


def some(names: Sequence[str]) -> str:
    """The first few of these names."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
