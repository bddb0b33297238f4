"""Compilers on the virtual GPU: `torch.compile` and export are refused, TorchScript runs as Python.

Compiled code would run other kernels than the eager operations that are simulated. TorchScript has a documented way
to be switched off (environment variable PYTORCH_JIT=0), which leaves functions and modules as they are; the same
happens here to the program's own. Not here: other refusals (`vgpu.patches.refusals`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from vgpu.devices import place
from vgpu.machine import Machine
from vgpu.patches.imports import when_imported
from vgpu.patching import PatchSet
from vgpu.unsupported import unsupported


def install(patches: PatchSet, machine: Machine) -> None:
    """Refuse what compiles, let TorchScript run as Python."""
    patches.rebind(torch.compile, _compile)
    _torchscript(patches, machine)
    for name in ("export", "export_for_training"):
        patches.set_existing(torch.export, name, refuse("torch.export"))
    patches.set(torch.onnx, "export", refuse("torch.onnx.export"))
    when_imported(patches, {
        "torch._dynamo.eval_frame": lambda module: _refuse_compiled_before(patches, module),
        "torch.nn.attention.flex_attention": lambda module: _refuse_flex_attention(patches, module),
        "triton.runtime.jit": lambda module: patches.set(module.JITFunction, "run", refuse("Triton kernels")),
    })  # fmt: skip


def refuse(name: str, detail: str = "", *, like: Any = None) -> Callable[..., Any]:
    """A function that raises the entry `name` of the list of what is unsupported; it looks like the function `like`."""

    def refused(*args: Any, **kwargs: Any) -> Any:
        raise unsupported(name, detail)

    return refused if like is None else functools.update_wrapper(refused, like)


def _switched_off() -> bool:
    """TORCH_COMPILE_DISABLE=1, or `torch._dynamo.config.disable`: the program's own way to run eagerly."""
    config = sys.modules.get("torch._dynamo.config")
    return os.environ.get("TORCH_COMPILE_DISABLE", "0") == "1" or bool(getattr(config, "disable", False))


def _compile(model: Any = None, **options: Any) -> Any:
    """`torch.compile`: as in PyTorch compilation happens at the first call, so that is what raises."""
    if model is None:
        return lambda function: _compile(function, **options)
    if options.get("disable") or _switched_off():
        return model
    if isinstance(model, torch.nn.Module):
        return CompiledModule(model)
    return refuse("torch.compile", f"of {getattr(model, '__name__', type(model).__name__)}", like=model)


class CompiledModule(torch.nn.Module):
    """What `torch.compile(module)` gives: everything but calling it goes to the module, as `OptimizedModule` does."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._orig_mod = module

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._orig_mod, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Raises: it would have to be compiled now."""
        raise unsupported("torch.compile", f"of {type(self._orig_mod).__name__}")


def _refuse_compiled_before(patches: PatchSet, eval_frame: ModuleType) -> None:
    """A function that was compiled before attach is refused when it is called."""
    original = eval_frame._callback_from_stance

    def from_stance(callback: Any) -> Any:
        if callback is None or callback is False:  # `torch.compiler.disable`
            return original(callback)
        raise unsupported("torch.compile")

    patches.set(eval_frame, "_callback_from_stance", from_stance)


def _refuse_flex_attention(patches: PatchSet, module: ModuleType) -> None:
    patches.rebind(module.flex_attention, refuse("flex_attention"))
    patches.set(module, "flex_attention", refuse("flex_attention"))


def _torchscript(patches: PatchSet, machine: Machine) -> None:
    """Inside TorchScript a tensor shows its real device, so scripted code would be wrong about `x.is_cuda`."""
    script, load = torch.jit.script, torch.jit.load

    def keep(obj: Any, *args: Any, **kwargs: Any) -> Any:
        # PyTorch scripts some formulas of its own, for their graphs (torch/_decomp/decompositions_for_jvp.py).
        own = str(getattr(obj, "__module__", "")).startswith("torch.") and not isinstance(obj, torch.nn.Module)
        if not own:
            return obj
        # The names that the code uses are looked up in its caller's frame, which is one further up here.
        return script(obj, *args, **{**kwargs, "_frames_up": kwargs.get("_frames_up", 0) + 1})

    def keep_traced(func: Any, *args: Any, **kwargs: Any) -> Any:
        return func

    def load_on_cpu(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(map_location, (str, torch.device)) and place(machine, map_location) is not None:
            raise unsupported("torch.jit.load to the GPU")
        return load(f, map_location, *args, **kwargs)

    patches.rebind(script, keep)
    patches.rebind(torch.jit.trace, keep_traced)
    patches.rebind(torch.jit.trace_module, keep_traced)
    patches.rebind(load, load_on_cpu)
    for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod):  # made before attach, or loaded
        patches.set(kind, "__call__", _only_on_cpu(kind.__call__, machine.registry.has))
    for name in ("save", "freeze", "optimize_for_inference"):
        patches.set(torch.jit, name, refuse("saving TorchScript", f"torch.jit.{name}"))


def _only_on_cpu(call: Callable[..., Any], has: Callable[[torch.Tensor], bool]) -> Callable[..., Any]:
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, torch.Tensor) and has(value) for value in tree_leaves((args, kwargs))):
            raise unsupported("TorchScript code made before attach", str(self.name))
        return call(self, *args, **kwargs)

    return guarded
