"""What calls of `benchmark_matmul` must read, and which mistake it is where they do not."""

from __future__ import annotations

from typing import Any

from gradebox.sandbox.devices import Device
from grader.lab1.truth.mistakes import recognised, recognised_among_others
from grader.lab1.truth.timing import Call, as_written, expected

SYNC_HINT = "a GPU works through a queue: torch.cuda.synchronize() waits until it is empty"
_MANY = 5
"""Products of which one, or two of as many measurements, may be disturbed."""


def require_seconds(device: str, call: Call, seen: Any) -> None:
    """Fail unless a call read the seconds that its products take."""
    with recognised(device, call, seen):
        expected(device, call, seen).require(
            seen["result"]["seconds"],
            f"seconds per product of {call['size']} in {call.get('dtype', 'float32')} on {device}",
            SYNC_HINT,
        )


def require_crossed(device: Device, call: Call, seen: Any) -> None:
    """The same of a call of `crossed`, some of which are disturbed."""
    if not device.simulated and call.get("iterations", _MANY) < _MANY:
        return  # a real GPU has one slow product now and then, and too few measurements no median
    before = f", after {call['busy']} products that nobody has waited for" if "busy" in call else ""
    with recognised_among_others(device.name, call, seen):
        expected(device.name, call, seen).require(
            seen["result"]["seconds"], f"seconds per product of {as_written(call)}{before}", SYNC_HINT
        )
