"""Compilers on the virtual GPU: `torch.compile` and TorchScript are PyTorch's own, export is refused.

A traced function stays a Python function. Not here: other refusals (`vgpu.torch_integration.patches.refusals`),
`torch.compile` (`vgpu.torch_integration.patches.dynamo`), and what scripted code calls
(`vgpu.torch_integration.patches.torchscript`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import functools
from collections.abc import Callable, Container
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from vgpu.runtime.machine import Machine
from vgpu.runtime.patching import PatchSet
from vgpu.runtime.thread_state import THREAD
from vgpu.runtime.unsupported import unsupported
from vgpu.torch_integration.devices import place
from vgpu.torch_integration.patches import torchscript


def install(
    patches: PatchSet,
    machine: Machine,
    modes_on: Callable[[], AbstractContextManager[None]],
    answered: Container[Any],
) -> None:
    """Refuse what compiles for another device; let scripted code see the GPU."""
    _torchscript(patches, machine, modes_on, answered)
    for name in ("export", "export_for_training"):
        patches.set_existing(torch.export, name, refuse("torch.export"))
    patches.set(torch.onnx, "export", refuse("torch.onnx.export"))


def refuse(name: str, detail: str = "", *, like: Any = None) -> Callable[..., Any]:
    """A function that raises the entry `name` of the list of what is unsupported; it looks like the function `like`."""

    def refused(*args: Any, **kwargs: Any) -> Any:
        raise unsupported(name, detail)

    return refused if like is None else functools.update_wrapper(refused, like)


def _torchscript(
    patches: PatchSet,
    machine: Machine,
    modes_on: Callable[[], AbstractContextManager[None]],
    answered: Container[Any],
) -> None:
    """Inside TorchScript a tensor shows its real device: code that was not adapted would be wrong about `x.is_cuda`."""
    script, load = torch.jit.script, torch.jit.load
    adapted = torchscript.install(patches, modes_on, answered)

    def compile_script(obj: Any, *args: Any, **kwargs: Any) -> Any:
        # The names that the code uses are looked up in its caller's frame, which is one further up here.
        compiled = script(obj, *args, **{**kwargs, "_frames_up": kwargs.get("_frames_up", 0) + 1})
        # PyTorch scripts some formulas of its own, for their graphs (torch/_decomp/decompositions_for_jvp.py).
        own = str(getattr(obj, "__module__", "")).startswith("torch.")
        if isinstance(compiled, torch.jit.ScriptFunction) and not own:
            adapted.update(torchscript.adapt(compiled))
        return compiled

    def keep_traced(func: Any, example_inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        inputs = example_inputs if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
        inputs, named = (inputs, {}) if example_inputs is not None else ((), kwargs.get("example_kwarg_inputs") or {})
        before, THREAD.scripted = THREAD.scripted, torchscript.Trace()
        try:
            func(*inputs, **named)
        finally:
            THREAD.scripted = before
        return _without_saving(func)

    def keep_traced_module(mod: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        for name, values in inputs.items():
            keep_traced(getattr(mod, name) if name != "forward" else mod, values)
        return _without_saving(mod)

    def load_on_cpu(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(map_location, (str, torch.device)) and place(machine, map_location) is not None:
            raise unsupported("torch.jit.load to the GPU")
        return load(f, map_location, *args, **kwargs)

    patches.rebind(script, compile_script)
    patches.rebind(torch.jit.trace, keep_traced)
    patches.rebind(torch.jit.trace_module, keep_traced_module)
    patches.rebind(load, load_on_cpu)
    for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod):  # made before attach, or loaded
        patches.set(kind, "__call__", _only_on_cpu(kind.__call__, machine.registry.has, adapted))
    for owner in (torch.jit._script.RecursiveScriptModule, torch._C.ScriptFunction):
        for name in ("save", "save_to_buffer"):
            patches.set_existing(owner, name, refuse("saving TorchScript", name))
    for name in ("save", "freeze", "optimize_for_inference"):
        patches.set(torch.jit, name, refuse("saving TorchScript", f"torch.jit.{name}"))


def _refuse_to_save(*args: Any, **kwargs: Any) -> Any:
    raise unsupported("saving TorchScript", "save")


def _without_saving(obj: Any) -> Any:
    """Modules and functions stay what they are, but for the method that only TorchScript's have."""
    if isinstance(obj, (torch.nn.Module, FunctionType)) and not hasattr(obj, "save"):
        obj.__dict__["save"] = _refuse_to_save
    return obj


def _only_on_cpu(
    call: Callable[..., Any], has: Callable[[torch.Tensor], bool], adapted: Container[str]
) -> Callable[..., Any]:
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, torch.Tensor) and has(value) for value in tree_leaves((args, kwargs))):
            is_method = isinstance(self, torch._C.ScriptMethod)
            name = f"{self.owner._type().qualified_name()}.{self.name}" if is_method else self.qualified_name
            if name not in adapted:
                raise unsupported("TorchScript code made before attach", str(self.name))
        before, THREAD.scripted = THREAD.scripted, torchscript.Call()
        try:
            return call(self, *args, **kwargs)
        except RuntimeError as error:
            reported = THREAD.scripted.reported(error)
        finally:
            THREAD.scripted = before
        raise reported

    return guarded
