"""What to tell somebody whose module cannot be imported: most often a file has another name, or lies elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ABSENT = re.compile(r"labs/(\S+\.py) does not exist in the submission")
_UNKNOWN = re.compile(r"No module named '([\w.]+)'")
_SHOWN = 4


def hint(message: str, files: Sequence[str]) -> str:
    """Where to look, from what the import said and which files were handed in; empty where they tell nothing."""
    if found := _ABSENT.match(message):
        return _of_absent(found[1], files)
    if found := _UNKNOWN.search(message):
        return _of_unknown(found[1], files)
    return ""


def _of_absent(wanted: str, files: Sequence[str]) -> str:
    folder, _, name = wanted.rpartition("/")
    same = [file for file in files if file.rpartition("/")[2].lower() == name.lower()]
    if name in same:
        return f"{name} must lie in a folder {folder}: hand in, or name, the folder that holds {folder}"
    if same:
        return f"the submission has {same[0]}; its name must be {wanted}, to the letter"
    if not files:
        return f"the folder is empty: hand in, or name, the folder that holds {folder}"
    shown = ", ".join(files[:_SHOWN]) + (f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else "")
    return f"hand in, or name, the folder that holds {folder}; this one has {shown}"


def _of_unknown(module: str, files: Sequence[str]) -> str:
    """For a file of the student's own that was imported as if it lay on Python's path."""
    first = module.partition(".")[0]
    if any(file.endswith(f"/{first}.py") or f"/{first}/" in file for file in files):
        return f"a file of yours that lies beside it is imported with a dot: from .{module} import ..."
    if any(file == f"{first}.py" or file.startswith(f"{first}/") for file in files):
        return f"it lies beside the labs: from labs.{module} import ..."
    return f"{first} is not installed where submissions are graded: do without it"
