import torch
import triton
import triton.language as tl

from labkit.results import Tiles, TileTiming

TILES = tuple(Tiles(m=m, n=n, k=32) for m, n in ((128, 32), (32, 32), (64, 64), (32, 128), (128, 128)))


@triton.jit
def gemm(A, B, C, M, N, K, sam, sak, sbk, sbn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, G: tl.constexpr):
    # One dimension of programs, in groups of rows, as the tutorial has it.
    pid = tl.program_id(0)
    nm, nn = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = pid // (G * nn)
    first = group * G
    size = min(nm - first, G)
    pm = first + (pid % (G * nn)) % size
    pn = (pid % (G * nn)) // size
    om, on, ok = pm * BM + tl.arange(0, BM), pn * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in tl.range(0, K, BK):
        here = k + ok
        left = tl.load(A + om[:, None] * sam + here[None, :] * sak, (om < M)[:, None] & (here < K)[None, :], 0.0)
        right = tl.load(B + here[:, None] * sbk + on[None, :] * sbn, (here < K)[:, None] & (on < N)[None, :], 0.0)
        acc = tl.dot(left, right, acc=acc, allow_tf32=False)
    tl.store(C + om[:, None] * N + on[None, :], acc.to(C.dtype.element_ty), (om < M)[:, None] & (on < N)[None, :])


_best = {}


def _launch(a, b, t):
    (m, k), (_, n) = a.shape, b.shape
    c = a.new_empty((m, n))
    grid = (triton.cdiv(m, t.m) * triton.cdiv(n, t.n),)
    gemm[grid](
        a,
        b,
        c,
        m,
        n,
        k,
        a.stride(0),
        a.stride(1),
        b.stride(0),
        b.stride(1),
        BM=t.m,
        BN=t.n,
        BK=t.k,
        G=8,
        num_warps=4,
        num_stages=2,
    )
    return c


def _time(a, b, t):
    _launch(a, b, t)
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    _launch(a, b, t)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3


def matmul(a, b, *, tiles=None):
    if a.dim() != 2 or b.dim() != 2:
        raise ValueError("two matrices")
    if a.size(1) != b.size(0):
        raise ValueError("inner sides differ")
    if a.dtype != b.dtype:
        raise ValueError("dtypes differ")
    if tiles is None:
        key = (a.size(0), b.size(1), a.size(1), a.dtype)
        if key not in _best:
            _best[key] = min(TILES, key=lambda t: _time(a, b, t))
        tiles = _best[key]
    return _launch(a, b, tiles)


def time_tiles(m, n, k, candidates=TILES, *, dtype=torch.float16, device="cuda"):
    if m < 1 or n < 1 or k < 1:
        raise ValueError("sizes start at 1")
    if len(candidates) == 0:
        raise ValueError("no candidates")
    a = torch.rand((m, k), dtype=dtype, device=device)
    b = torch.rand((k, n), dtype=dtype, device=device)
    found = [TileTiming(tiles=t, seconds=_time(a, b, t)) for t in candidates]
    found.sort(key=lambda one: one.seconds)
    return found
