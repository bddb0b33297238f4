"""PyTorch's functions that take memory by its address, or load native code that Python does not see.

Through them a submission would read and write all of the process. Whoever calls one raises the audit event of
`gradebox.sandbox.byte_access`: what a library does for itself goes on, what a submission does voids the check. Imports
no PyTorch: where none is loaded there is nothing to do.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import sys
from typing import Any

from gradebox.sandbox import byte_access

_OF_STORAGES = ("_new_with_weak_ptr", "_free_weak_ref", "_expired")
_OF_TORCH = ("_free_And_Remove_DeleterFn", "_has_Standard_Deleter", "_cuda_cudaCachingAllocator_raw_delete")
_OF_COMPILED_MODELS = (
    *("AOTIModelContainerRunnerCpu", "AOTIModelContainerRunnerCuda", "AOTIModelPackageLoader"),
    *("alloc_tensor_by_stealing_from_void_ptr", "alloc_tensors_by_stealing_from_void_ptrs"),
)


def announce() -> None:
    """From now on, in this process and those that it forks. Nobody gets a storage at an address: no code needs one."""
    torch: Any = sys.modules.get("torch")
    if torch is None or isinstance(torch._C._construct_storage_from_data_pointer, functools.partial):
        return
    # A function in C: what calls it is the submission, in the eyes of the audit hook.
    torch._C._construct_storage_from_data_pointer = functools.partial(sys.audit, "ctypes.storage")
    kind = torch._C.StorageBase
    # Python lets nobody set attributes of a class that is written in C; this is the dictionary behind it.
    (methods, *_) = gc.get_referents(vars(kind))
    for name in _OF_STORAGES:
        bound = methods[name].__get__(None, torch.UntypedStorage)
        methods[name] = staticmethod(byte_access.announced(name, bound))
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
    for module, names in ((torch._C, _OF_TORCH), (torch._C._aoti, _OF_COMPILED_MODELS)):
        for name in names:
            if hasattr(module, name):
                setattr(module, name, byte_access.announced(name, getattr(module, name)))
