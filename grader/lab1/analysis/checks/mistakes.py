"""Recognises the mistake that answers to made-up data show: an answer that makes it is the same in every case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from gradebox.run.assertions import Cause, recognising
from grader.lab1.analysis import reference
from grader.lab1.analysis.cases import Comparison, Named
from grader.lab1.analysis.cases.products import LIMITS, BoundCase
from labkit.results import STAGES

C = TypeVar("C")


def _cause(name: str, hint: str, mistake: str) -> Cause:
    return Cause(name, hint, mistake=mistake)


@contextmanager
def recognised(
    cases: Sequence[C], answers: Sequence[object], mistakes: Sequence[tuple[Cause, Callable[[C], object]]]
) -> Iterator[None]:
    """If answers are judged in here and one is wrong, say which mistake explains all of them, if only one does."""

    def cause() -> Cause | None:
        explanations = [
            mistake
            for mistake, answer in mistakes
            if all(_same(answer(case), seen) for case, seen in zip(cases, answers, strict=True))
        ]
        return explanations[0] if len({mistake.name for mistake in explanations}) == 1 else None

    with recognising(cause):
        yield


def _same(left: object, right: object) -> bool:
    if isinstance(left, float) and isinstance(right, (int, float)):
        return abs(left - right) <= 1e-6 * abs(left)
    return left == right


# --- find_crossover ---------------------------------------------------------------------------------------------------


def _first_win(rows: Sequence[Comparison]) -> int | None:
    return next((int(size) for size, cpu, gpu in sorted(rows) if cpu > gpu), None)


def _with_ties(rows: Sequence[Comparison]) -> int | None:
    return _from_the_end(sorted(rows), lambda cpu, gpu: cpu >= gpu)


def _as_given(rows: Sequence[Comparison]) -> int | None:
    return _from_the_end(rows, lambda cpu, gpu: cpu > gpu)


def _without_the_largest(rows: Sequence[Comparison]) -> int | None:
    return _from_the_end(sorted(rows)[:-1], lambda cpu, gpu: cpu > gpu)


def _from_the_end(rows: Sequence[Comparison], wins: Callable[[float, float], bool]) -> int | None:
    crossover = None
    for size, cpu, gpu in reversed(rows):
        if not wins(cpu, gpu):
            break
        crossover = int(size)
    return crossover


CROSSOVER: Sequence[tuple[Cause, Callable[[list[Comparison]], object]]] = (
    (
        _cause(
            "crossover_is_the_first_win",
            "Look from the largest size down, and stop at the first one at which the GPU is not faster.",
            "A lucky small size counts: the crossover is the first size at which the GPU is faster",
        ),
        _first_win,
    ),
    (
        _cause(
            "as_fast_counts_as_faster",
            "Stop at a speedup of 1 as well: the GPU is faster above 1.",
            "A speedup of exactly 1 counts as a win of the GPU",
        ),
        _with_ties,
    ),
    (
        _cause(
            "crossover_in_the_order_given",
            "Sort the comparisons by size first: they may come in any order.",
            "find_crossover takes the comparisons in the order in which they are given",
        ),
        _as_given,
    ),
    (
        _cause(
            "crossover_without_the_largest",
            "Look at every size, the largest included.",
            "find_crossover leaves the largest size out",
        ),
        _without_the_largest,
    ),
)

# --- classify_bound ---------------------------------------------------------------------------------------------------


def _with(name: str, factor: Callable[[BoundCase], float]) -> Callable[[BoundCase], object]:
    return lambda case: reference.bound({**case.limits, name: factor(case) * case.limits[name]})


def _last_of_equal(case: BoundCase) -> str:
    return max(reversed(LIMITS), key=lambda name: case.limits[name])


_TRAFFIC = _cause(
    "traffic_of_fewer_matrices",
    "Count the bytes of three matrices: two are read and one is written.",
    "The memory bound counts the bytes of one matrix or two instead of three",
)
BOUNDS: Sequence[tuple[Cause, Callable[[BoundCase], object]]] = (
    (_TRAFFIC, _with("memory", lambda _: 1 / 3)),
    (_TRAFFIC, _with("memory", lambda _: 2 / 3)),
    (
        _cause(
            "bound_of_half_the_operations",
            "Count 2 n³ operations: n multiplications and n additions for each of the n² results.",
            "The compute bound counts n³ operations instead of 2 n³",
        ),
        _with("compute", lambda _: 1 / 2),
    ),
    (
        _cause(
            "bytes_per_element_ignored",
            "Multiply by `bytes_per_element`.",
            "The memory bound ignores bytes_per_element and always takes 4",
        ),
        _with("memory", lambda case: 4 / case.call.get("bytes_per_element", 4)),
    ),
    (
        _cause(
            "tflops_taken_for_flops",
            "Multiply peak_tflops by 1e12.",
            "peak_tflops is taken for operations per second, without the factor 1e12",
        ),
        _with("compute", lambda _: 1e12),
    ),
    (
        _cause(
            "last_of_equal_bounds",
            "Name the first of equal limits, in the order launch, memory, compute.",
            "Of equal limits the last one is named instead of the first",
        ),
        _last_of_equal,
    ),
    (
        _cause("shortest_limit", "Name the longest of the three times.", "The shortest limit is named as the bound"),
        lambda case: min(LIMITS, key=lambda name: case.limits[name]),
    ),
)

# --- peak_share -------------------------------------------------------------------------------------------------------

SHARES: Sequence[tuple[Cause, Callable[[float], object]]] = (
    (
        _cause("share_in_percent", "Return the ratio without multiplying by 100.", "The share is a number of percent"),
        lambda share: 100 * share,
    ),
    (
        _cause(
            "share_capped_at_one",
            "Return the ratio as it is: a product may be faster than the data sheet's peak.",
            "The share of the peak is never more than 1",
        ),
        lambda share: min(1.0, share),
    ),
    (
        _cause("share_upside_down", "Divide measured by peak TFLOPS.", "The share is peak over measured TFLOPS"),
        lambda share: 1 / share,
    ),
)

# --- find_bottleneck and stage_increases ------------------------------------------------------------------------------

Figures = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""Peak, allocated and reserved bytes of a profile's stages."""


def _largest(place: int) -> Callable[[Figures], object]:
    return lambda figures: reference.bottleneck(figures[place])


BOTTLENECKS: Sequence[tuple[Cause, Callable[[Figures], object]]] = (
    (
        _cause(
            "bottleneck_by_allocated_bytes",
            "Compare `peak_bytes`: a stage may need more than is left at its end.",
            "The stage that ends with most memory is called the bottleneck, by allocated_bytes",
        ),
        _largest(1),
    ),
    (
        _cause(
            "bottleneck_by_reserved_bytes",
            "Compare `peak_bytes`: what the allocator has reserved need not be in use.",
            "The stage in which the allocator holds most is called the bottleneck, by reserved_bytes",
        ),
        _largest(2),
    ),
    (
        _cause(
            "last_of_equal_peaks",
            "Return the first of equal stages.",
            "Of stages with equal peaks the last one is named instead of the first",
        ),
        lambda figures: STAGES[len(STAGES) - 1 - list(reversed(figures[0])).index(max(figures[0]))],
    ),
)


def _from_the_first(allocated: Sequence[int]) -> list[list[object]]:
    first, *others = reference.increases(allocated)
    return [[first[0], 0], *others]


def _over_the_first(allocated: Sequence[int]) -> list[list[object]]:
    return [[name, size - allocated[0]] for name, size in zip(STAGES, allocated, strict=True)]


INCREASES: Sequence[tuple[Cause, Callable[[Sequence[int]], object]]] = (
    (
        _cause(
            "first_stage_adds_nothing",
            "Count the first stage from 0.",
            "The first stage is compared with itself, so it adds nothing",
        ),
        _from_the_first,
    ),
    (
        _cause(
            "increases_over_the_first_stage",
            "Subtract what the stage before held.",
            "Each stage is compared with the first one instead of the one before",
        ),
        _over_the_first,
    ),
)

# --- slowest ----------------------------------------------------------------------------------------------------------

Asked = tuple[Sequence[Named], "int | None"]


def _names(key: Callable[[Named], float] | None, *, reverse: bool = True) -> Callable[[Asked], object]:
    def names(asked: Asked) -> list[str]:
        rows, count = asked
        ordered = list(rows) if key is None else sorted(rows, key=key, reverse=reverse)
        return [row[0] for row in ordered[: 5 if count is None else count]]

    return names


SLOWEST: Sequence[tuple[Cause, Callable[[Asked], object]]] = (
    (
        _cause(
            "slowest_in_the_order_given",
            "Sort the operations, the slowest first, and take `count` of them then.",
            "The first operations of the list are taken, however long they took",
        ),
        _names(None),
    ),
    (
        _cause(
            "slowest_by_host_time",
            "Compare device_seconds if any operation has some.",
            "The slowest operations are chosen by cpu_seconds although there are device_seconds",
        ),
        _names(lambda row: row[1]),
    ),
    (
        _cause(
            "slowest_by_device_time",
            "Compare cpu_seconds if no operation has any device_seconds.",
            "The slowest operations are chosen by device_seconds although all of them are 0",
        ),
        _names(lambda row: row[2]),
    ),
)
