"""Finds a probe by its name, in a folder of probes or in the course. Runs in the child, before the submission does."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


def find(name: str, folders: Sequence[str], course: str) -> Any:
    """The function `name` ("lab1.basics.product").

    Args:
        name: file and function below a folder of probes, or lab, file and function of the course.
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
    lab, _, file = module_name.partition(".")
    where = f"{course}.{lab}.probes.{file}"
    try:
        found = importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{where}.".startswith(f"{error.name}."):
            raise
        raise LookupError(f"there is no file {lab}/probes/{file.replace('.', '/')}.py") from None
    return _function(found, function)


def _function(module: ModuleType, name: str) -> Any:
    found = getattr(module, name, None)
    if not callable(found):
        here = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise LookupError(f"{module.__name__} has no function {name}; it has {', '.join(here) or 'none'}")
    return found
