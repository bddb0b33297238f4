"""Fake tensors of a GPU while PyTorch traces: C++ takes them for tensors of the CPU, Python sees the GPU.

The backward pass of a fake tensor on a GPU needs a CUDA context (`hasPrimaryContext`), which no machine without a card
has. So C++ code, autograd's engine among it, sees such a tensor on "cpu:0", which no program names. Where
C++ code then makes a tensor next to it, it asks for "cpu:0", and gets the GPU. Not here: real tensors
(`vgpu.torch_integration.dispatch`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch._guards import TracingContext

from vgpu.runtime.machine import Machine
from vgpu.runtime.patching import PatchSet
from vgpu.runtime.thread_state import THREAD
from vgpu.torch_integration.patches.dynamo import ModesOn
from vgpu.torch_integration.patches.imports import when_imported

_HIDDEN = torch.device("cpu", 0)
_DEVICE_OF = torch.ops.prim.device.default
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_NAME = "__torch_dispatch__"


def install(patches: PatchSet, machine: Machine, modes_on: ModesOn) -> None:
    """Change those classes that are imported, and the others when they are."""
    when_imported(patches, {
        "torch._subclasses.fake_tensor": lambda module: _fake_tensors(patches, module, machine),
        "torch.fx.experimental.proxy_tensor": lambda module: _graphs(patches, module, machine, modes_on),
    })  # fmt: skip
    patches.set(torch.Tensor, "_make_wrapper_subclass", staticmethod(_wrappers(torch.Tensor._make_wrapper_subclass)))


def _is_tracing() -> bool:
    return THREAD.graphs > 0 or TracingContext.try_get() is not None


def _fake_tensors(patches: PatchSet, module: ModuleType, machine: Machine) -> None:
    """PyTorch starts CUDA for a fake tensor on a GPU where there is one; here there is none to start."""
    mode, tensor = module.FakeTensorMode, module.FakeTensor
    patches.set(module, "init_gpu_context", lambda device: None)
    patches.set(mode, "avoid_device_init", property(lambda self: True))
    patches.set(mode, _NAME, _on_gpu(machine, mode.__torch_dispatch__))
    dispatch = tensor.__torch_dispatch__.__func__
    # C++ code asks the tensor, or, while a mode is on, the mode, which looks into this table.
    handlers = module._DISPATCH_META_HANDLERS
    device_of = handlers[_DEVICE_OF]

    def tensor_dispatch(
        cls: Any, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE_OF and _is_hidden(args[0]):
            return _HIDDEN
        return dispatch(cls, func, types, args, kwargs or {})

    patches.set(tensor, _NAME, classmethod(tensor_dispatch))
    patches.on_undo(functools.partial(handlers.__setitem__, _DEVICE_OF, device_of))
    handlers[_DEVICE_OF] = lambda args: _HIDDEN if _is_hidden(args[0]) else device_of(args)


def _graphs(patches: PatchSet, module: ModuleType, machine: Machine, modes_on: ModesOn) -> None:
    """Operations on their way into a graph, and constants of it, which are real tensors."""
    mode, unset = module.ProxyTorchDispatchMode, module.unset_fake_temporarily

    @contextlib.contextmanager
    def real_tensors() -> Iterator[Any]:
        with unset() as before, modes_on():
            yield before

    enter, leave = mode.__enter__, mode.__exit__

    def begin(self: Any) -> Any:
        THREAD.graphs += 1
        return enter(self)

    def end(self: Any, *error: Any) -> Any:
        THREAD.graphs -= 1
        return leave(self, *error)

    patches.set(mode, "__enter__", begin)
    patches.set(mode, "__exit__", end)
    dispatch = mode.__torch_dispatch__

    @functools.wraps(dispatch)
    def dispatch_seen(*args: Any, **kwargs: Any) -> Any:
        # A graph that is traced with real tensors (`make_fx`) has real factories.
        with contextlib.nullcontext() if torch._C._get_dispatch_mode(_FAKE) else modes_on():
            return dispatch(*args, **kwargs)

    patches.set(mode, _NAME, _on_gpu(machine, dispatch_seen))
    patches.set(module, "unset_fake_temporarily", real_tensors)


def _is_hidden(tensor: Any) -> bool:
    on_gpu: bool = tensor.fake_device.type == "cuda"
    return on_gpu and _is_tracing() and not tensor.fake_mode.in_kernel_invocation


def _on_gpu(machine: Machine, dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """A mode's dispatch to which that device means the current GPU, while PyTorch traces."""

    @functools.wraps(dispatch)
    def mode_dispatch(
        self: Any, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if kwargs and kwargs.get("device") == _HIDDEN and _is_tracing():
            kwargs = {**kwargs, "device": machine.gpus[THREAD.device].device}
        return dispatch(self, func, types, args, kwargs or {})

    return mode_dispatch


def _wrappers(make: Callable[..., Any]) -> Callable[..., Any]:
    """Functional tensors of fake ones."""

    def make_wrapper(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_tracing():
            args = tuple(_hidden(value) for value in args)
            kwargs = {name: _hidden(value) for name, value in kwargs.items()}
        return make(cls, *args, **kwargs)

    return make_wrapper


def _hidden(value: Any) -> Any:
    return _HIDDEN if isinstance(value, torch.device) and value.type == "cuda" else value
