"""What a measured time must be: exact on the virtual GPU, whose cost model is known, and bracketed on a real one.

On the virtual GPU a time may exceed the kernel's by 2 % and by what an honest method can add to each product: launches,
synchronisations and readings of a clock around it. On a real GPU the reference is measured in the same process, right
before and right after the student's call: quartiles by two methods, give or take 10 %.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import vgpu
from grader.lab1.shared.cases.drawn import launch_seconds, spec_of
from grader.lab1.shared.cases.products import Call, Hiccup, Observation, ProductCount

WARM_UP = 10
"""Products of `benchmark_matmul` before the first timed one if nothing else is said."""
_HOST_TOLERANCE = 0.1
_CLOCK_SECONDS = 5e-6
_REAL_TOLERANCE = 0.10
_REAL_OVERHEAD_SECONDS = 30e-6
_REAL_HOST_SHARE = 0.5
"""Of what this host takes for a product that costs the GPU nothing: so much an honest method may add on a slow host."""
_AT_MOST = 1.1
"""Times what passes in a call: a median can be somewhat longer than the mean."""
_LAUNCHES = 4
"""Of a virtual GPU's launches, more than a clock reads of each product, however it is read."""
_REAL_LAUNCH_SECONDS = 0.5e-6
"""Faster than any program launches a kernel."""


@dataclass(frozen=True)
class Interval:
    """The seconds per product that an honest measurement can give."""

    low: float
    high: float

    def __contains__(self, seconds: float) -> bool:
        return self.low <= seconds <= self.high


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One call of `benchmark_matmul`, and what was observed of it."""

    call: Call
    observed: Observation
    pace: float | None
    """So many times as long as its data sheet lets expect the virtual GPU takes; None on a real GPU."""
    hiccups: Sequence[Hiccup] = ()
    """Its products that were slow or fast on purpose."""

    @property
    def disturbed(self) -> bool:
        """Whether some of its products were slow."""
        return bool(self.hiccups)

    @property
    def seconds(self) -> object:
        """What the call said that one product takes."""
        return self.observed.result["seconds"]

    @property
    def dtype(self) -> str:
        """The element type that was asked for."""
        return self.call.get("dtype", "float32")

    @property
    def iterations(self) -> int:
        """How many products were to be timed."""
        return self.call.get("iterations", 100)

    def count(self, dtype: str | None = None) -> int:
        """How many products of this call ran on the GPU, in the dtype that was asked for or in this one."""
        return count_of(self.call, self.observed.products, dtype=dtype)


def count_of(call: Call, products: Sequence[ProductCount], *, dtype: str | None = None, place: str = "cuda") -> int:
    """How many products of this call ran there: timed ones and those before.

    Args:
        call: its size and, unless `dtype` is given, its dtype.
        products: all that ran.
        dtype: of the operands.
        place: "cuda" or "cpu".
    """
    dtype, work = dtype or call.get("dtype", "float32"), 2 * call["size"] ** 3
    return sum(
        product["count"]
        for product in products
        if product["device"] == place and product["dtype"] == dtype and product["flops"] == work
    )


def expected(device: str, measured: Measurement) -> Interval:
    """The interval for one observed call."""
    if device == "cuda":
        own_seconds = measured.observed.own_seconds
        overhead = max(_REAL_OVERHEAD_SECONDS, _REAL_HOST_SHARE * measured.observed.host_seconds)
        return Interval(min(own_seconds) * (1 - _REAL_TOLERANCE), max(own_seconds) * (1 + _REAL_TOLERANCE) + overhead)
    spec, kernel = spec_of(device), kernel_seconds(device, measured)
    overhead = 2 * launch_seconds(spec) + 2 * vgpu.device.cost.sync_seconds(spec) + _CLOCK_SECONDS
    return Interval(0.98 * kernel, 1.02 * kernel + overhead)


def kernel_seconds(device: str, measured: Measurement, dtype: str | None = None) -> float:
    """What the kernel of one undisturbed product takes on a virtual GPU."""
    size = measured.call["size"]
    dtype = dtype or measured.dtype
    return _pace(measured) * vgpu.device.cost.matmul_seconds(spec_of(device), size, size, size, dtype)


def means(device: str, measured: Measurement) -> list[Interval]:
    """The seconds per product that a mean gives on a virtual GPU, slow products included: over all, or over blocks."""
    return [
        _slower(device, measured, statistics.fmean(map(statistics.fmean, blocks)))
        for blocks in _blocks(factors(measured))
    ]


def with_older_work(device: str, measured: Measurement) -> list[Interval]:
    """The seconds per product on a virtual GPU if the first time has in it what the warm-up takes.

    By a median over single products or blocks, and by one block over all, or a mean.
    """
    before = measured.call.get("warmup", WARM_UP) + measured.call.get("busy", 0)
    seconds: list[Interval] = []
    for first, *others in _blocks(factors(measured)):
        times = [(before + sum(first)) / len(first), *map(statistics.fmean, others)]
        seconds += [
            _slower(device, measured, statistics.median(times)),
            _slower(device, measured, statistics.fmean(times)),
        ]
    each = factors(measured)
    return [*seconds, _slower(device, measured, (before + sum(each)) / len(each))]


def factors(measured: Measurement) -> list[float]:
    """By what each timed product takes longer, or shorter, than others of its size."""
    each = [1.0] * measured.iterations
    for hiccup in measured.hiccups:
        for place in range(hiccup["first"], min(hiccup["first"] + hiccup["count"], measured.iterations)):
            each[place] = hiccup["factor"]
    return each


def _blocks(each: Sequence[float]) -> Iterator[list[Sequence[float]]]:
    """Products one by one, and in at most five blocks whose lengths differ by one at most, longer ones first."""
    yield [[factor] for factor in each]
    count = min(len(each), 5)
    lengths = [len(each) // count + (index < len(each) % count) for index in range(count)]
    ends = list(itertools.accumulate(lengths))
    yield [each[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def _slower(device: str, measured: Measurement, factor: float) -> Interval:
    alone, extra = expected(device, measured), (factor - 1) * kernel_seconds(device, measured)
    return Interval(alone.low + 0.95 * extra, alone.high + 1.05 * extra)


def with_transfers(device: str, measured: Measurement) -> list[Interval]:
    """The seconds per product if one operand or both are moved from pageable or pinned host memory before each one."""
    spec, size = spec_of(device), measured.call["size"]
    moved = size**2 * vgpu.device.cost.BYTES_PER_ELEMENT[measured.dtype]
    alone = expected(device, measured)
    intervals = []
    for operands, pinned in itertools.product((1, 2), (False, True)):
        extra = operands * _pace(measured) * vgpu.device.cost.transfer_seconds(spec, moved, pinned=pinned)
        intervals.append(Interval(alone.low + 0.97 * extra, alone.high + 1.03 * extra))
    return intervals


def _pace(measured: Measurement) -> float:
    if measured.pace is None:
        raise ValueError("a virtual GPU has a pace")
    return measured.pace


def least_launch_seconds(device: str) -> float:
    """What handing one product to the GPU takes the host at least."""
    return _REAL_LAUNCH_SECONDS if device == "cuda" else launch_seconds(spec_of(device))


def least_read(device: str, measured: Measurement) -> float:
    """The least seconds per product that any clock around it reads, one that is stopped too early included."""
    if device == "cuda":
        return _REAL_LAUNCH_SECONDS
    return 0.9 * min(launch_seconds(spec_of(device)), expected(device, measured).low)


def reads_launches(device: str, measured: Measurement, took: float) -> bool:
    """Whether a clock that nobody waits for can read this of one product, or of all: it is what launches take."""
    least, most = least_read(device, measured), _LAUNCHES * least_launch_seconds(device)
    return took >= least and (device == "cuda" or took <= most or least <= took / measured.iterations <= most)


def has_passed(device: str, measured: Measurement, seconds: float) -> bool:
    """Whether a clock can have read so much in all of a call: a longer time was not measured, but made up.

    Other products than the timed ones, those of the warm-up, are waited for beforehand.
    """
    others = 0 if device == "cuda" else max(0, measured.count() - measured.iterations)
    before = others * kernel_seconds(device, measured) if others else 0.0
    return seconds <= _AT_MOST * (measured.observed.elapsed_seconds - before)


def expected_on_host(device: str, size: int, paces: Sequence[tuple[int, float]], dtype: str = "float32") -> Interval:
    """The seconds per product of two CPU tensors on the virtual GPU's host, at these `host_paces`.

    A method that treats both sides alike also synchronises with the GPU and reads a clock around each product.
    """
    spec = spec_of(device)
    factor = math.prod(pace for flops, pace in paces if 2 * size**3 >= flops)
    product = factor * vgpu.device.cost.cpu_matmul_seconds(spec, size, size, size, dtype)
    beside = 4 * spec.host.operation_seconds + 2 * vgpu.device.cost.sync_seconds(spec) + _CLOCK_SECONDS
    return Interval((1 - _HOST_TOLERANCE) * product, (1 + _HOST_TOLERANCE) * product + beside)


def peak_tflops(device: str, dtype: str, measured: Measurement) -> float:
    """What can be reached at most: by the data sheet; on a real GPU, which may have none, by its products."""
    if device == "cuda":
        return 2 * measured.call["size"] ** 3 / (0.9 * min(measured.observed.own_seconds)) / 1e12
    return vgpu.device.cost.peak_flops(spec_of(device), dtype) / _pace(measured) / 1e12
