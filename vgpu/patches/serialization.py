"""Saving, loading and copying tensors keeps them where they are.

PyTorch tags each saved storage with its location ("cuda:0") and asks registered packages to restore it
(torch/serialization.py). Not here: the file format, which is PyTorch's.
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from typing import Any

import torch
import torch.serialization
import torch.storage

from vgpu.errors import Unsupported
from vgpu.gpu import VirtualGPU
from vgpu.patches.base import PatchSet

# PyTorch registers its own at 10 (CPU), 20 (CUDA) and up; the lowest number is asked first.
_PRIORITY = 5


def install(patches: PatchSet, gpu: VirtualGPU) -> None:
    """Register a location for resident storages, and let copies of storages stay resident."""
    registry = gpu.registry

    def location(storage: Any) -> str | None:
        untyped = getattr(storage, "_untyped_storage", storage)
        if not registry.has_storage(untyped):
            return None
        if not gpu.values:
            raise Unsupported("saving GPU tensors with shapes only", "they have no values; attach with values=True")
        gpu.synchronize()
        gpu.transfer(untyped.nbytes(), to_device=False, pinned=False, non_blocking=False)
        return "cuda:0"

    def restore(storage: Any, where: str) -> Any:
        if not where.startswith("cuda"):
            return None
        if where not in ("cuda", "cuda:0"):
            raise RuntimeError(
                f"Attempting to deserialize object on CUDA device {where.partition(':')[2]} but "
                "torch.cuda.device_count() is 1. Please use torch.load with map_location to map your storages to an "
                "existing device."
            )
        return _arrive(gpu, storage)

    entry = (_PRIORITY, location, restore)
    packages: list[Any] = torch.serialization._package_registry
    packages.insert(0, entry)
    patches.on_undo(lambda: packages.remove(entry))

    base = torch.storage._StorageBase
    clone = base.clone

    def clone_in_place(storage: Any) -> Any:
        if not registry.has_storage(storage):
            return clone(storage)
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            copy = clone(storage) if gpu.values else torch.UntypedStorage(storage.nbytes(), device="meta")
        registry.add_storage(copy)
        return copy

    def to_gpu(storage: Any, device: Any = None, non_blocking: bool = False) -> Any:
        return storage if registry.has_storage(storage) else _arrive(gpu, clone(storage))

    def deepcopy(storage: Any, memo: dict[Any, Any]) -> Any:
        known = memo.setdefault("torch", {})
        if storage._cdata not in known:
            known[storage._cdata] = clone_in_place(storage)
        return known[storage._cdata]

    patches.set(base, "clone", clone_in_place)
    patches.set(base, "__deepcopy__", deepcopy)
    patches.set(base, "cuda", to_gpu)


def _arrive(gpu: VirtualGPU, storage: Any) -> Any:
    """A storage read from a file goes to the GPU."""
    if not gpu.values:
        raise Unsupported("loading tensors to the GPU with shapes only", "load with map_location='cpu', then move them")
    gpu.registry.add_storage(getattr(storage, "_untyped_storage", storage))
    gpu.transfer(storage.nbytes(), to_device=True, pinned=False, non_blocking=False)
    return storage
