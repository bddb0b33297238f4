"""The dropout mask of FlashAttention-2: the same bytes of Philox for the same entries as on a card.

A warp masks a tile of 16 rows and 32 columns: the tile's numbers make the subsequence, and each of 32 threads draws 16
bytes at an offset of its own (csrc/flash_attn/src/dropout.h, `apply_dropout`; philox.cuh, with seven rounds). Which
entries of the tile they belong to follows from the fragments of `mma.m16n8k16` (PTX ISA, "Matrix Fragments").
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

ROWS, COLUMNS = 16, 32
"""Of a tile; a mask is made of whole tiles."""
_THREADS = 32
_ROUNDS = 7
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


def drawn_numbers(batch: int, heads: int) -> int:
    """How far a call moves the generator's offset on (flash_api.cpp, `counter_offset`)."""
    return batch * heads * _THREADS


class DropoutMask(NamedTuple):
    """Which attention probabilities of all heads of one sequence are kept.

    `sequence` is its number in the batch; `heads` are those of the queries.
    """

    seed: int
    offset: int
    probability: float
    """Of being dropped."""
    sequence: int
    heads: int

    @property
    def scale(self) -> float:
        """What the kept ones are multiplied by."""
        return 1.0 / (1.0 - self.probability)

    def kept(self, rows: range, columns: range) -> torch.Tensor:
        """Bool (heads, rows, columns). `rows` and `columns` begin at the edge of a tile."""
        down, across = -(-len(rows) // ROWS), -(-len(columns) // COLUMNS)
        row = torch.arange(rows.start // ROWS, rows.start // ROWS + down).view(1, -1, 1, 1)
        column = torch.arange(columns.start // COLUMNS, columns.start // COLUMNS + across).view(1, 1, -1, 1)
        head = torch.arange(self.heads).view(-1, 1, 1, 1) + self.sequence * self.heads
        call = self.offset + head * _THREADS + torch.arange(_THREADS)
        words = torch.broadcast_tensors(call & _LOW, call >> 32, row, column)
        shape = words[0].shape
        drawn = torch.stack(_philox(self.seed, [word.reshape(-1) for word in words]), -1)
        # A word per 8 columns; its bytes are two neighbours in a thread's row, and two 8 rows below.
        bytes_of = torch.stack([drawn >> shift & 0xFF for shift in (0, 8, 16, 24)], -1)
        # (heads, down, across, 8 rows, 4 pairs, 4 times 8 columns, upper and lower half, left and right)
        entries = bytes_of.view(*shape[:3], 8, 4, 4, 2, 2).permute(0, 1, 6, 3, 2, 5, 4, 7)
        whole = entries.reshape(self.heads, down * ROWS, across * COLUMNS)
        return whole[:, : len(rows), : len(columns)] <= math.floor((1.0 - self.probability) * 255.0)


def _philox(seed: int, counter: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Four words of 32 bits for each counter of four words."""
    first, second, third, fourth = counter
    keys = [seed & _LOW, seed >> 32 & _LOW]
    for _ in range(_ROUNDS):
        left, right = first * _MULTIPLIERS[0], third * _MULTIPLIERS[1]
        first, second, third, fourth = (
            (right >> 32 & _LOW) ^ second ^ keys[0],
            right & _LOW,
            (left >> 32 & _LOW) ^ fourth ^ keys[1],
            left & _LOW,
        )
        keys = [key + step & _LOW for key, step in zip(keys, _KEY_STEPS, strict=True)]
    return first, second, third, fourth
