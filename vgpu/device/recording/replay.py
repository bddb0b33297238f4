"""A recording run again, on another card or under other conditions: the same work in the same order, other times.

Decisions of the program stay as they were recorded: which thread came first, how often something was
asked, which algorithm an autotuner chose. Not here: tables and pictures of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from vgpu.device.host_span import HostSpan
from vgpu.device.kernel_work import KernelWork
from vgpu.device.pricing import Pricing
from vgpu.device.queue import DeviceQueue, Kernel, Slowdown
from vgpu.device.recording import entries
from vgpu.device.recording.file import Recording
from vgpu.device.spec import Interconnect, Spec

_HOST_KINDS = {"metadata": "metadata", "module": "module", "synchronize": "wait"}
Meeting = tuple[str, int, float]
"""A group of so many ranks, and when one of them is ready."""


class Replay:
    """One process of a run on one card. Times are seconds since attach; memory is what was recorded."""

    def __init__(self, recording: Recording, spec: Spec, link: Interconnect, *, pace: float = 1.0) -> None:
        """`pace` multiplies what the device takes for everything. Raises SpecError for work that it cannot do."""
        self.recording = recording
        self.spec = spec
        pricing = Pricing(spec, link)
        self.queues = [DeviceQueue(pricing, index) for index in range(recording.gpus)]
        if pace != 1.0:
            for queue in self.queues:
                queue.slow_down(Slowdown(pace, 0, 1 << 62, 0.0, None))
        self.works = [_adapted(work, spec) for work in recording.works]
        self.host_seconds = [pricing.launch_seconds(work) for work in self.works]
        for work in self.works:
            pricing.seconds(work)
        self.spans: list[HostSpan] = []
        self.start_up_seconds = 0.0
        self._now: dict[int, float] = {0: 0.0}
        self._called: dict[int, float] = {}
        self._ends: dict[int, float] = {}
        self._starts: dict[int, float] = {}
        self._loaders: dict[int, _Workers] = {}
        self._waited_for: dict[int, str] = {}

    @property
    def seconds(self) -> float:
        """When host and devices are done."""
        return max([*self._now.values(), *(queue.ready_at() for queue in self.queues)])

    @property
    def busy_ratio(self) -> float:
        """Share of the time since its first kernel in which the busiest device worked."""
        queue = max(self.queues, key=lambda each: each.busy_seconds)
        first = min((kernel.start for kernel in queue.timeline), default=0.0)
        whole = self.seconds - first
        return queue.busy_seconds / whole if whole > 0 else 0.0

    @property
    def kernels(self) -> list[Kernel]:
        """Everything that ran, GPU by GPU."""
        return [kernel for queue in self.queues for kernel in queue.timeline]

    def steps(self) -> Generator[Meeting, float | None, None]:
        """Run it. It stops where ranks meet, and needs to know when they begin (None: as late as recorded)."""
        actions: dict[str, Callable[..., Any]] = {
            entries.LAUNCH: self._launch, entries.STREAM: self._stream, entries.HOLD: self._hold,
            entries.HOLD_FOR: self._hold_for, entries.SPEND: self._spend, entries.WAIT: self._wait,
            entries.IDLE: self._idle, entries.SLEEP: self._sleep, entries.SPAWN: self._spawn, entries.CALL: self._call,
            entries.WOKEN: self._woken, entries.WORKERS: self._workers, entries.ASK: self._ask,
            entries.BATCH: self._batch, entries.LEVEL: self._level,
        }  # fmt: skip
        for kind, *rest in self.recording.entries:
            if kind != entries.MEET:
                actions[kind](*rest)
                continue
            thread, group, ranks, host, place, before, lag, seconds, event = rest
            ready = self._time(thread) + host
            if place is not None:
                queue, (_, stream, own) = self.queues[place[0]], place
                ready = max(ready, queue.ready_at(stream)) + queue.slowest_is_late_by(ranks)
                ready = max(ready, queue.ready_at(own))
            if before is not None:
                ready = max(ready, self._ends[before])
            start = yield group, ranks, ready
            begin = ready + lag if start is None else max(start, ready)
            self._starts[event], self._ends[event] = begin, begin + seconds
            self._waited_for[event] = "communication"

    # ---- the entries -------------------------------------------------------------------------------------------------

    def _time(self, thread: int) -> float:
        return self._now.setdefault(thread, self._now[0])

    def _go_on(self, thread: int, moment: float, kind: str) -> None:
        now = self._time(thread)
        if moment > now:
            self.spans.append(HostSpan(kind, "", now, moment, str(thread)))
            self._now[thread] = moment

    def _launch(self, thread: int, gpu: int, stream: int, work: int, event: int, hosted: bool) -> None:
        now, host = self._time(thread), self.host_seconds[work] if hosted else 0.0
        queue = self.queues[gpu]
        free = queue.submit(self.works[work], stream, now, host, str(thread))
        end = queue.ready_at(stream)
        self._ends[event] = end
        self._starts[event] = end - queue.pricing.seconds(self.works[work])
        self._go_on(thread, now + host, "launch")
        self._go_on(thread, free, "wait")

    def _stream(self, thread: int, gpu: int, stream: int) -> None:
        made = self.queues[gpu].new_stream(self._time(thread))
        assert made == stream, "streams are made in the order in which they were"

    def _hold(self, gpu: int, stream: int, event: int, at_start: bool) -> None:
        self.queues[gpu].hold_until(stream, self._moment(event, at_start))

    def _level(self, gpu: int) -> None:
        self.queues[gpu].level()

    def _hold_for(self, thread: int, gpu: int, stream: int, seconds: float) -> None:
        self.queues[gpu].hold_until(stream, self._time(thread) + seconds)

    def _spend(self, thread: int, key: str, seconds: float) -> None:
        seconds = entries.KEYS[key](self.spec) if key else seconds
        starting = key in entries.START_UP
        self.start_up_seconds += seconds if starting else 0.0
        self._go_on(thread, self._time(thread) + seconds, "start" if starting else _HOST_KINDS.get(key, "operation"))

    def _wait(self, thread: int, event: int, at_start: bool) -> None:
        self._go_on(thread, self._moment(event, at_start), self._waited_for.get(event, "wait"))

    def _idle(self, thread: int, gpu: int, stream: int | None) -> None:
        self._go_on(thread, self.queues[gpu].ready_at(stream), "wait")

    def _sleep(self, thread: int, seconds: float) -> None:
        self._go_on(thread, self._time(thread) + seconds, "sleep")

    def _spawn(self, thread: int, new: int) -> None:
        self._now[new] = self._time(thread)

    def _call(self, thread: int, other: int) -> None:
        self._called[other] = self._time(thread)

    def _woken(self, thread: int) -> None:
        self._go_on(thread, self._called.pop(thread, 0.0), "wait")

    def _workers(self, thread: int, loader: int, begin: Sequence[float]) -> None:
        self._loaders[loader] = _Workers([self._time(thread) + seconds for seconds in begin])

    def _ask(self, thread: int, loader: int, batch: int) -> None:
        self._loaders[loader].asked_at[batch] = self._time(thread)

    def _batch(
        self, thread: int, loader: int, batch: int, worker: int, seconds: float, pinning: float, event: int
    ) -> None:
        self._ends[event] = self._starts[event] = self._loaders[loader].batch(batch, worker, seconds, pinning)
        self._waited_for[event] = "load"

    def _moment(self, event: int, at_start: bool) -> float:
        return (self._starts if at_start else self._ends)[event]


class _Workers:
    """Workers of a data loader, whose batches follow from each other (`vgpu.torch_integration.patches.loaders`)."""

    def __init__(self, ready: list[float]) -> None:
        self.ready = ready
        self.asked_at: dict[int, float] = {}
        self.pinned_at = 0.0

    def batch(self, batch: int, worker: int, seconds: float, pinning: float) -> float:
        moment = self.ready[worker] = max(self.ready[worker], self.asked_at.pop(batch, 0.0)) + seconds
        if pinning:
            moment = self.pinned_at = max(self.pinned_at, moment) + pinning
        return moment


def replay(
    recordings: Sequence[Recording], spec: Spec, link: Interconnect, *, pace: float = 1.0, slow: dict[int, float]
) -> list[Replay]:
    """The processes of one run, which wait for each other; `slow` multiplies the pace of some ranks' devices.

    Where a rank has no recording, the others wait for those that were recorded as long as they did then. Raises
    SpecError for work that the card cannot do.
    """
    runs = [
        Replay(recording, spec, link, pace=pace * slow.get(recording.rank if recording.rank is not None else 0, 1.0))
        for recording in recordings
    ]
    complete = len(recordings) > 1 and len(recordings) == recordings[0].ranks
    going = {index: run.steps() for index, run in enumerate(runs)}
    waiting: dict[int, Meeting] = {}
    answers: dict[int, float | None] = dict.fromkeys(going)
    while answers:
        for index in list(answers):
            answer = answers.pop(index)
            try:
                waiting[index] = going[index].send(answer)
            except StopIteration:
                continue
        answers = _answered(waiting) if complete else dict.fromkeys(waiting)
        for index in answers:
            del waiting[index]
    return runs


def _answered(waiting: dict[int, Meeting]) -> dict[int, float | None]:
    """Who goes on: groups all of whose ranks have come; where there are none, everybody, as late as recorded."""
    answers: dict[int, float | None] = {}
    for group, ranks in {(name, size) for name, size, _ in waiting.values()}:
        members = [index for index, (name, *_) in waiting.items() if name == group]
        if len(members) == ranks:
            answers.update(dict.fromkeys(members, max(waiting[index][2] for index in members)))
    return answers or dict.fromkeys(waiting)


def _adapted(work: KernelWork, spec: Spec) -> KernelWork:
    """What PyTorch would have launched there: FlashAttention needs an Ampere card (sdp_utils.cpp)."""
    product = work.product
    if product is not None and product.kernel in ("flash", "cudnn") and spec.compute_capability < (8, 0):
        return work._replace(product=product._replace(kernel="efficient"))
    return work
