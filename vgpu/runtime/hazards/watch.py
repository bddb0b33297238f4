"""Looks at each use of memory and warns of two that nothing orders: on a card, values would depend on luck.

Work on GPU memory is watched from the first stream of the program's own on, copies from and to pinned memory always;
a program with one stream and no such copy pays nothing. Inside of a backward pass nothing is reported: there the engine
orders streams by itself (PyTorch, "Stream semantics of backward passes"). Neither is what a captured graph does. Values
stay those of the right order. Not here: what orders what (`vgpu.runtime.hazards.order`).
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from vgpu.device.errors import StreamHazard
from vgpu.runtime import caller
from vgpu.runtime.hazards.accesses import NOWHERE, Access, Range, Site, is_superseded, moved, overlap, range_of
from vgpu.runtime.hazards.order import Order, Point, Stream
from vgpu.runtime.host_clock import HostClock
from vgpu.runtime.memory.residency import Registry, Resident
from vgpu.runtime.operations.operation import Operation
from vgpu.runtime.thread_state import THREAD

VARIABLE = "VGPU_RACES"
"""Of the environment: "warn", "error" or "ignore" (Python's own options are read before a package can be imported)."""
# Of one memory, and of memory without an owner, so many uses are known.
_MOST_ACCESSES, _MOST_RELEASED = 64, 1024


class Gpu(Protocol):
    """A GPU, as far as its streams are concerned (`vgpu.runtime.gpu`)."""

    index: int
    waited_at: float

    @property
    def stream(self) -> int:
        """The calling thread's current stream."""


class Host(Protocol):
    """A machine (`vgpu.runtime.machine`)."""

    clock: HostClock
    registry: Registry[Any]

    @property
    def gpus(self) -> Sequence[Gpu]:
        """Its GPUs."""


class Hazard(NamedTuple):
    """Two uses of the same memory that nothing orders, with the lines of the program; the text says what helps."""

    text: str
    earlier: Site
    later: Site


class _Copy(NamedTuple):
    """A copy from or to pinned memory, which may be under way."""

    storage: weakref.ref[Any]
    stream: Stream
    number: int
    to_host: bool
    site: Site


class Watch:
    """The uses of a machine's memory; `found` has what was reported, once for each pair of lines."""

    def __init__(self, machine: Host) -> None:
        self._machine = machine
        self._order = Order()
        self._copies: dict[int, list[_Copy]] = {}
        # Uses of memory that has no owner now, by GPU, at the device's addresses.
        self._released: dict[int, list[Access]] = {}
        self.found: list[Hazard] = []
        self.follows_streams = False
        # Until when nobody watched, and the number of all that the default streams did until then.
        self._since = 0.0
        self._first: Point = {}

    # ---- who waits for whom ------------------------------------------------------------------------------------------

    def follow_streams(self) -> None:
        """There is a stream in addition to the default ones: from now on each operation on a GPU is looked at."""
        if not self.follows_streams:
            self.follows_streams, self._since = True, self._machine.clock.now
            self._first = {(gpu.index, 0): self._order.step((gpu.index, 0)) for gpu in self._machine.gpus}
            self._machine.registry.watch = self

    def point(self, gpu: Gpu, stream: int) -> Point:
        """What an event that is recorded now stands for."""
        return self._order.point((gpu.index, stream))

    def stream_waits(self, gpu: Gpu, stream: int, point: Point | None) -> None:
        """A stream waits for an event; None: for one from before anybody watched."""
        self._order.stream_waits((gpu.index, stream), self._first if point is None else point)

    def host_waits_for_event(self, point: Point | None) -> None:
        """The host has waited for an event; None: for one from before anybody watched."""
        self._order.host_waits(self._first if point is None else point)

    def host_waits(self, gpu: Gpu, stream: int | None = None) -> None:
        """The host has waited for all that is queued on a stream, or (None) on a GPU."""
        if stream is None:
            self._order.host_waits_for_device(gpu.index)
        else:
            self._order.host_waits(self._order.point((gpu.index, stream)))

    # ---- memory of the GPUs ------------------------------------------------------------------------------------------

    def operation(
        self,
        gpu: Gpu,
        operation: Operation,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inputs: Iterable[torch.Tensor],
        outputs: Iterable[torch.Tensor],
    ) -> None:
        """A kernel reads its inputs (`ones_like` none), and writes its outputs and what its schema says."""
        read = () if operation.is_like else inputs
        self.kernel(gpu, gpu.stream, operation.name, read, [*outputs, *written(operation, args, kwargs)])

    def kernel(
        self,
        gpu: Gpu,
        stream: int,
        name: str,
        read: Iterable[torch.Tensor],
        written: Iterable[torch.Tensor],
    ) -> None:
        """One more entry of a stream, and the tensors that it reads and writes."""
        if THREAD.capture is not None:
            return
        here = (gpu.index, stream)
        frame = caller.program_frame()
        site = (frame.f_code.co_filename, frame.f_lineno)
        number = self._order.step(here)
        keys: set[tuple[int, int, int]] = set()
        for writes, tensors in ((True, written), (False, read)):
            for tensor in tensors:
                if tensor.layout is not torch.strided:
                    continue
                entry = self._machine.registry.resident(tensor)
                if entry is None or entry.block is None:
                    continue
                part = range_of(tensor)
                key = (entry.key, part.low, part.high)
                if key not in keys:
                    keys.add(key)
                    self._use(entry, Access(here, number, part, writes, name, site))

    def _use(self, entry: Resident, now: Access) -> None:
        accesses = entry.accesses
        if accesses is None:
            accesses = self._inherited(entry)
        kept = []
        for before in accesses:
            is_before = self._order.is_before(before.stream, before.number, now.stream)
            if not is_before and (before.writes or now.writes) and overlap(before.range, now.range):
                self._report(before, now)
                is_before = True
            if not (is_before and is_superseded(before, now)):
                kept.append(before)
        kept.append(now)
        entry.accesses = kept[-_MOST_ACCESSES:]

    def _inherited(self, entry: Resident) -> list[Access]:
        """What others did in the memory that a tensor has got, and what it did itself before anybody watched."""
        block, gpu = entry.block, entry.gpu
        assert block is not None
        if block.since <= self._since:
            if gpu.waited_at >= block.since:
                return []
            whole = Range(0, block.bytes, dense=True)
            home = (gpu.index, block.stream)
            return [Access(home, self._first.get(home, 0), whole, writes=True, name="", site=NOWHERE)]
        released = self._released.get(gpu.index)
        if not released:
            return []
        low, high = block.address, block.address + block.bytes
        found, left = [], []
        for access in released:
            if access.range.low < high and low < access.range.high:
                found.append(moved(access, -low))
                if low <= access.range.low and access.range.high <= high:
                    continue
            left.append(access)
        self._released[gpu.index] = left
        return found

    def released(self, entry: Resident) -> None:
        """A tensor's memory goes back to its stream; uses on other streams, unless recorded, may be under way."""
        block = entry.block
        if block is None or not entry.accesses:
            return
        home, gpu = (entry.gpu.index, block.stream), entry.gpu.index
        under_way = [
            moved(access, block.address)
            for access in entry.accesses
            if access.stream != home
            and access.stream[1] not in block.uses
            and not self._order.is_before(access.stream, access.number, home)
        ]
        entry.accesses = None
        if under_way:
            known = self._released.get(gpu, [])
            self._released[gpu] = [*known[-_MOST_RELEASED:], *under_way]

    def _report(self, before: Access, now: Access) -> None:
        """Warn, and take the two as ordered from now on. The engine orders what a backward pass does."""
        self._order.stream_waits(now.stream, {before.stream: before.number})
        if torch._C._current_graph_task_id() != -1:
            return
        first, second = ("writes" if access.writes else "reads" for access in (before, now))
        if before.released:
            what = (
                f"{now.name} on {_name(now.stream)} {second} memory of a tensor that was released while {before.name} "
                f"on {_name(before.stream)} ({_where(before.site)}) may still be using it"
            )
            cure = (
                f"call tensor.record_stream() for {_name(before.stream)} before the tensor goes, or keep it until the "
                "streams have met"
            )
        else:
            done = f"{before.name} ({_where(before.site)})" if before.name else "earlier work"
            what = (
                f"{now.name} on {_name(now.stream)} {second} memory that {done} on {_name(before.stream)} {first}, and "
                "nothing orders the two"
            )
            cure = "let the stream wait first: stream.wait_stream(other), or wait for an event that the other recorded"
        self._warn(what, cure, before.site)

    # ---- pinned memory of the host -----------------------------------------------------------------------------------

    def copy(self, gpu: Gpu, stream: int, host: torch.Tensor, *, to_host: bool) -> None:
        """A copy that does not hold the host, from or to a pinned tensor."""
        if THREAD.capture is not None:
            return
        self.host_operation([host], [host] if to_host else [], on_host=False, stream=(gpu.index, stream))
        here = (gpu.index, stream)
        number = self._order.step(here)
        frame = caller.program_frame()
        storage = host.untyped_storage()
        key = storage._cdata
        known = self._copies.get(key)
        reference = known[0].storage if known else weakref.ref(storage, lambda _: self._copies.pop(key, None))
        copies = [copy for copy in known or () if not self._order.is_over(copy.stream, copy.number)]
        site = (frame.f_code.co_filename, frame.f_lineno)
        self._copies[key] = [*copies, _Copy(reference, here, number, to_host, site)]

    @property
    def has_copies(self) -> bool:
        """Whether any copy may be under way."""
        return bool(self._copies)

    def host_operation(
        self,
        read: Iterable[torch.Tensor],
        written: Iterable[torch.Tensor],
        *,
        on_host: bool = True,
        stream: Stream | None = None,
    ) -> None:
        """The host, or (not `on_host`) a copy on a stream, reads and writes tensors of the host."""
        changed = {tensor.untyped_storage()._cdata for tensor in written}
        for tensor in (*read, *written):
            if tensor.layout is not torch.strided:
                continue
            key = tensor.untyped_storage()._cdata
            for copy in self._copies.get(key, ()):
                if not copy.to_host and key not in changed:
                    continue
                if stream is not None and self._order.is_before(copy.stream, copy.number, stream):
                    continue
                if not self._order.is_over(copy.stream, copy.number):
                    self._report_copy(copy, key in changed, on_host=on_host)
                    self._order.host_waits({copy.stream: copy.number})

    def _report_copy(self, copy: _Copy, writes: bool, *, on_host: bool) -> None:
        who = "the host" if on_host else "a copy"
        does = "writes to" if writes else "reads"
        if copy.to_host:
            what = f"{who} {does} host memory before a non-blocking copy from the GPU ({_where(copy.site)}) has arrived"
        else:
            what = f"{who} {does} pinned memory that a non-blocking copy to the GPU ({_where(copy.site)}) may read yet"
        self._warn(what, "wait for the copy first: torch.cuda.synchronize(), or an event after it", copy.site)

    # ---- reports -----------------------------------------------------------------------------------------------------

    def _warn(self, what: str, cure: str, earlier: Site) -> None:
        frame = caller.program_frame()
        later = (frame.f_code.co_filename, frame.f_lineno)
        if any((known.earlier, known.later) == (earlier, later) for known in self.found):
            return
        text = f"{what}: on a GPU, values may be wrong. {cure[0].upper()}{cure[1:]} [found by vgpu]"
        self.found.append(Hazard(text, earlier, later))
        wanted = os.environ.get(VARIABLE, "warn")
        if wanted == "error":
            raise StreamHazard(text)
        if wanted != "ignore":
            caller.warn(text, StreamHazard)


def written(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The arguments of an operation that it writes to."""
    tensors: list[torch.Tensor] = []
    for place in operation.written:
        name = operation.overload._schema.arguments[place].name
        value = args[place] if place < len(args) else kwargs.get(name)
        tensors += value if isinstance(value, (list, tuple)) else () if value is None else (value,)
    return tensors


def _name(stream: Stream) -> str:
    return f"cuda:{stream[0]}'s default stream" if stream[1] == 0 else f"stream {stream[1]:#x} of cuda:{stream[0]}"


def _where(site: Site) -> str:
    return f"{site[0]}:{site[1]}" if site[0] else "earlier"
