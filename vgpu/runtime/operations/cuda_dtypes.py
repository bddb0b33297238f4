"""Which dtypes CUDA's kernels take, and in which words they refuse the others: read from the table of this PyTorch.

The tables are in `cuda_rules/`, one for each version, written by `python -m vgpu.tools.cuda_rules`; a version without
one gets that of the nearest older version. Not here: what the CPU's kernels refuse, too.
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import builtins
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vgpu.runtime.versions import torch_version

_FOLDER = Path(__file__).parent / "cuda_rules"
_PROMOTED = -1
DTYPE_NAMES = {
    torch.float32: "Float", torch.float64: "Double", torch.float16: "Half", torch.bfloat16: "BFloat16",
    torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble", torch.complex32: "ComplexHalf",
    torch.int64: "Long", torch.int32: "Int", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte",
    torch.bool: "Bool", torch.uint16: "UInt16", torch.uint32: "UInt32", torch.uint64: "UInt64",
    torch.float8_e4m3fn: "Float8_e4m3fn", torch.float8_e5m2: "Float8_e5m2",
}  # fmt: skip
_NO_KERNEL = (
    "NotImplementedError: Could not run '{}' with arguments from the 'CUDA' backend. This could be because the "
    "operator doesn't exist for this backend, or was omitted during the selective/custom build process (if using "
    "custom build)."
)


@dataclass(slots=True, frozen=True)
class DtypeRule:
    """What an overload refuses on CUDA."""

    place: int
    """Of the argument whose dtype decides; _PROMOTED: the dtype that all operands are promoted to."""
    name: str
    refused: Mapping[torch.dtype, str]
    """The errors: type and text."""
    empty: bool
    """Whether tensors pass that are empty or have no dimensions, because no kernel is launched for them."""

    def require(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise what CUDA raises for these arguments; nothing if `dtype` names what is computed in."""
        if kwargs.get("dtype") is not None:
            return
        if self.place == _PROMOTED:
            operands: list[Any] = [value for value in args if isinstance(value, (torch.Tensor, int, float, complex))]
            tensors = [value for value in operands if isinstance(value, torch.Tensor)]
            dtype = functools.reduce(_promoted, operands).dtype if len(operands) > 1 else tensors[0].dtype
        else:
            value = args[self.place] if self.place < len(args) else kwargs.get(self.name)
            tensors = [value] if isinstance(value, torch.Tensor) else [*filter(_is_tensor, value or ())]
            if not tensors:
                return
            dtype = tensors[0].dtype
        error = self.refused.get(dtype)
        if error is None:
            return
        if self.empty:
            others = [value for value in args if isinstance(value, torch.Tensor)]
            if not tensors[0].dim() or not all(tensor.numel() for tensor in (*tensors, *others)):
                return
        raise_error(error)


NOTHING = DtypeRule(0, "", {}, empty=False)
"""Of an overload that refuses no dtype."""


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _promoted(left: Any, right: Any) -> Any:
    """A scalar of the dtype that two operands are promoted to, with as many dimensions as decides the next one."""
    dtype = torch.result_type(left, right)
    dimensions = max((value.dim() for value in (left, right) if isinstance(value, torch.Tensor)), default=0)
    return torch.empty([1] * dimensions, dtype=dtype, device="cpu")


def raise_error(error: str) -> None:
    """Raise the exception of "Type: text"."""
    kind, _, text = error.partition(": ")
    raise getattr(builtins, kind, RuntimeError)(text)


def rule_of(overload: Any) -> DtypeRule | None:
    """The rule of an overload, of its in-place variant, or of the one that writes into `out`; None: nothing refused."""
    rules = _table()["overloads"]
    name = overload.name()
    found = next((rules[other] for other in _variants(name) if other in rules), None)
    if found is None:
        return None
    argument, templates, empty = found
    names = [item.name for item in overload._schema.arguments]
    if argument != "*" and argument not in names:
        return None
    refused = {}
    for template, dtypes in templates.items():
        for dtype in (getattr(torch, item) for item in dtypes):
            refused[dtype] = template.replace("{}", DTYPE_NAMES[dtype])
    return DtypeRule(_PROMOTED if argument == "*" else names.index(argument), argument, refused, empty)


def missing_kernel(overload: Any) -> Callable[[Sequence[Any], Mapping[str, Any]], None] | None:
    """Raises what CUDA raises for an overload that it has no kernel for; None where it has one."""
    name = overload.name()
    if name not in _table()["missing"]:
        return None
    return lambda args, kwargs: raise_error(_NO_KERNEL.format(name))


def _variants(name: str) -> list[str]:
    """The names under which the same kernel may be listed: `mul_.Tensor` and `mul.out` run that of `mul.Tensor`."""
    operator, _, kind = name.partition(".")
    functional = operator.removesuffix("_")
    plain = re.sub(r"_?out$", "", kind)
    kinds = [plain] if kind != plain and plain else ["", "Tensor", "default"] if kind == "out" else [kind]
    return [name, *(f"{functional}.{item}" if item else functional for item in kinds)]


@functools.cache
def _table() -> dict[str, Any]:
    version = torch_version()
    files = {
        tuple(map(int, file.stem.removeprefix("torch-").split("."))): file for file in _FOLDER.glob("torch-*.json")
    }
    if not files:
        return {"overloads": {}, "missing": []}
    older = [known for known in files if known <= version]
    table: dict[str, Any] = json.loads(files[max(older) if older else min(files)].read_text())
    return table
