"""The zip that Gradescope runs: `setup.sh` installs the course, `run_autograder` grades one submission with it.

Gradescope unpacks it to `/autograder/source`, runs `setup.sh` once while it builds the image, and `run_autograder` for
every submission in `/autograder/submission`; what counts is `/autograder/results/results.json`. It holds the grader
and what it imports, and neither solutions nor tests.
"""

from __future__ import annotations

import io
import shlex
import zipfile
from collections.abc import Iterator
from pathlib import Path

from gradebox.course.course import Course
from gradebox.sandbox import devices

_ENGINE = ("gradebox", "gradebook")
_FILES = ("pyproject.toml", "constraints.txt", "install.sh", "README.md", "LICENSE")
_SCRIPTS = Path(__file__).parent / "scripts"
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
    root = root or course.folder.parent
    packages = (*_ENGINE, course.package, *course.environment.importable)
    missing = [name for name in (*packages, *_FILES) if not (root / name).exists()]
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
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("setup.sh", "run_autograder"):
            _add(archive, name, (_SCRIPTS / name).read_bytes(), executable=True)
        text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in settings.items())
        _add(archive, "settings.sh", b"# How submissions are graded; read by run_autograder.\n" + text.encode())
        for path in _sources(root, packages):
            _add(archive, path.relative_to(root).as_posix(), path.read_bytes())
    return file.getvalue()


def _sources(root: Path, packages: tuple[str, ...]) -> Iterator[Path]:
    for name in _FILES:
        yield root / name
    for package in packages:
        for path in sorted((root / package).rglob("*")):
            if path.is_file() and not _SKIPPED & set(path.parts):
                yield path


def _add(archive: zipfile.ZipFile, name: str, content: bytes, *, executable: bool = False) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.create_system = 3  # Unix, so that the permissions below count
    entry.external_attr = (0o100755 if executable else 0o100644) << 16
    archive.writestr(entry, content)
