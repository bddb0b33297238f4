"""Clocks of drawn cases: as many rounds as are worth it, and what they say. Not here: what is timed."""

from __future__ import annotations

import contextlib
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from benchmarks.measured.case import Step, issue_seconds, queued_seconds, simulated
from benchmarks.published.timing import wall_seconds

_ROUNDS, _SECONDS = 5, 0.25
_MOST_CALLS = 10
_ROUND_SECONDS = 0.02
_QUEUED_SECONDS = 0.003
"""Host time of the calls that wait in a queue. The queue holds about a thousand kernels; a full one stops the host."""
_LONGEST_HOLD_SECONDS = 0.05


def real_seconds() -> float:
    """A clock of this machine, which a virtual GPU does not replace."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def rounds(sample: Callable[[], float]) -> list[float]:
    """Samples: five, or as many as begin within a quarter of a second; one on a virtual GPU, which has no noise."""
    most = 1 if simulated() else _ROUNDS
    start, samples = real_seconds(), [sample()]
    while len(samples) < most and real_seconds() - start < _SECONDS:
        samples.append(sample())
    return samples


def summary(name: str, samples: list[float]) -> dict[str, float]:
    """Median, minimum and number of the samples, as values of an entry."""
    return {
        f"{name}_seconds": statistics.median(samples),
        f"{name}_seconds_min": min(samples),
        f"{name}_rounds": len(samples),
    }


def warm_up(step: Step) -> tuple[float, float]:
    """Call it until libraries have chosen their kernels. Seconds of a call: until it returns, and until it is done."""
    first = wall_seconds(step, 1, warmup=0)
    if first < _ROUND_SECONDS:
        wall_seconds(step, 2, warmup=0)
    return issue_seconds(step, 1), wall_seconds(step, 1, warmup=0)


def device(step: Step) -> dict[str, float]:
    """Device time of a call; the calls wait in the queue, so that no launch is in it."""
    issue, done = warm_up(step)
    calls = _within(_QUEUED_SECONDS / max(issue, 1e-7), _ROUND_SECONDS / max(done, 1e-7))
    hold = min(_LONGEST_HOLD_SECONDS, max(0.001, 1.5 * calls * issue))
    return summary("device", rounds(lambda: queued_seconds(step, calls, hold)))


def host(step: Step, most_calls: int = 100) -> dict[str, float]:
    """Host time until a call returns; the device is idle before."""
    _, done = warm_up(step)
    calls = _within(_ROUND_SECONDS / max(done, 1e-7), most=10 if simulated() else most_calls)
    return summary("host", rounds(lambda: issue_seconds(step, calls)))


def wall(step: Step) -> dict[str, float]:
    """Host time until the device is done, as the mean of several calls in a row."""
    _, done = warm_up(step)
    calls = _within(_ROUND_SECONDS / max(done, 1e-7))
    return summary("wall", rounds(lambda: wall_seconds(step, calls, warmup=0)))


def host_and_wall(step: Step) -> dict[str, float]:
    """For calls that may wait for the device, such as copies."""
    return host(step) | wall(step)


def host_and_device(step: Step) -> dict[str, float]:
    """For steps of which either may be the longer."""
    return host(step, most_calls=1) | device(step)


def whole_step(step: Step) -> dict[str, float]:
    """For training steps: all three clocks."""
    return wall(step) | host(step, most_calls=1) | device(step)


def _within(*limits: float, most: int = _MOST_CALLS) -> int:
    return max(1, min(most, *(int(limit) for limit in limits)))


class TimeLimitReached(BaseException):
    """Raised wherever the program is; no handler of ordinary errors may swallow it."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TimeoutError if the block takes longer. Signals reach only the main thread: elsewhere there is no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeLimitReached

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except TimeLimitReached:
        raise TimeoutError(f"stopped after {seconds:g} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
