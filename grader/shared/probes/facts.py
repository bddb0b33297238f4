"""What a tensor is, read below everything in Python that could answer for it.

An attribute of a tensor goes through PyTorch's modes of functions, a subclass and the tables of a virtual GPU. All of
them are objects of the submission's process. These functions let PyTorch's C++ answer, and use only what they were
given before there was a submission.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

_Getter = Callable[[Any], Any]
_Within = Callable[[object, str], Any]
_Found = list[Any]
_Modules = Callable[[object], _Found]
_Off = Callable[[], AbstractContextManager[object]]


def has_graph(
    *values: object,
    off: _Off = torch._C.DisableTorchFunction,
    requires_grad: _Getter = torch._C.TensorBase.requires_grad.__get__,  # type: ignore[attr-defined]
    tensor: type = torch.Tensor,
) -> bool:
    """Whether backward could go through one of these tensors. What is no tensor has no graph."""
    with off():
        return any(issubclass(type(value), tensor) and requires_grad(value) for value in values)


def dtype(
    value: object,
    *,
    off: _Off = torch._C.DisableTorchFunction,
    dtype_of: _Getter = torch._C.TensorBase.dtype.__get__,  # type: ignore[attr-defined]
) -> torch.dtype:
    """The type of a tensor's elements."""
    with off():
        found: torch.dtype = dtype_of(value)
        return found


def gradient(
    value: object,
    *,
    off: _Off = torch._C.DisableTorchFunction,
    grad_of: _Getter = torch._C.TensorBase.__dict__["grad"].__get__,
) -> torch.Tensor | None:
    """A tensor's gradient, whatever its class says."""
    with off():
        found: torch.Tensor | None = grad_of(value)
        return found


def entry(
    value: object,
    name: str,
    *,
    space: Callable[[Any], dict[str, Any]] = vars,
    items: _Getter = dict.items,
    kind: _Getter = type,
    text: type = str,
) -> Any:
    """What an object's namespace has under a name, if the name is a plain text.

    `space(value)[name]` would also ask a key of a class of the submission's whether it is equal to the name.

    Raises:
        KeyError: it has nothing there.
    """
    for key, found in items(space(value)):
        if kind(key) is text and key == name:
            return found
    raise KeyError(name)


def modules_of(
    model: object,
    *,
    within: _Within = entry,
    values: _Getter = dict.values,
) -> _Found:
    """A model and the modules in it, each once, in the order of `nn.Module.modules`, however its methods answer."""
    found: _Found = []
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if not any(module is other for other in found):
            found.append(module)
            inner = [each for each in values(within(module, "_modules")) if each is not None]
            waiting += inner[::-1]
    return found


def parameters_of(
    model: object,
    *,
    modules: _Modules = modules_of,
    within: _Within = entry,
    values: _Getter = dict.values,
) -> _Found:
    """A model's parameters, each once, in the order of `nn.Module.parameters`, however its methods answer."""
    found: _Found = []
    for module in modules(model):
        for each in values(within(module, "_parameters")):
            if each is not None and not any(each is other for other in found):
                found.append(each)
    return found


def attributes_of(
    model: object,
    *,
    modules: _Modules = modules_of,
    space: Callable[[Any], dict[str, Any]] = vars,
    ordered: Callable[..., list[Any]] = sorted,
    text: type = str,
) -> _Found:
    """For each of a model's modules, the names of what is on it: a method put there hides its class's."""
    return [ordered(key for key in dict.keys(space(module)) if type(key) is text) for module in modules(model)]


def buffers_of(
    model: object,
    *,
    modules: _Modules = modules_of,
    within: _Within = entry,
    values: _Getter = dict.values,
) -> _Found:
    """A model's buffers, module by module, however its methods answer."""
    return [each for module in modules(model) for each in values(within(module, "_buffers")) if each is not None]


def hooks_of(
    model: object,
    *,
    modules: _Modules = modules_of,
    within: _Within = entry,
    number: Callable[[Any], int] = dict.__len__,
    of_a_module: tuple[str, ...] = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"),
    of_all: tuple[dict[int, Any], ...] = (
        torch.nn.modules.module._global_forward_hooks,
        torch.nn.modules.module._global_forward_pre_hooks,
        torch.nn.modules.module._global_backward_hooks,
    ),
) -> int:
    """How many hooks run in a pass of a model: those of its modules, and those of every module."""
    own = sum(number(within(module, name)) for module in modules(model) for name in of_a_module)
    return own + sum(map(number, of_all))


def is_training(module: object, *, within: _Within = entry) -> bool:
    """Whether a module is in training mode, whatever its class says."""
    return bool(within(module, "training"))
