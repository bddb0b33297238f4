"""Triton kernels: computed by the interpreter that comes with Triton, and priced by what their programs do.

The interpreter's loads, stores and dots are counted. A load takes whole sectors of 32 bytes (CUDA C++ Best Practices
Guide, "Coalesced Access to Global Memory"); sectors that several programs touch come from the L2 cache, whose rate is
some times that of the memory. Dots are products of tiles, one batch entry for each program. What is not modelled:
registers, shared memory, `num_warps` and `num_stages`. Not here: how Triton's calls come here
(`vgpu.torch_integration.patches.triton`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vgpu.device.kernel_work import PRODUCT, KernelWork, Product, Programs
from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.thread_state import THREAD
from vgpu.runtime.unsupported import unsupported
from vgpu.torch_integration.compiled import watching
from vgpu.torch_integration.compiled.graphs import beneath
from vgpu.torch_integration.compiled.reach import Reach

SECTOR_BYTES = 32
# Times the memory's rate that the L2 cache reaches: modelled (A100: 5,120 B per clock, some 4.5 times its memory's).
L2_RATIO = 4.0
# Host time of Triton's launcher beyond a launch, and of a kernel's first compilation: modelled.
LAUNCHER_SECONDS, COMPILE_SECONDS = 1.2e-5, 0.5
_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64", "int8": "int8"}
_MERGE = 1 << 20


@dataclass
class Tally:
    """What the programs of one launch have done."""

    reach: Reach = field(default_factory=lambda: Reach((), ()))
    read: list[NDArray[np.int64]] = field(default_factory=list)
    written: list[NDArray[np.int64]] = field(default_factory=list)
    read_bytes: int = 0
    written_bytes: int = 0
    flops: float = 0.0
    tile: tuple[int, int] = (1, 1)
    dtype: str = "float32"
    tf32: bool = False
    rounds: bool = False
    """Whether any product of float32 may be computed in TF32; the others are those of the last dot."""
    watch: watching.Watch | None = None
    languages: set[int] = field(default_factory=set)
    """Modules of Triton's language that the interpreter has put its own functions into, for this launch."""
    scopes: list[Any] = field(default_factory=list)
    """What puts each of them back (`triton.runtime.interpreter._LangPatchScope`)."""
    _waiting: int = 0

    def touched(self, pointers: NDArray[Any], mask: NDArray[Any], width: int, *, stores: bool) -> None:
        """Elements of `width` bytes at these addresses, where the mask holds."""
        addresses = np.asarray(pointers).reshape(-1)[np.asarray(mask, dtype=bool).reshape(-1)].astype(np.int64)
        if not addresses.size:
            return
        sectors = np.unique(np.concatenate([addresses // SECTOR_BYTES, (addresses + width - 1) // SECTOR_BYTES]))
        if stores:
            self.written_bytes += sectors.size * SECTOR_BYTES
        else:
            self.read_bytes += sectors.size * SECTOR_BYTES
        (self.written if stores else self.read).append(sectors)
        self._waiting += sectors.size
        if self._waiting > _MERGE:
            self.read, self.written, self._waiting = [_merged(self.read)], [_merged(self.written)], 0

    def multiplied(self, m: int, n: int, k: int, dtype: str, *, tf32: bool) -> None:
        """A dot of tiles."""
        self.flops += 2.0 * m * n * k
        self.rounds |= tf32 and dtype == "fp32"
        self.tile, self.dtype, self.tf32 = (m, n), _DTYPES.get(dtype, "float32"), tf32

    @property
    def through_l2(self) -> int:
        """What all programs read and write, sector by sector, wherever it comes from."""
        return self.read_bytes + self.written_bytes

    @property
    def memory_bytes(self) -> int:
        """Through the device's memory: each sector once read and once written."""
        return SECTOR_BYTES * (_merged(self.read).size + _merged(self.written).size)

    def work(self, name: str, programs: int, shapes: tuple[tuple[int, ...], ...]) -> KernelWork:
        """The kernel."""
        moved = max(self.memory_bytes, int(self.through_l2 / L2_RATIO))
        done = None if self.watch is None else self.done(programs, self.watch)
        if not self.flops:
            return KernelWork(name, moved, self.dtype, shapes, programs=done)
        m, n = self.tile
        product = Product(programs, m, n, max(1, round(self.flops / (2.0 * programs * m * n))))
        return KernelWork(name, moved, self.dtype, shapes, kind=PRODUCT, product=product, tf32=self.tf32, programs=done)

    def stored_to(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Those of the tensors that the programs stored to."""
        sectors = _merged(self.written)
        with beneath():
            begins = {tensor: tensor.data_ptr() for tensor in tensors}
        stored = []
        for tensor, begin in begins.items():
            place = np.searchsorted(sectors, begin // SECTOR_BYTES)
            if place < sectors.size and sectors[place] * SECTOR_BYTES < begin + tensor.nbytes:
                stored.append(tensor)
        return stored

    def done(self, programs: int, watch: watching.Watch) -> Programs:
        """What a watched launch did, for the device's record."""
        return Programs(
            programs, self.read_bytes, self.written_bytes, self.flops, self.rounds, watch.strayed, watch.races(),
            watch.held(stored=True), watch.held(stored=False),
        )  # fmt: skip

    def run(self, name: str, done: Programs) -> watching.KernelRun:
        """The same for those who watch."""
        return watching.KernelRun(
            name, done.number, self.memory_bytes, done.read_bytes, done.written_bytes, done.flops, done.tf32,
            done.strayed, done.races,
        )  # fmt: skip


def _merged(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)


def launch(
    find: Callable[[torch.Tensor], VirtualGPU | None],
    name: str,
    compute: Callable[[], tuple[int, Tally]],
    arguments: Mapping[str, Any],
    constants: Collection[str] = (),
) -> None:
    """Run the programs of a kernel and queue it on the current GPU, where its tensors are.

    `compute` runs them all, with plain tensors, and says how many there were and what they did. A kernel is compiled
    once for each dtype of its tensors and each value of the arguments that are `constants`.

    Raises:
        ValueError: a tensor is on the CPU or on another GPU than the current one, which a kernel cannot reach.
        Unsupported: with shapes only, since what a kernel does depends on values.
    """
    tensors = {key: value for key, value in arguments.items() if isinstance(value, torch.Tensor)}
    gpu: VirtualGPU | None = None
    for place, tensor in enumerate(tensors.values()):
        home = find(tensor)
        if home is None or home.index != THREAD.device:
            raise ValueError(f"Pointer argument (at {place}) cannot be accessed from Triton (cpu tensor?)")
        gpu = gpu or home
    if gpu is None:
        raise ValueError("a Triton kernel without tensors: which GPU is it for?")
    if not gpu.values:
        raise unsupported("Triton kernels with shapes only", name)
    gpu.start()
    gpu.settle()
    kinds = {key: getattr(value, "dtype", type(value).__name__) for key, value in arguments.items()}
    described = [f"{key}={arguments[key] if key in constants else kind}" for key, kind in kinds.items()]
    compiled = f"Triton: {name}({', '.join(described)})"
    gpu.machine.once.make(compiled, COMPILE_SECONDS, f"compilation of {name}", "compilation")
    if THREAD.capture is not None:
        THREAD.capture.called(compute, list(tensors.values()))
    with beneath():
        programs, tally = compute()
    shapes = tuple(tuple(tensor.shape) for tensor in list(tensors.values())[:8])
    work = tally.work(name, programs, shapes)
    watch = gpu.machine.watch
    if watch is not None and watch.follows_streams:
        watch.kernel(gpu, gpu.stream, name, tensors.values(), tally.stored_to(tensors.values()))
    if work.programs is not None:
        watching.tell(tally.run(name, work.programs))
    gpu.launch(work, host_seconds=gpu.queue.pricing.launch_seconds(work) + LAUNCHER_SECONDS)
