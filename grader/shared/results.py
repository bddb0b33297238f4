"""Results that a probe handed on although they were no result (`grader.shared.probes.support.fields_or_reason`).

What a function did is judged without them; one check of each function is about what it reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from gradebox.run.assertions import CheckFailed

Fields = TypeVar("Fields", bound=Mapping[str, object])

_HINT = "Return what the docstring names under Returns."


def require_result(result: Fields) -> Fields:
    """The fields of a result; fails the check if the function returned something else."""
    if reason := result.get("wrong_return"):
        raise CheckFailed(str(reason), _HINT)
    return result


def is_result(result: Mapping[str, object]) -> bool:
    """Whether the function returned what it must, so that its fields can be judged."""
    return "wrong_return" not in result
