"""Compilers on the virtual GPU: `torch.compile` is PyTorch's own, export is refused, TorchScript runs as Python.

TorchScript has a documented way to be switched off (environment variable PYTORCH_JIT=0), which leaves functions and
modules as they are; the same happens here to the program's own. Not here: other refusals
(`vgpu.torch_integration.patches.refusals`), and `torch.compile` (`vgpu.torch_integration.patches.dynamo`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from vgpu.runtime.machine import Machine
from vgpu.runtime.patching import PatchSet
from vgpu.runtime.unsupported import unsupported
from vgpu.torch_integration.devices import place


def install(patches: PatchSet, machine: Machine) -> None:
    """Refuse what compiles, let TorchScript run as Python."""
    _torchscript(patches, machine)
    for name in ("export", "export_for_training"):
        patches.set_existing(torch.export, name, refuse("torch.export"))
    patches.set(torch.onnx, "export", refuse("torch.onnx.export"))


def refuse(name: str, detail: str = "", *, like: Any = None) -> Callable[..., Any]:
    """A function that raises the entry `name` of the list of what is unsupported; it looks like the function `like`."""

    def refused(*args: Any, **kwargs: Any) -> Any:
        raise unsupported(name, detail)

    return refused if like is None else functools.update_wrapper(refused, like)


def _torchscript(patches: PatchSet, machine: Machine) -> None:
    """Inside TorchScript a tensor shows its real device, so scripted code would be wrong about `x.is_cuda`."""
    script, load = torch.jit.script, torch.jit.load

    def keep(obj: Any, *args: Any, **kwargs: Any) -> Any:
        # PyTorch scripts some formulas of its own, for their graphs (torch/_decomp/decompositions_for_jvp.py).
        own = str(getattr(obj, "__module__", "")).startswith("torch.") and not isinstance(obj, torch.nn.Module)
        if not own:
            return _without_saving(obj)
        # The names that the code uses are looked up in its caller's frame, which is one further up here.
        return script(obj, *args, **{**kwargs, "_frames_up": kwargs.get("_frames_up", 0) + 1})

    def keep_traced(func: Any, *args: Any, **kwargs: Any) -> Any:
        return _without_saving(func)

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


def _refuse_to_save(*args: Any, **kwargs: Any) -> Any:
    raise unsupported("saving TorchScript", "save")


def _without_saving(obj: Any) -> Any:
    """Modules and functions stay what they are, but for the method that only TorchScript's have."""
    if isinstance(obj, (torch.nn.Module, FunctionType)) and not hasattr(obj, "save"):
        obj.__dict__["save"] = _refuse_to_save
    return obj


def _only_on_cpu(call: Callable[..., Any], has: Callable[[torch.Tensor], bool]) -> Callable[..., Any]:
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, torch.Tensor) and has(value) for value in tree_leaves((args, kwargs))):
            raise unsupported("TorchScript code made before attach", str(self.name))
        return call(self, *args, **kwargs)

    return guarded
