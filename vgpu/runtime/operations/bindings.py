"""Functions of PyTorch's that call one kernel each, in a fraction of the time that its overload takes.

An overload is called through TorchScript's interpreter, which matches the schema, and takes several microseconds. The
functions that programs call (`torch.mm`) parse their arguments themselves. Below the modes both reach the same kernel
with the same arguments (a test compares). Only overloads whose kernels never warn are here: a warning that comes out of
such a function names the line that calls it, ours, and not the program's. Not here: what the operations are
(`vgpu.runtime.operations.facts`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Not `torch.mm` and `torch.Tensor.add_`, which a program may replace.
_FUNCTIONS, _METHODS = torch._C._VariableFunctions, torch._C.TensorBase
_OF_FUNCTIONS = (
    "mm addmm bmm baddbmm mv dot neg exp log sqrt rsqrt tanh sigmoid sin cos abs reciprocal threshold threshold_ "
    "maximum minimum t permute unsqueeze add.Tensor sub.Tensor mul.Tensor transpose.int select.int sum.dim_IntList "
    "mean.dim amax relu relu_ addcmul addcdiv lerp.Scalar"
)
_OF_METHODS = (
    "add_.Tensor sub_.Tensor mul_.Tensor addcmul_ addcdiv_ lerp_.Scalar sqrt_ neg_ zero_ fill_.Scalar "
    "view expand detach"
)


def _overload(name: str) -> tuple[Any, str]:
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default"), base


_DIRECT: dict[Any, Callable[..., Any]] = {}
for _owner, _names in ((_FUNCTIONS, _OF_FUNCTIONS), (_METHODS, _OF_METHODS)):
    for _name in _names.split():
        _one, _base = _overload(_name)
        _DIRECT[_one] = getattr(_owner, _base)


def overloads() -> list[Any]:
    """Those for which there is a function."""
    return list(_DIRECT)


def direct(overload: Any) -> Callable[..., Any] | None:
    """What runs the overload on a plain tensor and other positional arguments; None if only the overload does."""
    return _DIRECT.get(overload)


def of_threshold() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Those of `aten::threshold` and `aten::threshold_`."""
    return _DIRECT[torch.ops.aten.threshold.default], _DIRECT[torch.ops.aten.threshold_.default]
