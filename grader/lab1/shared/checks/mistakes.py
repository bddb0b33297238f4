"""Recognises the mistake that a measured time of Lab 1 shows, so that it can be named, and is charged once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from gradebox.run.assertions import Cause, recognising
from grader.lab1.shared.reference import Measurement, expected, least_launch_seconds, least_read

NOT_WAITED = Cause(
    "not_waited",
    "the clock was stopped while the GPU was still at work: torch.cuda.synchronize() waits until its queue is empty",
    "lab1.measurements.seconds_equal_reference",
)
TOTAL = Cause(
    "total_instead_of_per_product",
    "that is the time of all products together: divide by their number",
    "lab1.measurements.seconds_equal_reference",
)
ELSEWHERE = Cause(
    "not_on_the_gpu",
    "the product ran somewhere else, or in another dtype: make the operands on the device and in the dtype given",
    "lab1.benchmark.right_device_and_dtype",
)
TF32 = Cause(
    "tf32_switched_on",
    "the products ran in TF32, which rounds what they multiply to 10 bits: float32 is float32 as long as nobody sets "
    "allow_tf32 or float32 matmul precision",
    "lab1.measurements.seconds_equal_reference",
)
MORE = Cause(
    "more_is_timed",
    "more than the products is measured: make operands, move and allocate before the clock starts, and let no product "
    "count that came before the device was warm",
    "lab1.measurements.seconds_equal_reference",
)
MILLISECONDS = Cause(
    "milliseconds",
    "that is a number of milliseconds, as elapsed_time() of two events tells them: seconds are a thousandth of it",
    "lab1.measurements.seconds_equal_reference",
)
DIVIDED_TWICE = Cause(
    "divided_twice",
    "that is the time of one product, divided by the number of products once more",
    "lab1.measurements.seconds_equal_reference",
)
NOT_THE_MEDIAN = Cause(
    "not_the_median",
    "the docstring asks for the median: of the single products, or of at least five blocks",
    "lab1.measurements.robust_against_one_slow_iteration",
)
OLDER_WORK = Cause(
    "older_work_timed",
    "the clock ran while older work was finished: torch.cuda.synchronize() waits until the queue is empty, also before "
    "the start",
    "lab1.measurements.synchronised_before_start",
)
_BARELY_LAUNCHED = 1.6
"""Launches: what a clock reads of each product that nobody waits for."""
_NEAR = 0.1
"""How far a time may be from what a mistake in its unit or its number makes of it."""
_FAR = 0.5
"""Of a product's time: less, and nobody has waited for it."""


@contextmanager
def recognised(device: str, measured: Measurement) -> Iterator[None]:
    """If the seconds of a call are judged in here and are wrong, say which mistake they show, if they show one.

    For calls with nothing queued before them and no product slow: elsewhere a wrong time may show another mistake.
    """
    with recognising(lambda: mistake_of(device, measured)):
        yield


@contextmanager
def recognised_elsewhere(measured: Measurement) -> Iterator[None]:
    """If something of a call fails in here and its products never ran on the GPU, say that."""
    with recognising(lambda: _elsewhere(measured)):
        yield


def _elsewhere(measured: Measurement) -> Cause | None:
    """What the products did if none of them ran on the GPU in their dtype."""
    if measured.count():
        return None
    return TF32 if measured.count("tf32") else ELSEWHERE


def mistake_of(device: str, measured: Measurement) -> Cause | None:
    """The mistake that the seconds of an undisturbed call show; None if they are right, or show none."""
    took, honest, iterations = measured.seconds, expected(device, measured), measured.iterations
    if elsewhere := _elsewhere(measured):
        return elsewhere
    if not isinstance(took, float) or not math.isfinite(took) or took in honest:
        return None
    for cause, factor in ((MILLISECONDS, 1e3), (TOTAL, float(iterations)), (DIVIDED_TWICE, 1 / iterations)):
        if factor != 1 and (1 - _NEAR) * honest.low <= took / factor <= (1 + _NEAR) * honest.high:
            return cause
    if took < honest.low:
        if measured.observed.tf32 and measured.dtype == "float32":
            return TF32
        # If nobody waits, the clock reads what launches take, and no number that was made up.
        return NOT_WAITED if least_read(device, measured) <= took < _FAR * honest.low else None
    return MORE


@contextmanager
def recognised_among_others(device: str, measured: Measurement) -> Iterator[None]:
    """The same for a call before which work may be queued, or of which some products may be slow."""
    with recognising(lambda: _mistake_among_others(device, measured)):
        yield


def _mistake_among_others(device: str, measured: Measurement) -> Cause | None:
    if elsewhere := _elsewhere(measured):
        return elsewhere
    took, honest = measured.seconds, expected(device, measured)
    if not isinstance(took, float) or not math.isfinite(took):
        return None
    if took < honest.low:
        return NOT_WAITED if took < _BARELY_LAUNCHED * least_launch_seconds(device) else None
    if took > honest.high and measured.disturbed:
        return NOT_THE_MEDIAN
    return OLDER_WORK if took > honest.high and "busy" in measured.call else None
