"""Philox 4x32-10, the counter-based generator of cuRAND and PyTorch, for many counters at once.

Source: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the layout of key and counter is that
of `curand_init(seed, subsequence, offset)` (curand_philox4x32_x.h). Computed in int64, which keeps all bits of a
product of two 32-bit numbers. Not here: which thread draws which number (`vgpu.runtime.random.launch`).
"""

from __future__ import annotations

import functools

import torch

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""What one call of the generator gives to each thread: four numbers of 32 bits, in int64."""

ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


def words(seed: int, subsequence: torch.Tensor, call: int) -> Words:
    """The four words of each subsequence (an index of a thread, int64) at its `call`-th call since the seed.

    A state's offset counts numbers, and a call gives four of them: `call` is offset // 4, further calls follow.
    """
    # Words 0 and 2 are multiplied, 3 and 1 are mixed in; with every round the rows of both change places.
    multiplied = torch.empty(2, len(subsequence), dtype=torch.int64)
    mixed = torch.empty_like(multiplied)
    multiplied[0], multiplied[1] = call & _LOW, subsequence & _LOW
    mixed[0], mixed[1] = subsequence >> 32, call >> 32
    for multipliers, key in _schedule(seed):
        product = multiplied.mul_(multipliers)
        low = product & _LOW
        multiplied = product.bitwise_right_shift_(32).bitwise_and_(_LOW).bitwise_xor_(mixed).bitwise_xor_(key)
        mixed = low.flip(0)
    return multiplied[0], mixed[1], multiplied[1], mixed[0]


@functools.lru_cache(maxsize=8)
def _schedule(seed: int) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """For each round the factors of both rows, and what is mixed into them of the key."""
    first, second = torch.tensor(_MULTIPLIERS).unsqueeze(1), torch.tensor(_MULTIPLIERS[::-1]).unsqueeze(1)
    rounds = []
    for number in range(ROUNDS):
        keys = [(seed >> 32 * half) + number * _KEY_STEPS[half] & _LOW for half in (0, 1)]
        even = number % 2 == 0
        rounds.append((first if even else second, torch.tensor(keys[::-1] if even else keys).unsqueeze(1)))
    return tuple(rounds)
