"""The tutorial's way: rows and columns beyond the end wrap around for the loads; autotune with pruned warps."""

import torch
import triton
import triton.language as tl

from labkit.results import Tiles, TileTiming

TILES = [Tiles(m=16, n=64, k=64), Tiles(m=32, n=32, k=64), Tiles(m=64, n=64, k=64), Tiles(m=64, n=128, k=32)]


def _configs():
    return [triton.Config(dict(BM=t.m, BN=t.n, BK=t.k), num_warps=4, num_stages=3) for t in TILES]  # noqa: C408


@triton.jit
def _mm(a, b, c, M, N, K, am, ak, bk, bn, cm, cn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pm, pn = tl.program_id(1), tl.program_id(0)
    rm = (pm * BM + tl.arange(0, BM)) % M
    rn = (pn * BN + tl.arange(0, BN)) % N
    rk = tl.arange(0, BK)
    pa = a + rm[:, None] * am + rk[None, :] * ak
    pb = b + rk[:, None] * bk + rn[None, :] * bn
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(tl.cdiv(K, BK)):
        left = tl.load(pa, mask=rk[None, :] < K - i * BK, other=0.0)
        right = tl.load(pb, mask=rk[:, None] < K - i * BK, other=0.0)
        acc += tl.dot(left, right, input_precision="ieee")
        pa += BK * ak
        pb += BK * bk
    om = pm * BM + tl.arange(0, BM)
    on = pn * BN + tl.arange(0, BN)
    tl.store(c + om[:, None] * cm + on[None, :] * cn, acc, mask=(om[:, None] < M) & (on[None, :] < N))


_auto = triton.autotune(configs=_configs(), key=["M", "N", "K"])(_mm)


def matmul(a, b, *, tiles=None):
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError("matrices")
    M, K = a.shape
    if b.shape[0] != K or b.dtype != a.dtype:
        raise ValueError("does not fit")
    N = b.shape[1]
    c = torch.empty(M, N, device=a.device, dtype=a.dtype)
    args = [a, b, c, M, N, K, a.stride(0), a.stride(1), b.stride(0), b.stride(1), c.stride(0), c.stride(1)]

    def grid(meta):
        return triton.cdiv(N, meta["BN"]), triton.cdiv(M, meta["BM"])

    if tiles is not None:
        _mm[grid](*args, BM=tiles.m, BN=tiles.n, BK=tiles.k)
    else:
        _auto[grid](*args)
    return c


def time_tiles(m, n, k, candidates=TILES, *, dtype=torch.float16, device="cuda"):
    if not candidates or m <= 0 or n <= 0 or k <= 0:
        raise ValueError("nothing to time")
    a, b = torch.ones(m, k, dtype=dtype, device=device), torch.ones(k, n, dtype=dtype, device=device)
    times = {}
    for t in candidates:
        times[t] = triton.testing.do_bench(lambda: matmul(a, b, tiles=t), quantiles=[0.5, 0.2, 0.8])[0] / 1000  # noqa: B023
    return [TileTiming(tiles=t, seconds=s) for t, s in sorted(times.items(), key=lambda item: item[1])]
