"""`import flash_attn` on the virtual GPU, where the package is not installed: a simulated one is found.

It is found last, so an installed package comes first. It has a distribution, too: `importlib.metadata.version` names
its version, and libraries that ask for the package there (transformers' `is_flash_attn_2_available`) use it. Not here:
the package (`vgpu.torch_integration.flash_attention`).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from vgpu.runtime.patching import PatchSet
from vgpu.torch_integration.flash_attention import VERSION, launching

NAME = "flash_attn"
FOLDER = Path(__file__).parents[1] / "flash_attention" / "package" / NAME


_ENGINE = launching
"""What launches its kernels is imported before a program is, so that a grader can tell it from the program's code."""


def install(patches: PatchSet) -> None:
    """Let the package be found until the patches are undone; inside of another attachment it is."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    finder = _Finder()
    sys.meta_path.append(finder)
    patches.on_undo(lambda: _remove(finder))


def is_simulated(module: ModuleType | None) -> bool:
    """Whether a module is of this package."""
    return str(getattr(module, "__file__", "")).startswith(str(FOLDER))


def _remove(finder: _Finder) -> None:
    sys.meta_path.remove(finder)
    if NAME not in sys.modules:
        return  # which is so nearly always, and there are thousands of names to go through
    for name in [name for name in sys.modules if name.startswith(NAME)]:
        if is_simulated(sys.modules[name]):
            del sys.modules[name]


class _Finder(metadata.DistributionFinder):
    """Finds the package, whose modules Python finds in its folder then, and its distribution."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != NAME:
            return None
        return importlib.util.spec_from_file_location(
            NAME, FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
        )

    def find_distributions(self, context: metadata.DistributionFinder.Context | None = None) -> Iterable[_Distribution]:
        name = None if context is None else context.name
        if name is not None and name.replace("-", "_").lower() != NAME:
            return []
        return [_Distribution()] if PathFinder.find_spec(NAME) is None else []


class _Distribution(metadata.Distribution):
    """What says that it is installed."""

    def read_text(self, filename: str) -> str | None:
        texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {VERSION}\nSummary: Simulated by vgpu\n",
            "top_level.txt": f"{NAME}\n",
        }
        return texts.get(filename)

    def locate_file(self, path: object) -> Path:
        return FOLDER.parent / str(path)
