"""From the notes of `vgpu.tools.cuda_rules.probe` to tables: which argument's dtype decides, and what is refused.

Not here: how a table is read (`vgpu.runtime.operations.cuda_rules`).
"""

from __future__ import annotations

import pickle
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from vgpu.runtime.operations.cuda_dtypes import EMPTY, SCALAR
from vgpu.tools.cuda_rules.probe import DTYPES, SKIPPED, Seen, Signature

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
    r"\w+: (\"(?![^\"]*_cpu)[^\"]+\" not implemented for '(\w+)'"
    r"|getCudnnDataTypeFromScalarType\(\) not supported for (\w+)|TensorDescriptor does not support (\w+))$"
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
Outcomes = dict[tuple[Signature, str], set[str]]
"""By dtypes and size of the arguments."""
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
    noted: dict[str, dict[str, Outcomes]] = defaultdict(lambda: defaultdict(dict))
    claimed: dict[str, set[str]] = defaultdict(set)
    for _, _, seen, dtypes in items:
        for (name, choice, signature, size), outcomes in seen.items():
            noted[name][choice].setdefault((signature, size), set()).update(outcomes)
            claimed[name].update(dtypes)
    missing = without_kernel()
    rules = {}
    for name, choices in sorted(item for item in noted.items() if item[0].startswith("aten::")):
        if name in missing:
            continue
        for choice, outcomes_of in _united(choices).items():
            rule = _rule(outcomes_of, claimed[name], promotes=_promotes(name))
            if rule is not None and rule[1]:
                rules[f"{name}({choice})" if choice else name] = rule
    return rules, missing


def _united(choices: dict[str, Outcomes]) -> dict[str, Outcomes]:
    """All choices of an argument as one, unless what one of them refuses another accepts."""
    united: Outcomes = {}
    for outcomes_of in choices.values():
        for key, outcomes in outcomes_of.items():
            before = united.setdefault(key, set())
            if (_refuses(before) and _accepts(outcomes)) or (_accepts(before) and _refuses(outcomes)):
                return choices
            united[key] = before | outcomes
    return {"": united}


def _refuses(outcomes: set[str]) -> bool:
    return any(_OF_A_DTYPE.match(text) for text in outcomes) and not _accepts(outcomes)


def _accepts(outcomes: set[str]) -> bool:
    """Whether a call returned; if others of the same dtypes and size were refused, their `dtype` asked for it."""
    return "" in outcomes


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


def _rule(noted: Outcomes, claimed: set[str], *, promotes: bool) -> list[Any] | None:
    """[argument, {template of the error: dtypes}, sizes that pass]; None where no dtype is refused.

    A signature that is refused in one size may be accepted in another, for which no kernel is launched.
    """
    refused: dict[Signature, str] = {}
    accepted: set[Signature] = set()
    signatures: dict[Signature, set[str]] = defaultdict(set)
    for (signature, _), outcomes in noted.items():
        signatures[signature] |= {""} if _accepts(outcomes) and not _refuses(outcomes) else outcomes
    for signature, outcomes in signatures.items():
        words = sorted(text for text in outcomes if _OF_A_DTYPE.match(text))
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
    passing = [size for size in (EMPTY, SCALAR) if _passes(size, noted, refused)]
    if not (promotes and alike and any(len(signature) > 1 for signature in signatures)):
        for argument in names:
            texts = _by_argument(argument, refused, accepted)
            if texts is not None:
                return [argument, _grouped(texts), passing]
    taken = {signature[0][1] for signature in accepted if len({dtype for _, dtype in signature}) == 1}
    texts = {
        signature[0][1]: text
        for signature, text in refused.items()
        if len({dtype for _, dtype in signature}) == 1 and signature[0][1] not in taken
    }
    return [PROMOTED, _grouped(texts), passing] if texts else None


def _passes(size: str, noted: Outcomes, refused: Collection[Signature]) -> bool:
    """Whether what is refused otherwise is always accepted in this size."""
    outcomes = [noted[signature, size] for signature in refused if (signature, size) in noted]
    return any("" in texts for texts in outcomes) and not any(_refuses(texts) for texts in outcomes)


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
    """For each entry of the databases [what CUDA says to each input, the first error about a dtype, dtypes].

    One letter for each input: "y" taken, "n" refused for its dtype, "?" refused for another reason, "-" not tried.
    """
    table: dict[str, Any] = {}
    for key, said, _, claimed in items:
        rows: dict[tuple[str, str], list[str]] = {}
        for dtype, outcomes in said.items():
            letters = "".join(letter_of(text, claimed=dtype in claimed) for text in outcomes)
            words = next((text for text, letter in zip(outcomes, letters, strict=True) if letter == "n"), "")
            absent = _NO_KERNEL.match(words)
            if letters.strip("-"):
                rows.setdefault((letters, _template(absent[0] if absent else words, dtype)), []).append(dtype)
        table[key] = [[letters, words, dtypes] for (letters, words), dtypes in rows.items()]
    return table


def letter_of(outcome: str, *, claimed: bool) -> str:
    """What one outcome says; `claimed`: whether PyTorch claims that CUDA takes the dtype."""
    if outcome == SKIPPED:
        return SKIPPED
    if _OF_A_DTYPE.match(outcome) or _NO_KERNEL.match(outcome) or (outcome == _NO_ENGINE and not claimed):
        return "n"
    return "y" if outcome == "" or _LIBRARY.match(outcome) else "?"
