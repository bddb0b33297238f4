"""Small functions that the programs of Lab 1 are put together from; nothing here keeps a state."""

import timeit
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import repeat, starmap

import torch

consume: Callable[[Iterable[object]], object] = partial(deque, maxlen=0)


def insist(holds: bool, complaint: str) -> None:
    if not holds:
        raise ValueError(complaint)


def insist_at_least(least: int, **numbers: int) -> None:
    consume(insist(number >= least, f"{name} is {number}: below {least}") for name, number in numbers.items())


def insist_positive(**numbers: float) -> None:
    consume(insist(number > 0, f"{name} is {number}: not above 0") for name, number in numbers.items())


def kind_of(device: str | torch.device) -> str:
    return torch.device(device).type


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).rpartition(".")[2]


def waiter(device: str | torch.device) -> Callable[[], object]:
    """What waits for `device`: nothing, on a CPU."""
    return (lambda: None) if kind_of(device) == "cpu" else partial(torch.cuda.synchronize, device)


def times(count: int, work: Callable[[], object]) -> None:
    consume(starmap(work, repeat((), count)))


def seconds_by_events(device: str | torch.device, work: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    queue = torch.cuda.current_stream(device)
    torch.cuda.synchronize(device)
    begin.record(queue)
    work()
    end.record(queue)
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def timer(device: str | torch.device) -> Callable[[Callable[[], object]], float]:
    """Seconds of one piece of work: by the GPU's own events, or by the clock on the wall."""
    return partial(timeit.timeit, number=1) if kind_of(device) == "cpu" else partial(seconds_by_events, device)
