"""Task 6.3: a matrix product in tiles, and the size of the tiles chosen by measuring."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from labkit.results import Tiles, TileTiming

TILES: tuple[Tiles, ...] = (
    # TODO(task 6.3): four or more sizes, with three different tiles of the result (m, n) at least, all powers of two
    # from 16 to 128. What does a larger tile save, and what does it cost where the result is small?
)
"""What `matmul` chooses from."""


def matmul(a: Tensor, b: Tensor, *, tiles: Tiles | None = None) -> Tensor:
    """The matrix product a @ b, by one launch of one Triton kernel.

    A program computes one tile of the result with `tl.dot`, from tiles of `a` and `b` that lie along the inner side, so
    that each element of `a` is read once for each column of tiles, and each of `b` once for each row of them. Sums are
    kept in float32; float32 operands are multiplied in full precision, not in TF32. No program reaches outside of the
    tensors, whatever their sizes are.

    Args:
        a: [m, k] on a GPU, float32 or float16.
        b: [k, n] of the same dtype. Both may have any strides, as transposed views have.
        tiles: the size of the tiles, powers of two from 16 to 128. None: the fastest of `TILES` for these sizes. They
            are measured at the first product with such m, n and k, and remembered: each later one is a single launch.

    Returns:
        [m, n], contiguous, in the operands' dtype.

    Raises:
        ValueError: one is no matrix, the inner sides or the dtypes differ.

    Source: Triton tutorials, "Matrix Multiplication"; https://triton-lang.org/main/python-api/generated/triton.autotune
    """
    # TODO(task 6.3):
    # 1. Refuse arguments that make no sense.
    # 2. A kernel with one program for each tile of the result: its rows, its columns, and a loop over the inner side.
    # 3. Masks on all sides: what is beyond the inner side must add nothing.
    # 4. Wrap the same kernel with triton.autotune; its key says when to measure again.
    raise NotImplementedError("Task 6.3 is open: write matmul in labs/kernels_exercise/matmul.py (about 40 lines)")


def time_tiles(
    m: int,
    n: int,
    k: int,
    candidates: Sequence[Tiles] = TILES,
    *,
    dtype: torch.dtype = torch.float16,
    device: str = "cuda",
) -> list[TileTiming]:
    """Time `matmul` of [m, k] and [k, n] with each size of tiles.

    Returns:
        One `TileTiming` for each candidate, the fastest first: seconds of one product that has been compiled before,
        without what is around it: best between two CUDA events, as `triton.testing.do_bench` measures (mind its unit).

    Raises:
        ValueError: a size is below 1, or there are no candidates.
    """
    # TODO(task 6.3):
    # 1. Refuse arguments that make no sense.
    # 2. Operands once, on the device; each candidate with the same ones.
    # 3. Sort by time.
    raise NotImplementedError("Task 6.3 is open: write time_tiles in labs/kernels_exercise/matmul.py (about 8 lines)")
