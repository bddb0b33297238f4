"""What the virtual GPU's process reads of its own record for a check: no submission is there, and none sees the answer.

A probe names a reading, and the stretch of the record that it is of (`grader.shared.probes.record`). Kept small: the
answers travel to the judge as JSON. Not for judging them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

from vgpu.device import kernel_work as vgpu_work
from vgpu.device.queue import Kernel

PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
"""Operations of PyTorch that are matrix products, each of which is one kernel."""
TO_HOST, TO_DEVICE = "Memcpy DtoH", "Memcpy HtoD"
"""With what the names of copies from the device to the host begin, and from the host to the device."""
COLLECTIVE = "ncclDevKernel"
"""With what the names of NCCL's kernels begin."""
_MOVING = (COLLECTIVE, "Memcpy", "Memset", "copy", "cat", "stack", "fill", "zero", "clone", "pad", "index", "scatter")
"""In names of kernels that compute nothing."""


class ProductCount(TypedDict):
    """How often one product ran; products are told apart by the other three."""

    device: str
    dtype: str
    flops: int
    count: int


class Collective(TypedDict):
    """What ranks told each other, and when."""

    name: str
    bytes: float
    start: float
    end: float


class Race(TypedDict):
    """Two programs of one launch at the same element, which nothing orders (`vgpu.Race`)."""

    argument: str
    element: int
    programs: list[int]
    accesses: list[str]


class Stored(TypedDict):
    """What an argument's memory held after a launch, where programs stored, or where they loaded
    (`vgpu.device.kernel_work.Stored`)."""

    argument: str
    total: float | None
    squares: float | None


class Launch(TypedDict):
    """What one launch of a Triton kernel did (`vgpu.device.kernel_work.Programs`)."""

    name: str
    programs: int
    read_bytes: int
    written_bytes: int
    flops: float
    tf32: bool
    strayed: int
    races: list[Race]
    stored: list[Stored]
    loaded: list[Stored]


class Operations(TypedDict):
    """Some kernels, by name."""

    seconds: dict[str, list[float]]
    """On the host, and on the device."""
    idle_at_start: bool


def read(what: str, kernels: Sequence[Kernel], begin: int, end: int, arguments: Mapping[str, object]) -> object:
    """The reading `what` of the kernels from the `begin`th to before the `end`th, of all that ran so far.

    Raises:
        ValueError: there is no such reading.
    """
    if what not in _READINGS:
        raise ValueError(f"there is no reading {what!r}")
    return _READINGS[what](kernels, begin, end, **arguments)


def counted(products: Sequence[tuple[str, str, int]]) -> list[ProductCount]:
    """How often each of some products, which are told apart by device, dtype and FLOPs, ran."""
    counts: dict[tuple[str, str, int], int] = {}
    for product in products:
        counts[product] = counts.get(product, 0) + 1
    return [
        {"device": device, "dtype": dtype, "flops": flops, "count": count}
        for (device, dtype, flops), count in counts.items()
    ]


def _products(kernels: Sequence[Kernel], begin: int, end: int) -> list[tuple[str, str, int]]:
    return [
        ("cuda", kernel.dtype, int(kernel.flops))
        for kernel in kernels[begin:end]
        if kernel.name.removeprefix("aten::").partition(".")[0] in PRODUCTS
    ]


def _product_counts(kernels: Sequence[Kernel], begin: int, end: int) -> list[ProductCount]:
    return counted(_products(kernels, begin, end))


def _product_flops(kernels: Sequence[Kernel], begin: int, end: int) -> int:
    return sum(flops for _, _, flops in _products(kernels, begin, end))


def _product_dtypes(kernels: Sequence[Kernel], begin: int, end: int) -> list[str]:
    return sorted({dtype for _, dtype, _ in _products(kernels, begin, end)})


def _product_number(kernels: Sequence[Kernel], begin: int, end: int) -> int:
    return len(_products(kernels, begin, end))


def _names(kernels: Sequence[Kernel], begin: int, end: int, *, containing: str) -> list[str]:
    """The names of kernels that contain a word."""
    return sorted({kernel.name for kernel in kernels[begin:end] if containing in kernel.name})


def _launched(kernels: Sequence[Kernel], begin: int, end: int) -> list[str]:
    """The names of all kernels, in the order of their launch."""
    return [kernel.name for kernel in kernels[begin:end]]


def _stored(row: vgpu_work.Stored) -> Stored:
    return {"argument": row.argument, "total": row.total, "squares": row.squares}


def _triton(kernels: Sequence[Kernel], begin: int, end: int) -> list[Launch]:
    """What each watched launch of a Triton kernel did."""
    return [
        {
            "name": kernel.name,
            "programs": done.number,
            "read_bytes": done.read_bytes,
            "written_bytes": done.written_bytes,
            "flops": done.flops,
            "tf32": done.tf32,
            "strayed": done.strayed,
            "races": [
                {
                    "argument": race.argument,
                    "element": race.element,
                    "programs": list(race.programs),
                    "accesses": list(race.accesses),
                }
                for race in done.races
            ],
            "stored": [_stored(stored) for stored in done.stored],
            "loaded": [_stored(loaded) for loaded in done.loaded],
        }
        for kernel in kernels[begin:end]
        if (done := kernel.programs) is not None
    ]


def _triton_names(kernels: Sequence[Kernel], begin: int, end: int) -> list[str]:
    """The name of the kernel of each watched launch, in their order; at most a thousand."""
    return [kernel.name for kernel in kernels[begin:end] if kernel.programs is not None][:1000]


def _all_flops(kernels: Sequence[Kernel], begin: int, end: int) -> float:
    """The FLOPs of products, whoever computed them, attention's and those of Triton kernels included."""
    return sum(kernel.flops if kernel.programs is None else kernel.programs.flops for kernel in kernels[begin:end])


def _copied_bytes(kernels: Sequence[Kernel], begin: int, end: int) -> int:
    """Bytes that went from the device to the host."""
    return sum(kernel.bytes for kernel in kernels[begin:end] if kernel.name.startswith(TO_HOST))


def _computed_bytes(kernels: Sequence[Kernel], begin: int, end: int) -> float:
    """Bytes that kernels moved in order to compute: all but copies, fills and messages."""
    return sum(kernel.bytes for kernel in kernels[begin:end] if not any(word in kernel.name for word in _MOVING))


def _largest_copy_in(kernels: Sequence[Kernel], begin: int, end: int) -> float:
    """Bytes of the largest copy from the host to the device."""
    return max((kernel.bytes for kernel in kernels[begin:end] if kernel.name.startswith(TO_DEVICE)), default=0)


def _library_flops(kernels: Sequence[Kernel], begin: int, end: int) -> float:
    """The FLOPs of products that were not computed by watched Triton kernels."""
    return sum(kernel.flops for kernel in kernels[begin:end] if kernel.programs is None)


def _largest_elements(kernels: Sequence[Kernel], begin: int, end: int) -> int:
    """The elements of the largest tensor that a kernel was given."""
    return max((math.prod(shape) for kernel in kernels[begin:end] for shape in kernel.shapes), default=0)


def _longest(kernels: Sequence[Kernel], begin: int, end: int) -> float:
    """The seconds of the longest kernel."""
    return max((kernel.seconds for kernel in kernels[begin:end]), default=0.0)


def _collectives(kernels: Sequence[Kernel], begin: int, end: int) -> list[Collective]:
    """What ranks told each other, in the order of launch: the kernel's name, its bytes, and when it ran."""
    return [
        {"name": kernel.name, "bytes": kernel.bytes, "start": kernel.start, "end": kernel.end}
        for kernel in kernels[begin:end]
        if kernel.name.startswith(COLLECTIVE)
    ]


def _turns(kernels: Sequence[Kernel], begin: int, end: int) -> list[str]:
    """Collectives and matrix products in the order of their launch: the former by name, the latter as "product"."""
    return [
        kernel.name if kernel.name.startswith(COLLECTIVE) else "product"
        for kernel in kernels[begin:end]
        if kernel.name.startswith(COLLECTIVE) or _products([kernel], 0, 1)
    ]


def _dtypes(kernels: Sequence[Kernel], begin: int, end: int, *, name: str) -> list[str]:
    """The dtypes in which kernels of this name ran."""
    return sorted({kernel.dtype for kernel in kernels[begin:end] if kernel.name == name})


def _idle_at_start(kernels: Sequence[Kernel], begin: int, end: int, *, size: int, timed: int) -> bool | None:
    """Whether the device was idle when the first of the last `timed` products of `size` was launched.

    None where fewer ran.
    """
    places = [index for index, kernel in enumerate(kernels[:end]) if int(kernel.flops) == 2 * size**3][-timed:]
    if len(places) < timed:
        return None
    return _is_idle(kernels, places[0])


def _is_idle(kernels: Sequence[Kernel], place: int) -> bool:
    before = max((kernel.end for kernel in kernels[:place]), default=0.0)
    return bool(kernels[place].launched_at >= before)


def _operations(kernels: Sequence[Kernel], begin: int, end: int, *, names: Sequence[str], last: int) -> Operations:
    """Of the `last` kernels with these names: seconds on host and device by name, and whether it was idle at first."""
    places = [index for index in range(begin, end) if kernels[index].name in names][-last:]
    seconds: dict[str, list[float]] = {}
    for kernel in (kernels[place] for place in places):
        host, device = seconds.get(kernel.name, [0.0, 0.0])
        seconds[kernel.name] = [host + kernel.host_seconds, device + kernel.seconds]
    return {"seconds": seconds, "idle_at_start": not places or _is_idle(kernels, places[0])}


_READINGS: dict[str, Callable[..., object]] = {
    "products": _product_counts,
    "product_flops": _product_flops,
    "product_dtypes": _product_dtypes,
    "product_number": _product_number,
    "names": _names,
    "launched": _launched,
    "longest": _longest,
    "largest_elements": _largest_elements,
    "triton": _triton,
    "triton_names": _triton_names,
    "library_flops": _library_flops,
    "all_flops": _all_flops,
    "copied_bytes": _copied_bytes,
    "computed_bytes": _computed_bytes,
    "largest_copy_in": _largest_copy_in,
    "collectives": _collectives,
    "turns": _turns,
    "dtypes": _dtypes,
    "idle_at_start": _idle_at_start,
    "operations": _operations,
}
