"""What a measured time must be: exact on the virtual GPU, whose cost model is known, and bracketed on a real one.

On the virtual GPU a time may exceed the kernel's by 2 % and by what an honest method can add to each product: launches,
synchronisations and readings of a clock around it. On a real GPU the reference is measured in the same process, right
before and right after the student's call: quartiles by two methods, give or take 10 %. Sizes follow from how fast the
card multiplies. Not here: what a time that is wrong shows (`grader.lab1.truth.mistakes`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import vgpu
from gradebox.run.assertions import number, require, require_between, seconds
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Seen, Submission
from gradebox.sandbox.devices import Device
from grader.shared.cards import Card, card_of
from grader.shared.cases import every_value

Call = dict[str, Any]
"""Arguments of one call of `benchmark_matmul`."""

KERNEL_LAUNCHES = 500
"""A product is "long" when its kernel lasts this many launches: then 2 % is far above what any method adds."""

NAMES: tuple[Call, ...] = (
    {},
    {"as_object": True},
    {"device": "cuda:0"},
    {"device": "cuda:0", "as_object": True},
)
"""How one and the same GPU may be named in a call."""

_PACES = (1.4, 4.0)
"""A virtual GPU takes so many times as long as its data sheet lets expect: far more than any tolerance, and more than
the share of its peak that a product does not reach."""
_HOST_PACES = (1.15, 1.8)
"""And so many times as long as for the next smaller size its CPU takes for a product, beyond what is more work."""
_HOST_TOLERANCE = 0.1
_PLACES = {"cuda": "GPU", "cpu": "CPU"}
_CLOCK_SECONDS = 5e-6
_REAL_TOLERANCE = 0.10
_REAL_OVERHEAD_SECONDS = 30e-6
_REAL_HOST_SHARE = 0.5
"""Of what this host takes for a product that costs the GPU nothing: so much an honest method may add on a slow host."""
_REAL_LONG_SECONDS = 6e-3
"""The longest product on a real GPU. One call with its references runs up to 270 of them, and a probe has a minute."""
_REAL_SHORT_SECONDS = (10e-6, 160e-6)
_REAL_LONG_SIZES, _REAL_SHORT_SIZES = (3500, 4500), (600, 1600)
"""On a card that is fast enough for them."""
_REAL_LAUNCH_SECONDS = 0.5e-6
"""Faster than any program launches a kernel."""


LAUNCHED = {"lab1.gpu_basics.matmul": "lab1.products_truth.matmul"}
"""Beside what a submission's benchmark launched: the same products, each of them waited for."""


@dataclass(frozen=True)
class Interval:
    """The seconds per product that an honest measurement can give."""

    low: float
    high: float

    def require(self, observed: Any, what: str, hint: str) -> None:
        require_between(observed, self.low, self.high, what=what, show=seconds, hint=hint)


def devices(device: Device) -> list[str]:
    """The GPUs to measure on: the real one, or the chosen virtual one and two of other generations."""
    if not device.simulated:
        return [device.name]
    return list(dict.fromkeys([device.name, "vgpu:A100-80GB", "vgpu:H200"]))


def _launch_seconds(spec: vgpu.Spec) -> float:
    """Host time to launch one product."""
    return vgpu.device.cost.launch_seconds(spec, "product")


def _real_longest(card: Card | None, dtype: str) -> float:
    """How large a long product may be on a real card, as a part of `_REAL_LONG_SIZES`."""
    return 1.0 if card is None else min(1.0, card.largest_size(_REAL_LONG_SECONDS, dtype) / _REAL_LONG_SIZES[1])


def long_size(
    device: str,
    generator: InputGenerator,
    dtype: str = "float32",
    launches: int = KERNEL_LAUNCHES,
    *,
    card: Card | None = None,
) -> int:
    """An odd size whose product lasts at least `launches` launches on this device; random on every grading.

    Args:
        card: the real card of this grading; without it, one that is as fast as they come.
    """
    if device == "cuda":
        part = _real_longest(card, dtype)
        return _odd(part * generator.odd(*_REAL_LONG_SIZES))
    spec = _spec(device)
    size = generator.odd(1201, 1501)
    while vgpu.device.cost.matmul_seconds(spec, size, size, size, dtype) < launches * _launch_seconds(spec):
        size += generator.integer(50, 99) * 2
    return size


def long_sizes(device: str, generator: InputGenerator, count: int, *, card: Card | None = None) -> list[int]:
    """Odd sizes of such products, the longest of which may last 27 times as long as the shortest.

    Whoever knows what they took in another grading, or tells the same for all, is right by luck only.
    """
    if device == "cuda":
        most = _real_longest(card, "float32") * _REAL_LONG_SIZES[1]
        return [_odd(generator.log_uniform(most / 3, most)) for _ in range(count)]
    return [_odd(long_size(device, generator) * generator.log_uniform(1, 3)) for _ in range(count)]


def short_sizes(
    device: str, generator: InputGenerator, count: int, dtype: str = "float32", *, card: Card | None = None
) -> list[int]:
    """Odd sizes whose products last some launches: every microsecond beside it shows, and so does a missing wait.

    Were the kernel shorter than its launch, a clock that is stopped too early would read what an honest one reads.
    """
    if device == "cuda":
        low, high = _REAL_SHORT_SIZES
        if card is not None:
            shortest, longest = (card.largest_size(took, dtype) for took in _REAL_SHORT_SECONDS)
            low, high = min(low, round(shortest)), min(high, round(longest))
        return [_odd(generator.log_uniform(low, high)) for _ in range(count)]
    spec = _spec(device)
    sizes = []
    for _ in range(count):
        size, least = generator.odd(121, 181), generator.log_uniform(1.5, 30) * _launch_seconds(spec)
        while vgpu.device.cost.matmul_seconds(spec, size, size, size, dtype) < least:
            size += generator.integer(3, 9) * 2
        sizes.append(size)
    return sizes


def aligned_size(generator: InputGenerator, dtype: str, card: Card | None) -> int:
    """A size that suits tensor cores; on a real card whose product is not too long there."""
    size = generator.integer(4, 8) * 512
    return size if card is None else max(384, round(size * _real_longest(card, dtype)) // 128 * 128)


_CROSSED: dict[str, tuple[Any, ...]] = {
    "dtype": (None, "float16", "bfloat16", "float64"),
    "name": NAMES,
    "size": ("short", "long"),
    "iterations": ("not given", "1", "a few", "fives", "no fives"),
    "warmup": ("not given", "0", "some"),
    "before": ("idle", "busy"),
    "disturbed": (False, True),
}
_BUSY_PRODUCTS = 20


def _allowed(row: Mapping[str, Any]) -> bool:
    """Two products may be disturbed where there are five measurements at least."""
    return not row["disturbed"] or row["iterations"] not in ("1", "a few")


def crossed(submission: Submission, generator: InputGenerator, *, by_default: bool) -> tuple[list[Call], list[Any]]:
    """Calls in which whatever a caller of `benchmark_matmul` chooses meets everything else, and what was seen of them.

    The same for all checks of one grading, so asked once. `by_default`: with the arguments of the document alone.
    """
    generator, device, card = generator.shared("lab1.crossed"), submission.device.name, card_of(submission)
    choices = {**_CROSSED, **({"dtype": (None,), "warmup": ("not given",)} if by_default else {})}
    calls = [_crossed(generator, device, card, row) for row in every_value(generator, choices, 4, _allowed)]
    calls.sort(key=lambda call: -call["size"])  # a hiccup that is left over hits no smaller one
    disturbed = [call.pop("disturbed") and submission.device.simulated for call in calls]
    hiccups = [
        [{"first": place, "count": 1, "factor": 200.0} for place in (0, call.get("iterations", 100) - 1)]
        if slow
        else []
        for call, slow in zip(calls, disturbed, strict=True)
    ]
    how = {"hiccups": hiccups} if submission.device.simulated else {}
    seen = measure(submission, generator, device, calls, warm=True, **how)
    return calls, [{**one, "disturbed": slow} for one, slow in zip(seen, disturbed, strict=True)]


def _crossed(generator: InputGenerator, device: str, card: Card | None, row: Mapping[str, Any]) -> Call:
    dtype = row["dtype"] or "float32"
    if row["size"] == "long":
        size = long_size(device, generator, dtype, card=card)
    else:
        size = short_sizes(device, generator, 1, dtype, card=card)[0]
    counts = {
        "1": 1,
        "a few": generator.integer(2, 4),
        "fives": 5 * generator.integer(1, 3),
        "no fives": generator.integer(6, 9),
    }
    warmups = {"0": 0, "some": generator.integer(1, 9)}
    call: Call = {"size": size, "disturbed": row["disturbed"], **row["name"]}
    if row["dtype"]:
        call["dtype"] = dtype
    if row["iterations"] in counts:
        call["iterations"] = counts[row["iterations"]]
    if row["warmup"] in warmups:
        call["warmup"] = warmups[row["warmup"]]
    if row["before"] == "busy":
        call["busy"] = _BUSY_PRODUCTS
    return call


def as_written(call: Call) -> str:
    """A call as it would be written."""
    options = [f"{name}={call[name]}" for name in ("iterations", "dtype", "warmup") if name in call]
    return f"benchmark_matmul({', '.join([named(call), str(call['size']), *options])})"


def _odd(size: float) -> int:
    return int(size) // 2 * 2 + 1


def count_of(call: Call, observed: dict[str, Any], *, place: str = "cuda") -> int:
    """How many products of this call ran there, in its dtype: timed ones and those before."""
    dtype, work = call.get("dtype", "float32"), 2 * call["size"] ** 3
    return sum(
        product["count"]
        for product in observed["products"]
        if product["device"] == place and product["dtype"] == dtype and product["flops"] == work
    )


def require_ran(call: Call, observed: dict[str, Any], hint: str, *, place: str = "cuda") -> None:
    """Fail unless the products whose time was told have run there: what a clock read is more than a number."""
    ran = count_of(call, observed, place=place)
    require(
        ran >= call["iterations"],
        f"{ran} products of {call['size']} in {call.get('dtype', 'float32')} ran on the {_PLACES[place]}, of which "
        f"{call['iterations']} were to be timed",
        hint,
    )


def measure(
    submission: Submission,
    generator: InputGenerator,
    device: str,
    calls: Sequence[Call],
    *,
    hiccups: Sequence[Sequence[dict[str, Any]]] = (),
    **how: Any,
) -> list[Any]:
    """Run `benchmark_matmul` on `device` once per entry of `calls`; returns the probe's observation of each.

    `hiccups` are, of each call, runs of products that take `factor` times as long: `count` from the `first` on, counted
    from the first product after the warm-up (virtual GPU only).

    Shapes only: times do not depend on values, and a large product costs nothing then. A virtual GPU runs at a pace of
    its own, drawn anew for each request: what a data sheet says is not what can be measured.
    """
    pace = None if device == "cuda" else round(generator.uniform(*_PACES), 3)
    conditions = [] if pace is None else [{"factor": pace}, *_hiccups(calls, hiccups, how.get("busy_products", 0))]
    seen: Seen = submission.probe(
        "lab1.gpu_basics.matmul",
        device=device,
        values=False,
        conditions=conditions,
        calls=list(calls),
        truth=pace is None,
        **how,
    )
    return [{**observed, "pace": pace} for observed in seen.calls]


def _hiccups(calls: Sequence[Call], hiccups: Sequence[Sequence[dict[str, Any]]], busy: int) -> list[dict[str, Any]]:
    """The conditions that they are for the device, each from the stage of its call on."""
    found = []
    for index, (call, runs) in enumerate(zip(calls, hiccups, strict=False)):
        before = call.get("busy", busy) + call.get("warmup", 10)
        found += [
            {
                "stage": index + 1,
                "factor": run["factor"],
                "skip": before + run["first"],
                "count": run["count"],
                "min_flops": 2.0 * call["size"] ** 3,
            }
            for run in runs
        ]
    return found


def host_conditions(paces: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """What `host_paces` are for the device."""
    return [{"factor": factor, "min_flops": float(flops), "on_host": True} for flops, factor in paces]


def expected(device: str, call: Call, observed: dict[str, Any]) -> Interval:
    """The interval for one observed call."""
    if device == "cuda":
        truth = observed["truth"]
        overhead = max(_REAL_OVERHEAD_SECONDS, _REAL_HOST_SHARE * observed.get("host_seconds", 0.0))
        return Interval(min(truth) * (1 - _REAL_TOLERANCE), max(truth) * (1 + _REAL_TOLERANCE) + overhead)
    spec, size = _spec(device), call["size"]
    kernel = observed["pace"] * vgpu.device.cost.matmul_seconds(spec, size, size, size, call.get("dtype", "float32"))
    overhead = 2 * _launch_seconds(spec) + 2 * vgpu.device.cost.sync_seconds(spec) + _CLOCK_SECONDS
    return Interval(0.98 * kernel, 1.02 * kernel + overhead)


def named(call: Call) -> str:
    """The device of a call as it would be written."""
    device = repr(call.get("device", "cuda"))
    return f"torch.device({device})" if call.get("as_object") else device


def require_waited_for_by_any_name(device: str, calls: Sequence[Call], observed: Sequence[dict[str, Any]]) -> None:
    """Fail unless the GPU is waited for by each of NAMES, if it is by the first.

    Each call times one product, so that also a warm-up that nobody has waited for shows. Where the first name goes
    wrong, too, that is no question of names: the checks of measurements tell it.
    """
    took = [number(seen["result"]["seconds"], "MatmulResult.seconds") for seen in observed]
    honest = [expected(device, call, seen) for call, seen in zip(calls, observed, strict=True)]
    right = [0.5 * one.low <= told <= 3 * one.high for told, one in zip(took, honest, strict=True)]
    for call, told, good in zip(calls, took, right, strict=True):
        require(
            good or not right[0],
            f"benchmark_matmul({named(call)}, {call['size']}, iterations=1): saw {seconds(told)}, but "
            f"{seconds(took[0])} with 'cuda' as a text, which is the same GPU",
            "a torch.device is not equal to a text, nor 'cuda:0' to 'cuda': torch.device(device).type tells what it is",
        )


def least_launch_seconds(device: str) -> float:
    """What handing one product to the GPU takes the host at least."""
    return _REAL_LAUNCH_SECONDS if device == "cuda" else _launch_seconds(_spec(device))


def least_read(device: str, call: Call, observed: dict[str, Any]) -> float:
    """The least seconds per product that any clock around it reads, one that is stopped too early included."""
    if device == "cuda":
        return _REAL_LAUNCH_SECONDS
    return 0.9 * min(_launch_seconds(_spec(device)), expected(device, call, observed).low)


def host_paces(generator: InputGenerator, sizes: Sequence[int]) -> list[list[float]]:
    """How slow the virtual GPU's host is: from each size's FLOPs on a factor, which multiply; drawn anew."""
    return [[2 * size**3, round(generator.log_uniform(*_HOST_PACES), 3)] for size in sizes]


def expected_on_host(device: str, size: int, paces: Sequence[Sequence[float]], dtype: str = "float32") -> Interval:
    """The seconds per product of two CPU tensors on the virtual GPU's host, at these `host_paces`.

    A method that treats both sides alike also synchronises with the GPU and reads a clock around each product.
    """
    spec = _spec(device)
    factor = math.prod(pace for flops, pace in paces if 2 * size**3 >= flops)
    product = factor * vgpu.device.cost.cpu_matmul_seconds(spec, size, size, size, dtype)
    beside = 4 * spec.host.operation_seconds + 2 * vgpu.device.cost.sync_seconds(spec) + _CLOCK_SECONDS
    return Interval((1 - _HOST_TOLERANCE) * product, (1 + _HOST_TOLERANCE) * product + beside)


def peak_tflops(device: str, dtype: str, observed: dict[str, Any]) -> float | None:
    """The peak for this dtype in one observed call; None on a real GPU, whose data sheet we may not have."""
    return None if device == "cuda" else vgpu.device.cost.peak_flops(_spec(device), dtype) / observed["pace"] / 1e12


def _spec(device: str) -> vgpu.Spec:
    return vgpu.get_spec(device.partition(":")[2])
