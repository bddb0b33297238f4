"""Which tensors live on the virtual GPU: a registry of storages, weakly referenced.

Every tensor is really a CPU tensor (or, shapes only, a meta tensor): residency is a fact about its storage, so views
share it and freeing the storage frees the bytes. Not here: what operations do with residency (`vgpu.dispatch_mode`).
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from vgpu.allocator import Block
from vgpu.errors import Unsupported
from vgpu.memory import DeviceMemory

CUDA_DEVICE = torch.device("cuda", 0)
CPU_DEVICE = torch.device("cpu")

# Bound here so that the modes' own look-ups never pass through a torch-function mode by accident of naming.
_storage_of = torch.Tensor.untyped_storage


class _Resident(weakref.ref["torch.UntypedStorage"]):
    """A resident storage and the block that holds its bytes (None for an empty storage)."""

    __slots__ = ("block", "key")
    block: Block | None
    key: int


class Registry:
    """The storages on one virtual GPU, those of pinned host memory, and those whose device is still open."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._resident: dict[int, _Resident] = {}
        self._pinned: dict[int, weakref.ref[Any]] = {}
        # Tensors that C++ code made by itself (a zero gradient, a DDP bucket) carry the real device, CPU. Which
        # device was meant shows when they first meet another tensor.
        self._open: dict[int, weakref.ref[Any]] = {}

    def __len__(self) -> int:
        return len(self._resident)

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lives on the GPU."""
        try:
            return _storage_of(tensor)._cdata in self._resident
        except NotImplementedError:  # sparse and other tensors without a storage
            return False

    def has_storage(self, storage: torch.UntypedStorage) -> bool:
        """Whether the storage lives on the GPU."""
        return storage._cdata in self._resident

    def add(self, tensor: torch.Tensor, stream: int = 0) -> None:
        """Put a tensor's storage on the GPU; no effect when it is there. Raises torch.OutOfMemoryError."""
        try:
            storage = _storage_of(tensor)
        except NotImplementedError:
            raise Unsupported(f"tensors of layout {tensor.layout}", "keep them on the CPU") from None
        if storage._cdata not in self._resident:
            self.add_storage(storage, stream)

    def add_storage(self, storage: torch.UntypedStorage, stream: int = 0) -> None:
        """Put a storage on the GPU."""
        key = storage._cdata
        size = storage.nbytes()
        block = self._memory.allocate(size, stream) if size else None
        entry = _Resident(storage, self._forget)
        entry.key, entry.block = key, block
        self._resident[key] = entry
        self._open.pop(key, None)

    def refresh(self, tensor: torch.Tensor, stream: int = 0) -> None:
        """A storage may have been resized (`resize_`, `out=`): give it a block of its new size."""
        storage = _storage_of(tensor)
        entry = self._resident.get(storage._cdata)
        if entry is None:
            return
        size = storage.nbytes()
        before = entry.block.requested_bytes if entry.block is not None else 0
        if size > before or (size == 0 and before):
            new = self._memory.allocate(size, stream) if size else None
            if entry.block is not None:
                self._memory.release(entry.block)
            entry.block = new

    def block_of(self, tensor: torch.Tensor) -> Block | None:
        """The block behind a resident tensor."""
        entry = self._resident.get(_storage_of(tensor)._cdata)
        return entry.block if entry is not None else None

    def _forget(self, entry: _Resident) -> None:
        if self._resident.get(entry.key) is entry:
            del self._resident[entry.key]
        if entry.block is not None:
            self._memory.release(entry.block)

    def clear(self) -> None:
        """Detach: nothing is resident any more."""
        self._resident.clear()
        self._pinned.clear()
        self._open.clear()

    def leave_open(self, tensor: torch.Tensor) -> None:
        """C++ code made this tensor: its device is decided by what it first meets."""
        self._note(self._open, tensor)

    def is_open(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's device is still undecided."""
        return bool(self._open) and _storage_of(tensor)._cdata in self._open

    def pin(self, tensor: torch.Tensor) -> None:
        """The tensor's host memory is page-locked from now on."""
        self._note(self._pinned, tensor)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's host memory is page-locked."""
        return bool(self._pinned) and _storage_of(tensor)._cdata in self._pinned

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
        return CUDA_DEVICE if self.has(tensor) else tensor.device
