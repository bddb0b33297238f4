"""What a program of the suite says about itself: where its expectation comes from and what it needs to run.

Not here: how a program gets its GPU (`conftest.py`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

_Function = TypeVar("_Function", bound=Callable[..., Any])
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Program:
    """Source of the expectation, and what the machine must offer; a machine that does not skips the program.

    `fresh`: the program must be the first to use the GPU in its process. `differs`: why the virtual GPU is known to
    fail it; there it is an expected failure, which becomes an error as soon as it passes.
    """

    source: str
    capability: tuple[int, int] = (0, 0)
    below_capability: tuple[int, int] = (99, 0)
    gpus: int = 1
    memory_gib: float = 0.0
    module: str | None = None
    fresh: bool = False
    differs: str | None = None


def program(source: str, **needs: Any) -> Callable[[_Function], _Function]:
    """Mark a test function as a program of the suite, for example `@program("CUDA semantics notes", gpus=2)`."""
    described = Program(source, **needs)

    def mark(function: _Function) -> _Function:
        marked: _Function = pytest.mark.program(described)(function)
        return marked

    return mark


def program_of(item: pytest.Item) -> Program | None:
    """What a collected test says about itself; None for a test that is no program."""
    marker = item.get_closest_marker("program")
    return marker.args[0] if marker is not None else None


def all_test_functions() -> dict[str, Callable[..., Any]]:
    """Every test function of the suite by name of module and function, without collecting."""
    functions: dict[str, Callable[..., Any]] = {}
    for entry in pkgutil.iter_modules([str(HERE)]):
        if entry.name.startswith("test_"):
            module = importlib.import_module(f"{__package__}.{entry.name}")
            for name, value in vars(module).items():
                if name.startswith("test_") and callable(value) and value.__module__ == module.__name__:
                    functions[f"{entry.name}::{name}"] = value
    return functions
