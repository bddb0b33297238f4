"""Compilers on the virtual GPU: `torch.compile` joins kernels, export is refused, TorchScript runs as Python.

TorchScript has a documented way to be switched off (environment variable PYTORCH_JIT=0), which leaves functions and
modules as they are; the same happens here to the program's own. Not here: other refusals
(`vgpu.torch_integration.patches.refusals`).
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

from vgpu.runtime.attachment import attached
from vgpu.runtime.machine import Machine
from vgpu.runtime.patching import PatchSet
from vgpu.runtime.unsupported import unsupported
from vgpu.torch_integration.compiled import regions
from vgpu.torch_integration.devices import place
from vgpu.torch_integration.patches.imports import when_imported


def install(patches: PatchSet, machine: Machine) -> None:
    """Refuse what compiles, let TorchScript run as Python."""
    patches.rebind(torch.compile, _compile)
    patches.rebind(torch.cond, _cond)
    _torchscript(patches, machine)
    for name in ("export", "export_for_training"):
        patches.set_existing(torch.export, name, refuse("torch.export"))
    patches.set(torch.onnx, "export", refuse("torch.onnx.export"))
    when_imported(patches, {
        "torch._dynamo.eval_frame": lambda module: _refuse_compiled_before(patches, module),
        "torch.nn.attention.flex_attention": lambda module: _refuse_flex_attention(patches, module),
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


def _compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = "inductor",
    mode: str | None = None,
    options: Any = None,
    disable: bool = False,
) -> Any:
    """`torch.compile`: real values, by the eager operations; the time of fused kernels
    (`vgpu.torch_integration.compiled`)."""
    if mode is not None and options is not None:
        raise RuntimeError("Either mode or options can be specified, but both can't be specified at the same time.")
    if model is None:
        return lambda function: _compile(
            function, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options, disable=disable
        )
    if disable or _switched_off():
        return model
    name = getattr(model, "__name__", type(model).__name__)
    known = regions.region(name, mode, backend, dynamic, options)
    if isinstance(model, torch.nn.Module):
        return CompiledModule(model, known)

    @functools.wraps(model)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        return _run(known, model, args, kwargs)

    return compiled


def _cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
    """`torch.cond`, which compiles both branches to choose one: here only the chosen one runs."""
    return true_fn(*operands) if pred else false_fn(*operands)


def _run(known: regions.Region, function: Any, args: Any, kwargs: Any) -> Any:
    gpu = attached()
    return function(*args, **kwargs) if gpu is None else regions.call(gpu, known, function, args, kwargs)


class CompiledModule(torch.nn.Module):
    """What `torch.compile(module)` gives: everything but calling it goes to the module, as `OptimizedModule` does."""

    def __init__(self, module: torch.nn.Module, known: regions.Region) -> None:
        super().__init__()
        torch.nn.Module.__setattr__(self, "_orig_mod", module)
        self.__dict__["_known"] = known
        self.__dict__.pop("training", None)  # the module's own, from here on

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_orig_mod"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        module = self.__dict__.get("_modules", {}).get("_orig_mod")
        if module is None:
            super().__setattr__(name, value)
        else:
            setattr(module, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's, hooks included, as compiled code."""
        return _run(self._known, self._orig_mod, args, kwargs)


def _refuse_compiled_before(patches: PatchSet, eval_frame: ModuleType) -> None:
    """A function that was compiled before attach is refused when it is called."""
    original = eval_frame._callback_from_stance

    def from_stance(callback: Any) -> Any:
        if callback is None or callback is False:  # `torch.compiler.disable`
            return original(callback)
        raise unsupported("functions compiled before attach")

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
