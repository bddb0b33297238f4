"""Collectives and point to point: every number right, how long small messages take, how much large ones carry.

Bytes and bus bandwidth are counted as nccl-tests does, so that figures can be compared with those of others:
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cluster.acceptance.context import Context
from cluster.acceptance.faults import die, stand_still
from cluster.acceptance.pace import summary
from cluster.acceptance.records import readable

WARM_UP = 3
LARGE_BYTES = 2**28
LARGE_ITERATIONS = 15
"""Of messages from LARGE_BYTES on, which take long enough to be timed by few."""
BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_gather": lambda n: (n - 1) / n,
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "point_to_point": lambda n: 1.0,
}
"""Bus bandwidth is this times bytes / seconds, for n ranks."""
STEADY = "all_reduce"
"""Of whose small messages the pace is measured: it waits for all ranks, as a training does."""
LARGEST = 61
"""Numbers of a message are integers below it, so that sums are exact in float32."""


def measure(context: Context) -> dict[str, Any]:
    """Seconds of every iteration and wrong elements, by operation and size; needs the process group.

    Point to point goes round a ring: each rank sends to the next and receives from the one before.
    """
    if context.world_size < 2:
        return {"skipped": "one rank has nobody to talk to", "asked": True}
    measurements = []
    for position, operation in enumerate(BUS_FACTORS):
        for bytes_ in context.sizes.message_bytes:
            if position == 1 and bytes_ == context.sizes.message_bytes[-1]:
                _break(context)
            context.at(f"{operation} of {readable(bytes_)}")
            measurements.append(_one(context, operation, bytes_, skip=position == 1 and context.has_fault("skips")))
    return {
        "backend": str(dist.get_backend()), "ranks": context.world_size, "measurements": measurements,
        "steady": _steady(context, context.sizes.message_bytes[0]),
    }  # fmt: skip


def _break(context: Context) -> None:
    """Faults that strike in the middle of the communication."""
    if context.has_fault("dead"):
        die()
    if context.has_fault("hung"):
        stand_still()


def _one(context: Context, operation: str, bytes_: int, *, skip: bool) -> dict[str, Any]:
    # Every rank's part is the same number of float32.
    part = max(1, bytes_ // 4 // context.world_size)
    start, result, expected = _prepare(context, operation, part)

    def run() -> None:
        context.planned_collectives += 1
        if skip and context.planned_collectives == context.issued_collectives + 1 and len(seconds) == 1:
            return
        context.issued_collectives += 1
        start()

    seconds: list[float] = []
    wrong = _wrong(context, operation, run, result, expected)
    for _ in range(WARM_UP):
        run()
    for _ in range(
        context.sizes.iterations if bytes_ < LARGE_BYTES else min(context.sizes.iterations, LARGE_ITERATIONS)
    ):
        context.synchronize()
        started = time.perf_counter()
        run()
        context.synchronize()
        seconds.append(time.perf_counter() - started)
    wrong += _wrong(context, operation, run, result, expected)
    return {"operation": operation, "bytes": 4 * part * context.world_size, "seconds": seconds, "wrong": wrong}


def _steady(context: Context, bytes_: int) -> dict[str, Any]:
    """Figures of thousands of small messages without a pause: what comes and goes is in few of a handful."""
    context.at("pace of small messages")
    part = max(1, bytes_ // 4 // context.world_size)
    start, _, _ = _prepare(context, STEADY, part)
    seconds = []
    for number in range(WARM_UP + context.sizes.steady_messages):
        context.synchronize()
        started = time.perf_counter()
        start()
        context.synchronize()
        if number >= WARM_UP:
            seconds.append(time.perf_counter() - started)
    return {"operation": STEADY, "bytes": 4 * part * context.world_size, **summary(seconds)}


def _wrong(
    context: Context, operation: str, run: Callable[[], object], result: Callable[[], Tensor], expected: Tensor
) -> int:
    """Wrong elements of one fresh run."""
    run()
    actual = result().cpu()
    if context.has_fault("wrong-collective") and operation == "all_reduce":
        actual[len(actual) // 2] += 1
    return int((~(actual == expected)).sum())


def numbers(rank: int, count: int, *, start: int = 0) -> Tensor:
    """What a rank sends, from a place on: [count] float32, integers from 0 to LARGEST - 1, by rank."""
    return _repeated(((torch.arange(start, start + LARGEST) + 7 * rank) % LARGEST).float(), count)


def _sum(ranks: int, count: int) -> Tensor:
    return _repeated(sum((numbers(rank, LARGEST) for rank in range(ranks)), torch.zeros(LARGEST)), count)


def _repeated(period: Tensor, count: int) -> Tensor:
    """[count] numbers, which come again after LARGEST: a gigabyte of them is copied, not computed."""
    return period.repeat(-(-count // LARGEST))[:count].clone()


def _prepare(context: Context, operation: str, part: int) -> tuple[Callable[[], object], Callable[[], Tensor], Tensor]:
    """A function that runs the operation, one that gives its result, and what that should be (on the CPU)."""
    rank, ranks, device = context.rank, context.world_size, context.torch_device
    whole = part * ranks
    mine = numbers(rank, whole).to(device)
    if operation == "all_gather":
        source, target = mine[:part].clone(), torch.zeros(whole, device=device)
        expected = torch.cat([numbers(sender, part) for sender in range(ranks)])
        return lambda: dist.all_gather_into_tensor(target, source), lambda: target, expected
    if operation == "reduce_scatter":
        target = torch.zeros(part, device=device)
        expected = _sum(ranks, whole)[rank * part : (rank + 1) * part]
        return lambda: dist.reduce_scatter_tensor(target, mine), lambda: target, expected
    if operation == "all_to_all":
        target = torch.zeros_like(mine)
        expected = torch.cat([numbers(sender, part, start=rank * part) for sender in range(ranks)])
        return lambda: dist.all_to_all_single(target, mine), lambda: target, expected
    target = mine.clone()
    if operation == "all_reduce":

        def reduce() -> None:
            target.copy_(mine)
            dist.all_reduce(target)

        return reduce, lambda: target, _sum(ranks, whole)
    if operation == "broadcast":
        root = ranks - 1
        return lambda: dist.broadcast(target, src=root), lambda: target, numbers(root, whole)

    def ring() -> None:
        sends = dist.P2POp(dist.isend, mine, (rank + 1) % ranks)
        receives = dist.P2POp(dist.irecv, target, (rank - 1) % ranks)
        for work in dist.batch_isend_irecv([sends, receives]):
            work.wait()

    return ring, lambda: target, numbers((rank - 1) % ranks, whole)


def together(measurements: Sequence[dict[str, Any]]) -> list[float]:
    """Seconds of each iteration, until the last rank was through."""
    return [max(times) for times in zip(*(measurement["seconds"] for measurement in measurements), strict=True)]


def bus_bandwidth(operation: str, bytes_: int, seconds: Sequence[float], ranks: int) -> float:
    """Bytes per second, of the median iteration."""
    return BUS_FACTORS[operation](ranks) * bytes_ / median(seconds)
