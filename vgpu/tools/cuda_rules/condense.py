"""From the notes of `vgpu.tools.cuda_rules.probe` to tables: which argument's dtype decides, and what is refused.

Not here: how a table is read (`vgpu.runtime.operations.cuda_rules`).
"""

from __future__ import annotations

import pickle
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from vgpu.tools.cuda_rules.probe import DTYPES, Seen, Signature

NAMES = {
    "float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "complex64": "ComplexFloat",
    "complex128": "ComplexDouble", "complex32": "ComplexHalf", "int64": "Long", "int32": "Int", "int16": "Short",
    "int8": "Char", "uint8": "Byte", "bool": "Bool", "uint16": "UInt16", "uint32": "UInt32", "uint64": "UInt64",
    "float8_e4m3fn": "Float8_e4m3fn", "float8_e5m2": "Float8_e5m2",
}  # fmt: skip
PROMOTED = "*"
"""Stands for the dtype that the operands are promoted to."""
# What says of a dtype that no kernel takes it, whatever else the arguments are.
_OF_A_DTYPE = re.compile(
    r"\w+: (\"[^\"]+\" not implemented for '(\w+)'|getCudnnDataTypeFromScalarType\(\) not supported for (\w+)"
    r"|TensorDescriptor does not support (\w+))$"
)
# What PyTorch chooses by itself for tensors of the CPU, which all tensors here are underneath, and tests of its own.
_CPU_ONLY = re.compile(
    r"_for_cpu|mkldnn|quant|slow_conv3d|narrow_copy|_test_|_foobar|_make_dep_token|_functional_assert"
)
_NO_KERNEL = re.compile(r"\w+: Could not run '(.+?)' with arguments from the 'CUDA' backend")
# What comes once a library is asked, which does nothing on the stand-in.
_NO_ENGINE = "RuntimeError: GET was unable to find an engine to execute this computation"
_LIBRARY = re.compile(
    rf"{_NO_ENGINE}|.*(CUDNN_STATUS|CUBLAS_STATUS|cuDNN Frontend|cudnn\w* error|INTERNAL ASSERT|infs or NaNs"
    r"|CUDA out of memory|CUDA error|failed to converge|algorithm failed)",
    re.DOTALL,
)
Item = tuple[str, dict[str, list[str]], Seen, list[str]]


def read(path: Path) -> Iterator[Item]:
    """The notes about one operator after the other."""
    with open(path, "rb") as source:
        while True:
            try:
                yield pickle.load(source)
            except EOFError:
                return


def overloads(items: Sequence[Item]) -> tuple[dict[str, Any], list[str]]:
    """Rules of the overloads that refuse a dtype, and the overloads without a kernel for CUDA."""
    noted: dict[str, dict[Signature, set[str]]] = defaultdict(dict)
    claimed: dict[str, set[str]] = defaultdict(set)
    for _, _, seen, dtypes in items:
        for (name, signature), outcomes in seen.items():
            noted[name].setdefault(signature, set()).update(outcomes)
            claimed[name].update(dtypes)
    missing = without_kernel()
    rules = {}
    for name, signatures in sorted(item for item in noted.items() if item[0].startswith("aten::")):
        rule = _rule(signatures, claimed[name], promotes=_promotes(name))
        if rule is not None and rule[1] and name not in missing:
            rules[name] = rule
    return rules, missing


def without_kernel() -> list[str]:
    """ATen's overloads that have a kernel for the CPU and none for CUDA. Raises RuntimeError without a CUDA build."""
    if torch.version.cuda is None:
        raise RuntimeError("this PyTorch was built without CUDA, and does not know CUDA's kernels")
    has = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    return sorted(
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and not _CPU_ONLY.search(name) and has(name, "CPU") and not has(name, "CUDA")
    )


def _promotes(name: str) -> bool:
    """Whether an overload computes in the dtype that its operands are promoted to."""
    operator, _, kind = name.removeprefix("aten::").partition(".")
    overload = getattr(getattr(torch.ops.aten, operator), kind or "default")
    return torch.Tag.pointwise in overload.tags


def _rule(signatures: dict[Signature, set[str]], claimed: set[str], *, promotes: bool) -> list[Any] | None:
    """[argument, {template of the error: dtypes}, whether small tensors pass]; None where no dtype is refused.

    A signature that is refused and accepted, too, was called with tensors that are empty or have no dimensions, for
    which some kernels are not launched.
    """
    refused: dict[Signature, str] = {}
    accepted: set[Signature] = set()
    for signature, outcomes in signatures.items():
        words = [text for text in outcomes if _OF_A_DTYPE.match(text)]
        if not words and outcomes == {_NO_ENGINE} and not claimed & {dtype for _, dtype in signature}:
            words = [_NO_ENGINE]  # cuDNN has none for a dtype that OpInfo does not claim either
        if words:
            refused[signature] = words[0]
        if any(text == "" or _LIBRARY.match(text) for text in outcomes) and not words:
            accepted.add(signature)
    if not refused:
        return None
    names = dict.fromkeys(name for signature in signatures for name, _ in signature)
    alike = all(len({dtype for _, dtype in signature}) == 1 for signature in refused)
    empty = any("" in signatures[signature] for signature in refused)
    if not (promotes and alike and any(len(signature) > 1 for signature in signatures)):
        for argument in names:
            texts = _by_argument(argument, refused, accepted)
            if texts is not None:
                return [argument, _grouped(texts), empty]
    taken = {signature[0][1] for signature in accepted if len({dtype for _, dtype in signature}) == 1}
    texts = {
        signature[0][1]: text
        for signature, text in refused.items()
        if len({dtype for _, dtype in signature}) == 1 and signature[0][1] not in taken
    }
    return [PROMOTED, _grouped(texts), empty] if texts else None


def _by_argument(argument: str, refused: dict[Signature, str], accepted: set[Signature]) -> dict[str, str] | None:
    """The errors by dtype, if this argument's dtype alone separates refused calls from others, and errors name it."""
    texts: dict[str, str] = {}
    for signature, text in refused.items():
        dtype = dict(signature).get(argument)
        if dtype is None:
            return None
        found = _OF_A_DTYPE.match(text)
        if found and NAMES.get(dtype) not in found.groups()[1:]:
            return None
        texts[dtype] = text
    if any(dict(signature).get(argument) in texts for signature in accepted):
        return None
    return texts


def _grouped(texts: dict[str, str]) -> dict[str, list[str]]:
    templates: dict[str, list[str]] = {}
    for dtype in DTYPES:
        if dtype in texts:
            templates.setdefault(_template(texts[dtype], dtype), []).append(dtype)
    return templates


def _template(text: str, dtype: str) -> str:
    """The error with "{}" instead of the dtype's name."""
    return re.sub(rf"\b{NAMES[dtype]}\b(?='?$)", "{}", text)


def functions(items: Sequence[Item]) -> dict[str, Any]:
    """For each operator of OpInfo the dtypes that CUDA takes, and those that it refuses, with the first error.

    A dtype of which no input could be made, or which is refused for another reason, is in neither.
    """
    table: dict[str, Any] = {}
    for key, said, _, claimed in items:
        taken, templates = [], dict[str, list[str]]()
        for dtype, outcomes in said.items():
            if dtype not in claimed and set(outcomes) == {_NO_ENGINE}:
                templates.setdefault(_NO_ENGINE, []).append(dtype)
            elif any(text == "" or _LIBRARY.match(text) for text in outcomes):
                taken.append(dtype)
            elif outcomes and (_OF_A_DTYPE.match(outcomes[0]) or _NO_KERNEL.match(outcomes[0])):
                text = _NO_KERNEL.match(outcomes[0])
                templates.setdefault(_template(text[0] if text else outcomes[0], dtype), []).append(dtype)
            elif outcomes:
                templates.setdefault("", []).append(dtype)
        table[key] = [taken, templates]
    return table
