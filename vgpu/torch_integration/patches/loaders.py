"""`DataLoader` workers in virtual time: what loading a batch cost travels with the batch.

A worker handles its batches one after the other; it can begin a batch when the program has asked for it and the last
one is done. The program gets batches in order and waits, in virtual time, for each. So more workers, a longer prefetch
and persistent workers help as they do in reality, and the times do not depend on which worker was really faster.
Python code that is neither a PyTorch operation nor a sleep costs nothing. Not here: loading in the program's own
process (`num_workers=0`), which costs as any other code.
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import contextlib
import inspect
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import dataloader
from torch.utils.data._utils import pin_memory as pinning
from torch.utils.data._utils import worker

from vgpu.runtime.attachment import machine as attached_machine
from vgpu.runtime.host_clock import HostClock
from vgpu.runtime.machine import Machine
from vgpu.runtime.patching import PatchSet

# Modelled: what starting a worker costs the program, and after how long it runs (a forked process, or a new
# interpreter that imports PyTorch); what handing over a batch costs, whose tensors stay in shared memory.
_START_SECONDS = 0.01
_STARTUP_SECONDS = {"fork": 0.01, "spawn": 3.0, "forkserver": 3.0}
_MESSAGE_SECONDS = 1e-4

_original_loop = worker._worker_loop
_QUEUE_PLACE = list(inspect.signature(_original_loop).parameters).index("data_queue")
_Iterator: Any = dataloader._MultiProcessingDataLoaderIter
_STATE = "_vgpu_workers"


@dataclass(slots=True)
class Loaded:
    """A batch, how long its worker was busy with it, and how long pinning it took (seconds)."""

    data: Any
    seconds: float
    pin_seconds: float = 0.0
    ready_at: float = 0.0
    place: tuple[int, int] = (0, 0)
    """The batch's number, and its worker's."""

    def pin_memory(self) -> Loaded:
        """Called by the loader's own thread."""
        machine = attached_machine()
        begin = machine.clock.now if machine is not None else 0.0
        self.data = pinning.pin_memory(self.data)
        if machine is not None:
            self.pin_seconds = machine.clock.now - begin
        return self


class _TimedQueue:
    """The way from a worker to the program."""

    def __init__(self, queue: Any, clock: HostClock) -> None:
        self._queue = queue
        self._clock = clock
        self._last = clock.now

    def put(self, message: Any) -> None:
        """Send (number of the batch, batch) with the time since the last one."""
        index, data = message
        if isinstance(index, int) and not isinstance(data, worker._IterableDatasetStopIteration):
            now = self._clock.now
            data = Loaded(data, now - self._last)
            self._last = now
        self._queue.put((index, data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


def worker_loop(*args: Any) -> None:
    """The main function of a worker process; starts there with the clock that it got at the fork, or a new one."""
    machine = attached_machine()
    if machine is None:
        _original_loop(*args)
        return
    arguments = list(args)
    arguments[_QUEUE_PLACE] = _TimedQueue(args[_QUEUE_PLACE], machine.clock)
    _original_loop(*arguments)


@dataclass(slots=True)
class _Workers:
    """Virtual times of one iterator's workers."""

    ready: list[float]
    asked_at: dict[int, float] = field(default_factory=dict)
    arrived: dict[int, Any] = field(default_factory=dict)
    pinned_at: float = 0.0

    def arrive(self, index: int, number: int, batch: Loaded) -> None:
        """A worker's batches arrive in its own order, so its times follow from each other."""
        begin = max(self.ready[number], self.asked_at.pop(index, 0.0))
        self.ready[number] = batch.ready_at = begin + batch.seconds

    def pin(self, batch: Loaded) -> float:
        """When the batch is ready, pinned by one thread in the program's order."""
        if batch.pin_seconds:
            batch.ready_at = self.pinned_at = max(self.pinned_at, batch.ready_at) + batch.pin_seconds
        return batch.ready_at


def _workers(iterator: Any, clock: HostClock) -> _Workers:
    known: _Workers | None = getattr(iterator, _STATE, None)
    if known is None:
        method = getattr(iterator._workers[0], "_start_method", "fork")
        ready = []
        for _ in iterator._workers:
            clock.spend(_START_SECONDS, "load", "start of a worker")
            ready.append(clock.now + _STARTUP_SECONDS.get(method, 0.0))
        known = _Workers(ready)
        setattr(iterator, _STATE, known)
        machine = attached_machine()
        if machine is not None and machine.recorder is not None:
            machine.recorder.workers(id(known), ready)
    return known


def install(patches: PatchSet, machine: Machine) -> None:
    """Let workers report their times and the iterator wait for them."""
    clock = machine.clock
    ask, receive, process = _Iterator._try_put_index, _Iterator._get_data, _Iterator._process_data
    reset = _Iterator._reset

    def start_over(self: Any, loader: Any, first_iter: bool = False) -> None:
        """The next epoch of persistent workers: what an epoch that was left early had asked for is not of it."""
        if not first_iter:
            workers = _workers(self, clock)
            workers.arrived.clear()
            workers.asked_at.clear()
        reset(self, loader, first_iter)

    def try_put_index(self: Any) -> None:
        workers, number = _workers(self, clock), self._send_idx
        ask(self)
        if self._send_idx > number:
            workers.asked_at[number] = clock.now
            if machine.recorder is not None:
                machine.recorder.asked(id(workers), number)

    def get_data(self: Any) -> Any:
        """The message that the program needs next; what comes before it waits here."""
        workers = _workers(self, clock)
        while self._rcvd_idx not in workers.arrived:
            mine = clock.mine()
            before = mine.now
            with clock.hold(), machine.recorder.paused() if machine.recorder is not None else contextlib.nullcontext():
                index, data = receive(self)
            mine.move(before)  # unpacking is part of `_MESSAGE_SECONDS`, whenever it really happens
            if not isinstance(index, int):
                return index, data
            if index not in self._task_info:  # of an epoch that was left early; PyTorch drops it as well
                continue
            if isinstance(data, Loaded):
                workers.arrive(index, self._task_info[index][0], data)
                data.place = index, self._task_info[index][0]
            workers.arrived[index] = data
        return self._rcvd_idx, workers.arrived.pop(self._rcvd_idx)

    def process_data(self: Any, data: Any, *args: Any) -> Any:
        if isinstance(data, Loaded):
            workers = _workers(self, clock)
            there = workers.pin(data)
            if machine.recorder is not None:
                there = machine.recorder.batch(id(workers), *data.place, data.seconds, data.pin_seconds, there)
            clock.wait_until(there, "DataLoader", "load")
            clock.spend(_MESSAGE_SECONDS, "load", "DataLoader")
            data = data.data
        return process(self, data, *args)

    patches.set(_Iterator, "_reset", start_over)
    patches.set(_Iterator, "_try_put_index", try_put_index)
    patches.set(_Iterator, "_get_data", get_data)
    patches.set(_Iterator, "_process_data", process_data)
    patches.set(worker, "_worker_loop", worker_loop)
