"""What calls of `benchmark_matmul` must read, and which mistake it is if they do not."""

from __future__ import annotations

from collections.abc import Sequence

from gradebox.run.assertions import require, seconds
from gradebox.sandbox.devices import Device
from grader.lab1.shared.checks.measuring import as_written, require_ran, require_within, seconds_of
from grader.lab1.shared.checks.mistakes import (
    OLDER_WORK,
    mistake_of,
    recognised,
    recognised_among_others,
)
from grader.lab1.shared.reference import Measurement, expected, least_read

SYNC_HINT = "Call torch.cuda.synchronize() before each reading of the clock: it waits until the GPU's queue is empty."
TIME_ALL = "Time as many products as `iterations` says."
_MANY = 5
"""Products of which one, or two of as many measurements, may be disturbed."""


def are_explained(device: str, measurements: Sequence[Measurement]) -> bool:
    """Whether one check charges for all seconds that are wrong; made-up ones look like another mistake in each call."""
    wrong = [
        run for run in measurements if not (isinstance(run.seconds, float) and run.seconds in expected(device, run))
    ]
    charged = {cause.check if (cause := mistake_of(device, run)) else "" for run in wrong}
    return device == "cuda" or (len(charged) == 1 and "" not in charged)


def require_seconds(device: str, measured: Measurement) -> None:
    """Fail unless a call read the seconds that its products take."""
    with recognised(device, measured):
        require_within(
            expected(device, measured),
            measured.seconds,
            f"seconds per product of {measured.call['size']} in {measured.dtype} on {device}",
            SYNC_HINT,
        )


def require_crossed(device: Device, measurements: Sequence[Measurement]) -> None:
    """The same of the calls of `crossed`, some of which are disturbed."""
    for measured in measurements:
        call = measured.call
        if not device.simulated and call.get("iterations", _MANY) < _MANY:
            continue  # a real GPU has one slow product now and then, and too few measurements no median
        before = f", after {call['busy']} products that nobody has waited for" if "busy" in call else ""
        slow = ", the first and the last of which are slow" if measured.disturbed else ""
        with recognised_among_others(device.name, measured, measurements):
            require_within(
                expected(device.name, measured),
                measured.seconds,
                f"seconds per product of {as_written(call)}{before}{slow}",
                SYNC_HINT,
            )


def require_launched(device: str, measured: Measurement, what: str) -> None:
    """Fail unless a call took as long as to launch its product, even if it reads the clock too early."""
    took, least = seconds_of(measured), least_read(device, measured)
    require(
        took >= least,
        f"{what}: saw {seconds(took)}, but to launch it alone takes {seconds(least)}",
        "Start the clock before the products and stop it after them.",
    )


_LEAST_SHARE = 0.9
"""Of the work that was queued: it was waited for while the clock ran. A real GPU may have begun it long before."""
_OLDER_WORK, _REAL_OLDER_WORK = 1.5, 4
"""Times as long as a product one may be before which 20 others were queued. On a real GPU a single one is late now and
then, and a clock that was started too early reads the time of 20 and more."""


def require_started_idle(device: Device, measured: Measurement, queued: int) -> None:
    """Fail unless the clock of a call was started when the GPU had finished the work that was queued before it.

    Args:
        device: of this grading.
        measured: a call that times one product.
        queued: products that were queued before the call.
    """
    call, took, honest = measured.call, seconds_of(measured), expected(device.name, measured)
    most = _OLDER_WORK if device.simulated else _REAL_OLDER_WORK
    what = f"seconds per product of {as_written(call)}, called while the GPU still works on other products"
    with recognised(device.name, measured):
        require_ran(call, measured.observed.products, TIME_ALL)
        require(
            took <= most * honest.high,
            f"{what}: saw {seconds(took)}, expected {seconds(honest.high)}",
            OLDER_WORK if took >= _LEAST_SHARE * queued * honest.low else str(OLDER_WORK),
        )
        require_launched(device.name, measured, what)
        # A clock that stops too early reads less; that the device was idle at the start is then seen there.
        require(
            took >= 0.9 * honest.low or measured.observed.idle_at_start is True,
            f"{what}: saw {seconds(took)}, and the first timed product was queued behind the others",
            OLDER_WORK,
        )
