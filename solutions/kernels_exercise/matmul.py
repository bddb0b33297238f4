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
    # --- solution only ---
    Tiles(m=32, n=32, k=32),
    Tiles(m=64, n=32, k=32),
    Tiles(m=64, n=64, k=32),
    Tiles(m=128, n=64, k=32),
    # --- end ---
)
"""What `matmul` chooses from."""

# --- solution only ---


@triton.jit
def _product(
    a_ptr, b_ptr, c_ptr, rows, columns, inner,
    a_row, a_column, b_row, b_column,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,  # noqa: N803
):  # fmt: skip
    m = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    n = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    k = tl.arange(0, TILE_K)
    total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for start in range(0, inner, TILE_K):
        here = start + k
        left = tl.load(
            a_ptr + m[:, None] * a_row + here[None, :] * a_column,
            mask=(m[:, None] < rows) & (here[None, :] < inner),
            other=0.0,
        )
        right = tl.load(
            b_ptr + here[:, None] * b_row + n[None, :] * b_column,
            mask=(here[:, None] < inner) & (n[None, :] < columns),
            other=0.0,
        )
        total = tl.dot(left, right, total, input_precision="ieee")
    there = (m[:, None] < rows) & (n[None, :] < columns)
    tl.store(c_ptr + m[:, None] * columns + n[None, :], total.to(c_ptr.dtype.element_ty), mask=there)


_tuned = triton.autotune(
    configs=[triton.Config({"TILE_M": tiles.m, "TILE_N": tiles.n, "TILE_K": tiles.k}) for tiles in TILES],
    key=["rows", "columns", "inner"],
)(_product)


# --- end ---


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
    # --- solution: task 6.3 ---
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or a.dtype != b.dtype:
        raise ValueError(f"cannot multiply {tuple(a.shape)} {a.dtype} and {tuple(b.shape)} {b.dtype}")
    (rows, inner), columns = a.shape, b.shape[1]
    out = torch.empty((rows, columns), dtype=a.dtype, device=a.device)
    arguments = (a, b, out, rows, columns, inner, *a.stride(), *b.stride())
    if tiles is None:
        _tuned[lambda meta: (triton.cdiv(rows, meta["TILE_M"]), triton.cdiv(columns, meta["TILE_N"]))](*arguments)
    else:
        grid = (triton.cdiv(rows, tiles.m), triton.cdiv(columns, tiles.n))
        _product[grid](*arguments, TILE_M=tiles.m, TILE_N=tiles.n, TILE_K=tiles.k)
    return out
    # --- end ---


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
    # --- solution: task 6.3 ---
    if min(m, n, k) < 1 or not candidates:
        raise ValueError("sizes start at 1, and there must be something to choose from")
    a, b = torch.randn(m, k, device=device, dtype=dtype), torch.randn(k, n, device=device, dtype=dtype)
    timings = []
    for tiles in candidates:
        milliseconds = triton.testing.do_bench(lambda: matmul(a, b, tiles=tiles), return_mode="median")  # noqa: B023
        timings.append(TileTiming(tiles=tiles, seconds=milliseconds / 1e3))
    return sorted(timings, key=lambda timing: timing.seconds)
    # --- end ---
