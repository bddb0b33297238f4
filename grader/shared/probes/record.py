"""What ran on the GPU while a submission's code did: a virtual one reads it, and tells the judge alone.

On a real GPU there is nobody to ask; there PyTorch's dispatcher is watched, in this process. Not for what is read
(`grader.shared.readings`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradebox.sandbox.devices import Reading
from gradebox.sandbox.observer import SystemReading
from gradebox.sandbox.probe_loader import WrongReturn
from grader.shared.probes.kept import announce, function, note_into, notes
from grader.shared.probes.threads import in_every_thread
from grader.shared.readings import PRODUCTS, ProductCount, counted

VirtualGpu: TypeAlias = Any
"""A `vgpu.VirtualGPU` whose queue is in a process of its own, as `student.gpu` has it: untyped there."""
Reported: TypeAlias = Any
"""A `Reading` of the virtual GPU's, which the judge gets in its place; else the value itself."""


def mark(gpu: VirtualGpu) -> int:
    """A place in the virtual GPU's record, for `reading`."""
    announce()
    return int(gpu.queue.line.mark())


def next_stage(gpu: VirtualGpu) -> None:
    """The probe's next stage begins, with which a check may have let a condition of the virtual GPU begin."""
    if gpu is not None:
        gpu.queue.line.next_stage()


def reading(gpu: VirtualGpu, what: str, begin: int, end: int | None = None, **arguments: object) -> Reading:
    """Have the virtual GPU read its record between two marks (or from one until now); the judge gets what it says."""
    announce()
    line = gpu.queue.line
    return Reading(line.read(gpu.index, what, begin, line.mark() if end is None else end, arguments))


def system(what: str) -> Reported:
    """What the operating system tells the supervisor of this run: one of `gradebox.sandbox.observer.READINGS`."""
    return SystemReading(what)


class MemorySince(Protocol):
    """The bytes allocated on a device since a moment, up to when one of these is called."""

    def peak(self) -> Reported:
        """The most that was allocated."""

    def added(self) -> Reported:
        """What the most was beyond what was allocated at that moment."""

    def held(self) -> Reported:
        """What is allocated now beyond that."""


class _MemoryOfVirtualGpu:
    def __init__(self, gpu: VirtualGpu) -> None:
        announce()
        self._gpu, self._begin = gpu, gpu.mark_memory()

    def _read(self, what: str) -> Reading:
        gpu = self._gpu
        announce()
        return Reading(gpu.queue.line.read_memory(gpu.index, what, self._begin, gpu.mark_memory()))

    def peak(self) -> Reading:
        return self._read("peak")

    def added(self) -> Reading:
        return self._read("added")

    def held(self) -> Reading:
        return self._read("held")


class _MemoryOfTorch:
    def __init__(self) -> None:
        torch.cuda.reset_peak_memory_stats()
        self._before = torch.cuda.memory_allocated()

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated()

    def added(self) -> int:
        return self.peak() - self._before

    def held(self) -> int:
        return torch.cuda.memory_allocated() - self._before


def memory_since_now(gpu: VirtualGpu) -> MemorySince:
    """What is allocated from now on. On a virtual GPU it does not matter whether somebody resets peaks.

    Args:
        gpu: the virtual GPU, or None: then PyTorch's counters of the current device say it.
    """
    return _MemoryOfTorch() if gpu is None else _MemoryOfVirtualGpu(gpu)


class Products(Protocol):
    """The matrix products that ran since a moment, told in one of these ways, each of them until it is asked."""

    def counts(self) -> Reported:
        """How often each ran: `device`, `dtype`, `flops` and `count`."""

    def flops(self) -> Reported:
        """The FLOPs of all of them."""

    def dtypes(self) -> Reported:
        """In which dtypes they ran, sorted."""

    def number(self) -> Reported:
        """How many there were."""


class _OnVirtualGpu:
    def __init__(self, gpu: VirtualGpu) -> None:
        self._gpu, self._begin = gpu, mark(gpu)

    def counts(self) -> Reading:
        return reading(self._gpu, "products", self._begin)

    def flops(self) -> Reading:
        return reading(self._gpu, "product_flops", self._begin)

    def dtypes(self) -> Reading:
        return reading(self._gpu, "product_dtypes", self._begin)

    def number(self) -> Reading:
        return reading(self._gpu, "product_number", self._begin)


class _Dispatched:
    def __init__(self) -> None:
        self.products: list[tuple[str, str, int]] = []

    def counts(self) -> list[ProductCount]:
        return counted(self.products)

    def flops(self) -> int:
        return sum(flops for _, _, flops in self.products)

    def dtypes(self) -> list[str]:
        return sorted({dtype for _, dtype, _ in self.products})

    def number(self) -> int:
        return len(self.products)


Formulas: TypeAlias = Mapping[object, Callable[..., int]]
"""The FLOPs of operations, as `torch.utils.flop_counter` counts them: products, convolutions, attention."""


class _ProductSpy(TorchDispatchMode):
    """Notes every matrix product that reaches PyTorch's dispatcher."""

    def __init__(self, note: Callable[[object], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note = note

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func._can_decompose():  # in inference mode no autograd layer has taken it apart
            with self:
                return func.decompose(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in PRODUCTS:
            left, right = [arg for arg in args if isinstance(arg, torch.Tensor)][-2:]
            flops = 2 * left.numel() * right.shape[-1]
            self._note((left.device.type, str(left.dtype).removeprefix("torch."), flops))
        return func(*args, **(kwargs or {}))


_captured: WeakKeyDictionary[torch.cuda.CUDAGraph, list[tuple[str, str, int]]] = WeakKeyDictionary()
"""The products of CUDA graphs, which may be captured in one block and replayed in another."""


@contextmanager
def _count_replays(products: list[tuple[str, str, int]]) -> Iterator[None]:
    """What a CUDA graph captures does not run then; each replay runs it, and no dispatcher sees that."""
    kind = torch.cuda.CUDAGraph
    before = {name: getattr(kind, name) for name in ("capture_begin", "capture_end", "replay")}
    begins: dict[int, int] = {}

    def capture_begin(graph: torch.cuda.CUDAGraph, *arguments: object, **options: object) -> None:
        begins[id(graph)] = len(products)
        before["capture_begin"](graph, *arguments, **options)

    def capture_end(graph: torch.cuda.CUDAGraph) -> None:
        before["capture_end"](graph)
        begin = begins.pop(id(graph), len(products))
        _captured[graph] = products[begin:]
        del products[begin:]

    def replay(graph: torch.cuda.CUDAGraph) -> None:
        products.extend(_captured.get(graph, ()))
        before["replay"](graph)

    own = {name for name in before if name in vars(kind)}
    for name, replaced in (("capture_begin", capture_begin), ("capture_end", capture_end), ("replay", replay)):
        setattr(kind, name, replaced)
    try:
        yield
    finally:
        for name, replaced in before.items():
            if name in own:
                setattr(kind, name, replaced)
            else:
                delattr(kind, name)


@contextmanager
def watch_products(gpu: VirtualGpu) -> Iterator[Products]:
    """The matrix products that run in the block.

    Args:
        gpu: the virtual GPU, or None: then PyTorch's dispatcher is watched.
    """
    if gpu is not None:
        yield _OnVirtualGpu(gpu)
        return
    dispatched = _Dispatched()
    note = note_into(dispatched.products)
    with _count_replays(dispatched.products), in_every_thread(lambda: _ProductSpy(note)):
        yield dispatched


class _WorkSpy(TorchDispatchMode):
    """Notes the FLOPs of every operation that has a formula."""

    def __init__(self, note: Callable[[object], None], formulas: Formulas) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note, self._formulas = note, formulas

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        formula = self._formulas.get(func.overloadpacket)
        if formula is None and func._can_decompose():  # in inference mode no autograd layer has taken it apart
            with self:
                return func.decompose(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if formula is not None:
            self._note(formula(*args, **(kwargs or {}), out_val=result))
        return result


@contextmanager
def watch_host_work(formulas: Formulas) -> Iterator[Callable[[], int]]:
    """Yield a function that says how many FLOPs passed PyTorch's dispatcher in the block, wherever the operands are or
    seem to be: the device's record has none of the CPU, of "meta", or of fake tensors."""
    note, noted = notes()
    with in_every_thread(lambda: _WorkSpy(note, formulas)):
        yield lambda: sum(noted())


class _NameSpy(TorchDispatchMode):
    """Notes the names of the operations that reach PyTorch's dispatcher."""

    def __init__(self, note: Callable[[object], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note = note

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        self._note(str(func))
        return func(*args, **(kwargs or {}))


class Names(Protocol):
    """The operations that ran since a moment."""

    def containing(self, word: str) -> Reported:
        """The names that contain a word, sorted."""


class _NamesOnVirtualGpu:
    def __init__(self, gpu: VirtualGpu) -> None:
        self._gpu, self._begin = gpu, mark(gpu)

    def containing(self, word: str) -> Reading:
        return reading(self._gpu, "names", self._begin, containing=word)


class _DispatchedNames:
    def __init__(self) -> None:
        self.names: list[str] = []

    def containing(self, word: str) -> list[str]:
        return sorted({name for name in self.names if word in name})


@contextmanager
def watch_names(gpu: VirtualGpu) -> Iterator[Names]:
    """The operations that run in the block; `gpu` as for `watch_products`."""
    if gpu is not None:
        yield _NamesOnVirtualGpu(gpu)
        return
    dispatched = _DispatchedNames()
    note = note_into(dispatched.names)
    with in_every_thread(lambda: _NameSpy(note)):
        yield dispatched


@contextmanager
def without_backward(what: str) -> Iterator[None]:
    """Fail if a backward pass asks for a tensor: what PyTorch differentiates it has computed in its own way."""
    note, noted = notes()

    def unpack(saved: torch.Tensor) -> torch.Tensor:
        note(True)
        return saved

    with torch.autograd.graph.saved_tensors_hooks(function(lambda saved: saved), function(unpack)):
        yield
    if noted():
        raise WrongReturn(f"{what} takes what PyTorch computes in a backward pass: compute it by operations of x")
