"""Backward in one kernel: a program for each tile of keys, which adds to the gradient of queries atomically."""

import math

import torch
import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def fwd(
    Q,
    K,
    V,
    O,  # noqa: E741
    L,
    sqz,
    sqm,
    sqd,
    skz,
    skn,
    skd,
    svz,
    svn,
    svd,
    soz,
    N,
    scale,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    z = tl.program_id(0)
    start = tl.program_id(1) * BM
    offs_m = start + tl.arange(0, BM)
    offs_d = tl.arange(0, D)
    q = tl.load(Q + z * sqz + offs_m[:, None] * sqm + offs_d[None, :] * sqd, mask=offs_m[:, None] < N, other=0.0)
    m = tl.full([BM], float("-inf"), dtype=tl.float32)
    l = tl.zeros([BM], dtype=tl.float32)  # noqa: E741
    acc = tl.zeros([BM, D], dtype=tl.float32)
    hi = N
    if CAUSAL:
        hi = tl.minimum(start + BM, N)
    for n in range(0, hi, BN):
        offs_n = n + tl.arange(0, BN)
        kt = tl.load(K + z * skz + offs_n[None, :] * skn + offs_d[:, None] * skd, mask=offs_n[None, :] < N, other=0.0)
        s = tl.dot(q, kt, input_precision="ieee") * (scale * LOG2E)
        ok = offs_n[None, :] < N
        if CAUSAL:
            ok &= offs_m[:, None] >= offs_n[None, :]
        s = tl.where(ok, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        alpha = tl.exp2(m - m_new)
        p = tl.exp2(s - m_new[:, None])
        l = l * alpha + tl.sum(p, 1)  # noqa: E741
        v = tl.load(V + z * svz + offs_n[:, None] * svn + offs_d[None, :] * svd, mask=offs_n[:, None] < N, other=0.0)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m_new
    acc = acc / l[:, None]
    tl.store(O + z * soz + offs_m[:, None] * D + offs_d[None, :], acc.to(O.dtype.element_ty), mask=offs_m[:, None] < N)
    tl.store(L + z * N + offs_m, m + tl.log2(l), mask=offs_m < N)


@triton.jit
def bwd(
    Q, K, V, G, L, P, DQ, DK, DV, N, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr
):
    z = tl.program_id(0)
    start = tl.program_id(1) * BN
    base = z * N * D
    offs_n = start + tl.arange(0, BN)
    offs_d = tl.arange(0, D)
    at_n = offs_n[:, None] * D + offs_d[None, :]
    k = tl.load(K + base + at_n, mask=offs_n[:, None] < N, other=0.0)
    v = tl.load(V + base + at_n, mask=offs_n[:, None] < N, other=0.0)
    dk = tl.zeros([BN, D], dtype=tl.float32)
    dv = tl.zeros([BN, D], dtype=tl.float32)
    lo = 0
    if CAUSAL:
        lo = (start // BM) * BM
    for i in range(lo, N, BM):
        offs_m = i + tl.arange(0, BM)
        at_m = offs_m[:, None] * D + offs_d[None, :]
        inside = offs_m[:, None] < N
        q = tl.load(Q + base + at_m, mask=inside, other=0.0)
        g = tl.load(G + base + at_m, mask=inside, other=0.0)
        lse = tl.load(L + z * N + offs_m, mask=offs_m < N, other=0.0)
        delta = tl.load(P + z * N + offs_m, mask=offs_m < N, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * LOG2E)
        ok = inside & (offs_n[None, :] < N)
        if CAUSAL:
            ok = ok & (offs_m[:, None] >= offs_n[None, :])
        p = tl.where(ok, tl.exp2(s - lse[:, None]), 0.0)
        dv += tl.dot(tl.trans(p).to(g.dtype), g, input_precision="ieee")
        dp = tl.dot(g, tl.trans(v), input_precision="ieee")
        ds = (p * (dp - delta[:, None]) * scale).to(q.dtype)
        dk += tl.dot(tl.trans(ds), q, input_precision="ieee")
        tl.atomic_add(DQ + base + at_m, tl.dot(ds, k, input_precision="ieee"), mask=inside)
    tl.store(DK + base + at_n, dk.to(DK.dtype.element_ty), mask=offs_n[:, None] < N)
    tl.store(DV + base + at_n, dv.to(DV.dtype.element_ty), mask=offs_n[:, None] < N)


class Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal):
        b, h, n, d = q.shape
        q, k, v = (t.reshape(b * h, n, d) for t in (q, k, v))
        o = torch.empty((b * h, n, d), dtype=q.dtype, device=q.device)
        lse = torch.empty((b * h, n), dtype=torch.float32, device=q.device)
        fwd[(b * h, triton.cdiv(n, 32))](
            q,
            k,
            v,
            o,
            lse,
            *q.stride(),
            *k.stride(),
            *v.stride(),
            n * d,
            n,
            1 / math.sqrt(d),
            D=d,
            BM=32,
            BN=64,
            CAUSAL=causal,
            num_warps=4,
        )
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.causal, ctx.shape = causal, (b, h, n, d)
        return o.view(b, h, n, d)

    @staticmethod
    def backward(ctx, g):
        q, k, v, o, lse = ctx.saved_tensors
        bh, n, d = q.shape
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        g = g.reshape(bh, n, d).contiguous()
        delta = torch.sum(o.float() * g.float(), dim=-1)
        dq = torch.zeros((bh, n, d), dtype=torch.float32, device=q.device)
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        bwd[(bh, triton.cdiv(n, 64))](
            q, k, v, g, lse, delta, dq, dk, dv, n, 1 / math.sqrt(d), D=d, BM=64, BN=64, CAUSAL=ctx.causal
        )
        return dq.to(q.dtype).view(ctx.shape), dk.view(ctx.shape), dv.view(ctx.shape), None


def flash_attention(Q, K, V, *, causal=False):
    if not (Q.dim() == K.dim() == V.dim() == 4) or len({Q.shape, K.shape, V.shape}) > 1:
        raise ValueError("shapes")
    if len({Q.dtype, K.dtype, V.dtype}) > 1 or Q.dtype not in (torch.float16, torch.float32):
        raise ValueError("dtypes")
    if Q.size(-1) not in (16, 32, 64, 128):
        raise ValueError("head_dim")
    return Flash.apply(Q, K, V, causal)
