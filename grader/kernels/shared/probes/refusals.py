"""How calls end that make no sense, and neighbours of these that do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from grader.kernels.shared.cases import Refusals
from grader.shared.probes.endings import ending

Calls = Mapping[str, Callable[[], object]]


def endings(calls: Calls, sensible: Calls) -> Refusals:
    """The names of the errors that these calls raised, as they come."""
    return {
        "calls": {name: ending(call) for name, call in calls.items()},
        "sensible": {name: ending(call) for name, call in sensible.items()},
    }
