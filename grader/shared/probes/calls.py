"""How probes call a student's function: with the arguments of the document, and others only if a check is about them.

Every optional argument that a probe always gives makes a function that lacks this one parameter useless to all checks.
So a probe gives what its check is about, and leaves everything else at its default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

from gradebox.sandbox.probe_loader import Student

Value = TypeVar("Value")


def on_device(student: Student, usual: str = "cuda") -> dict[str, str]:
    """The argument `device`, if a function would not take the device of this grading by itself.

    Args:
        usual: the default of the function's parameter.
    """
    return {} if student.device == usual else {"device": student.device}


def if_accepted(function: Callable[..., object], **plumbing: Value) -> dict[str, Value]:
    """Those of these arguments that the function has parameters for.

    Only for arguments that keep a probe quick and that no answer depends on, such as how long ranks wait for each
    other. The check that is about such an argument always gives it.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return plumbing
    named = {parameter.name for parameter in parameters if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY}
    return {name: value for name, value in plumbing.items() if name in named}
