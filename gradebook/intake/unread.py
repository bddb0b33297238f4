"""Which files of a submission nobody reads: notebooks, documents, archives, second reports, copies by browsers, code
that Python does not find, and code that lies in no lab and that none imports.

Goes by names only. Plots, data that labs write, texts, caches and other code are ordinary and not named. Not for what
is graded (`pieces.py`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from types import MappingProxyType

from gradebook.intake import archives
from gradebox.sandbox import copying

OTHER_ARCHIVES = (".7z", ".rar", ".gz", ".bz2", ".xz", ".zst", ".lz", ".dmg", ".iso")
"""What no standard library unpacks, or what holds no folders; `.tar.gz` and its like are `archives.SUFFIXES`."""
NOTEBOOK = ".ipynb"
REPORT = "REPORT.md"
_ONE_FILE = (".gz", ".bz2", ".xz", ".zst", ".lz")
"""Labs write traces so, and data sets come so; beside the labs somebody may have packed a lab."""
_DOCUMENTS = (".pdf", ".doc", ".docx", ".odt", ".rtf", ".pages", ".html", ".htm", ".ppt", ".pptx", ".odp", ".key",
              ".xls", ".xlsx", ".ods", ".numbers")  # fmt: skip
_TEXTS = (".md", ".markdown", ".rst", ".tex")
_SOURCES = (".py", ".cu", ".cuh", ".cpp", ".toml", ".yaml", ".yml", ".sh", *_TEXTS)
_COPY = re.compile(r"copy of .+|.+(?: ?\([0-9]+\)| - copy(?: \([0-9]+\))?| copy(?: [0-9]+)?)", re.IGNORECASE)
"""How browsers, Windows, macOS and Google Drive call a second file of one name."""
_MISNAMED = re.compile(r".+\.(?!py$)[pP][yY]|.+\.py\.(?:txt|docx?|rtf|bak|old|orig|save|download)")
"""Code that no import finds: Windows hides endings, and some editors and mail programs add one."""
_REPORT_WORD = re.compile(r"(?<![^\W_])report(?![^\W\d_])", re.IGNORECASE)
_PLAIN_REPORT = re.compile(
    r"(?:(?:my|the|final|lab ?[0-9]+)[ _-]?)*report(?:[ _-]?(?:final|lab ?[0-9]+|v?[0-9]+))*", re.I
)
"""What a report is called that is a plain text; labs write texts of other names."""
_ARCHIVE, _NOTEBOOK, _DOCUMENT, _SECOND, _COPIED = (
    *("an archive, which stays packed", "a notebook", "a document", "another report", "a copy"),
)
_COMPILED = "compiled code"
_NOT_PY, IDLE, NOWHERE = "code whose name does not end in .py", "code in no lab's folder", "in no lab's folder"
_COURSES_OWN = ("__init__.py", "conftest.py", "setup.py")
_TEMPLATE = ".template"
"""The course's own: what a report is before somebody writes it."""
_GRADES = ("grade.html",)
"""What a grading of one's own writes."""
_SHOWN = 6


def remarks(
    targets: Collection[str],
    beside: Sequence[str],
    packages: Collection[str],
    *,
    idle: Mapping[str, str] = MappingProxyType({}),
    nowhere: Collection[str] = (),
) -> list[str]:
    """What to tell of the files that nothing reads; nothing where there are none.

    Args:
        targets: what is graded, by path below `labs`.
        beside: what else was handed in, by the path that people know.
        packages: the course's labs.
        idle: what nothing imports beside the labs (`outside.idle`), and what that is; folders end in `/`.
        nowhere: what lay beside packed labs.
    """
    found = {path: what for path in sorted(targets) if (what := _kind(path, _has_report(path)))}
    found |= {path: what for path, what in idle.items() if path not in found and path not in _COURSES_OWN}
    found |= {path: what for path in dict.fromkeys(beside) if path not in found and (what := _kind_beside(path))}
    found |= {path: _kind_beside(path) or NOWHERE for path in nowhere if path not in found}
    if not found:
        return []
    shown = [f"{path!r} ({what})" for path, what in list(found.items())[:_SHOWN]]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    said = [f"nothing reads these files, so that they do not count: {', '.join(shown)}{more}"]
    for lab in sorted({path.partition("/")[0] for path in targets} & set(packages)):
        reports = [path for path, what in found.items() if _may_report(path, what, lab, packages)]
        if f"{lab}/{REPORT}" not in targets and reports:
            said.append(f"{lab} has no {REPORT}, and reports are read as {REPORT} only: write {reports[0]!r} as that")
    return said


def is_read(path: str) -> bool:
    """Whether this file of a lab, by its path below `labs`, is one that something may read."""
    return not _kind(path, _has_report(path))


def _kind(path: str, has_report: bool) -> str:
    """What this file is that nothing reads; empty where it is ordinary. `has_report`: its folder's report is read."""
    file = PurePosixPath(path)
    suffix = file.suffix.lower()
    if file.name in _GRADES or any(part.startswith((".", "__MACOSX")) for part in file.parts):
        return ""
    if suffix in _ONE_FILE and not archives.has_suffix(file.name):
        return _ARCHIVE if len(file.parts) == 1 else ""
    if suffix in OTHER_ARCHIVES or archives.has_suffix(file.name):
        return _ARCHIVE
    if suffix == NOTEBOOK:
        return _NOTEBOOK
    if suffix in _DOCUMENTS:
        return _DOCUMENT
    if _MISNAMED.fullmatch(file.name):
        return _NOT_PY
    if suffix in _TEXTS and _REPORT_WORD.search(file.stem) and not file.stem.endswith(_TEMPLATE):
        return "" if file.name == REPORT and has_report else _SECOND
    if suffix in (".txt", "") and _PLAIN_REPORT.fullmatch(file.stem) and "results" not in file.parts:
        return _SECOND
    return _COPIED if suffix in _SOURCES and _COPY.fullmatch(file.stem) else ""


def is_compiled(name: str) -> bool:
    """Whether a file of this name is code that nobody can read. In .pth end PyTorch's weights, too."""
    suffix = PurePosixPath(name).suffix.lower()
    return suffix in copying.NO_SOURCE and suffix != ".pth"


def _kind_beside(path: str) -> str:
    """The same of a file that is not among those that are graded."""
    file = PurePosixPath(path)
    is_code = file.suffix.lower() == ".py" and file.name not in _COURSES_OWN
    if is_compiled(file.name):
        return _COMPILED
    return _kind(path, False) or (IDLE if is_code and not any(part.startswith(".") for part in file.parts) else "")


def _has_report(path: str) -> bool:
    """Whether this file of a lab or an exercise, by its path below `labs`, lies where its report does."""
    return path.count("/") == 1


def _may_report(path: str, what: str, lab: str, packages: Iterable[str]) -> bool:
    """Whether this may have been meant as the lab's report: it lies in the lab, or in none."""
    first = path.partition("/")[0]
    return what in (_DOCUMENT, _SECOND) and (first == lab or first not in packages)
