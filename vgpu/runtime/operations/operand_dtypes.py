"""Operands whose dtypes CUDA refuses and the CPU takes: parameters of another dtype, 16 bits in linear algebra.

Each was read from PyTorch's CUDA host code (`vgpu.tools.cuda_rules.stand_in`). Not here: dtypes that the generated
tables refuse (`vgpu.runtime.operations.cuda_dtypes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Check = Callable[[Sequence[Any], Mapping[str, Any]], None]
_NAMES = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double"}


def alike(*places: int) -> Check:
    """The arguments at these places, if they are there, have the dtype of the first argument."""

    def check(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        expected = args[0].dtype
        for place in places:
            other = args[place] if place < len(args) else None
            if isinstance(other, torch.Tensor) and other.dtype != expected and {expected, other.dtype} <= _NAMES.keys():
                raise RuntimeError(f"expected scalar type {_NAMES[expected]} but found {_NAMES[other.dtype]}")

    return check


def no_16_bits(kernel: str) -> Check:
    """The first argument is no float of 16 bits."""

    def check(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if args[0].dtype in (torch.float16, torch.bfloat16):
            raise NotImplementedError(f"\"{kernel}\" not implemented for '{_NAMES[args[0].dtype]}'")

    return check
