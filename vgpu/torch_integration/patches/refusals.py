"""What of PyTorch's CUDA side is refused: each of it raises `vgpu.Unsupported` with the advice of
`vgpu.runtime.unsupported`.

Not here: compilers (`vgpu.torch_integration.patches.compilers`), and refusals that depend on an operation's arguments
(the two modes).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import functools
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any

import torch
import torch.cuda.jiterator
import torch.cuda.memory
import torch.cuda.nccl
import torch.cuda.tunable
import torch.multiprocessing.reductions as reductions
import torch.utils.dlpack

from vgpu.runtime.attachment import attached
from vgpu.runtime.machine import Machine
from vgpu.runtime.patching import PatchSet
from vgpu.runtime.unsupported import unsupported
from vgpu.torch_integration.devices import place
from vgpu.torch_integration.patches.compilers import refuse
from vgpu.torch_integration.patches.imports import when_imported

_ALLOCATORS = ("CUDAPluggableAllocator", "change_current_allocator")
_RAW = ("caching_allocator_alloc", "caching_allocator_delete")
_NCCL = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "init_rank")
_BIASES = ("causal_lower_right", "causal_upper_left")
_NESTED = ("nested_tensor", "as_nested_tensor")


def install(patches: PatchSet, machine: Machine) -> None:
    """Put the refusals in place."""
    _allocators(patches)
    _runtime(patches)
    _exports(patches, machine)
    _python_loops(patches, machine)
    for name in _NCCL:
        patches.set_existing(torch.cuda.nccl, name, refuse("direct calls of NCCL", f"torch.cuda.nccl.{name}"))
    patches.set(torch.cuda.tunable, "enable", _tunable)
    # Only when a program imports it: the module imports torch.compile's machinery, which takes seconds.
    when_imported(patches, {"torch.nn.attention.bias": lambda module: _biases(patches, module)})


def _python_loops(patches: PatchSet, machine: Machine) -> None:
    """`apply_`, `map_` and `map2_` call a Python function for each element of tensors of the host alone."""

    def of_host(name: str) -> Callable[..., Any]:
        own = getattr(torch.Tensor, name)

        @functools.wraps(own)
        def method(tensor: torch.Tensor, *arguments: Any) -> Any:
            if any(isinstance(each, torch.Tensor) and machine.registry.has(each) for each in (tensor, *arguments)):
                raise TypeError(f"{name} is only implemented on CPU tensors")
            return own(tensor, *arguments)

        return method

    for name in ("apply_", "map_", "map2_"):
        patches.set(torch.Tensor, name, of_host(name))


def _biases(patches: PatchSet, module: ModuleType) -> None:
    for name in _BIASES:
        function = getattr(module, name)
        stand_in = refuse("causal biases of torch.nn.attention.bias", name, like=function)
        patches.set(module, name, stand_in)  # imported from here on
        patches.rebind(function, stand_in)  # imported by name before


def _refused_class(name: str, entry: str, base: type[Any] = object) -> type[Any]:
    """A class that can be used in `isinstance` and annotations, but not made."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        raise unsupported(entry)

    return type(name, (base,), {"__init__": init, "__doc__": f"Refused: {entry} cannot be simulated."})


def _allocators(patches: PatchSet) -> None:
    patches.rebind(torch.cuda.MemPool, _refused_class("MemPool", "torch.cuda.MemPool"))
    patches.rebind(torch.cuda.use_mem_pool, refuse("torch.cuda.MemPool", like=torch.cuda.use_mem_pool))
    for names, entry in ((_ALLOCATORS, "pluggable allocators"), (_RAW, "raw allocations")):
        for name in names:
            function = getattr(torch.cuda.memory, name)
            stand_in = _refused_class(name, entry) if isinstance(function, type) else refuse(entry)
            patches.rebind(function, stand_in)


class _Status:
    """`cudaError`: only success is ever returned."""

    success = 0


class CudaRuntime:
    """What `torch.cuda.cudart()` gives: the switches of an outside profiler do nothing, the rest is refused."""

    cudaError = _Status  # noqa: N815 - CUDA's name

    def cudaProfilerStart(self) -> int:  # noqa: N802 - CUDA's name
        """No outside profiler is there to be started."""
        return _Status.success

    cudaProfilerStop = cudaProfilerStart  # noqa: N815 - CUDA's name

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:  # noqa: N802 - CUDA's name
        """Free and total bytes."""
        free, total = torch.cuda.mem_get_info(device)
        return free, total

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise unsupported("cudart calls", name)


def _runtime(patches: PatchSet) -> None:
    runtime = CudaRuntime()
    patches.set(torch.cuda, "_cudart", runtime)
    patches.rebind(torch.cuda.cudart, lambda: runtime)
    kernels = "CUDA C++ kernels compiled at run time"
    patches.set_existing(torch.cuda, "_compile_kernel", refuse(kernels))
    for name in ("_create_jit_fn", "_create_multi_output_jit_fn"):
        patches.set(torch.cuda.jiterator, name, lambda *_, **__: refuse(kernels, "torch.cuda.jiterator"))
    patches.set_existing(
        torch.cuda, "current_blas_handle", refuse("handles of CUDA's libraries", "current_blas_handle")
    )
    when_imported(patches, {"torch.utils.cpp_extension": lambda module: _extensions(patches, module)})


def _extensions(patches: PatchSet, module: ModuleType) -> None:
    """Extensions in C++ alone are built as ever; what they compute on GPU tensors runs on the CPU."""
    entry = "CUDA C++ extensions"
    compile_, inline = module._jit_compile, module.load_inline

    def load_inline(name: str, cpp_sources: Any, cuda_sources: Any = None, *args: Any, **kwargs: Any) -> Any:
        if cuda_sources:
            raise unsupported(entry, f"{name!r}")
        return inline(name, cpp_sources, cuda_sources, *args, **kwargs)

    def compile_sources(name: str, sources: Any, *args: Any, **kwargs: Any) -> Any:
        if any(module._is_cuda_file(source) for source in sources):
            raise unsupported(entry, f"{name!r}")
        return compile_(name, sources, *args, **kwargs)

    patches.set(module, "load_inline", load_inline)
    patches.set(module, "_jit_compile", compile_sources)
    patches.set(module, "CUDAExtension", refuse(entry))


def _exports(patches: PatchSet, machine: Machine) -> None:
    """A GPU tensor's memory is the CPU's: no other library and no other process may take it for the GPU's."""
    has = machine.registry.has
    export = torch.Tensor.__dlpack__
    describe: Any = vars(torch.Tensor)["__cuda_array_interface__"].fget
    to_dlpack = torch._C._to_dlpack

    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if has(self):
            raise unsupported("DLPack")
        return export(self, *args, **kwargs)

    def function(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if has(tensor):
            raise unsupported("DLPack")
        return to_dlpack(tensor, *args, **kwargs)

    def interface(self: torch.Tensor) -> Any:
        if has(self):
            raise unsupported("__cuda_array_interface__")
        return describe(self)

    patches.set(torch.Tensor, "__dlpack__", method)
    patches.rebind(to_dlpack, function)
    patches.set(torch.Tensor, "__cuda_array_interface__", property(interface))

    for name in _NESTED:
        patches.set(torch.nested, name, _no_nested(getattr(torch.nested, name), machine))

    reducers: dict[Any, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    plain = reductions.reduce_tensor

    def reduce_tensor(tensor: torch.Tensor) -> Any:
        if attached() is not None and has(tensor):
            raise unsupported("sharing GPU tensors with another process")
        return plain(tensor)

    changed = {kind: reducer for kind, reducer in reducers.items() if reducer is plain}
    reducers.update(dict.fromkeys(changed, reduce_tensor))
    patches.on_undo(lambda: reducers.update(changed))


def _no_nested(make: Any, machine: Machine) -> Any:
    """Nested tensors of the default layout hold their parts in C++; those of layout torch.jagged are Python."""

    @functools.wraps(make)
    def nested(tensor_list: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("layout") is not torch.jagged:
            device = kwargs.get("device", torch.utils._device.CURRENT_DEVICE)
            parts = tensor_list if isinstance(tensor_list, (list, tuple)) else [tensor_list]
            resident = any(isinstance(part, torch.Tensor) and machine.registry.has(part) for part in parts)
            if place(machine, device) is not None or resident:
                raise unsupported("nested tensors with layout torch.strided")
        return make(tensor_list, *args, **kwargs)

    return nested


def _tunable(val: bool = True) -> None:
    if val:
        raise unsupported("torch.cuda.tunable")
