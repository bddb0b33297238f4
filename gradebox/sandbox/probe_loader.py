"""Finds a probe by its name, and holds what a probe gets: the way to the submission's modules, the device, the ranks.

Runs in the child. Not for judging what is found in a submission.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from gradebox.common.layout import probe_module


def find(name: str, folders: Sequence[str], course: str) -> Any:
    """The function `name` ("lab1.basics.product"), see `gradebox.common.layout`.

    Args:
        name: file and function below a folder of probes, or lab, criterion and function of the course.
        folders: where to look first.
        course: the package of the course.

    Raises:
        LookupError: there is no such file, or no such function in it.
        Exception: whatever importing the file raises.
    """
    module_name, _, function = name.rpartition(".")
    for folder in folders:
        path = os.path.join(folder, *module_name.split(".")) + ".py"
        if os.path.exists(path):
            spec = importlib.util.spec_from_file_location(f"probes.{module_name}", path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            return _function(module, function)
    place = f"{course}.{probe_module(module_name)}"
    try:
        return _function(importlib.import_module(place), function)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise
        raise LookupError(f"there is no file {place.partition('.')[2].replace('.', '/')}.py") from None


def _function(module: ModuleType, name: str) -> Any:
    function = getattr(module, name, None)
    if not callable(function):
        here = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise LookupError(f"{module.__name__} has no function {name}; it has {', '.join(here) or 'none'}")
    return function


class WrongReturn(Exception):
    """A student's function returned something its docstring does not promise; probes raise it."""

    sandbox_kind = "wrong_return"


OWN = "gradebox.run.device_trial"
"""The name of the probe that the engine brings along."""


def trial(student: object, *, left: list[list[float]], right: list[list[float]]) -> dict[str, Any]:
    """The product of two matrices, as lists: whether anything works here at all."""
    columns = list(zip(*right, strict=True))
    return {"product": [[sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in left]}


@dataclass(frozen=True)
class Student:
    """A submission as seen from inside the child."""

    device: str
    """`"cuda"` (real or virtual) or `"cpu"`."""
    gpu: Any
    """What the course's devices attached (`gradebox.sandbox.devices`): here a `vgpu.VirtualGPU`; or None."""
    rank: int
    ranks: int
    rendezvous: str
    """A `file://` address that all ranks of this request share: for `init_process_group(init_method=...)`."""
    present: bool
    """False in a reference run: there is no submission."""
    importing: list[str] = field(default_factory=list, repr=False)
    """The module whose import began and has not ended; an exception while one is there is an import error."""

    def module(self, name: str) -> ModuleType:
        """Import `labs.NAME` (`"lab1_gpu_basics.benchmark"`) from the submission.

        Raises:
            LookupError: in a reference run.
            ValueError: it is no name of a module, which is no fault of the submission.
            Exception: whatever importing the submission's code raises.
        """
        if not self.present:
            raise LookupError(f"a reference run has no submission, so no module {name}")
        name = name.removeprefix("labs.")
        if not all(map(str.isidentifier, name.split("."))):
            raise ValueError(f"{name!r} is no name of a module, like 'lab1_walks.walks'")
        self.importing[:] = [name]
        module = importlib.import_module(f"labs.{name}")
        self.importing.clear()
        return module

    def text(self, path: str) -> str:
        """What is in a text file (UTF-8) that the submission wrote, by its path in the current folder.

        Raises:
            WrongReturn: there is none, or it is no text.
        """
        try:
            return Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            there = sorted(entry.name for entry in Path(path).parent.iterdir()) if Path(path).parent.is_dir() else []
            raise WrongReturn(f"there is no file {path}" + (f", but {', '.join(there[:8])}" if there else "")) from None
        except (OSError, UnicodeDecodeError) as error:
            raise WrongReturn(f"{path} cannot be read as a text in UTF-8: {error}") from None
