"""How calls of `benchmark_matmul` are drawn: sizes that suit a device, and calls in which all choices meet.

Sizes follow from how fast the card multiplies: the cost model of a virtual one, the measured speed of a real one.
Probes do not import this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import vgpu
from gradebox.run.input_generator import InputGenerator
from gradebox.sandbox.devices import Device
from grader.lab1.shared.cases.products import PRODUCTS, Call, Hiccup, call_of
from grader.lab1.shared.cases.values import NOT_GIVEN
from grader.shared.cards import Card
from grader.shared.cases import every_value

KERNEL_LAUNCHES = 500
"""A product is "long" when its kernel lasts this many launches: then 2 % is far above what any method adds."""

_HOST_PACES = (1.15, 1.8)
"""So many times as long as for the next smaller size a CPU takes for a product, beyond what is more work."""
_REAL_LONG_SECONDS = 6e-3
"""The longest product on a real GPU. One call with its references runs up to 270 of them, and a probe has a minute."""
_REAL_SHORT_SECONDS = (10e-6, 160e-6)
_REAL_LONG_SIZES, _REAL_SHORT_SIZES = (3500, 4500), (600, 1600)
"""On a card that is fast enough for them."""
_BUSY_PRODUCTS = 20

Condition = Mapping[str, float]
"""Of a virtual GPU: which of its kernels take longer, and how many times."""


def devices(device: Device) -> list[str]:
    """The GPUs to measure on: the real one, or the chosen virtual one and two of other generations."""
    if not device.simulated:
        return [device.name]
    return list(dict.fromkeys([device.name, "vgpu:A100-80GB", "vgpu:H200"]))


def spec_of(device: str) -> vgpu.Spec:
    """The data sheet of a virtual GPU."""
    return vgpu.get_spec(device.partition(":")[2])


def launch_seconds(spec: vgpu.Spec) -> float:
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
    spec = spec_of(device)
    size = generator.odd(1201, 1501)
    while vgpu.device.cost.matmul_seconds(spec, size, size, size, dtype) < launches * launch_seconds(spec):
        size += generator.integer(50, 99) * 2
    return size


def long_sizes(device: str, generator: InputGenerator, count: int, *, card: Card | None = None) -> list[int]:
    """Odd sizes of such products, the longest of which may last 27 times as long as the shortest.

    A time that was read in another grading, or that is the same for all of them, is right by luck only.
    """
    if device == "cuda":
        most = _real_longest(card, "float32") * _REAL_LONG_SIZES[1]
        return [_odd(generator.log_uniform(most / 3, most)) for _ in range(count)]
    return [_odd(long_size(device, generator) * generator.log_uniform(1, 3)) for _ in range(count)]


def short_sizes(
    device: str, generator: InputGenerator, count: int, dtype: str = "float32", *, card: Card | None = None
) -> list[int]:
    """Odd sizes whose products last some launches: every further microsecond shows, and so does a missing wait.

    If the kernel were shorter than its launch, a clock that is stopped too early would read what an honest one reads.
    """
    if device == "cuda":
        low, high = _REAL_SHORT_SIZES
        if card is not None:
            shortest, longest = (card.largest_size(took, dtype) for took in _REAL_SHORT_SECONDS)
            low, high = min(low, round(shortest)), min(high, round(longest))
        return [_odd(generator.log_uniform(low, high)) for _ in range(count)]
    spec = spec_of(device)
    sizes = []
    for _ in range(count):
        size, least = generator.odd(121, 181), generator.log_uniform(1.5, 30) * launch_seconds(spec)
        while vgpu.device.cost.matmul_seconds(spec, size, size, size, dtype) < least:
            size += generator.integer(3, 9) * 2
        sizes.append(size)
    return sizes


def aligned_size(generator: InputGenerator, dtype: str, card: Card | None) -> int:
    """A size that suits tensor cores; on a real card one whose product is not too long there."""
    size = generator.integer(4, 8) * 512
    return size if card is None else max(384, round(size * _real_longest(card, dtype)) // 128 * 128)


def _odd(size: float) -> int:
    return int(size) // 2 * 2 + 1


def crossed_calls(
    generator: InputGenerator, device: Device, card: Card | None, *, by_default: bool
) -> tuple[list[Call], list[bool]]:
    """Calls in which each choice of a caller of `benchmark_matmul` meets every other, and which of them are disturbed.

    `by_default`: with the arguments of the document alone.
    """
    document = {"dtype": (NOT_GIVEN,), "warmup": (NOT_GIVEN,)} if by_default else {}
    rows = every_value(generator, PRODUCTS.values(document), 4, PRODUCTS.allows)
    drawn = [(_crossed_call(generator, device.name, card, row), row["disturbed"] == "yes") for row in rows]
    drawn.sort(key=lambda pair: -pair[0]["size"])  # a hiccup that is left over hits no smaller one
    return [call for call, _ in drawn], [disturbed and device.simulated for _, disturbed in drawn]


def _crossed_call(generator: InputGenerator, device: str, card: Card | None, row: Mapping[str, str]) -> Call:
    dtype = "float32" if row["dtype"] == NOT_GIVEN else row["dtype"]
    if row["size"] == "more":
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
    call = call_of(row["GPU"], size)
    if row["dtype"] != NOT_GIVEN:
        call["dtype"] = dtype
    if row["iterations"] in counts:
        call["iterations"] = counts[row["iterations"]]
    if row["warmup"] in warmups:
        call["warmup"] = warmups[row["warmup"]]
    if row["before"] == "busy":
        call["busy"] = _BUSY_PRODUCTS
    return call


def first_and_last(call: Call) -> list[Hiccup]:
    """The first timed product of a call and its last one are slow."""
    return [{"first": place, "count": 1, "factor": 200.0} for place in (0, call.get("iterations", 100) - 1)]


def hiccup_conditions(calls: Sequence[Call], hiccups: Sequence[Sequence[Hiccup]], busy: int) -> list[Condition]:
    """What the hiccups of each call are for the device, each from the stage of its call on."""
    conditions: list[Condition] = []
    for index, (call, runs) in enumerate(zip(calls, hiccups, strict=False)):
        before = call.get("busy", busy) + call.get("warmup", 10)
        conditions += [
            {
                "stage": index + 1,
                "factor": run["factor"],
                "skip": before + run["first"],
                "count": run["count"],
                "min_flops": 2.0 * call["size"] ** 3,
            }
            for run in runs
        ]
    return conditions


def host_paces(generator: InputGenerator, sizes: Sequence[int]) -> list[tuple[int, float]]:
    """How slow the virtual GPU's host is: from each size's FLOPs on a factor, which multiply."""
    return [(2 * size**3, round(generator.log_uniform(*_HOST_PACES), 3)) for size in sizes]


def host_conditions(paces: Sequence[tuple[int, float]]) -> list[Condition]:
    """What `host_paces` are for the device."""
    return [{"factor": factor, "min_flops": float(flops), "on_host": True} for flops, factor in paces]
