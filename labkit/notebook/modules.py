"""The student's own lab package inside a notebook: imported when it is used, and again when a file has changed.

Not for the grader, which never imports a submission into its own process.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType

PACKAGE = "labs"


class Modules:
    """`modules.benchmark` is the student's `benchmark.py` of one lab as it stands in the file now."""

    def __init__(self, folder: Path, package: str) -> None:
        self._folder = folder
        self._package = package
        self._seen: dict[Path, int] = {}

    def __getattr__(self, name: str) -> ModuleType:
        if name.startswith("_"):
            raise AttributeError(name)
        self._forget_if_changed()
        full = f"{PACKAGE}.{self._package}.{name}"
        if not (self._folder / self._package / f"{name}.py").is_file():
            raise AttributeError(f"{PACKAGE}/{self._package} has no module {name}.py: choose among {dir(self)}")
        return importlib.import_module(full)

    def __dir__(self) -> list[str]:
        paths = (self._folder / self._package).glob("*.py")
        return sorted(path.stem for path in paths if not path.stem.startswith("_") and "." not in path.stem)

    def _forget_if_changed(self) -> None:
        """All of the package at once: modules that import from each other must not see two versions of a class."""
        files = (self._folder / self._package).rglob("*.py")
        now = {path: path.stat().st_mtime_ns for path in files}
        if now != self._seen and self._seen:
            for name in [name for name in sys.modules if name.startswith(f"{PACKAGE}.{self._package}")]:
                del sys.modules[name]
            importlib.invalidate_caches()
        self._seen = now


def find_folder(scratch: Path) -> Path:
    """The folder that holds the lab packages, importable as `labs` from now on.

    GPULABS_LABS names it, absolute or below the checkout; the default is `labs`.

    Args:
        scratch: where to put a link of that name, if the folder is called otherwise.

    Raises:
        FileNotFoundError: there is no such folder above the notebook or next to labkit.
    """
    name = os.environ.get("GPULABS_LABS", PACKAGE)
    here = Path.cwd()
    for above in (here, *here.parents, Path(__file__).resolve().parents[2]):
        folder = above / name
        if (folder / "__init__.py").is_file():
            break
    else:
        raise FileNotFoundError(
            f"no folder {name} with the lab packages above {here}: open the notebook inside your copy of the course, "
            "or set GPULABS_LABS to the folder that holds lab1_gpu_basics"
        )
    parent = folder.parent
    if folder.name != PACKAGE:
        parent = Path(tempfile.mkdtemp(dir=scratch, prefix="import-"))
        (parent / PACKAGE).symlink_to(folder.resolve(), target_is_directory=True)
    if str(parent) not in sys.path:
        sys.path.insert(0, str(parent))
    return parent / PACKAGE
