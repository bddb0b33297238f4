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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from vgpu.runtime.versions import torch_version

_FOLDER = Path(__file__).parent / "cuda_rules"
_PROMOTED = -1
EMPTY, SCALAR = "empty", "scalar"
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
    passing: Collection[str]
    """Sizes (see `size_of`) for which no kernel is launched, so that nothing is refused."""
    choices: Mapping[str, DtypeRule] = field(default_factory=dict)
    """Rules by the value of an argument that chooses the kernel (see `choice_of`), instead of this one."""

    def require(self, overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise what CUDA raises for these arguments; nothing if `dtype` names what is computed in."""
        if self.choices:
            chosen = self.choices.get(choice_of(overload, args, kwargs))
            if chosen is not None:
                chosen.require(overload, args, kwargs)
            return
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
        if error is None or size_of(args, kwargs) in self.passing:
            return
        if EMPTY in self.passing and empty_result(overload, args, kwargs) is not None:
            return
        raise_error(error)


NOTHING = DtypeRule(0, "", {}, ())
"""Of an overload that refuses no dtype."""


def size_of(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any = None) -> str:
    """EMPTY if a tensor among the arguments is, or all results are; SCALAR if the first has no dimensions; or ""."""
    tensors = [item for item in tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
    results = [item for item in tree_leaves(result) if isinstance(item, torch.Tensor)]
    if not all(tensor.numel() for tensor in tensors) or (results and not any(item.numel() for item in results)):
        return EMPTY
    return SCALAR if tensors and not tensors[0].dim() else ""


def choice_of(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The argument that is a string, which chooses one of several kernels: "reduce=prod", or ""."""
    for place, argument in enumerate(overload._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        if isinstance(value, str):
            return f"{argument.name}={value}"
    return ""


def empty_result(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result on the meta device if it is empty; None otherwise, and if the shape function refuses the call."""

    def on_meta(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.empty_like(value, device="meta")
        return torch.device("meta") if isinstance(value, torch.device) else value

    try:
        result = overload(*tree_map(on_meta, tuple(args)), **tree_map(on_meta, dict(kwargs)))
    except Exception:
        return None
    tensors = [item for item in tree_leaves(result) if isinstance(item, torch.Tensor)]
    return result if tensors and not any(tensor.numel() for tensor in tensors) else None


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


_WITH_NUMBER = ("self_scalar", "other_scalar", "x_scalar", "n_scalar", "Scalar_Self", "Scalar_Other")


def rule_of(overload: Any) -> DtypeRule | None:
    """The rule of an overload, of its in-place variant, or of the one that writes into `out`; None: nothing refused."""
    rules = _rules()
    names = _variants(overload.name())
    base, _, variant = overload.name().rpartition(".")
    if variant in _WITH_NUMBER:  # the number becomes a tensor, for the same kernel
        names += [base, f"{base}.Tensor"]
    entries = next((rules[other] for other in names if other in rules), None)
    if entries is None:
        return None
    if "" in entries:
        return _rule(overload, entries[""])
    choices = {choice: rule for choice, entry in entries.items() if (rule := _rule(overload, entry)) is not None}
    refused = {dtype: text for rule in choices.values() for dtype, text in rule.refused.items()}
    return DtypeRule(0, "", refused, (), choices)


def _rule(overload: Any, entry: Sequence[Any]) -> DtypeRule | None:
    """From an entry of the table: argument, {template of an error: dtypes}, sizes that pass."""
    argument, templates, passing = entry
    names = [item.name for item in overload._schema.arguments]
    if argument != "*" and argument not in names:
        return None
    refused = {}
    for template, dtypes in templates.items():
        for dtype in (getattr(torch, item) for item in dtypes):
            refused[dtype] = template.replace("{}", DTYPE_NAMES[dtype])
    return DtypeRule(_PROMOTED if argument == "*" else names.index(argument), argument, refused, passing)


def missing_kernel(overload: Any) -> Callable[[Sequence[Any], Mapping[str, Any]], None] | None:
    """Raises what CUDA raises for an overload that it has no kernel for; None where it has one."""
    name = overload.name()
    if name not in _table()["missing"]:
        return None
    return lambda args, kwargs: raise_error(_NO_KERNEL.format(name))


def strict_wrapper(overload: Any) -> str:
    """torchgen's name of the wrapper that accepts no tensor of another device, not even a CPU scalar; "" if it does."""
    kinds = _table().get("strict", {})
    name = overload.name()
    operator, _, kind = name.removeprefix("aten::").partition(".")
    operator += "_out" if any(argument.is_out for argument in overload._schema.arguments) else ""
    if name in kinds.get("structured", ()):
        return f"{operator}_{kind}" if kind else operator
    return f"{kind}_{operator}" if name in kinds.get("plain", ()) else ""


def _variants(name: str) -> list[str]:
    """The names under which the same kernel may be listed: `mul_.Tensor` and `mul.out` run that of `mul.Tensor`."""
    operator, _, kind = name.partition(".")
    functional = operator.removesuffix("_")
    plain = re.sub(r"_?out$", "", kind)
    kinds = [plain] if kind != plain and plain else ["", "Tensor", "default"] if kind == "out" else [kind]
    return [name, *(f"{functional}.{item}" if item else functional for item in kinds)]


@functools.cache
def _rules() -> dict[str, dict[str, Any]]:
    """Entries by overload and choice: the table's "aten::div.Tensor_mode(rounding_mode=floor)" has one."""
    rules: dict[str, dict[str, Any]] = {}
    for key, entry in _table()["overloads"].items():
        name, _, choice = key.removesuffix(")").partition("(")
        rules.setdefault(name, {})[choice] = entry
    return rules


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
