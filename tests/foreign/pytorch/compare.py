"""Whether what the virtual GPU returned is what the CPU returned: kind, dtype, shape, strides, device and numbers.

Not here: where the cases come from (`databases.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

TOLERANCES = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float32: 2e-4, torch.complex64: 2e-4}
"""Of the largest magnitude in a tensor; 1e-6 in double precision, exact for whole numbers."""


class DrawsRandomNumbers(TorchDispatchMode):
    """Notices an operation that draws random numbers."""

    detected = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.detected = self.detected or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors within a value, in order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def on_the_cpu(value: Any) -> Any:
    """The same value with tensors (and devices that are named) of the CPU; strides stay, and one tensor stays one."""
    copies: dict[int, torch.Tensor] = {}

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            if id(leaf) not in copies:
                copies[id(leaf)] = _copied(leaf)
            return copies[id(leaf)]
        if isinstance(leaf, torch.device) and leaf.type == "cuda":
            return torch.device("cpu")
        return "cpu" if isinstance(leaf, str) and leaf.startswith("cuda") else leaf

    return tree_map(moved, value)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach()
    copied: torch.Tensor
    if tensor.layout is torch.strided and not tensor.is_conj() and not tensor.is_neg() and not tensor.is_quantized:
        size = tensor.untyped_storage().nbytes() // tensor.element_size()
        whole = plain.as_strided((size,), (1,), 0).to("cpu", copy=True)
        copied = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    else:
        copied = plain.to("cpu", copy=True)
    return copied.requires_grad_(tensor.requires_grad)


def differences(actual: Any, expected: Any, *, device: str, numbers: bool = True) -> Iterator[str]:
    """What is not as it should be, in words."""
    mine, theirs = tensors(actual), tensors(expected)
    if len(mine) != len(theirs):
        yield f"{len(mine)} tensors, not {len(theirs)}"
        return
    for tensor, other in zip(mine, theirs, strict=True):
        if tensor.device.type != device:
            yield f"a result on {tensor.device}"
        if (tensor.dtype, tensor.shape, tensor.layout) != (other.dtype, other.shape, other.layout):
            yield f"{tensor.dtype} {tuple(tensor.shape)}, not {other.dtype} {tuple(other.shape)}"
        elif tensor.layout is torch.strided and tensor.stride() != other.stride():
            yield f"strides {tensor.stride()}, not {other.stride()}"
        elif numbers:
            yield from different_numbers(tensor.detach().cpu(), other.detach())


def different_numbers(actual: torch.Tensor, expected: torch.Tensor) -> Iterator[str]:
    """Numbers that are further apart than their dtype explains; both on the CPU."""
    actual, expected = (
        tensor.to_dense() if tensor.layout is not torch.strided else tensor for tensor in (actual, expected)
    )
    actual, expected = actual.resolve_conj().resolve_neg(), expected.resolve_conj().resolve_neg()
    if expected.is_quantized:
        actual, expected = actual.dequantize(), expected.dequantize()
    if not (expected.is_floating_point() or expected.is_complex()):
        if not torch.equal(actual, expected):
            yield "other whole numbers"
        return
    tolerance = TOLERANCES.get(expected.dtype, 1e-6)
    wide = torch.complex128 if expected.is_complex() else torch.float64
    actual, expected = actual.to(wide), expected.to(wide)
    finite = torch.isfinite(expected)
    largest = float(expected[finite].abs().max()) if finite.any() else 0.0
    try:
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * max(largest, 1.0), equal_nan=True)
    except AssertionError as error:
        yield " ".join(str(error).split())[:200]
