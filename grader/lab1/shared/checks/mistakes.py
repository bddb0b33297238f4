"""Recognises the mistake that a result of `benchmark_matmul` shows, so that it can be named, and is charged once.

A mistake is recognised if a reference with that mistake gives what was observed, and one without it does not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from gradebox.run.assertions import Cause, recognising
from grader.lab1.shared.cases.products import ProductCount
from grader.lab1.shared.reference import (
    WARM_UP,
    Measurement,
    count_of,
    expected,
    factors,
    has_passed,
    kernel_seconds,
    least_launch_seconds,
    means,
    reads_launches,
    with_older_work,
    with_transfers,
)

_SECONDS = "lab1.measurements.seconds_equal_reference"
_PLACE = "lab1.benchmark.right_device_and_dtype"
_TFLOPS = "lab1.measurements.tflops_counted"
NOT_WAITED = Cause(
    "not_waited",
    "Call torch.cuda.synchronize() after the last product, and read the clock only then. A product that was launched "
    "is not computed yet.",
    _SECONDS,
    mistake="The clock is stopped before the GPU has finished",
)
NO_WARM_UP = Cause(
    "no_warm_up",
    "Run `warmup` products before the clock starts: the first product also loads libraries.",
    "lab1.benchmark.warmed_up",
    mistake="No product is run to warm up before the clock starts",
)
WARM_UP_IGNORED = Cause(
    "warmup_ignored",
    "Run `warmup` products before the first timed one, as many as the argument says.",
    "lab1.benchmark.warmed_up",
    mistake="The argument warmup is ignored: the warm-up always has the same length",
)
DEVICE_AS_TEXT = Cause(
    "device_compared_with_a_text",
    "Ask torch.device(device).type whether the device is a GPU. A torch.device is not equal to a text, nor is "
    '"cuda:0" equal to "cuda".',
    _PLACE,
    mistake="Nobody waits for a GPU that is named in another way, such as torch.device('cuda') or 'cuda:0'",
)
TOTAL = Cause(
    "total_instead_of_per_product",
    "Divide the time by the number of products between start and stop.",
    "lab1.benchmark.seconds_per_product",
    mistake="The total time of all products is reported instead of the time per product",
)
ELSEWHERE = Cause(
    "not_on_the_gpu",
    "Create both operands with `device=device`: a product runs where its operands are.",
    _PLACE,
    mistake="The products never run on the GPU",
)
DTYPE_IGNORED = Cause(
    "dtype_ignored",
    "Create both operands with `dtype=dtype`: a product is computed in the type of its operands.",
    _PLACE,
    mistake="The argument dtype is ignored: the products run in float32",
)
ONE_OPERAND = Cause(
    "one_operand",
    "Create two matrices: a product of one with itself reads half as many operands from memory.",
    _PLACE,
    mistake="One matrix is multiplied with itself: there is only one operand",
)
TF32 = Cause(
    "tf32_switched_on",
    "Do not set allow_tf32 or the float32 matmul precision: TF32 rounds what is multiplied to 10 bits.",
    _SECONDS,
    mistake="TF32 is switched on, so the products are not computed in float32",
)
MOVED = Cause(
    "operands_moved_while_timed",
    "Move both operands to the device before the clock starts. Between start and stop there are only products.",
    "lab1.benchmark.only_the_product_timed",
    mistake="Operands are moved to the GPU while the clock runs, so the transfer is timed with the product",
)
MORE = Cause(
    "more_is_timed",
    "Create operands, move them and allocate before the clock starts. Between start and stop there are only products.",
    "lab1.benchmark.only_the_product_timed",
    mistake="More than the products is timed: operands are created, for example, while the clock runs",
)
MILLISECONDS = Cause(
    "milliseconds",
    "Divide what elapsed_time() of two events returns by 1000: it counts in milliseconds.",
    _SECONDS,
    mistake="MatmulResult.seconds holds milliseconds",
)
DIVIDED_TWICE = Cause(
    "divided_twice",
    "Divide by the number of products once: what is reported is the time of one product.",
    "lab1.benchmark.seconds_per_product",
    mistake="The time per product is divided by the number of products once more",
)
NOT_THE_MEDIAN = Cause(
    "not_the_median",
    "Take the median (`statistics.median`) of single products or of at least five blocks.",
    "lab1.measurements.robust_against_one_slow_iteration",
    mistake="MatmulResult.seconds is no median: one slow or fast product decides the result",
)
BLOCKS_OF_ALL = Cause(
    "each_measurement_times_all",
    "Split `iterations` into the measurements: together they time that many products.",
    "lab1.benchmark.seconds_per_product",
    mistake="Each measurement times as many products as were asked for in all",
)
REMAINDER = Cause(
    "remainder_not_timed",
    "Time what is left over as well: let some blocks be longer by one product.",
    "lab1.benchmark.seconds_per_product",
    mistake="Products that are left over when `iterations` is split into blocks are not timed",
)
MEAN = Cause(
    "not_the_median",
    "Take the median (`statistics.median`) of single products or of at least five blocks. One slow product changes "
    "the mean.",
    "lab1.measurements.robust_against_one_slow_iteration",
    mistake="The mean is reported instead of the median, so one slow product spoils the result",
)
OLDER_WORK = Cause(
    "older_work_timed",
    "Call torch.cuda.synchronize() right before each time the clock is started, with a warm-up and without one.",
    "lab1.measurements.synchronised_before_start",
    mistake="The clock is started while older work is still queued on the GPU",
)
NOT_THE_TYPE_ALONE = Cause(
    "device_not_its_type",
    "Report torch.device(device).type.",
    _PLACE,
    mistake='MatmulResult.device says "cuda:0" or what was passed, and not the device\'s type alone',
)
WITH_TORCH = Cause(
    "dtype_with_torch",
    'Report `str(dtype).removeprefix("torch.")`.',
    _PLACE,
    mistake='MatmulResult.dtype begins with "torch."',
)
_COUNTED = {
    0.5: (
        "half_the_operations",
        "Count 2 n³ operations: each of the n² results takes n multiplications and n additions.",
        "TFLOPS count half of the operations: n³ instead of 2 n³",
    ),
    2.0: (
        "twice_the_operations",
        "Count 2 n³ operations: each of the n² results takes n multiplications and n additions, and no more.",
        "TFLOPS count twice as many operations as there are",
    ),
    1e3: ("gflops", "Divide by 1e12.", "MatmulResult.tflops holds GFLOPS"),
    1e12: ("flops", "Divide by 1e12.", "MatmulResult.tflops holds operations per second, not 1e12 of them"),
    1e12 / 2**40: ("tebi", "Divide by 1e12, and not by 2^40.", "TFLOPS count in 2^40 operations instead of 1e12"),
    1e-3: ("pflops", "Divide by 1e12.", "MatmulResult.tflops holds PFLOPS"),
}
TFLOPS: Mapping[float, Cause] = MappingProxyType(
    {
        factor: Cause(f"tflops_{name}", hint, _TFLOPS, mistake=mistake)
        for factor, (name, hint, mistake) in _COUNTED.items()
    }
)
"""By what they multiply TFLOPS with."""
TFLOPS_OF_THE_MEAN = Cause(
    "tflops_of_the_mean",
    "Compute TFLOPS from the median, which MatmulResult.seconds holds.",
    _TFLOPS,
    mistake="TFLOPS are computed from the mean time, and not from the median next to them",
)
PROCESSOR_TIME = Cause(
    "processor_time",
    "Measure the time that passes, with time.perf_counter(). A processor that waits is not busy.",
    _SECONDS,
    mistake="The clock counts for how long a processor was busy, and not the time that passes",
)
_BUSY_SHARE = 0.1
"""Of a product that waits: for longer no processor is busy with it."""
_BARELY_LAUNCHED = 1.6
"""Launches: what a clock reads of each product that nobody waits for."""
_NEAR = 0.1
"""How far a time may be from what a mistake in its unit or its number makes of it."""
_FAR = 0.5
"""Of a product's time: less, and nobody has waited for it."""
_NEAR_TFLOPS = 0.02


@contextmanager
def recognised(device: str, measured: Measurement) -> Iterator[None]:
    """If the seconds of a call are judged in here and are wrong, say which mistake they show, if they show one.

    For calls with nothing queued before them and no product slow: elsewhere a wrong time may show another mistake.
    """
    with recognising(lambda: mistake_of(device, measured)):
        yield


@contextmanager
def recognised_elsewhere(measured: Measurement) -> Iterator[None]:
    """If something of a call fails in here and its products never ran on the GPU in its dtype, say that."""
    with recognising(lambda: elsewhere(measured)):
        yield


def elsewhere(measured: Measurement) -> Cause | None:
    """What the products did if none of them ran on the GPU in their dtype."""
    if measured.count():
        return None
    if measured.count("tf32"):
        return TF32
    products = measured.observed.products
    if any(product["device"] == "cuda" for product in products):
        return dtype_ignored(measured, products)
    return ELSEWHERE


def dtype_ignored(measured: Measurement, products: Sequence[ProductCount]) -> Cause | None:
    """Whether as many products as were to be timed ran in float32, although another dtype was asked for."""
    in_float32 = count_of(measured.call, products, dtype="float32")
    return DTYPE_IGNORED if measured.dtype != "float32" and in_float32 >= measured.iterations else None


def mistake_of(device: str, measured: Measurement) -> Cause | None:
    """The mistake that the seconds of an undisturbed call show; None if they are right, or show none."""
    took, honest = measured.seconds, expected(device, measured)
    if not measured.count():
        return elsewhere(measured)
    if not isinstance(took, float) or not math.isfinite(took) or took in honest:
        return None
    if cause := _wrong_unit(took, honest.low, honest.high, measured.iterations):
        return cause
    if took < honest.low:
        if measured.observed.tf32 and measured.dtype == "float32":
            return TF32
        return NOT_WAITED if took < _FAR * honest.low and reads_launches(device, measured, took) else None
    if _started_early(device, measured, took):
        return OLDER_WORK
    if _moved(device, measured, took):
        return MOVED
    return MORE if has_passed(device, measured, took * measured.iterations) else None


def mistake_on_cpu(took: object, low: float, high: float, iterations: int) -> Cause | None:
    """The mistake that seconds per product show on a CPU that waits for as long in each product."""
    if not isinstance(took, float) or not math.isfinite(took):
        return None
    if 0 <= took < _BUSY_SHARE * low:
        return PROCESSOR_TIME
    return _wrong_unit(took, low, high, iterations)


def _wrong_unit(took: float, low: float, high: float, iterations: int) -> Cause | None:
    for cause, factor in ((MILLISECONDS, 1e3), (TOTAL, float(iterations)), (DIVIDED_TWICE, 1 / iterations)):
        if factor != 1 and (1 - _NEAR) * low <= took / factor <= (1 + _NEAR) * high:
            return cause
    return None


def _started_early(device: str, measured: Measurement, took: float) -> bool:
    """Whether the first time has in it what was queued before, such as the warm-up."""
    return device != "cuda" and any(took in interval for interval in with_older_work(device, measured))


def _moved(device: str, measured: Measurement, took: float) -> bool:
    """Whether one operand or both were moved before each product."""
    return device != "cuda" and any(took in interval for interval in with_transfers(device, measured))


@contextmanager
def recognised_among_others(device: str, measured: Measurement, others: Sequence[Measurement] = ()) -> Iterator[None]:
    """The same for a call before which work may be queued, or of which some products may be slow.

    Args:
        others: calls that name the GPU in all ways, this one among them.
    """
    with recognising(lambda: named_otherwise(device, others) or _mistake_among_others(device, measured)):
        yield


def _mistake_among_others(device: str, measured: Measurement) -> Cause | None:
    if not measured.count():
        return elsewhere(measured)
    took, honest = measured.seconds, expected(device, measured)
    if not isinstance(took, float) or not math.isfinite(took) or took in honest:
        return None
    if device != "cuda" and measured.disturbed:
        if cause := warm_up_mistake(measured):  # the slow products were others than the timed ones
            return cause
        for cause, factor, intervals in (
            (MEAN, 1, means(device, measured)),
            (TOTAL, measured.iterations, means(device, measured)),
            (OLDER_WORK, 1, with_older_work(device, measured)),
        ):
            if any(took / factor in interval for interval in intervals):
                return cause
    if took < honest.low and took < _BARELY_LAUNCHED * least_launch_seconds(device):
        return NOT_WAITED
    if cause := _wrong_unit(took, honest.low, honest.high, measured.iterations):
        return cause
    if took < honest.low:
        return None
    if _started_early(device, measured, took):
        return OLDER_WORK
    if _moved(device, measured, took):
        return MOVED
    if took > measured.observed.elapsed_seconds:
        return None
    if measured.disturbed:
        return NOT_THE_MEDIAN
    return OLDER_WORK if "busy" in measured.call else MORE


def warm_up_mistake(measured: Measurement) -> Cause | None:
    """What the number of products shows, if it is not `warmup` that comes before the timed ones."""
    warmup, before = measured.call.get("warmup", WARM_UP), measured.count() - measured.iterations
    if before == warmup or before < 0:
        return None
    return NO_WARM_UP if not before else WARM_UP_IGNORED if before == WARM_UP else None


def named_otherwise(device: str, measurements: Sequence[Measurement]) -> Cause | None:
    """Whether the GPU is waited for if it is named "cuda", and not if it is named in some of the other ways."""
    waited: dict[tuple[str, bool], set[bool]] = {}
    for run in measurements:
        took, honest = run.seconds, expected(device, run)
        if not isinstance(took, float):
            return None
        name = (run.call.get("device", "cuda"), run.call.get("as_object", False))
        if took < honest.low and took < _BARELY_LAUNCHED * least_launch_seconds(device):
            waited.setdefault(name, set()).add(False)
        elif took in honest:
            waited.setdefault(name, set()).add(True)
        else:
            return None  # something else is wrong, too
    usual = waited.pop(("cuda", False), set())
    # Either all products by one name are waited for, or none.
    apart = usual == {True} and all(len(answers) == 1 for answers in waited.values())
    return DEVICE_AS_TEXT if apart and {False} in waited.values() else None


@contextmanager
def recognised_tflops(device: str, measured: Measurement) -> Iterator[None]:
    """If TFLOPS are judged in here and are wrong for the seconds beside them, say which mistake it is."""
    with recognising(lambda: _tflops_mistake(device, measured)):
        yield


def _tflops_mistake(device: str, measured: Measurement) -> Cause | None:
    """The mistake that TFLOPS show which do not follow from the seconds beside them."""
    took, tflops = measured.seconds, measured.observed.result["tflops"]
    if not isinstance(took, float) or not isinstance(tflops, float) or not took > 0 or not tflops > 0:
        return None
    work = 2 * measured.call["size"] ** 3 / 1e12
    for factor, cause in TFLOPS.items():
        if abs(tflops * took / work / factor - 1) < _NEAR_TFLOPS:
            return cause
    if device != "cuda" and measured.disturbed:
        mean = took + (statistics.fmean(factors(measured)) - 1) * kernel_seconds(device, measured)
        if abs(tflops * mean / work - 1) < _NEAR:
            return TFLOPS_OF_THE_MEAN
    return None


@contextmanager
def recognised_fields(measured: Measurement) -> Iterator[None]:
    """If device or dtype of a result are judged in here and are wrong, say which mistake they show."""
    with recognising(lambda: _field_mistake(measured)):
        yield


def _field_mistake(measured: Measurement) -> Cause | None:
    result, given = measured.observed.result, measured.call.get("device", "cuda")
    kind = given.partition(":")[0]
    if result["device"] != kind and result["device"] in (given, f"{kind}:0"):
        return NOT_THE_TYPE_ALONE
    if result["device"] == kind and result["dtype"] == f"torch.{measured.dtype}":
        return WITH_TORCH
    return None
