"""Which of many parameters `make test` runs; `make test-all` runs them all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(step: int, values: Iterable[object]) -> list[Any]:
    """For `pytest.mark.parametrize`: by day the first of each `step` values, at night the others as well.

    A tuple has the values of several arguments. Which are run by day does not change from run to run.
    """
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.night if number % step else ()
        )
        for number, value in enumerate(values)
    ]
