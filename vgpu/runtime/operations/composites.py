"""Operations that only call others (`matmul` calls `mm`), for profiles: PyTorch's own show both, one within the other.

Such an operation never reaches the dispatch mode, which sees what it calls. So a function that the program calls is
shown under its own name, if that is such an operation. Not here: those that operations call in turn
(`aten::_convolution`), and those of autograd's backward.
"""

from __future__ import annotations

from typing import Any

import torch

_names: dict[Any, str] = {}
# Methods of Python that are no operation, and call `to` (python_variable_methods.cpp, `dispatch_to`).
_CONVERSIONS = {
    "cuda", "cpu", "half", "float", "double", "bfloat16", "int", "long", "short", "bool", "byte", "char", "cfloat",
}  # fmt: skip


def name_of(function: Any) -> str:
    """The operation's name with its namespace, "" if the function is none or has a kernel of its own."""
    name = _names.get(function)
    if name is None:
        name = _names[function] = _look_up(getattr(function, "__name__", ""))
    return name


def _look_up(name: str) -> str:
    if name.startswith("__") and name.endswith("__"):  # an operator of Python: `__matmul__`
        name = name.strip("_")
    if name in _CONVERSIONS:
        return "aten::to"
    packet = getattr(torch.ops.aten, name, None) if name.isidentifier() else None
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return ""
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    plain = [
        overload.name() for overload in overloads if not any(argument.is_out for argument in overload._schema.arguments)
    ]
    plain = [overload for overload in plain if torch._C._dispatch_has_kernel(overload)]
    calls_others = all(
        torch._C._dispatch_has_kernel_for_dispatch_key(overload, "CompositeImplicitAutograd") for overload in plain
    )
    return f"aten::{name}" if plain and calls_others else ""
