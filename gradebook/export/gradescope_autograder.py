"""The zip that Gradescope runs: `setup.sh` installs the course, `run_autograder` grades one submission with it.

Gradescope unpacks it to `/autograder/source`, runs `setup.sh` once while it builds the image, and `run_autograder` for
every submission in `/autograder/submission`; what counts is `/autograder/results/results.json`. It holds the grader
and what it imports, and neither solutions nor tests.

A course in a checkout of its own is installed by `install.sh`. Any other one comes with the engine that is installed
here, and with a list of what both need: the engine's dependencies and the course's `requirements.txt`.
"""

from __future__ import annotations

import importlib.metadata
import io
import re
import shlex
import sys
import tomllib
import zipfile
from pathlib import Path

from gradebox.common.configuration import ROOT
from gradebox.course.course import Course
from gradebox.sandbox import devices

_ENGINE = ("gradebox", "gradebook")
_FILES = ("pyproject.toml", "constraints.txt", "install.sh", "README.md", "LICENSE")
_SCRIPTS = Path(__file__).parent / "scripts"
_REQUIREMENTS = "requirements.txt"
_NOT_FOR_STUDENTS = {"solutions", "class"}
_SKIPPED = {"__pycache__", ".mypy_cache", ".ruff_cache"}
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The first time a zip can hold: the same course gives the same file."""


class AutograderError(ValueError):
    """The zip cannot be made; the message is one line that says what to do."""


def build(
    course: Course, *, lab: str | None = None, device: str = "auto", seed: int | None = None, root: Path | None = None
) -> bytes:
    """The zip's content.

    Args:
        course: what is graded.
        lab: only these labs, for example `1,3`.
        device: auto, cuda, vgpu or vgpu:MODEL.
        seed: the same inputs for everybody; without it each run draws new ones.
        root: the checkout of the course; the folder that holds it without this.

    Raises:
        AutograderError: `root` is no checkout, or there is no such lab or device.
    """
    alone = root is None and is_alone(course)
    root = root or course.folder.parent
    packages = (*_ENGINE, course.package, *course.environment.importable)
    roots = {name: ROOT if alone and name in _ENGINE else root for name in packages}
    needed = roots if alone else {**roots, **dict.fromkeys(_FILES, root)}
    missing = [name for name, place in needed.items() if not (place / name).exists()]
    if missing:
        raise AutograderError(f"{root} lacks {missing[0]}: make the autograder from a checkout of the course")
    try:
        labs = () if lab is None else course.rubric.named(lab)
        if device not in ("auto", "cuda"):  # whether there is a GPU is seen where it runs
            devices.parse(device, course.devices)
    except (ValueError, devices.DeviceError) as error:
        raise AutograderError(str(error)) from None
    numbers = ",".join(str(entry.number) for entry in labs)
    settings = {"LAB": numbers, "DEVICE": device, "SEED": "" if seed is None else str(seed)}
    if alone:
        settings["COURSE"] = course.package
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("setup.sh", "run_autograder"):
            _add(archive, name, (_SCRIPTS / name).read_bytes(), executable=True)
        text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in settings.items())
        _add(archive, "settings.sh", b"# How submissions are graded; read by run_autograder.\n" + text.encode())
        if alone:
            _add(archive, _REQUIREMENTS, _requirements(course).encode())
        for name in () if alone else _FILES:
            _add(archive, name, (root / name).read_bytes())
        for name, place in roots.items():
            left_out = _SKIPPED | (_NOT_FOR_STUDENTS if alone and name == course.package else set())
            for path in sorted((place / name).rglob("*")):
                below = path.relative_to(place)
                if path.is_file() and not left_out & set(below.parts):
                    _add(archive, below.as_posix(), path.read_bytes())
    return file.getvalue()


def is_alone(course: Course) -> bool:
    """Whether the course is not in a checkout of its own, with the engine beside it."""
    return any(not (course.folder.parent / name).exists() for name in (*_ENGINE, *_FILES))


def _requirements(course: Course) -> str:
    """What is to be installed for a course that is alone.

    Raises:
        AutograderError: the course loads a library, and nothing says which distribution has it.
    """
    pinned = ROOT / "packaging" / "gradebox" / "pyproject.toml"
    if pinned.is_file():
        engine = tomllib.loads(pinned.read_text(encoding="utf-8"))["project"]["dependencies"]
    else:
        required = importlib.metadata.requires("gradebox") or []
        engine = [text for text in required if "extra ==" not in text]
    file = course.folder / _REQUIREMENTS
    own = file.read_text(encoding="utf-8") if file.is_file() else ""
    names = {re.split(r"[^A-Za-z0-9_.-]", text, maxsplit=1)[0].casefold() for text in engine}
    known = {*names, course.package.casefold(), *sys.stdlib_module_names}
    unknown = [name for name in course.environment.preload if name.partition(".")[0].casefold() not in known]
    if unknown and not own.strip():
        raise AutograderError(
            f"the course loads {unknown[0]}, and nothing says what installs it: write {file}, a line for each library"
        )
    return "\n".join([*engine, own])


def _add(archive: zipfile.ZipFile, name: str, content: bytes, *, executable: bool = False) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.create_system = 3  # Unix, so that the permissions below count
    entry.external_attr = (0o100755 if executable else 0o100644) << 16
    archive.writestr(entry, content)
