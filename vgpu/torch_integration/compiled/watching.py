"""A record of each launch of a Triton kernel: bytes, operations, strayed accesses and races.

The programs of a grid run in any order, or at once; the interpreter runs them one after the other, so a race gives the
right numbers there. Two accesses of one element by two programs race where one of them writes, not both are atomic, and
nothing orders them. What orders programs are atomics on a single element, with any semantics but relaxed (a lock, a
counter): what came before one such operation comes before what follows the next (L. Lamport 1978; as detectors do it,
C. Flanagan, S. Freund, "FastTrack", PLDI 2009). Two writes of the same value are no race here: the result is the same.
Not here: what is counted for pricing (`vgpu.torch_integration.compiled.programs`), and how accesses come here
(`vgpu.torch_integration.patches.triton`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vgpu.device.kernel_work import Race, Stored

READ, WRITTEN, ATOMIC = "read", "written", "atomic"
_TOLD = 8
"""Races of one launch that are reported, at most: one shows the mistake."""
_NUMBERS = (torch.float16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64)
Array = NDArray[Any]


@dataclass(frozen=True)
class KernelRun:
    """What one launch did."""

    name: str
    programs: int
    """Of the grid."""
    memory_bytes: int
    """Through the device's memory: whole sectors of 32 bytes, each read once and written once."""
    read_bytes: int
    """By all programs together, from memory or from the L2 cache: what several of them read counts for each."""
    written_bytes: int
    flops: float
    """Of its products of tiles (`tl.dot`)."""
    tf32: bool
    """Whether any product of float32 may be computed in TF32."""
    strayed: int
    """Accesses to elements outside of the memory of its arguments; they were left out."""
    races: tuple[Race, ...]


@dataclass(frozen=True)
class _Access:
    program: int
    epoch: int
    kind: str
    addresses: Array
    bits: Array | None
    """Of what is written."""
    known: Mapping[int, int]
    """The last epoch of other programs that comes before this."""


@dataclass(frozen=True)
class _Place:
    """Where an argument's memory lies, which address the kernel was given, and the bytes of an element."""

    argument: str
    start: int
    end: int
    pointer: int
    width: int
    elements: Array | None
    """All of the memory, as numbers; None for a dtype that NumPy does not have."""

    @classmethod
    def of(cls, argument: str, tensor: torch.Tensor) -> _Place:
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        width, count = tensor.element_size(), storage.nbytes() // tensor.element_size()
        elements = None
        if tensor.dtype in _NUMBERS and count:
            elements = tensor.detach().as_strided((count,), (1,), 0).numpy()
        return cls(argument, start, start + storage.nbytes(), tensor.data_ptr(), width, elements)


class Watch:
    """The accesses of one launch."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.strayed = 0
        # Looked up now, while tensors have their places on the host: programs are interpreted there.
        self._places = [_Place.of(name, tensor) for name, tensor in tensors.items()]
        self._ranges = sorted({(place.start, place.end) for place in self._places})
        self._accesses: list[_Access] = []
        self._program, self._epoch = -1, 0
        self._known: dict[int, int] = {}
        self._released: dict[int, dict[int, int]] = {}

    def reached(self, addresses: Array, mask: Array, width: int) -> Array:
        """The mask without those elements that lie outside of all arguments' memory."""
        places = np.asarray(addresses).astype(np.int64)
        chosen = np.broadcast_to(np.asarray(mask, dtype=bool), places.shape)
        inside = np.zeros(places.shape, dtype=bool)
        for start, end in self._ranges:
            inside |= (places >= start) & (places + width <= end)
        self.strayed += int((chosen & ~inside).sum())
        return chosen & inside

    def accessed(self, program: int, kind: str, addresses: Array, mask: Array, values: Array | None = None) -> None:
        """A program reads, writes or changes these elements, where the mask holds."""
        if program != self._program:
            self._program, self._epoch, self._known = program, 0, {}
        chosen = np.asarray(mask, dtype=bool).reshape(-1)
        places = np.asarray(addresses).reshape(-1)[chosen].astype(np.int64)
        bits = None
        if kind == WRITTEN and values is not None:
            held = np.broadcast_to(np.asarray(values), np.shape(addresses)).reshape(-1)[chosen]
            bits = np.ascontiguousarray(held).view(f"u{held.dtype.itemsize}").astype(np.uint64)
        self._accesses.append(_Access(program, self._epoch, kind, places, bits, self._known))

    def synchronised(self, address: int) -> None:
        """The program that runs makes an atomic operation on this one element, which orders it after others."""
        epochs = {**self._known}
        for program, epoch in self._released.get(address, {}).items():
            epochs[program] = max(epoch, epochs.get(program, -1))
        self._known = epochs
        self._released[address] = {**epochs, self._program: self._epoch}
        self._epoch += 1

    def held(self, *, stored: bool) -> tuple[Stored, ...]:
        """What each argument's memory holds now, where programs have `stored` something, or else where they have loaded
        something."""
        changed = [
            access.addresses for access in self._accesses if (access.kind != READ) is stored and access.addresses.size
        ]
        addresses = np.unique(np.concatenate(changed)) if changed else np.empty(0, dtype=np.int64)
        held, seen = [], set()
        for place in self._places:
            inside = addresses[(addresses >= place.start) & (addresses < place.end)]
            if not inside.size or place.start in seen:
                continue
            seen.add(place.start)  # two arguments may be one tensor
            total = squares = None
            if place.elements is not None:
                values = place.elements[(inside - place.start) // place.width].astype(np.float64)
                with np.errstate(all="ignore"):
                    sums = float(values.sum()), float((values * values).sum())
                total, squares = (value if math.isfinite(value) else None for value in sums)
            held.append(Stored(place.argument, total, squares))
        return tuple(held)

    def races(self) -> tuple[Race, ...]:
        """The first ones, of different accesses."""
        changed = [access.addresses for access in self._accesses if access.kind != READ and access.addresses.size]
        if not changed:
            return ()
        everything = np.unique(np.concatenate(changed))
        addresses, owners, bits = [], [], []
        for number, access in enumerate(self._accesses):
            there = np.ones(access.addresses.shape, dtype=bool)
            if access.kind == READ:
                nearest = np.minimum(np.searchsorted(everything, access.addresses), everything.size - 1)
                there = everything[nearest] == access.addresses
            places = access.addresses[there]
            addresses.append(places)
            owners.append(np.full(places.shape, number))
            bits.append(np.zeros(places.shape, dtype=np.uint64) if access.bits is None else access.bits)
        return self._of_rows(np.concatenate(addresses), np.concatenate(owners), np.concatenate(bits))

    def _of_rows(self, addresses: Array, owners: Array, bits: Array) -> tuple[Race, ...]:
        order = np.argsort(addresses, kind="stable")
        addresses, owners, bits = addresses[order], owners[order], bits[order]
        starts = np.flatnonzero(np.r_[True, addresses[1:] != addresses[:-1]])
        ends = np.r_[starts[1:], addresses.size]
        programs = np.asarray([access.program for access in self._accesses])[owners]
        several = np.minimum.reduceat(programs, starts) != np.maximum.reduceat(programs, starts)
        races: list[Race] = []
        looked_at: set[tuple[bytes, bool]] = set()
        for start, end in zip(starts[several], ends[several], strict=True):
            group = owners[start:end]
            written = bits[start:end][[self._accesses[index].kind == WRITTEN for index in group]]
            same = not written.size or bool((written == written[0]).all())
            if (key := (group.tobytes(), same)) in looked_at:
                continue
            looked_at.add(key)
            if pair := self._racing([self._accesses[index] for index in group], same):
                races.append(self._race(int(addresses[start]), *pair))
                if len(races) == _TOLD:
                    break
        return tuple(races)

    @staticmethod
    def _racing(group: list[_Access], same: bool) -> tuple[_Access, _Access] | None:
        for index, later in enumerate(group):
            for earlier in group[:index]:
                kinds = {earlier.kind, later.kind}
                harmless = kinds in ({READ}, {ATOMIC}) or (kinds == {WRITTEN} and same)
                ordered = later.known.get(earlier.program, -1) >= earlier.epoch
                if earlier.program != later.program and not harmless and not ordered:
                    return earlier, later
        return None

    def _race(self, address: int, earlier: _Access, later: _Access) -> Race:
        place = next(candidate for candidate in self._places if candidate.start <= address < candidate.end)
        element = (address - place.pointer) // place.width
        return Race(place.argument, element, (earlier.program, later.program), (earlier.kind, later.kind))


_watchers: list[list[KernelRun]] = []
_lock = threading.Lock()


def is_watched() -> bool:
    """Whether anybody watches."""
    return bool(_watchers)


def tell(run: KernelRun) -> None:
    """Let all who watch know of a launch."""
    with _lock:
        for runs in _watchers:
            runs.append(run)


@contextmanager
def watch_kernels() -> Iterator[list[KernelRun]]:
    """Yield a list that gets what each launch of a Triton kernel did, as long as the block lasts.

    Watched programs take longer, in real time only. Reads outside of the memory of the kernel's
    arguments give 0, or the mask's `other`; writes there are left out.
    """
    runs: list[KernelRun] = []
    with _lock:
        _watchers.append(runs)
    try:
        yield runs
    finally:
        with _lock:
            _watchers[:] = [watcher for watcher in _watchers if watcher is not runs]
