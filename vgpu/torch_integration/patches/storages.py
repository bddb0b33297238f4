"""Storages of GPU tensors: the device they show, copies that stay on their GPU or go to another.

PyTorch makes such copies in Python (torch/storage.py), so `copy.deepcopy` and `torch.save` come by here. Not here:
files (`vgpu.torch_integration.patches.serialization`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from typing import Any

import torch
import torch.storage

from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.machine import Machine
from vgpu.runtime.patching import PatchSet
from vgpu.runtime.unsupported import unsupported
from vgpu.torch_integration.devices import place


def install(patches: PatchSet, machine: Machine) -> None:
    """Replace what asks for a storage's device, and what copies it."""
    base, untyped = torch.storage._StorageBase, torch.UntypedStorage
    gpu_of = machine.registry.gpu_of_storage
    real_device: Any = untyped.device
    real_to = base.to

    def device(storage: Any) -> torch.device:
        gpu = gpu_of(storage)
        result: torch.device = real_device.__get__(storage) if gpu is None else gpu.device
        return result

    def to(storage: Any, *, device: Any, non_blocking: bool = False) -> Any:
        target, home = place(machine, device), gpu_of(storage)
        if target is home:
            return storage if target is not None else real_to(storage, device=device, non_blocking=non_blocking)
        return copy_to(storage, target)

    def copy_to(storage: Any, target: VirtualGPU | None) -> Any:
        home = gpu_of(storage)
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            if machine.values:
                copy: Any = torch.UntypedStorage(storage.nbytes())
                copy.copy_(storage, False)
            else:
                copy = torch.UntypedStorage(storage.nbytes(), device="cpu" if target is None else "meta")
        if target is not None:
            machine.registry.add_storage(copy, target, target.stream)
        if home is not None and target is not None:
            if home is not target:
                machine.peer_copy(home, target, storage.nbytes())
        elif (gpu := home or target) is not None:
            gpu.transfer(storage.nbytes(), to_device=target is not None, pinned=False, non_blocking=False)
        return copy

    def clone(storage: Any) -> Any:
        return copy_to(storage, gpu_of(storage)) if gpu_of(storage) is not None else real_clone(storage)

    def deepcopy(storage: Any, memo: dict[Any, Any]) -> Any:
        known = memo.setdefault("torch", {})
        if storage._cdata not in known:
            known[storage._cdata] = clone(storage)
        return known[storage._cdata]

    def cuda(storage: Any, device: Any = None, non_blocking: bool = False) -> Any:
        return to(storage, device="cuda" if device is None else device, non_blocking=non_blocking)

    def share(*_: Any, **__: Any) -> Any:
        raise unsupported("sharing GPU tensors with another process")

    def write_file(storage: Any, *arguments: Any) -> Any:
        """`pickle` writes a tensor's storage this way, from where it is; CUDA's goes to the host for that."""
        gpu = gpu_of(storage)
        if gpu is not None:
            gpu.transfer(storage.nbytes(), to_device=False, pinned=False, non_blocking=False)
        return real_write_file(storage, *arguments)

    def resize(storage: Any, size: int) -> Any:
        """Sharded data parallelism frees and remakes parameters this way (torch/distributed/utils.py)."""
        result, gpu = real_resize(storage, size), gpu_of(storage)
        if gpu is not None:
            machine.registry.refresh_storage(storage, gpu.stream)
        return result

    make: Any = untyped.__new__

    def new(cls: Any, *args: Any, device: Any = None, **options: Any) -> Any:
        target = place(machine, device)
        if target is None:
            return make(cls, *args, **options) if device is None else make(cls, *args, device=device, **options)
        sizes = [value for value in args if isinstance(value, int)]
        size = sizes[0] if sizes else options.get("size", len(args[0]) if args else 0)
        storage = make(cls, size, device="cpu" if machine.values else "meta")
        if args and not sizes:  # a sequence of bytes
            storage.copy_(make(cls, *args), False)
        machine.registry.add_storage(storage, target, target.stream)
        target.start()
        return storage

    real_set = torch.Tensor.set_

    def set_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """PyTorch shows no mode a storage; a source that is a tensor is an operand like others."""
        source = args[0] if args else kwargs.get("source")
        storage = source._untyped_storage if isinstance(source, torch.TypedStorage) else source
        if isinstance(storage, torch.UntypedStorage):
            machine.registry.require_own_device(tensor, storage)
        return real_set(tensor, *args, **kwargs)

    patches.set(torch.Tensor, "set_", set_)
    real_clone, real_resize, real_write_file = base.clone, untyped.resize_, untyped._write_file
    patches.set(untyped, "_write_file", write_file)
    patches.set(untyped, "__new__", staticmethod(new))
    patches.set(untyped, "resize_", resize)
    patches.set(untyped, "device", property(device))
    real_is_shared = untyped.is_shared
    patches.set(untyped, "is_shared", lambda storage: gpu_of(storage) is not None or real_is_shared(storage))
    patches.set(untyped, "_share_cuda_", share)
    replacements = {"to": to, "cuda": cuda, "clone": clone, "__deepcopy__": deepcopy}
    for name, function in replacements.items():
        patches.set(base, name, function)
    patches.set(base, "cpu", lambda storage: to(storage, device="cpu"))
