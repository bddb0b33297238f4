"""Saving and loading tensors keeps them where they are.

PyTorch tags each saved storage with its location ("cuda:1") and asks registered packages to restore it
(torch/serialization.py). Not here: the file format, which is PyTorch's, and the copies
between devices that it makes (`vgpu.torch_integration.patches.storages`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from typing import Any

import torch
import torch.serialization

from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.machine import Machine
from vgpu.runtime.patching import PatchSet
from vgpu.runtime.unsupported import unsupported
from vgpu.torch_integration.devices import place

# PyTorch registers its own at 10 (CPU), 20 (CUDA) and up; the lowest number is asked first.
_PRIORITY = 5


def install(patches: PatchSet, machine: Machine) -> None:
    """Register a location for resident storages."""
    registry = machine.registry

    def location(storage: Any) -> str | None:
        untyped = getattr(storage, "_untyped_storage", storage)
        gpu = registry.gpu_of_storage(untyped)
        if gpu is None:
            return None
        if not gpu.values:
            raise unsupported("saving GPU tensors with shapes only")
        return str(gpu.device)

    def restore(storage: Any, where: str) -> Any:
        if not where.startswith("cuda"):
            return None
        index = torch.device(where).index
        if index is not None and index >= machine.device_count():
            raise RuntimeError(
                f"Attempting to deserialize object on CUDA device {index} but "
                f"torch.cuda.device_count() is {machine.device_count()}. Please use torch.load with map_location to "
                "map your storages to an existing device."
            )
        gpu = place(machine, where)
        assert gpu is not None
        return _arrive(gpu, storage)

    entry = (_PRIORITY, location, restore)
    packages: list[Any] = torch.serialization._package_registry
    packages.insert(0, entry)
    patches.on_undo(lambda: packages.remove(entry))


def _arrive(gpu: VirtualGPU, storage: Any) -> Any:
    """A storage read from a file goes to the GPU."""
    if not gpu.values:
        raise unsupported("loading tensors to the GPU with shapes only")
    gpu.registry.add_storage(getattr(storage, "_untyped_storage", storage), gpu, gpu.stream)
    gpu.transfer(storage.nbytes(), to_device=True, pinned=False, non_blocking=False)
    return storage
