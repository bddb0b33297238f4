"""Python code that PyTorch calls from inside an operation, where the function mode is off: it is entered again.

The program's own dispatch modes, DTensor's dispatcher and saved-tensor hooks ask for devices and name them like any
other code. Not here: tensor subclasses (`vgpu.torch_integration.dispatch.extensions`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType, ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from vgpu.runtime.patching import PatchSet
from vgpu.torch_integration.handling_mode import seen_by
from vgpu.torch_integration.patches.imports import when_imported

# Those that C++ calls (`dispatchDTensorOp` in torch/csrc/autograd/python_variable.cpp).
_OF_DTENSOR = (
    "_propagate_op_sharding_dispatch_slow_path", "_dispatch_get_local_results_slow_path",
    "_dispatch_fast_path_python_tail",
)  # fmt: skip
_NAME = "__torch_dispatch__"

Function = Callable[..., Any]


def install(patches: PatchSet, mode: TorchFunctionMode, own: type[TorchDispatchMode]) -> None:
    """Let that code see the devices that the program sees; `own` is this library's dispatch mode."""

    def inside(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with seen_by(mode):
                return function(*args, **kwargs)

        return call

    _saved_tensors(patches, inside)
    _modes(patches, inside, own)
    _decomposing(patches, mode)
    when_imported(
        patches, {"torch.distributed.tensor._api": lambda module: _distributed_tensors(patches, module, inside)}
    )


def _saved_tensors(patches: PatchSet, inside: Callable[[Function], Function]) -> None:
    """The hooks of checkpointing and of `save_on_cpu`."""
    push = torch._C._autograd._push_saved_tensors_default_hooks
    patches.set(
        torch._C._autograd,
        "_push_saved_tensors_default_hooks",
        lambda pack, unpack: push(inside(pack), inside(unpack)),
    )


def _modes(patches: PatchSet, inside: Callable[[Function], Function], own: type[TorchDispatchMode]) -> None:
    """A dispatch mode of the program's; those that PyTorch asks after all others (fake tensors, tracing) stay alone."""
    enter, leave = TorchDispatchMode.__enter__, TorchDispatchMode.__exit__
    # How often each is entered: a mode that PyTorch asks is off its stack meanwhile, and may enter itself again.
    entered: dict[int, int] = {}

    def enter_seen(self: Any) -> Any:
        if not isinstance(self, own) and getattr(self, "_mode_key", None) is None:
            if _NAME not in vars(self):
                # PyTorch asks the object, not its class, which stays as the program made it.
                vars(self)[_NAME] = MethodType(inside(type(self).__torch_dispatch__), self)
                entered[id(self)] = 0
            if id(self) in entered:
                entered[id(self)] += 1
        return enter(self)

    def leave_seen(self: Any, *error: Any) -> Any:
        result = leave(self, *error)
        if id(self) in entered:
            entered[id(self)] -= 1
            if not entered[id(self)]:
                del entered[id(self)], vars(self)[_NAME]
        return result

    patches.set(TorchDispatchMode, "__enter__", enter_seen)
    patches.set(TorchDispatchMode, "__exit__", leave_seen)


def _decomposing(patches: PatchSet, mode: TorchFunctionMode) -> None:
    """A mode that takes an operation apart (FLOP counters in inference mode) means its parts.

    PyTorch asks a function mode about the operation itself, not about its parts, so that calling it would bring it back
    to the dispatch mode, without end. Where PyTorch runs alone, no function mode is on there.
    """
    decompose = torch._ops.OpOverload.decompose

    def decompose_alone(self: Any, *args: Any, **kwargs: Any) -> Any:
        stack = torch.overrides._get_current_function_mode_stack()
        if not stack or stack[-1] is not mode:
            return decompose(self, *args, **kwargs)
        torch.overrides._pop_mode()
        try:
            return decompose(self, *args, **kwargs)
        finally:
            torch.overrides._push_mode(mode)

    patches.set(torch._ops.OpOverload, "decompose", decompose_alone)


def _distributed_tensors(patches: PatchSet, module: ModuleType, inside: Callable[[Function], Function]) -> None:
    dispatcher = module.DTensor._op_dispatcher
    for name in _OF_DTENSOR:
        patches.set_existing(type(dispatcher), name, inside(getattr(type(dispatcher), name)))
    handlers: dict[Any, Function] = dispatcher._custom_op_handlers
    before = dict(handlers)
    handlers.update({operator: inside(handler) for operator, handler in before.items()})
    patches.on_undo(lambda: handlers.update(before))
