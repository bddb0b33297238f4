"""Blocks of two sides, which are one after the other in memory; no mask where all elements are there."""

import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, y, z, n, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    start = tl.program_id(axis=0) * (ROWS * WIDTH)
    at = start + tl.arange(0, ROWS)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    if start + ROWS * WIDTH <= n:
        tl.store(z + at, tl.load(x + at) + tl.load(y + at))
    else:
        a = tl.load(x + at, mask=at < n, other=0)
        b = tl.load(y + at, mask=at < n, other=0)
        tl.store(z + at, a + b, mask=at < n)


def vector_add(x, y):
    if x.shape != y.shape:
        raise ValueError("shapes differ")
    if x.dtype != y.dtype:
        raise ValueError("dtypes differ")
    for t in (x, y):
        if not t.is_contiguous():
            raise ValueError("not contiguous")
    z = torch.empty_like(x)
    n = z.numel()
    if n:
        kernel[lambda meta: (triton.cdiv(n, meta["ROWS"] * meta["WIDTH"]),)](x, y, z, n, ROWS=8, WIDTH=128)
    return z
