"""Plain operations in tiles, one checkpoint per pair of them; found by their specs, imported when called."""

import importlib.util
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from labkit import plotting, program
from labkit.device import open_device
from labkit.results import AttentionResult, save_json

from .lengths import measure_lengths


def standard_attention(Q, K, V, *, causal=False):
    dots = (Q / Q.shape[3] ** 0.5).matmul(K.mT)
    if causal:
        i = torch.arange(Q.shape[2], device=Q.device).unsqueeze(1)
        j = torch.arange(K.shape[2], device=Q.device).unsqueeze(0)
        dots = dots.masked_fill(j - i > K.shape[2] - Q.shape[2], -torch.inf)
    return (
        torch.nan_to_num(F.softmax(dots, dim=3, dtype=torch.promote_types(dots.dtype, torch.float32)))
        .to(V.dtype)
        .matmul(V)
    )


def _installed(name):
    try:
        found = importlib.util.find_spec(name) is not None
        return found and hasattr(importlib.import_module(name), "flash_attn_func")
    except (ImportError, ValueError):
        return False


def attention_backend(device="cuda", dtype=torch.float16):
    kind = torch.device(device)
    if kind.type == "cuda" and dtype in {torch.half, torch.bfloat16}:
        major = torch.cuda.get_device_properties(kind).major
        if major >= 9 and _installed("flash_attn.cute"):
            return "flash_attn.cute"
        if major >= 8 and _installed("flash_attn"):
            return "flash_attn"
    return "sdpa"


def flash_attention(Q, K, V, *, causal=False):
    backend = attention_backend(Q.device, Q.dtype)
    if backend == "sdpa":
        extra = Q.shape[2] - K.shape[2]
        if causal and extra > 0:
            blind = Q[:, :, :extra] * 0
            return torch.cat([blind, F.scaled_dot_product_attention(Q[:, :, extra:], K, V, is_causal=True)], 2)
        if causal and extra < 0:
            # Queries that nobody asked for stand in front: the square problem, and its last rows.
            front = Q[:, :, :1].detach().expand(-1, -1, -extra, -1)
            return F.scaled_dot_product_attention(torch.cat([front, Q], 2), K, V, is_causal=True)[:, :, -extra:]
        return F.scaled_dot_product_attention(Q, K, V, is_causal=causal)
    Q, K, V = (x.permute(0, 2, 1, 3) for x in (Q, K, V))
    if backend == "flash_attn":
        from flash_attn import flash_attn_func

        return flash_attn_func(Q, K, V, 0.0, None, causal).permute(0, 2, 1, 3)
    from flash_attn.cute import flash_attn_func

    output = flash_attn_func(Q, K, V, causal=causal)
    return (output if torch.is_tensor(output) else output[0]).permute(0, 2, 1, 3)


def tiled_attention(Q, K, V, *, causal=False, block_size=128):
    if block_size < 1:
        raise ValueError(block_size)
    kind = torch.float64 if Q.dtype == torch.float64 else torch.float32
    shift = K.shape[2] - Q.shape[2]
    rows = []
    for a in range(0, Q.shape[2], block_size):
        q = Q[:, :, a : a + block_size]
        state = (
            torch.full(q.shape[:3], -1e38, dtype=kind, device=q.device),
            torch.zeros(q.shape[:3], dtype=kind, device=q.device),
            torch.zeros(*q.shape[:3], V.shape[3], dtype=kind, device=q.device),
        )
        for b in range(0, K.shape[2], block_size):
            if causal and b > a + q.shape[2] - 1 + shift:
                break
            k, v = K[:, :, b : b + block_size], V[:, :, b : b + block_size]
            state = checkpoint(_add, *state, q, k, v, a + shift - b if causal else None, use_reentrant=False)
        _, total, weighted = state
        rows.append((weighted / total.masked_fill(total == 0, 1.0)[..., None]).to(Q.dtype))
    return torch.cat(rows, 2)


def _add(top, total, weighted, q, k, v, diagonal):
    kind = top.dtype
    s = torch.einsum("bhqd,bhkd->bhqk", q.to(kind), k.to(kind)) / q.shape[3] ** 0.5
    keep = None
    if diagonal is not None:
        keep = torch.ones(s.shape[2:], dtype=torch.bool, device=s.device).tril(diagonal)
        s = s.masked_fill(~keep, -1e38)
    new = torch.maximum(top, s.amax(3)).detach()
    p = torch.exp(s - new[..., None])
    if keep is not None:
        p = p * keep
    factor = torch.exp(top - new)
    weighted = weighted * factor[..., None] + torch.einsum("bhqk,bhkd->bhqd", p, v.to(kind))
    return new, total * factor + p.sum(3), weighted


def benchmark_attention(
    lengths=(512, 1024, 2048, 4096, 8192, 16384), methods=("standard", "flash"), *, device="cuda",
    dtype=torch.float16, batch=1, heads=16, head_dim=64, causal=True, iterations=5, warmup=1,
):  # fmt: skip
    functions = {"standard": standard_attention, "flash": flash_attention, "tiled": tiled_attention}
    if any(m not in functions for m in methods) or min(iterations, warmup) < 1:
        raise ValueError("arguments")
    kind, rows = torch.device(device).type, []
    for length in lengths:
        for method in methods:
            found = {"seconds": None, "peak_bytes": None}
            try:
                one = _one if kind == "cuda" else _on_cpu
                found = one(functions[method], (batch, heads, length, head_dim), dtype, causal, iterations, warmup)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
            rows.append(
                AttentionResult(
                    device=kind,
                    method=method,
                    backend=attention_backend(device, dtype) if method == "flash" else "torch",
                    dtype=f"{dtype}".split(".")[1],
                    length=length,
                    **found,
                )
            )
    return rows


def _on_cpu(function, shape, dtype, causal, iterations, warmup):
    Q, K, V = (torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3))
    took = []
    for _ in range(warmup + iterations):
        start = time.perf_counter()
        function(Q, K, V, causal=causal).backward(torch.ones(shape, dtype=dtype))
        took.append(time.perf_counter() - start)
    return {"seconds": sorted(took[warmup:])[iterations // 2], "peak_bytes": None}


def _one(function, shape, dtype, causal, iterations, warmup):
    Q, K, V = (torch.randn(shape, dtype=dtype, device="cuda", requires_grad=True) for _ in range(3))
    gradient = torch.ones(shape, dtype=dtype, device="cuda")
    marks = []
    for index in range(-warmup, iterations):
        Q.grad = K.grad = V.grad = None
        if index == 0:
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()  # the output of the warm-up is still there
            torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        output = function(Q, K, V, causal=causal)
        output.backward(gradient)
        stop.record()
        torch.cuda.synchronize()
        if index >= 0:
            marks.append(start.elapsed_time(stop) * 1e-3)
    marks.sort()
    return {"seconds": marks[len(marks) // 2], "peak_bytes": torch.cuda.max_memory_allocated() - before}


def plot_attention(results, path):
    figure, axes = plotting.new_figure("attention", columns=2, x_label="tokens", share_y=False)
    done = [r for r in results if r.seconds]
    scale = {"peak_bytes": ("MiB", 2**-20), "seconds": ("ms", 1e3)}
    for axis, (name, (unit, factor)) in zip(axes, scale.items(), strict=True):
        for method in {r.method: None for r in done}:
            table = [(r.length, getattr(r, name) * factor) for r in done if r.method == method]
            axis.errorbar(*zip(*table, strict=True), fmt="o:", color=plotting.COLORS[len(method) % 4], label=method)
        axis.set(xscale="log", yscale="log", ylabel=unit)
    figure.legend(*axes[1].get_legend_handles_labels())
    return plotting.save_png(figure, path)


def main(argv=None):
    parser = program.make_parser("attention", results=Path(__file__).parent / "results")
    parser.add_argument("--lengths", type=program.positive_ints, default=(512, 1024, 2048, 4096, 8192, 16384))
    options = parser.parse_args(argv)
    with open_device(options.device, values=False) as device:
        name = device.torch_device
        kind = torch.float32 if name == "cpu" else torch.float16
        backend = attention_backend(name, kind)
        rows = measure_lengths(benchmark_attention, backend, options.lengths, device=name, dtype=kind)
        program.print_written(save_json(options.out / "attention.json", rows, device.provenance()))
        if any(r.peak_bytes for r in rows):
            program.print_written(plot_attention(rows, options.out / "attention.png"))
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
