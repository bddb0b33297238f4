"""What goes into the students' repository: which files of the course, and what replaces others.

An allow-list: a new folder of the course reaches students only when it is named here.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from gradebox.authoring.release.folder import MANIFEST, render_all, solve_all
from gradebox.authoring.release.stubs import ReleaseError
from gradebox.common.reading import ReadingError
from gradebox.course import contact
from grader.release import help_section

_FOLDERS = ("labkit", "vgpu", "gradebox", "gradebook", "grader", "examples", "notebooks", "docs/labs", "docs/images")
_LEFT_OUT = ("examples/courses",)
_FILES = ("LICENSE", "conftest.py", "pyproject.toml", "constraints.txt", "install.sh", ".gitignore")
_PAGES = (
    *("docs/student.md", "docs/student-grade.md", "docs/student-programs.md", "docs/student-machines.md"),
    *("docs/report-criteria.md", "docs/chapter.md"),
    *("docs/virtual-gpu.md", "docs/virtual-gpu-reference.md", "docs/virtual-gpu-compiled.md"),
    *("docs/virtual-gpu-distributed.md", "docs/virtual-gpu-recordings.md", "docs/virtual-gpu-unsupported.md"),
    *("docs/virtual-gpu-cost-model.md", "docs/virtual-gpu-kernels.md", "docs/virtual-gpu-convolutions.md"),
    "docs/vgpu-uses.md",
    *("docs/how-we-know.md", "docs/how-we-know-figures.md", "docs/how-we-know-published.md"),
    *("docs/how-we-know-labs.md", "docs/how-we-know-checked.md", "docs/how-we-know-differs.md"),
)
_HELP_PAGES = ("README.md", "docs/student.md")
"""Pages that say where to get help; so does the hand-out of every lab."""
_TEMPLATES = Path(__file__).with_name("templates")
_LABS = "labs"
_NOTEBOOKS = "notebooks/"
_NO_ADDRESS = b"https://github.com/YOUR-COURSE/gpu-computing-labs"
"""What the notebooks' first cell clones as long as nobody has said where the repository will lie."""
_BY_PRODUCTS = frozenset(("__pycache__", ".DS_Store", ".ipynb_checkpoints"))

Files = dict[str, bytes]
"""Content by path in the repository, with `/`."""


def for_students(course: Path, address: str | None = None) -> Files:
    """Everything that students get, but the change log.

    Args:
        course: the checkout that holds `solutions/`.
        address: where students can clone the repository, for notebooks that are opened elsewhere (Colab).

    Raises:
        ReleaseError: a solution cannot be turned into a stub, or a file that students need is missing.
    """
    known = _tracked(course)
    files: Files = {f"{_LABS}/{name}": content for name, content in render_all(course / "solutions").items()}
    files.pop(f"{_LABS}/{MANIFEST}", None)
    for name in (*_FILES, *_PAGES):
        if not (course / name).is_file():
            raise ReleaseError(f"{course / name} is missing, and students need it")
        files[name] = (course / name).read_bytes()
    for folder in _FOLDERS:
        for path in _below(course, folder, known):
            files[path] = (course / path).read_bytes()
    for template in _TEMPLATES.iterdir():
        files[template.name] = template.read_bytes()
    files = _with_contact(course, files)
    if address is not None:
        for name in [name for name in files if name.startswith(_NOTEBOOKS)]:
            files[name] = files[name].replace(_NO_ADDRESS, address.encode())
    return files


def filled_in(course: Path) -> Files:
    """The labs with every task solved, reports and results with them; the other files are those of the students."""
    known = _tracked(course)
    solutions = solve_all(course / "solutions")
    files = {
        f"{_LABS}/{name}": content
        for name, content in solutions.items()
        if known is None or f"solutions/{name}" in known
    }
    return _with_contact(course, files)


def _with_contact(course: Path, files: Files) -> Files:
    """The files, with where to get help at the end of the pages that students begin with.

    Raises:
        ReleaseError: `[contact]` of `course.toml` cannot be used.
    """
    path = course / "grader" / "course.toml"
    try:
        section = help_section.markdown(contact.load(path)) if path.is_file() else ""
    except ReadingError as error:
        raise ReleaseError(str(error)) from None
    if not section:
        return files
    return {
        name: content.rstrip(b"\n") + b"\n\n" + section.encode() if _says_where_to_get_help(name) else content
        for name, content in files.items()
    }


def _says_where_to_get_help(name: str) -> bool:
    return name in _HELP_PAGES or PurePosixPath(name).match(f"{_LABS}/*/README.md")


def lab_folders(files: Iterable[str]) -> list[str]:
    """The lab packages among these paths: `lab1_gpu_basics`, in order."""
    parts = [PurePosixPath(name).parts for name in files]
    return sorted({part[1] for part in parts if len(part) > 2 and part[0] == _LABS})


def _below(course: Path, folder: str, known: frozenset[str] | None) -> list[str]:
    names = []
    for path in sorted((course / folder).rglob("*")):
        name = path.relative_to(course).as_posix()
        if any(path.is_relative_to(course / left_out) for left_out in _LEFT_OUT):
            continue
        if path.is_file() and not _BY_PRODUCTS.intersection(path.parts) and (known is None or name in known):
            names.append(name)
    return names


def _tracked(course: Path) -> frozenset[str] | None:
    """Files that git knows or would take up, where the course is a git repository; None where it is none."""
    if not (course / ".git").exists():
        return None
    command = ["git", "-C", str(course), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        answer = subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ReleaseError(f"git does not list the files of {course}: {error}") from None
    return frozenset(name.decode("utf-8", "surrogateescape") for name in answer.stdout.split(b"\0") if name)
