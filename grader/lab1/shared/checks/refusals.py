"""Fails a check unless calls end with a ValueError."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gradebox.run.assertions import require


def calls_of(function: str, cases: Iterable[Mapping[str, object]]) -> list[str]:
    """The calls as they would be written."""
    return [f"{function}({', '.join(f'{name}={value!r}' for name, value in case.items())})" for case in cases]


def require_refused(calls: Sequence[str], endings: Sequence[str]) -> None:
    """Fail unless each of `calls` ended with a ValueError.

    Args:
        endings: for each call what the probe saw (`grader.shared.probes.endings`).
    """
    for call, ending in zip(calls, endings, strict=True):
        require(
            ending == "ValueError",
            f"{call} {f'raised {ending}' if ending else 'returned'}, expected a ValueError",
            "Raise what its docstring names under Raises, before anything else happens.",
        )
