"""What else happened to an NVIDIA GPU while something was measured on it, as far as NVML says. Runs in the judge.

Many machines say nothing: guests without counters, MIG slices, containers that see no other process. So an empty answer
means "nothing is known", and the engine looks at the pace itself before it believes a failed check
(`gradebox.run.device_steadiness`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

import pynvml

_PERIOD_SECONDS = 0.05
_MUCH_PERCENT = 5
"""Of the GPU's time: a process that uses less is idle."""


Handle: TypeAlias = object
"""NVML's handle of a GPU, which only NVML looks into."""


class _Sample(Protocol):
    """What NVML says of a process in one period."""

    pid: int
    timeStamp: int  # noqa: N815  NVML's names
    smUtil: int  # noqa: N815
    """Percent of the GPU's time."""


@contextlib.contextmanager
def watched(find: Callable[[], Handle]) -> Iterator[list[str]]:
    """While it is open, look at the GPU whose handle `find` gets from NVML; the list is filled when it ends."""
    disturbances: list[str] = []
    with contextlib.ExitStack() as stack:
        handle = _opened(stack, find)
        if handle is None:
            yield disturbances
            return
        before, since = _processes(handle), _newest_sample(handle)
        over, slowed = threading.Event(), set[str]()

        def look() -> None:
            while not over.wait(_PERIOD_SECONDS):
                slowed.update(_reasons(handle))

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield disturbances
        finally:
            over.set()
            thread.join()
            disturbances += [f"the GPU's clock was lowered: {reason}" for reason in sorted(slowed)]
            disturbances += _work_of(before, handle, since)


def _opened(stack: contextlib.ExitStack, find: Callable[[], Handle]) -> Handle | None:
    """NVML's handle of a GPU; None where NVML does not answer."""
    try:
        pynvml.nvmlInit()
        stack.callback(_closed)
        return find()
    except pynvml.NVMLError:
        return None


def _closed() -> None:
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()


def _processes(handle: Handle) -> frozenset[int]:
    """Processes that compute on the GPU now: before a request that has the device alone, all are somebody else's."""
    try:
        return frozenset(process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    except pynvml.NVMLError:
        return frozenset()


def _reasons(handle: Handle) -> Iterator[str]:
    """Why the clock is lower than it could be, where it is no part of ordinary work.

    A power cap is: products of large matrices reach it on every data-centre card.
    """
    ask = getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or getattr(
        pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None
    )
    if ask is None:
        return
    try:
        bits = int(ask(handle))
    except pynvml.NVMLError:
        return
    # Values of nvml.h, which have names of two generations in nvidia-ml-py.
    for bit, reason in ((0x08, "hardware slowdown"), (0x20, "too hot, by software"), (0x40, "too hot, by hardware"),
                        (0x80, "power brake")):  # fmt: skip
        if bits & bit:
            yield reason


def _newest_sample(handle: Handle) -> int:
    """The time of NVML's newest sample of processes, in its own clock; 0 where it has none."""
    return max((sample.timeStamp for sample in _samples(handle, 0)), default=0)


def _samples(handle: Handle, since: int) -> list[_Sample]:
    try:
        return list(pynvml.nvmlDeviceGetProcessUtilization(handle, since))
    except (pynvml.NVMLError, AttributeError):
        return []


def _work_of(others: frozenset[int], handle: Handle, since: int) -> Iterator[str]:
    """What processes that were there before used of the GPU meanwhile."""
    most: dict[int, int] = {}
    for sample in _samples(handle, since):
        if sample.pid in others:
            most[sample.pid] = max(most.get(sample.pid, 0), sample.smUtil)
    for pid, percent in sorted(most.items()):
        if percent >= _MUCH_PERCENT:
            yield f"another process ({pid}) used {percent} % of the GPU"
