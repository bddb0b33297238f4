"""What of a submission does not count, what that is, and what to say about it.

Files that nobody reads: notebooks, documents, archives, second reports, copies by browsers, code that Python does not
find, and code that is in no lab and that none imports. These are recognised by names only. Plots, data that labs write,
texts, caches and other code are ordinary and not named. Not for what is graded (`pieces.py`).
"""

from __future__ import annotations

import ast
import html
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from gradebook.intake import lab_folders, zip_and_tar
from gradebook.intake.accepted_files import Undecided
from gradebook.intake.lab_folders import LabNames
from gradebox.sandbox import copying
from gradebox.sandbox.copying import Entry

OTHER_ARCHIVES = (".7z", ".rar", ".gz", ".bz2", ".xz", ".zst", ".lz", ".dmg", ".iso")
"""What no standard library unpacks, or what holds no folders; `.tar.gz` and its like are `zip_and_tar.SUFFIXES`."""
NOTEBOOK = ".ipynb"
NOTHING_ELSE = "there is nothing else that could be graded: hand in the files that the hand-out names, as it has them"
_GIVEN = "README.MD"
"""In capitals, what is in a lab's folder before anybody writes anything."""
REPORT = "REPORT.md"
GIT_ALONE = "holds a repository's .git folder alone, without its files: pack the folder of the lab itself"
GIT_BESIDE = "the files in the archive count, and its .git folder is not read, so it is no matter what is committed"
_ONE_FILE = (".gz", ".bz2", ".xz", ".zst", ".lz")
"""Labs write traces so, and data sets come so; next to the labs somebody may have packed a lab."""
_DOCUMENTS = (".pdf", ".doc", ".docx", ".odt", ".rtf", ".pages", ".html", ".htm", ".ppt", ".pptx", ".odp", ".key",
              ".xls", ".xlsx", ".ods", ".numbers")  # fmt: skip
_TEXTS = (".md", ".markdown", ".rst", ".tex")
_SOURCES = (".py", ".cu", ".cuh", ".cpp", ".toml", ".yaml", ".yml", ".sh", *_TEXTS)
_COPY_WORDS = "copy|kopie|copie|copia|cópia|kopia|kopi|kopya|копия|コピー|副本|복사본"
_COPY = re.compile(
    rf"(?:copy of|kopie von|kopie van|copie de|copia de|copia di|cópia de|kopia|kopi av|kopi af) .+"
    rf"|.+(?: ?\([0-9]+\)| - (?:{_COPY_WORDS})(?: ?\([0-9]+\))?| (?:{_COPY_WORDS})(?: [0-9]+)?|のコピー|的副本)",
    re.IGNORECASE,
)
"""How browsers, Windows, macOS and Google Drive call a second file of one name, in some languages."""
SHORTCUTS = (".lnk", ".url", ".webloc", ".desktop", ".gdoc", ".gsheet", ".gslides", ".icloud")
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
_SHORTCUT = "a shortcut, without the file itself"
_COMPILED = "compiled code"
_NOT_PY, IDLE, NOWHERE = "code whose name does not end in .py", "code in no lab's folder", "in no lab's folder"
_COURSES_OWN = ("__init__.py", "conftest.py", "setup.py")
_TEMPLATE = ".template"
"""The course's own: what a report is before somebody writes it."""
_OPEN = "~$"
"""So begins what Office writes next to a document that is open."""
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
    unreported: Collection[str] = (),
) -> list[str]:
    """The message about files that nothing reads; empty if there are none.

    Args:
        targets: what is graded, by path below `labs`.
        beside: the other files of the submission, by the path that people know.
        packages: the course's labs.
        idle: what nothing imports next to the labs (`outside.idle`), and what that is; folders end in `/`.
        nowhere: what lay next to packed labs.
        unreported: labs without a report.
    """
    kinds = {path: what for path in sorted(targets) if (what := _kind(path, _has_report(path)))}
    kinds |= {path: what for path, what in idle.items() if path not in kinds and path not in _COURSES_OWN}
    kinds |= {path: what for path in dict.fromkeys(beside) if path not in kinds and (what := _kind_beside(path))}
    kinds |= {path: _kind_beside(path) or NOWHERE for path in nowhere if path not in kinds}
    if not kinds:
        return []
    shown = [f"{path!r} ({what})" for path, what in list(kinds.items())[:_SHOWN]]
    more = f" and {len(kinds) - _SHOWN} more" if len(kinds) > _SHOWN else ""
    said = [f"nothing reads these files, so that they do not count: {', '.join(shown)}{more}"]
    for lab in sorted({path.partition("/")[0] for path in targets} & set(packages) - set(unreported)):
        reports = [path for path, what in kinds.items() if _may_report(path, what, lab, packages)]
        if f"{lab}/{REPORT}" not in targets and reports:
            said.append(f"{lab} has no {REPORT}, and reports are read as {REPORT} only: write {reports[0]!r} as that")
    return said


def is_all(targets: Iterable[str], not_texts: Collection[str]) -> bool:
    """Whether nothing reads any file in the labs, such as a document; only a person can say what that is.

    `not_texts` are what cannot be read whatever its name says.
    """
    files = [path for path in map(PurePosixPath, targets) if not path.name.startswith(".")]
    own = [path.as_posix() for path in files if path.name.upper() != _GIVEN]
    return bool(own) and not any(is_read(path) and path not in not_texts for path in own)


def is_read(path: str) -> bool:
    """Whether this file of a lab, by its path below `labs`, is one that something may read."""
    return not _kind(path, _has_report(path))


def _kind(path: str, has_report: bool) -> str:
    """What this file is that nothing reads; empty where it is ordinary. `has_report`: its folder's report is read."""
    file = PurePosixPath(path)
    suffix = file.suffix.lower()
    if suffix in SHORTCUTS and not file.name.startswith("._") and "__MACOSX" not in file.parts:
        return _SHORTCUT
    if file.name in _GRADES or any(part.startswith((".", "__MACOSX", _OPEN)) for part in file.parts):
        return ""
    if suffix in _ONE_FILE and not zip_and_tar.has_suffix(file.name):
        return _ARCHIVE if len(file.parts) == 1 else ""
    if suffix in OTHER_ARCHIVES or zip_and_tar.has_suffix(file.name):
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
    is_source = suffix.removesuffix("~") in _SOURCES
    return _COPIED if is_source and (suffix.endswith("~") or _COPY.fullmatch(file.stem)) else ""


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
    """Whether this may have been meant as the lab's report: it is in the lab, or in none."""
    first = path.partition("/")[0]
    return what in (_DOCUMENT, _SECOND) and (first == lab or first not in packages)


# --- why there is no lab ----------------------------------------------------------------------------------------------

_LINK = re.compile(r"""https?://[^\s"'<>]+""")
_LINK_BYTES = 2**16
_NAMED = 3


def no_lab(top: Path, names: LabNames) -> str:
    """What is there where a lab should be, and what to do. Raises `Undecided` for a link."""
    content = [path for path in sorted(top.iterdir()) if path.name != "__MACOSX"]
    files = lab_folders.around(top)
    if other := [path for path in files if path.suffix.lower() in OTHER_ARCHIVES]:
        return f"holds no lab, but {other[0].name!r}, which {what_of(other[0], names)}"
    only_notebooks = all(path.suffix.lower() == NOTEBOOK for path in files)
    if files and only_notebooks and not any(map(lab_folders.inner, lab_folders.inner(top))):
        return f"holds no lab, but {files[0].name!r}, which {what_of(files[0], names)}"
    if links := [path.name for path in content if path.is_symlink()]:
        # Platforms deliver none: whoever collected the work has to do something, and not the student.
        raise Undecided(
            f"holds no lab, but {links[0]!r}, which is a link, and links are not followed: put the folder itself there"
        )
    what = f"only {some([repr(path.name) for path in content])}" if content else "nothing at all"
    return f"holds no lab, {what}: hand in the lab's folder, as {names.example}, with all that is in it"


def what_of(file: Path, names: LabNames, *, is_beside: bool = False) -> str:
    """What a file is that cannot count, and what to do; `is_beside`: there are labs that count."""
    suffix = file.suffix.lower()
    if suffix in OTHER_ARCHIVES:
        return f"is a {suffix} file, which the grader does not unpack: pack the labs as .zip or .tar.gz"
    if suffix == NOTEBOOK:
        return f"is a notebook, and notebooks are not graded: hand in the lab's folder, as {names.example}"
    if suffix == ".py":
        return f"is a file alone: put it into its lab's folder, as {names.example}, and pack that"
    if is_beside:
        return "is in no lab's folder: if it belongs to a lab, put it into that folder, and pack that"
    return "is neither a zip nor a tar file; pack the labs as one of them"


def no_files(kind: str, path: Path, name: str) -> str:
    """What to say of something that was handed in and is no file of a lab; empty if it may be one."""
    match kind:
        case "text":
            return f"a text was handed in, {name!r}, which nothing here grades: a person has to read it"
        case "empty":
            return f"an attempt without a file was handed in, {name!r}: hand in the labs' files"
        case "link":
            return _link(path, name)
        case "nameless":
            return (
                f"{name!r} is {_content(path)} whose name the platform has dropped: put it under its own name into a "
                "folder that is called as the student"
            )
    return ""


def _content(path: Path) -> str:
    """What a file without a name is by what is in it."""
    content = path.read_bytes()[:_LINK_BYTES]
    if content.startswith(b"%PDF"):
        return "a PDF"
    if content.lstrip().startswith(b"{") and b'"cells"' in content:
        return "a notebook"
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return "a file"
    try:
        is_code = any(not isinstance(node, ast.Expr) for node in ast.parse(text).body)
    except (SyntaxError, ValueError):
        is_code = False
    return "Python code" if is_code else "a text"


def _link(path: Path, name: str) -> str:
    """Of a link, and where it leads to."""
    with path.open("rb") as file:
        address = _LINK.search(html.unescape(file.read(_LINK_BYTES).decode("utf-8", "replace")))
    where = f" to {address[0]}" if address else ""
    return (
        f"a link was handed in, {name!r}{where}, and links are not followed: hand in files; what is a repository "
        "can be graded from a list of repositories"
    )


def some(names: Sequence[str]) -> str:
    """The first few of these names."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


# --- around the labs --------------------------------------------------------------------------------------------------

_COURSES = ("gradebox", "gradebook", "notebooks", "docs", "examples", "solutions", "tests", "benchmarks")
"""Folders next to `labs` in the course's whole tree, which the first of them gives away; others are Python packages."""

_WORD = re.compile(r"\w+")


def left_out(top: Path) -> list[str]:
    """What `copying.scan` passes over of what somebody may have meant to hand in."""
    left_out, compiled = [], []
    root = top.resolve()
    for folder, inner, names in os.walk(top):
        here = [name for name in (*inner, *names) if name not in copying.LEFT_BEHIND]
        inner[:] = [name for name in inner if name in here and not Path(folder, name, "pyvenv.cfg").exists()]
        for path in (Path(folder, name) for name in here):
            shown = repr(path.relative_to(top).as_posix())
            if path.is_symlink() and (path.is_dir() or not Path(os.path.realpath(path)).is_relative_to(root)):
                left_out.append(f"{shown} is a link, and does not count")
            elif path.is_file() and is_compiled(path.name):
                compiled.append(shown)
            elif path.is_file() and path.stat().st_size > copying.MAX_FILE_BYTES:
                left_out.append(f"{shown} is larger than {copying.MAX_FILE_BYTES // 2**20} MiB, and does not count")
    if compiled:
        verb = "is compiled code, and does" if len(compiled) == 1 else "are compiled code, and do"
        left_out.append(f"{some(sorted(compiled))} {verb} not count")
    return sorted(left_out)


def outside_of(top: Path, place: Path | None = None) -> list[str]:
    """The files below `top` that do not lie in `place`, without what systems hide and what the course itself has."""
    if place == top:
        return []
    outside: list[Path] = []
    for folder, inner, names in os.walk(top):
        inner[:] = sorted(name for name in inner if Path(folder, name) != place and not _is_hidden_below(folder, name))
        paths = [Path(folder, name) for name in sorted(names) if not _is_hidden_below(folder, name)]
        outside += [path.relative_to(top) for path in paths if not path.is_symlink()]
    # A student who hands in the course's whole tree need not read of each of its notebooks.
    tree = place.parent if place is not None and place.name == "labs" else top
    folders = [path for path in tree.iterdir() if path.is_dir() and not path.is_symlink()]
    is_course = (tree / _COURSES[0]).is_dir()
    courses = [path.relative_to(top) for path in folders if is_course and _is_the_courses(path)]
    return [path.as_posix() for path in outside if not any(path.is_relative_to(folder) for folder in courses)]


def not_imported(entries: Sequence[Entry], names: LabNames) -> dict[str, str]:
    """Of files that are graded what nothing imports, and what it is: modules next to the labs, and second folders of a
    lab, as they are called, with `/` at the end, whose names no other code has."""
    code = {entry.target: entry.source for entry in entries if entry.target.endswith(".py")}
    modules = {target[:-3]: target for target in code if "/" not in target and not target.startswith("__")}
    folders = {entry.target.partition("/")[0]: entry for entry in entries if "/" in entry.target}
    inner = {(parts[0], parts[1]) for entry in entries if len(parts := entry.target.split("/")) > 2}
    holding = {name for name, lab in inner if names.meant(lab) in folders}  # such as backup/ with a copy of the lab
    second = {
        name: entry
        for name, entry in folders.items()
        if name not in names.packages and (name in holding or names.meant(name) in folders)
    }
    candidates = modules.keys() | second.keys()
    used: set[str] = set()
    for target, source in code.items() if candidates else ():
        used |= (_words(source) & candidates) - {target.partition("/")[0].removesuffix(".py")}
    not_used = {target: IDLE for name, target in modules.items() if name not in used}
    for name, entry in second.items():
        holds_code = any(target.startswith(f"{name}/") for target in code)
        if name not in used:
            not_used[f"{entry.source.relative_to(entry.top).parts[0]}/"] = IDLE if holds_code else NOWHERE
    return not_used


def _words(source: Path) -> set[str]:
    try:
        return set(_WORD.findall(source.read_bytes().decode("utf-8", "replace")))
    except OSError:
        return set()  # the copying code says why


def _is_the_courses(folder: Path) -> bool:
    return folder.name in _COURSES or (folder / "__init__.py").is_file()


def _is_hidden_below(folder: str, name: str) -> bool:
    is_cache = name in copying.LEFT_BEHIND or Path(folder, name, "pyvenv.cfg").exists()
    return is_cache or name.startswith((".", "__MACOSX"))
