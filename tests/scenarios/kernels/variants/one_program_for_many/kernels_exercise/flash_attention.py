"""One program for all queries of a head would be slow: tiles of 16 rows, all strides given, a kernel for the products
of output and gradient, and both passes of backward in one launch, by the third number of the grid.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def at(p, z, h, i, sz, sh, sn, D: tl.constexpr):
    return p + z * sz + h * sh + i[:, None] * sn + tl.arange(0, D)[None, :]


@triton.jit
def weights(q, k, lse, i, j, N, scale, CAUSAL: tl.constexpr):
    s = tl.dot(q, k.T, input_precision="ieee") * scale
    see = (i[:, None] < N) & (j[None, :] < N)
    if CAUSAL:
        see = see & (j[None, :] <= i[:, None])
    return tl.where(see, tl.exp(s - lse[:, None]), 0.0)


@triton.jit
def forward(
    q,
    k,
    v,
    o,
    lse,
    szq,
    shq,
    snq,
    szk,
    shk,
    snk,
    szv,
    shv,
    snv,
    szo,
    sho,
    sno,
    H,
    N,
    scale,
    D: tl.constexpr,
    B: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    z, h = tl.program_id(1) // H, tl.program_id(1) % H
    i = tl.program_id(0) * B + tl.arange(0, B)
    qi = tl.load(at(q, z, h, i, szq, shq, snq, D), mask=i[:, None] < N, other=0)
    top = tl.full((B,), -1e30, tl.float32)
    total = tl.zeros((B,), tl.float32)
    out = tl.zeros((B, D), tl.float32)
    last = N
    if CAUSAL:
        last = tl.minimum(N, tl.program_id(0) * B + B)
    start = 0
    while start < last:
        j = start + tl.arange(0, B)
        kj = tl.load(at(k, z, h, j, szk, shk, snk, D), mask=j[:, None] < N, other=0)
        vj = tl.load(at(v, z, h, j, szv, shv, snv, D), mask=j[:, None] < N, other=0)
        s = tl.dot(qi, kj.T, input_precision="ieee") * scale
        see = j[None, :] < N
        if CAUSAL:
            see = see & (j[None, :] <= i[:, None])
        s = tl.where(see, s, -1e30)
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.where(see, tl.exp(s - new[:, None]), 0.0)
        a = tl.exp(top - new)
        total = total * a + tl.sum(p, 1)
        out = out * a[:, None] + tl.dot(p.to(vj.dtype), vj, input_precision="ieee")
        top = new
        start += B
    tl.store(at(o, z, h, i, szo, sho, sno, D), out / total[:, None], mask=i[:, None] < N)
    tl.store(lse + tl.program_id(1) * N + i, top + tl.log(total), mask=i < N)


@triton.jit
def dots(o, g, out, rows, D: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    p = i[:, None] * D + tl.arange(0, D)[None, :]
    a = tl.load(o + p, mask=i[:, None] < rows, other=0).to(tl.float32)
    b = tl.load(g + p, mask=i[:, None] < rows, other=0).to(tl.float32)
    tl.store(out + i, tl.sum(a * b, axis=1), mask=i < rows)


@triton.jit
def backward(q, k, v, g, lse, delta, dq, dk, dv, N, scale, D: tl.constexpr, B: tl.constexpr, CAUSAL: tl.constexpr):
    z = tl.program_id(1)
    q, k, v, g, dq, dk, dv = (
        q + z * N * D,
        k + z * N * D,
        v + z * N * D,
        g + z * N * D,
        dq + z * N * D,
        dk + z * N * D,
        dv + z * N * D,
    )
    lse += z * N
    delta += z * N
    mine = tl.program_id(0) * B + tl.arange(0, B)
    if tl.program_id(2) == 0:
        kj = tl.load(at(k, 0, 0, mine, 0, 0, D, D), mask=mine[:, None] < N, other=0)
        vj = tl.load(at(v, 0, 0, mine, 0, 0, D, D), mask=mine[:, None] < N, other=0)
        a = tl.zeros((B, D), tl.float32)
        b = tl.zeros((B, D), tl.float32)
        begin = 0
        if CAUSAL:
            begin = tl.program_id(0) * B
        for start in range(begin, N, B):
            i = start + tl.arange(0, B)
            qi = tl.load(at(q, 0, 0, i, 0, 0, D, D), mask=i[:, None] < N, other=0)
            gi = tl.load(at(g, 0, 0, i, 0, 0, D, D), mask=i[:, None] < N, other=0)
            p = weights(qi, kj, tl.load(lse + i, mask=i < N, other=0), i, mine, N, scale, CAUSAL)
            b += tl.dot(p.to(gi.dtype).T, gi, input_precision="ieee")
            dp = tl.dot(gi, vj.T, input_precision="ieee") - tl.load(delta + i, mask=i < N, other=0)[:, None]
            a += tl.dot((p * dp).to(qi.dtype).T, qi, input_precision="ieee")
        tl.store(at(dk, 0, 0, mine, 0, 0, D, D), a * scale, mask=mine[:, None] < N)
        tl.store(at(dv, 0, 0, mine, 0, 0, D, D), b, mask=mine[:, None] < N)
    else:
        qi = tl.load(at(q, 0, 0, mine, 0, 0, D, D), mask=mine[:, None] < N, other=0)
        gi = tl.load(at(g, 0, 0, mine, 0, 0, D, D), mask=mine[:, None] < N, other=0)
        li = tl.load(lse + mine, mask=mine < N, other=0)
        di = tl.load(delta + mine, mask=mine < N, other=0)
        a = tl.zeros((B, D), tl.float32)
        end = N
        if CAUSAL:
            end = tl.minimum(N, tl.program_id(0) * B + B)
        for start in range(0, end, B):
            j = start + tl.arange(0, B)
            kj = tl.load(at(k, 0, 0, j, 0, 0, D, D), mask=j[:, None] < N, other=0)
            vj = tl.load(at(v, 0, 0, j, 0, 0, D, D), mask=j[:, None] < N, other=0)
            p = weights(qi, kj, li, mine, j, N, scale, CAUSAL)
            dp = tl.dot(gi, vj.T, input_precision="ieee") - di[:, None]
            a += tl.dot((p * dp).to(kj.dtype), kj, input_precision="ieee")
        tl.store(at(dq, 0, 0, mine, 0, 0, D, D), a * scale, mask=mine[:, None] < N)


class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal):
        z, h, n, d = q.shape
        if any(t.stride(-1) != 1 for t in (q, k, v)):
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        o = q.new_empty(z, h, n, d)
        lse = torch.empty(z * h, n, device=q.device)
        s = [x for t in (q, k, v, o) for x in t.stride()[:3]]
        forward[(triton.cdiv(n, 64), z * h)](q, k, v, o, lse, *s, h, n, d**-0.5, D=d, B=64, CAUSAL=causal)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.causal = causal
        return o

    @staticmethod
    def backward(ctx, g):
        q, k, v, o, lse = ctx.saved_tensors
        q, k, v, g = (t.contiguous() for t in (q, k, v, g))
        z, h, n, d = q.shape
        delta = torch.empty_like(lse)
        dots[(triton.cdiv(z * h * n, 64),)](o, g, delta, z * h * n, D=d, B=64)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        backward[(triton.cdiv(n, 64), z * h, 2)](
            q, k, v, g, lse, delta, dq, dk, dv, n, d**-0.5, D=d, B=64, CAUSAL=ctx.causal
        )
        return dq, dk, dv, None


def flash_attention(Q, K, V, *, causal=False):
    if Q.dim() != 4 or not Q.shape == K.shape == V.shape or Q.shape[3] not in (16, 32, 64, 128):
        raise ValueError("shapes")
    if Q.dtype not in (torch.float32, torch.float16) or not Q.dtype == K.dtype == V.dtype:
        raise ValueError("types")
    return F.apply(Q, K, V, causal)
