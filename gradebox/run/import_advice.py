"""Advice for a student whose module cannot be imported: most often a file has another name or place."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

_ABSENT = re.compile(r"labs/(\S+\.py) does not exist in the submission")
_UNKNOWN = re.compile(r"No module named '([\w.]+)'")
_FROM_FOLDER = re.compile(r"cannot import name '(\w+)' from 'labs\.(\w+)' \(\S*__init__\.py\)")
_NUMBERED = re.compile(r"([a-z]+)[-_ ]?0*([0-9]+)", re.IGNORECASE)
_SHOWN = 4
_GIVEN = ", as the hand-out has it"
_NOT_INSTALLED = " is not installed where submissions are graded"
_SHORTCUTS = (".lnk", ".url", ".webloc", ".desktop", ".gdoc", ".icloud")
"""What Windows, macOS, Google Drive and iCloud have instead of a file."""
_ADDED = re.compile(r"(?:my|final|new|old|last|fixed|copy|solution|v?[0-9]*)?")
_ALIKE = 0.75
"""Names of files that share so much are taken for one name, spelled in two ways."""


def hint(message: str, files: Sequence[str]) -> str:
    """Where to look, from what the import said and which files were handed in; empty if they say nothing."""
    if match := _ABSENT.match(message):
        return _of_absent(match[1], files)
    if match := _UNKNOWN.search(message):
        return _of_unknown(match[1], files)
    if (match := _FROM_FOLDER.search(message)) and f"{match[2]}/{match[1]}.py" not in files:
        return _of_absent(f"{match[2]}/{match[1]}.py", files).removesuffix(_GIVEN)
    return ""


def is_elsewhere(message: str, advice: str) -> bool:
    """Whether a check failed because a file has another name or place. Not if its whole folder is absent."""
    if not any(pattern.search(message) for pattern in (_ABSENT, _UNKNOWN, _FROM_FOLDER)):
        return False
    return re.search(r"rename it|move it to| holds |: from [.]|: from labs[.]", advice) is not None


def lacking_package(advice: str) -> str:
    """The package that is not installed, if that is what the advice says; empty if it says something else."""
    package, is_lacking, _ = advice.partition(_NOT_INSTALLED)
    return package if is_lacking else ""


def _of_absent(path: str, files: Sequence[str]) -> str:
    """What is true of these files, and what to do so that `path` is among them."""
    folder, _, name = path.rpartition("/")
    # Files that the grader adds are nobody's.
    files = [file for file in files if file.rpartition("/")[2] != "__init__.py"]
    if not files:
        return f"the folder is empty: hand in, or name, the folder that holds {folder}"
    beside = [file.removeprefix(f"{folder}/") for file in files if file.startswith(f"{folder}/")]
    if beside:
        return _of_folder(folder, name, beside, files)
    within = [file for file in files if f"/{folder}/" in f"/{file}"]
    if within:
        outer = within[0][: within[0].index(f"{folder}/")].rstrip("/")
        return f"{folder} is in the folder {outer}: hand in, or name, {outer}"
    if other := _named_otherwise(folder, files):
        return f"the folder {other} must be called {folder}, to the letter: rename it"
    if name in files:
        return f"{name} must be in a folder {folder}: make that folder, and hand in, or name, the folder that holds it"
    tops = sorted({file.partition("/")[0] for file in files})
    files = [file for file in files if not _of_another_lab(folder, file)]
    if same := [file for file in files if file.endswith(f"/{name}")]:
        return f"the submission has {same[0]}; move it to {path}"
    return f"there is no folder {folder}: add it next to what is there ({_listed(tops)})"


def _of_another_lab(folder: str, file: str) -> bool:
    """Whether a file is in the folder of another lab, which may have a file of the same name."""
    lab, other = _NUMBERED.match(folder), _NUMBERED.match(file.partition("/")[0])
    return bool(lab and other and lab[1].lower() == other[1].lower() and lab[2] != other[2])


def _of_folder(folder: str, name: str, beside: Sequence[str], files: Sequence[str]) -> str:
    """The folder is there, and the file is not in it."""
    near = [file for file in beside if file.lower() == name.lower()]
    if not near:
        sources = [file for file in beside if file.endswith(".py") and "/" not in file]
        near = difflib.get_close_matches(name, sources, n=1, cutoff=_ALIKE)
    named = [file for file in beside if "/" not in file and _is_called(file.lower(), name.removesuffix(".py").lower())]
    if links := [file for file in named if file.lower().endswith(_SHORTCUTS)]:
        return f"{folder} holds {links[0]}, a shortcut without the file itself: hand in {name}"
    near = near or [file for file in named if re.search(r"\.py(?:~|\.\w+)?$", file.lower()) and file[0] != "."]
    if near:
        return f"{folder} holds {near[0]}; its name must be {name}, to the letter: rename it"
    deeper = [file for file in beside if file.endswith(f"/{name}")]
    if deeper:
        return f"the submission has {folder}/{deeper[0]}; move it to {folder}/{name}"
    elsewhere = [file for file in files if file == name or file.endswith(f"/{name}")]
    if elsewhere:
        return f"the submission has {elsewhere[0]}; move it to {folder}/{name}"
    return f"{folder} holds {_listed(beside)}: add {name}{_GIVEN}"


def _is_called(file: str, stem: str) -> bool:
    """Whether a file has the name that is looked for, and next to it words that people add."""
    if stem in re.split(r"[^a-z0-9_]+", file):  # "Kopie von walks.py", "walks (2).py"
        return True
    words = re.split(r"[\W_]+", file.removesuffix(".py").replace(stem, " ", 1))
    return stem in file and file.endswith(".py") and all(map(_ADDED.fullmatch, words))


def _named_otherwise(folder: str, files: Sequence[str]) -> str:
    """A folder of the submission that seems to be this one under another name; empty where there is none."""
    tops = dict.fromkeys(file.partition("/")[0] for file in files if "/" in file)
    for top in tops:
        if top.lower().replace("-", "_").replace(" ", "_") == folder.lower():
            return top
    number = _NUMBERED.match(folder)
    for top in tops:
        other = _NUMBERED.match(top)
        if number and other and (number[1].lower(), number[2]) == (other[1].lower(), other[2]):
            return top
    near = difflib.get_close_matches(folder, list(tops), n=1, cutoff=_ALIKE)
    return near[0] if near and not number else ""


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _of_unknown(module: str, files: Sequence[str]) -> str:
    """For a file of the student's own that was imported as if it were on Python's path."""
    first, _, inner = module.partition(".")
    if first == "labs" and inner:
        return _of_absent(f"{inner.replace('.', '/')}.py", files).removesuffix(_GIVEN)
    if any(file.endswith(f"/{first}.py") or f"/{first}/" in file for file in files):
        return f"a file of yours that is next to it is imported with a dot: from .{module} import ..."
    if any(file == f"{first}.py" or file.startswith(f"{first}/") for file in files):
        return f"it is next to the labs: from labs.{module} import ..."
    if other := _named_otherwise(first, files):
        return f"the folder is called {other} here, and not {first}: from labs.{other} import ..."
    return f"{first}{_NOT_INSTALLED}: do without it"
