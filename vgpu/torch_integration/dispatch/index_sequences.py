"""Sequences among the indices of `tensor[index] = value`, which PyTorch makes tensors of, on the tensor's device.

Source: torch/csrc/autograd/python_variable_indexing.cpp, `treatSequenceAsTuple` and `sequenceToVariable`. Not here:
how a tensor among the indices gets to the device (`vgpu.torch_integration.dispatch.function_mode`).
"""

from __future__ import annotations

from types import EllipsisType, NoneType
from typing import Any

import torch

_SEQUENCES = (list, tuple, range)
_OF_A_TUPLE = (torch.Tensor, slice, EllipsisType, NoneType, *_SEQUENCES)
_LONGEST = 32
"""A list of as many entries is a tensor, whatever it holds."""


def _is_array(item: Any) -> bool:
    return type(item).__module__ == "numpy" and bool(getattr(item, "ndim", 0))


def parts_of(index: Any) -> tuple[Any, ...] | None:
    """The parts of an index that is a tuple, or a list that counts as one; None for a single index."""
    if isinstance(index, tuple):
        return index
    if not isinstance(index, list) or len(index) >= _LONGEST:
        return None
    return tuple(index) if any(isinstance(part, _OF_A_TUPLE) or _is_array(part) for part in index) else None


def to_tensor(item: Any) -> Any:
    """The tensor, on the CPU, of a sequence of integers or truth values; anything else as it is."""
    if not isinstance(item, _SEQUENCES) and not _is_array(item):
        return item
    values = item if _is_array(item) else list(item)
    try:
        return torch.tensor(values, dtype=None if len(values) else torch.int64, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        return item  # PyTorch refuses it in its own words
