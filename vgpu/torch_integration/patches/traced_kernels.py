"""Triton kernels in graphs: PyTorch's tracers see a kernel that Triton compiles, and its launch is interpreted.

Not here: what a launch does (`vgpu.torch_integration.patches.triton`).
"""

from __future__ import annotations

import copy
import functools
from types import ModuleType
from typing import Any

from vgpu.runtime.patching import PatchSet


def _compiled_form(kernel: Any) -> Any:
    """What Triton makes of a kernel where it compiles: PyTorch's tracers look for that class, and `run` interprets it.

    A kernel within `triton.autotune` and `triton.heuristics` is in the same decorators again; all else is returned as
    it is.
    """
    if not kernel.__class__.__module__.startswith("triton."):
        return kernel
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.interpreter import InterpretedFunction

    if isinstance(kernel, InterpretedFunction):
        return _jit_function(kernel)
    if isinstance(kernel, (Autotuner, Heuristics)):
        inner = _compiled_form(kernel.fn)
        if inner is not kernel.fn:
            kernel = copy.copy(kernel)
            kernel.fn = inner
    return kernel


@functools.cache  # its identity is what graphs and guards know
def _jit_function(interpreted: Any) -> Any:
    from triton.runtime.jit import JITFunction

    function = JITFunction(interpreted.fn, **interpreted.kwargs)
    function.pre_run_hooks = interpreted.pre_run_hooks
    return function


def by_dynamo(patches: PatchSet, module: ModuleType) -> None:
    """TorchDynamo puts a kernel's launch into its graph (`triton_kernel_wrapper_mutation`)."""
    wrap = module.VariableBuilder._wrap

    @functools.wraps(wrap)
    def wrap_compiled_form(self: Any, value: Any) -> Any:
        return wrap(self, _compiled_form(value))

    patches.set(module.VariableBuilder, "_wrap", wrap_compiled_form)


def on_which_devices(patches: PatchSet, module: ModuleType) -> None:
    """PyTorch remembers in each process whether Triton has a device, and PyTorch 2.11 traces no kernel without one."""
    remembering = [value for value in vars(module).values() if hasattr(value, "cache_clear")]

    def forget() -> None:
        for function in remembering:
            function.cache_clear()

    forget()
    patches.on_undo(forget)


def in_operators(patches: PatchSet, module: ModuleType) -> None:
    """`torch.library.wrap_triton`, which PyTorch 2.11 refuses for interpreted kernels in eager mode, too."""
    wrap = module.wrap_triton

    @functools.wraps(wrap)
    def wrap_triton(triton_kernel: Any) -> Any:
        return wrap(_compiled_form(triton_kernel))

    patches.rebind(wrap, wrap_triton)
