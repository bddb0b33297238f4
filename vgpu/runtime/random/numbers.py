"""Numbers made of Philox's words: uniform and normal ones as cuRAND makes them, integers as PyTorch does.

Sources: curand_uniform.h, curand_normal.h; ATen/core/TransformationHelper.h. Uniform numbers and integers are those of
a card bit for bit. Normal ones agree to about 2e-6: a card has instructions of its own for sine, cosine and logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from vgpu.runtime.random.philox import Words

_INVERSE_32 = 2.0**-32
_INVERSE_53 = 2.0**-53
# Rounded to FP32, as the constant of curand_normal.h is.
_TURN_32 = torch.tensor(2.0**-32 * 2.0 * math.pi, dtype=torch.float32).item()

_SIGN = -(1 << 63)


def uniform(words: Words) -> Sequence[torch.Tensor]:
    """Four numbers in (0, 1], float32."""
    return [_unit(word) for word in words]


def uniform_double(words: Words) -> Sequence[torch.Tensor]:
    """Two numbers in (0, 1], float64."""
    return [_unit_double(words[0], words[1]), _unit_double(words[2], words[3])]


def normal(words: Words) -> Sequence[torch.Tensor]:
    """Four numbers with mean 0 and deviation 1, float32 (G. Box and M. Muller, 1958)."""
    return [*_pair(words[0], words[1]), *_pair(words[2], words[3])]


def normal_double(words: Words) -> Sequence[torch.Tensor]:
    """Two numbers with mean 0 and deviation 1, float64."""
    radius = (-2.0 * _unit_double(words[0], words[1]).log()).sqrt()
    angle = _bits_53(words[2], words[3]).double() * (2.0 * _INVERSE_53) + _INVERSE_53
    return [radius * (angle * math.pi).sin(), radius * (angle * math.pi).cos()]


def whole(words: Words) -> Sequence[torch.Tensor]:
    """Four numbers of 32 bits."""
    return words


def whole_64(words: Words) -> Sequence[torch.Tensor]:
    """Two numbers of 64 bits; as int64, so the larger half of them are negative."""
    return [(words[0] << 32) | words[1], (words[2] << 32) | words[3]]


def modulo(numbers: torch.Tensor, divisor: int) -> torch.Tensor:
    """`numbers` as unsigned 64-bit ones, modulo `divisor` (at most 2**63)."""
    if divisor < 1 << 62:
        half = (numbers >> 1) & ((1 << 63) - 1)
        return (half % divisor * 2 + (numbers & 1)) % divisor
    signed = divisor - (1 << 64) if divisor >= 1 << 63 else divisor
    for _ in range(4):  # a number is less than five times as large
        larger = (numbers ^ _SIGN) >= (signed ^ _SIGN)
        numbers = torch.where(larger, numbers - signed, numbers)
    return numbers


def unit(word: torch.Tensor) -> torch.Tensor:
    """A word as a number in (0, 1], float32."""
    return _unit(word)


def _unit(word: torch.Tensor) -> torch.Tensor:
    return word.to(torch.float32).mul_(_INVERSE_32).add_(_INVERSE_32 / 2)


def _bits_53(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    return low ^ (high << 21)


def _unit_double(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    return _bits_53(low, high).double() * _INVERSE_53 + _INVERSE_53 / 2


def _pair(first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    radius = _unit(first).log_().mul_(-2.0).sqrt_()
    angle = second.to(torch.float32).mul_(_TURN_32).add_(_TURN_32 / 2)
    return angle.sin().mul_(radius), angle.cos().mul_(radius)
