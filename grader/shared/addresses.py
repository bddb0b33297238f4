"""PyTorch's functions that take memory by its address, or load native code that Python does not see.

Through them a submission would read and write all of the process. Whoever calls one raises the audit event of
`gradebox.sandbox.byte_access`: what a library does for itself goes on, what a submission does voids the check. Imports
no PyTorch: where none is loaded there is nothing to do.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

from gradebox.sandbox import byte_access

_OF_STORAGES = ("_new_with_weak_ptr", "_free_weak_ref", "_expired")
_MODULES = ("torch._C._te",)
_SWAP = "_swap_data_ptr_"
_LENDING = ("_to_dlpack", "_to_dlpack_versioned")
_OF_TORCH = ("_free_And_Remove_DeleterFn", "_has_Standard_Deleter", "_cuda_cudaCachingAllocator_raw_delete")
_OF_COMPILED_MODELS = (
    *("AOTIModelContainerRunnerCpu", "AOTIModelContainerRunnerCuda", "AOTIModelPackageLoader"),
    *("alloc_tensor_by_stealing_from_void_ptr", "alloc_tensors_by_stealing_from_void_ptrs"),
)
_CREATE, _INDICES, _SPARSE = "aten::_sparse_coo_tensor_with_dims_and_tensors", "aten::_indices", "SparseCPU"
_kept: list[object] = []
"""What has to live as long as the process."""


def announce() -> None:
    """From now on, in this process and those that it forks. Nobody gets a storage at an address: no code needs one."""
    torch: Any = sys.modules.get("torch")
    if torch is None or isinstance(torch._C._construct_storage_from_data_pointer, functools.partial):
        return
    byte_access.announce(_MODULES)
    # A function in C: what calls it is the submission, in the eyes of the audit hook.
    torch._C._construct_storage_from_data_pointer = functools.partial(sys.audit, "ctypes.storage")
    kind = torch._C.StorageBase
    # Python lets nobody set attributes of a class that is written in C; this is the dictionary behind it.
    (methods, *_) = gc.get_referents(vars(kind))
    for name in _OF_STORAGES:
        bound = methods[name].__get__(None, torch.UntypedStorage)
        methods[name] = staticmethod(byte_access.announced(name, bound))
    if _SWAP in methods:  # PyTorch 2.11 has none
        methods[_SWAP] = byte_access.announced(_SWAP, methods[_SWAP])
    lent: set[int] = set()
    methods["resize_"] = _resizing(methods["resize_"], methods["nbytes"], methods["data_ptr"], lent)
    lending = {name: _lending(getattr(torch._C, name), lent) for name in _LENDING}
    for module in (torch._C, torch, sys.modules.get("torch.utils.dlpack")):
        for name in (*_LENDING, "to_dlpack"):
            if hasattr(module, name):
                setattr(module, name, lending.get(name, lending["_to_dlpack"]))
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
    for module, names in ((torch._C, _OF_TORCH), (torch._C._aoti, _OF_COMPILED_MODELS)):
        for name in names:
            if hasattr(module, name):
                setattr(module, name, byte_access.announced(name, getattr(module, name)))
    _check_places(torch)


def _lending(lend: Callable[..., Any], lent: set[int]) -> Callable[..., Any]:
    """A function that hands the memory of a tensor to another library, and remembers where it lies."""

    def lends(tensor: Any, *arguments: Any, **options: Any) -> Any:
        capsule = lend(tensor, *arguments, **options)
        lent.add(tensor.untyped_storage().data_ptr())
        return capsule

    return lends


def _resizing(
    resize: Callable[[Any, int], Any],
    bytes_of: Callable[[Any], int],
    place_of: Callable[[Any], int],
    lent: set[int],
    audit: Callable[..., None] = sys.audit,
) -> Callable[..., Any]:
    """`resize_` of a storage. A tensor keeps its shape when its storage gets fewer bytes, and reads what lies behind.
    So does the array of another library that the memory was `lent` to.

    With no bytes at all, as in FSDP, there is nothing to read.
    """

    def resize_(self: Any, size: int) -> Any:
        size = operator.index(size)
        if 0 < size < bytes_of(self) or (lent and place_of(self) in lent):
            audit(byte_access.CALL, "a storage smaller than its tensors")
        return resize(self, size)

    return resize_


def _check_places(torch: Any, audit: Callable[..., None] = sys.audit) -> None:
    """PyTorch adds the values of a sparse tensor to wherever its indices point, and checks these only where asked."""
    create, look = torch.library.get_kernel(_CREATE, _SPARSE), torch.library.get_kernel(_INDICES, _SPARSE)

    def created(
        keys: Any, sparse: int, dense: int, size: Sequence[int], indices: Any, values: Any, **options: Any
    ) -> Any:
        own = indices.clone()
        limits = torch.tensor(list(size[:sparse])).reshape(-1, 1)
        if own.numel() and bool(((own < 0) | (own >= limits)).any()):
            audit(byte_access.CALL, "a sparse tensor with places beyond it")
        return create.call_boxed(keys, sparse, dense, size, own, values, **options)

    def indices_of(keys: Any, tensor: Any) -> Any:
        return look.call_boxed(keys, tensor).clone()

    library = torch.library.Library("aten", "IMPL")
    library.impl(_CREATE.partition("::")[2], created, _SPARSE, with_keyset=True)
    library.impl(_INDICES.partition("::")[2], indices_of, _SPARSE, with_keyset=True)
    _kept.append(library)
