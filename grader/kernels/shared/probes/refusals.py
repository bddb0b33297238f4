"""How calls end that make no sense, and neighbours of these that do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import vgpu
from gradebox.sandbox.probe_loader import Student
from grader.kernels.shared.cases import Refusals
from grader.kernels.shared.probes.watching import activity
from grader.shared.probes.endings import ending
from grader.shared.probes.record import mark

Calls = Mapping[str, Callable[[], object]]


def endings(student: Student, calls: Calls, sensible: Calls) -> Refusals:
    """The names of the errors that these calls raised, as they come."""
    refused = {name: ending(call) for name, call in calls.items()}
    start = 0 if student.gpu is None else mark(student.gpu)
    with vgpu.watch_kernels():
        accepted = {name: ending(call) for name, call in sensible.items()}
    return {**activity(student, start), "calls": refused, "sensible": accepted}
