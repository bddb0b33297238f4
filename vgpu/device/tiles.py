"""How long the tiles of a matrix product take: which tile, how many waves of them, and how its inner side is split.

A multiprocessor computes one tile at a time, and a wave is a tile for each of them (NVIDIA, "Matrix Multiplication
Background User's Guide": tile and wave quantisation). Each tile waits for its first operands and writes its results.
Not here: memory, and rates of cards (`vgpu.device.cost`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

Tile = tuple[int, int, float]
"""Rows, columns, and the share of the rate that a kernel with it reaches: larger ones reuse operands more often."""
TILES: tuple[Tile, ...] = (
    (256, 128, 1.0),
    (128, 256, 1.0),
    (128, 128, 0.97),
    (128, 64, 0.9),
    (64, 128, 0.9),
    (64, 64, 0.8),
    (128, 32, 0.6),
    (32, 32, 0.55),
)
# Hopper's kernels for TF32 have no smaller ones: 256 to 3,072 cubed on an H100 take as many waves of 128 x 128 as
# there are (11 ns for each step of the inner side). Nor have cuDNN's for the gradient of weights.
LARGE_TILES = TILES[:3]
# Results of few columns, such as the gradient of an image's three channels: CUDA cores waste little on them.
TILES_OF_CUDA_CORES = (*TILES, (128, 8, 0.8))
# cuBLAS's own kernels for Hopper have more sizes, which fill waves better (names: nvjet_hsh_192x192, 256x192, ...).
TILES_OF_HOPPER = (*TILES, (192, 128, 1.0), (128, 192, 1.0), (192, 192, 1.0), (256, 192, 1.0), (192, 256, 1.0))
# The inner side is split among multiprocessors where there are few tiles, not below this many products, and the parts
# are added up, in FP32.
SHORTEST_SPLIT = 512
_SUM_BYTES = 2 * 4
FEW_SPLITS = 8


@functools.lru_cache(maxsize=65536)
def seconds(
    multiprocessors: int,
    m: int,
    n: int,
    k: int,
    batch: int = 1,
    *,
    rate: float,
    fill_seconds: float,
    sum_bytes_per_second: float,
    sum_start_seconds: float,
    sizes: Sequence[Tile] = TILES,
    splits: int = FEW_SPLITS,
    shortest_split: int = SHORTEST_SPLIT,
    alone: float = 0.0,
) -> float:
    """Seconds of `batch` products (m, k) @ (k, n) on the multiprocessors, each of which does `rate` FLOP/s.

    `fill_seconds`: what a tile waits for its operands and results. Sums of a split inner side, no part below
    `shortest_split`, start after `sum_start_seconds` and move at `sum_bytes_per_second`. A multiprocessor reaches its
    rate only with several tiles at once, some of which compute while others wait: one that is `alone` takes so many
    times as long.
    """
    best = math.inf
    for height, width, reached in sizes:
        tiles = math.ceil(m / height) * math.ceil(n / width) * batch
        most = min(splits, max(1, k // shortest_split))
        for split in sorted({1, min(most, max(1, multiprocessors // tiles)), most}):
            waves = math.ceil(tiles * split / multiprocessors)
            each = 2.0 * height * width * k / (split * rate * reached)
            taken = math.hypot(waves, alone) * each + waves * fill_seconds
            if split > 1:
                taken += sum_start_seconds + split * batch * m * n * _SUM_BYTES / sum_bytes_per_second
            best = min(best, taken)
    return best
