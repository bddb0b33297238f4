"""Three kernels in Triton. Only where Triton is installed: `triton_cases` imports this module when it needs it."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# (Triton's compiler takes no other hints than `tl.constexpr`)

import triton
import triton.language as tl


@triton.jit
def add(x_ptr, y_ptr, out_ptr, count, BLOCK: tl.constexpr):  # noqa: N803
    """The sum of two vectors."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = places < count
    left = tl.load(x_ptr + places, mask=there)
    right = tl.load(y_ptr + places, mask=there)
    tl.store(out_ptr + places, left + right, mask=there)


@triton.jit
def softmax(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):  # noqa: N803
    """The softmax of each row, one program a row."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, BLOCK)
    there = places < columns
    values = tl.load(x_ptr + row * columns + places, mask=there, other=-float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out_ptr + row * columns + places, powers / tl.sum(powers, axis=0), mask=there)


@triton.jit
def matmul(a_ptr, b_ptr, out_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # noqa: N803
    """A product of row-major matrices, one program a tile of the result."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        depth = start + tl.arange(0, BLOCK_K)
        left = tl.load(
            a_ptr + rows[:, None] * K + depth[None, :], mask=(rows[:, None] < M) & (depth[None, :] < K), other=0.0
        )
        right = tl.load(
            b_ptr + depth[:, None] * N + columns[None, :], mask=(depth[:, None] < K) & (columns[None, :] < N), other=0.0
        )
        total += tl.dot(left, right)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], total.to(out_ptr.dtype.element_ty), mask=inside)
