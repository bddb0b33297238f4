"""Which tensors live on which virtual GPU: a registry of storages, weakly referenced.

Every tensor is really a CPU tensor (or, shapes only, a meta tensor): residency is a fact about its storage, so views
share it and freeing the storage frees the bytes. Not here: what operations do with residency
(`vgpu.torch_integration.dispatch.dispatch_mode`).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch

from vgpu.runtime.audit_events import BROKEN_EVENT
from vgpu.runtime.memory import categories
from vgpu.runtime.memory.blocks import Block
from vgpu.runtime.memory.device_memory import OTHER, DeviceMemory
from vgpu.runtime.unsupported import unsupported

CPU_DEVICE = torch.device("cpu")

# Bound here so that the modes' own look-ups never pass through a torch-function mode by accident of naming.
_storage_of = torch.Tensor.untyped_storage
_audit = sys.audit
_PARTS: dict[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
_PLAIN_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))


def dense_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that hold a sparse tensor's indices and values: all the memory that it has."""
    names = _PARTS.get(tensor.layout)
    if names is None:
        raise unsupported("MKL-DNN tensors on the GPU")
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        return [getattr(tensor, name)() for name in names]


def _inside(tensor: torch.Tensor) -> torch.Tensor | None:
    """The device of a tensor without a storage; None for one that is never on a GPU.

    For one of `torch.func`'s transforms (`vjp`, `vmap`) it is the tensor inside, for a sparse tensor its values.
    """
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return torch._C._functorch.get_unwrapped(tensor)
    return dense_parts(tensor)[-1] if tensor.layout in _PARTS else None


def _part(tensor: torch.Tensor) -> Any:
    """The first of the tensors that a wrapper (DTensor, a nested tensor) is made of; None for any other.

    Wrappers name their parts by `__tensor_flatten__` (torch/utils/_python_dispatch.py,
    `is_traceable_wrapper_subclass`).
    """
    kind = type(tensor)
    if kind in _PLAIN_TENSORS or not hasattr(kind, "__tensor_flatten__"):
        return None
    if hasattr(tensor, "_local_tensor"):  # a DTensor flattens itself by way of its device
        return tensor._local_tensor
    names: Any = tensor.__tensor_flatten__()[0]  # type: ignore[attr-defined]
    return getattr(tensor, names[0]) if names else None


class Home(Protocol):
    """A GPU, as far as what lives on it is concerned."""

    device: torch.device
    memory: DeviceMemory


_GPU = TypeVar("_GPU", bound=Home)


class Resident(weakref.ref["torch.UntypedStorage"]):
    """A resident storage, its GPU, and the block that holds its bytes (None for an empty storage).

    `accesses` are its uses, while somebody watches them (`vgpu.runtime.hazards`).
    """

    __slots__ = ("accesses", "block", "gpu", "key")
    accesses: list[Any] | None
    gpu: Any
    block: Block | None
    key: int


def _note(gpu: Any, message: Any) -> None:
    # Without `contextlib.suppress`, which is three calls for each new tensor.
    try:  # noqa: SIM105
        gpu.memory.living(message)
    except ValueError:  # it was interrupted
        pass


def require_hosts(gpus: Sequence[Any], tensors: Sequence[torch.Tensor]) -> None:
    """Raise BROKEN_EVENT if one of these tensors, which the registry has on the host, lives on a GPU."""
    try:
        keys = frozenset([_storage_of(tensor)._cdata for tensor in tensors])
        if any(gpu.memory.living(keys) for gpu in gpus):
            _audit(BROKEN_EVENT, "registry")
    except (NotImplementedError, ValueError):  # no storage; or it was interrupted
        return


class Releases(Protocol):
    """Somebody who wants to know which memory goes (`vgpu.runtime.hazards.watch`)."""

    def released(self, entry: Resident) -> None:
        """A storage on a GPU is gone."""


class Registry(Generic[_GPU]):
    """The storages on the virtual GPUs, those of pinned host memory, and those whose device is still open."""

    def __init__(self) -> None:
        self.entries: dict[int, Resident] = {}
        """The storages on GPUs, by their `_cdata`."""
        self._pinned: dict[int, weakref.ref[Any]] = {}
        # Tensors that C++ code made by itself (a zero gradient, a DDP bucket) carry the real device, CPU. Which
        # device was meant shows when they first meet another tensor.
        self._open: dict[int, weakref.ref[Any]] = {}
        self.watch: Releases | None = None
        """The observer of memory that goes, once there are several streams."""

    def __len__(self) -> int:
        return len(self.entries)

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lives on a GPU."""
        try:
            if _storage_of(tensor)._cdata in self.entries:
                return True
            part = _part(tensor)
            return part is not None and self.has(part)
        except NotImplementedError:  # sparse and other tensors without a storage
            inner = _inside(tensor)
            return inner is not None and self.has(inner)

    def gpu_of(self, tensor: torch.Tensor) -> _GPU | None:
        """The GPU that the tensor lives on, None for a tensor of the host."""
        try:
            entry = self.entries.get(_storage_of(tensor)._cdata)
        except NotImplementedError:
            inner = _inside(tensor)
            return None if inner is None else self.gpu_of(inner)
        if entry is not None:
            return entry.gpu  # type: ignore[no-any-return]
        part = _part(tensor)
        return None if part is None else self.gpu_of(part)

    def devices_of(self, tensors: Sequence[torch.Tensor]) -> set[_GPU | None]:
        """Where these tensors live (None: on the host). Part of every operation."""
        resident = self.entries
        homes: set[_GPU | None] = set()
        try:
            for tensor in tensors:
                entry = resident.get(_storage_of(tensor)._cdata)
                homes.add(None if entry is None else entry.gpu)
        except NotImplementedError:
            return {self.gpu_of(tensor) for tensor in tensors}
        return homes

    def gpu_of_storage(self, storage: torch.UntypedStorage) -> _GPU | None:
        """The GPU that the storage lives on, None for one of the host."""
        entry = self.entries.get(storage._cdata)
        return entry.gpu if entry is not None else None

    def add(self, tensor: torch.Tensor, gpu: _GPU, stream: int = 0, *, is_result: bool = False) -> None:
        """Put a tensor's storage on a GPU; no effect when it is on one. Raises torch.OutOfMemoryError.

        `is_result`: an operation made it from other tensors (for `vgpu.runtime.memory.categories`).
        """
        try:
            storage = _storage_of(tensor)
        except NotImplementedError:
            for part in dense_parts(tensor):
                self.add(part, gpu, stream, is_result=is_result)
            return
        if storage._cdata not in self.entries:
            # Some CPU kernels (mse_loss, smooth_l1_loss) return a number in the storage of all that they added up.
            size = tensor.element_size() if is_result and tensor.dim() == 0 else storage.nbytes()
            category = categories.of_result() if is_result else OTHER
            self.add_storage(storage, gpu, stream, category=category, size=size)

    def add_storage(
        self,
        storage: torch.UntypedStorage,
        gpu: _GPU,
        stream: int = 0,
        *,
        category: int = OTHER,
        size: int | None = None,
    ) -> None:
        """Put a storage on a GPU; `size` where CUDA's has other bytes than the one underneath."""
        key = storage._cdata
        size = storage.nbytes() if size is None else size
        block = gpu.memory.allocate(size, stream, [category]) if size else None
        entry = Resident(storage, self._forget)
        entry.accesses, entry.key, entry.gpu, entry.block = None, key, gpu, block
        self.entries[key] = entry
        if size:
            _note(gpu, (storage, size))
        self._open.pop(key, None)

    def add_wrapper(self, tensor: torch.Tensor, gpu: _GPU) -> None:
        """Put a tensor without memory of its own (a wrapper subclass) on a GPU."""
        storage = _storage_of(tensor)
        entry = Resident(storage, self._forget)
        entry.accesses, entry.key, entry.gpu, entry.block = None, storage._cdata, gpu, None
        self.entries[entry.key] = entry

    def refresh(self, tensor: torch.Tensor, stream: int = 0) -> None:
        """A tensor's storage may have been resized (`resize_`, `out=`): give it a block of its new size."""
        try:
            storage = _storage_of(tensor)
        except NotImplementedError:  # a sparse tensor has new parts
            home = self.gpu_of(tensor)
            if home is not None:
                self.add(tensor, home, stream)
            return
        self.refresh_storage(storage, stream)

    def refresh_storage(self, storage: torch.UntypedStorage, stream: int = 0) -> None:
        """A storage may have been resized: give it a block of its new size."""
        entry = self.entries.get(storage._cdata)
        if entry is None:
            return
        size = storage.nbytes()
        before = entry.block.requested_bytes if entry.block is not None else 0
        if size > before or (size == 0 and before):
            tag = entry.block.tag if entry.block is not None else None
            new = entry.gpu.memory.allocate(size, stream, tag) if size else None
            if entry.block is not None:
                entry.gpu.memory.release(entry.block)
            entry.block = new
            _note(entry.gpu, [storage])

    def transfer_ownership(self, source: torch.Tensor, target: torch.Tensor, gpu: _GPU) -> None:
        """`target`, which is not resident yet, takes over the block of `source`, as if it had been computed in place.

        Autograd's engine adds gradients in place where it holds the last reference (input_buffer.cpp, `accumulate`),
        but not while a dispatch mode is on, since a mode counts as a tensor subclass there.
        """
        storage = _storage_of(target)
        entry, old = Resident(storage, self._forget), self.entries[_storage_of(source)._cdata]
        entry.accesses, entry.key, entry.gpu, entry.block = None, storage._cdata, gpu, old.block
        old.block = None
        self.entries[entry.key] = entry
        _note(gpu, [_storage_of(source), storage])

    def resident(self, tensor: torch.Tensor) -> Resident | None:
        """What is known of the storage of a strided tensor on a GPU; None for one of the host."""
        return self.entries.get(_storage_of(tensor)._cdata)

    def block_of(self, tensor: torch.Tensor) -> Block | None:
        """The block behind a resident tensor."""
        try:
            entry = self.entries.get(_storage_of(tensor)._cdata)
        except NotImplementedError:
            return None
        return entry.block if entry is not None else None

    def _forget(self, entry: Resident) -> None:
        if self.entries.get(entry.key) is entry:
            del self.entries[entry.key]
        if entry.block is not None:
            if self.watch is not None:
                self.watch.released(entry)
            entry.gpu.memory.release(entry.block)

    def clear(self) -> None:
        """Detach: nothing is resident any more."""
        self.entries.clear()
        self._pinned.clear()
        self._open.clear()

    def mark_unplaced(self, tensor: torch.Tensor) -> None:
        """C++ code made this tensor: its device is decided by what it first meets."""
        if tensor.layout is torch.strided:
            self._note(self._open, tensor)

    def open_storages(self) -> dict[int, Any]:
        """The storages whose device is still undecided."""
        storages = {key: entry() for key, entry in self._open.items()}
        return {key: storage for key, storage in storages.items() if storage is not None}

    def is_open(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's device is still undecided."""
        return bool(self._open) and tensor.layout is torch.strided and _storage_of(tensor)._cdata in self._open

    def all_open(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether there are tensors, and the device of every one is still undecided."""
        return bool(self._open and tensors) and all(map(self.is_open, tensors))

    def settle(self, tensor: torch.Tensor, owner: torch.Tensor) -> None:
        """A tensor whose device is still undecided is where `owner` is; others stay where they are."""
        if self.is_open(tensor) and (home := self.gpu_of(owner)) is not None:
            self.add(tensor, home)

    def settle_on_host(self, tensor: torch.Tensor) -> None:
        """A tensor whose device is still undecided is on the CPU."""
        self._open.pop(_storage_of(tensor)._cdata, None)

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lives on one of this machine's GPUs or on one of a machine around it."""
        return self.has(tensor)

    def pin(self, tensor: torch.Tensor) -> None:
        """The tensor's host memory is page-locked from now on."""
        self._note(self._pinned, tensor)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's host memory is page-locked."""
        # No memory is none that is page-locked (cudaPointerGetAttributes of a null pointer).
        return bool(self._pinned) and _storage_of(tensor)._cdata in self._pinned and bool(_storage_of(tensor).nbytes())

    @staticmethod
    def _note(table: dict[int, weakref.ref[Any]], tensor: torch.Tensor) -> None:
        storage = _storage_of(tensor)
        key = storage._cdata

        def forget(entry: weakref.ref[Any]) -> None:
            if table.get(key) is entry:
                del table[key]

        table[key] = weakref.ref(storage, forget)

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        """The device that the program sees."""
        gpu = self.gpu_of(tensor)
        return tensor.device if gpu is None else gpu.device

    def require_own_device(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> None:
        """A tensor may only get a storage of its device; raises RuntimeError (Resize.h, `checkSetStorage`)."""
        own, home = self.device_of(tensor), self.gpu_of_storage(storage)
        other = storage.device if home is None else home.device
        if own != other and not self.is_open(tensor):
            raise RuntimeError(
                f'Attempted to set the storage of a tensor on device "{own}" to a storage on different device '
                f'"{other}".  This is no longer allowed; the devices must match.'
            )


class InnerRegistry(Registry[_GPU]):
    """The registry of a machine that is attached inside another attachment, whose tensors must not be used now."""

    def __init__(self, outer: Registry[_GPU]) -> None:
        super().__init__()
        self._outer = outer

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lives on a GPU; raises RuntimeError for one of the outer machine."""
        return self.gpu_of(tensor) is not None

    def gpu_of(self, tensor: torch.Tensor) -> _GPU | None:
        """The GPU that the tensor lives on; raises RuntimeError for a tensor of the outer machine."""
        home = super().gpu_of(tensor)
        if home is None and self._outer.knows(tensor):
            raise RuntimeError(
                "this tensor lives on the virtual GPU of an outer vgpu.attach(...) block: leave the inner block before "
                "using it, or move it to the CPU before entering"
            )
        return home

    def devices_of(self, tensors: Sequence[torch.Tensor]) -> set[_GPU | None]:
        """The GPUs of several tensors; raises RuntimeError for a tensor of the outer machine."""
        return {self.gpu_of(tensor) for tensor in tensors}

    def settle_on_host(self, tensor: torch.Tensor) -> None:
        """A tensor whose device is still undecided is on the CPU."""
        self._open.pop(_storage_of(tensor)._cdata, None)

    def knows(self, tensor: torch.Tensor) -> bool:
        """As for every registry."""
        return super().gpu_of(tensor) is not None or self._outer.knows(tensor)
