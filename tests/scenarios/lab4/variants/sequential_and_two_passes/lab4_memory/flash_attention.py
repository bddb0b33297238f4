"""Two passes over the keys: first the normaliser of each query, then the output; tiles over queries and keys."""

import importlib
import statistics
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F  # noqa: N812

from labkit import plotting, program
from labkit.device import open_device
from labkit.results import AttentionResult, save_json


def standard_attention(Q, K, V, *, causal=False):
    scores = torch.einsum("bhqd,bhkd->bhqk", Q, K) * Q.size(-1) ** -0.5
    if causal:
        q, k = Q.size(-2), K.size(-2)
        allowed = torch.arange(k, device=Q.device)[None] <= torch.arange(k - q, k, device=Q.device)[:, None]
        scores = scores.where(allowed, float("-inf"))
        shifted = scores - scores.amax(-1, keepdim=True).clamp_min(-1e4).detach()
        weights = shifted.exp()
        return torch.einsum("bhqk,bhkd->bhqd", weights / weights.sum(-1, keepdim=True).clamp_min(1e-7), V)
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), V)


def _library(device, dtype):
    device = torch.device(device)
    if device.type != "cuda" or dtype.itemsize != 2:
        return None
    major, _ = torch.cuda.get_device_capability()
    names = ["flash_attn.cute"] * (major >= 9) + ["flash_attn"] * (major >= 8)
    for name in names:
        try:
            return name, importlib.import_module(name).flash_attn_func
        except (ImportError, AttributeError):
            pass
    return None


def attention_backend(device="cuda", dtype=torch.float16):
    found = _library(device, dtype)
    return found[0] if found else "sdpa"


def flash_attention(Q, K, V, *, causal=False):
    found = _library(Q.device, Q.dtype)
    if found:
        out = found[1](*(x.transpose(1, 2).contiguous() for x in (Q, K, V)), causal=causal)
        if isinstance(out, tuple):
            out = out[0]
        return out.transpose(1, 2).contiguous()
    q, k = Q.size(2), K.size(2)
    if causal and q != k:
        blind = max(0, q - k)
        pieces = [Q.new_zeros(Q.size(0), Q.size(1), blind, V.size(3))] if blind else []
        for first in range(blind, q, 512):  # queries in strips, each with the mask of its own strip
            last = min(q, first + 512)
            seen = last + k - q
            rows = torch.arange(first + k - q, seen, device=Q.device)[:, None]
            mask = torch.arange(seen, device=Q.device)[None] <= rows
            part = F.scaled_dot_product_attention(Q[:, :, first:last], K[:, :, :seen], V[:, :, :seen], attn_mask=mask)
            pieces.append(part)
        return torch.cat(pieces, 2)
    return F.scaled_dot_product_attention(Q, K, V, is_causal=causal)


class _TwoPass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, size):
        ctx.causal, ctx.size = causal, size
        out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
        log = torch.zeros(q.shape[:-1], dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
        for _, rows in _strips(q.shape[-2], size):
            logs = [s.logsumexp(-1) for _, s, _ in _row(q, k, rows, causal, size)]
            if not logs:
                log[..., rows] = float("inf")
                continue
            log[..., rows] = torch.stack(logs).logsumexp(0)
            # A query that sees nothing has a logarithm of minus infinity; plus infinity gives weights of 0.
            log[..., rows] = log[..., rows].masked_fill(log[..., rows] == float("-inf"), float("inf"))
            total = 0
            for columns, s, _ in _row(q, k, rows, causal, size):
                total = total + (s - log[..., rows, None]).exp() @ v[..., columns, :].to(s.dtype)
            out[..., rows, :] = total.to(q.dtype)
        ctx.save_for_backward(q, k, v, log)
        return out

    @staticmethod
    def backward(ctx, g):
        q, k, v, log = ctx.saved_tensors
        dq, dk, dv = (torch.zeros(x.shape, dtype=log.dtype, device=x.device) for x in (q, k, v))
        for _, rows in _strips(q.shape[-2], ctx.size):
            gr = g[..., rows, :].to(log.dtype)
            correction = 0
            for columns, s, _ in _row(q, k, rows, ctx.causal, ctx.size):
                p = (s - log[..., rows, None]).exp()
                dv[..., columns, :] += p.mT @ gr
                correction = correction + (p * (gr @ v[..., columns, :].to(p.dtype).mT)).sum(-1, keepdim=True)
            for columns, s, scale in _row(q, k, rows, ctx.causal, ctx.size):
                p = (s - log[..., rows, None]).exp()
                ds = p * (gr @ v[..., columns, :].to(p.dtype).mT - correction) * scale
                dq[..., rows, :] += ds @ k[..., columns, :].to(p.dtype)
                dk[..., columns, :] += ds.mT @ q[..., rows, :].to(p.dtype)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None


def _strips(length, size):
    return [(i, slice(i, min(i + size, length))) for i in range(0, length, size)]


def _row(q, k, rows, causal, size):
    """Tiles of one strip of queries: keys, scores, scale."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scale = q.shape[-1] ** -0.5
    offset = k.shape[-2] - q.shape[-2]
    for first, columns in _strips(k.shape[-2], size):
        if causal and first > rows.stop - 1 + offset:
            return
        s = q[..., rows, :].to(wide) @ k[..., columns, :].to(wide).mT * scale
        if causal and columns.stop - 1 > rows.start + offset:
            i = torch.arange(rows.start, rows.stop, device=q.device)[:, None] + offset
            s = s.masked_fill(torch.arange(first, columns.stop, device=q.device)[None] > i, float("-inf"))
        yield columns, s, scale


def tiled_attention(Q, K, V, *, causal=False, block_size=128):
    if block_size < 1:
        raise ValueError("block_size")
    return _TwoPass.apply(Q, K, V, causal, block_size)


METHODS = {"standard": standard_attention, "flash": flash_attention, "tiled": tiled_attention}


def benchmark_attention(
    lengths=(512, 1024, 2048, 4096, 8192, 16384), methods=("standard", "flash"), *, device="cuda",
    dtype=torch.float16, batch=1, heads=16, head_dim=64, causal=True, iterations=5, warmup=1,
):  # fmt: skip
    if iterations < 1 or warmup < 1 or any(m not in METHODS for m in methods):
        raise ValueError("arguments")
    rows = []
    for length in lengths:
        for method in methods:
            seconds = peak = None
            failed = False
            try:
                seconds, peak = _once(METHODS[method], (batch, heads, length, head_dim), device, dtype, causal,
                                      iterations, warmup)  # fmt: skip
            except torch.cuda.OutOfMemoryError:
                failed = True
            if failed:
                torch.cuda.empty_cache()
            rows.append(
                AttentionResult(
                    device=torch.device(device).type,
                    method=method,
                    backend="torch" if method != "flash" else attention_backend(device, dtype),
                    dtype=str(dtype)[6:],
                    length=length,
                    seconds=seconds,
                    peak_bytes=peak,
                )
            )
    return rows


def _once(function, shape, device, dtype, causal, iterations, warmup):
    q, k, v, g = (torch.randn(*shape, device=device).to(dtype) for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_()
    gpu = device != "cpu"
    times = []
    for index in range(warmup + iterations):
        q.grad = k.grad = v.grad = None
        if gpu:
            torch.cuda.synchronize()
            if index == warmup:
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
        begin = time.perf_counter()
        function(q, k, v, causal=causal).backward(g)
        if gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[warmup:]), torch.cuda.max_memory_allocated() - before if gpu else None


def plot_attention(results, path):
    figure, axes = plotting.new_figure("attention", columns=2, share_y=False)
    for method in METHODS:
        rows = [row for row in results if row.method == method and row.seconds]
        axes[0].loglog([row.length for row in rows], [row.peak_bytes / 1024**2 for row in rows], "o-", label=method)
        axes[1].loglog([row.length for row in rows], [1e3 * row.seconds for row in rows], "o-", label=method)
    axes[0].set_ylabel("added MiB")
    axes[1].set_title("ms")
    axes[1].legend()
    return plotting.save_png(figure, path)


def main(argv=None):
    parser = program.make_parser("attention", results=Path(__file__).parent / "results")
    parser.add_argument("--lengths", type=program.positive_ints, default=(512, 1024, 2048, 4096, 8192, 16384))
    options = parser.parse_args(argv)
    with open_device(options.device, values=False) as device:
        rows = benchmark_attention(options.lengths, device=device.torch_device)
        print("results:", save_json(options.out / "attention.json", rows, device.provenance()))
        if rows[0].peak_bytes is not None:
            print("plot:", plot_attention(rows, options.out / "attention.png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
