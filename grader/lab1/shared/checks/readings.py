"""What calls of `benchmark_matmul` must read, and which mistake it is if they do not."""

from __future__ import annotations

from gradebox.sandbox.devices import Device
from grader.lab1.shared.checks.measuring import as_written, require_within
from grader.lab1.shared.checks.mistakes import recognised, recognised_among_others
from grader.lab1.shared.reference import Measurement, expected

SYNC_HINT = "a GPU works through a queue: torch.cuda.synchronize() waits until it is empty"
_MANY = 5
"""Products of which one, or two of as many measurements, may be disturbed."""


def require_seconds(device: str, measured: Measurement) -> None:
    """Fail unless a call read the seconds that its products take."""
    with recognised(device, measured):
        require_within(
            expected(device, measured),
            measured.seconds,
            f"seconds per product of {measured.call['size']} in {measured.dtype} on {device}",
            SYNC_HINT,
        )


def require_crossed(device: Device, measured: Measurement) -> None:
    """The same of a call of `crossed`, some of which are disturbed."""
    call = measured.call
    if not device.simulated and call.get("iterations", _MANY) < _MANY:
        return  # a real GPU has one slow product now and then, and too few measurements no median
    before = f", after {call['busy']} products that nobody has waited for" if "busy" in call else ""
    with recognised_among_others(device.name, measured):
        require_within(
            expected(device.name, measured),
            measured.seconds,
            f"seconds per product of {as_written(call)}{before}",
            SYNC_HINT,
        )
