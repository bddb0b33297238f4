"""Task 4.2: attention without the matrix of all scores: by a library, and in tiles by yourself.

In all of it Q is [batch, heads, queries, head_dim], K and V are [batch, heads, keys, head_dim]; the scores are
Q K^T / sqrt(head_dim), their softmax over the keys weighs V. Lengths may be odd, and queries and keys differ in number.

With `causal=True` the *last* query sees all keys, the one before it all but the last key, and so on: query i sees key j
if j <= i + keys - queries. So a chunk of new tokens can attend to all earlier ones, as flash-attn does since version
2.1 ("bottom-right"). Mind that `is_causal` of PyTorch's `scaled_dot_product_attention` begins at the *first* query and
the first key instead ("top-left"), which is the same only where queries and keys are equally many. A query that sees no
key at all (the first ones, where there are more queries than keys) gets an output of 0, and its gradient is 0.

Inputs in float64 are computed in float64 throughout. No dropout here, in training or otherwise.

Run: python -m labs.lab4_memory.flash_attention
"""

import gc
import sys
import timeit
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from labkit import plotting, program
from labkit.allowance import DEFAULT_SECONDS
from labkit.device import open_device
from labkit.results import ATTENTION_METHODS, AttentionResult, save_json

from .lengths import measure_lengths, milliseconds, print_reasons

RESULTS = Path(__file__).parent / "results"
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
MEBIBYTE = 2**20


def standard_attention(Q: Tensor, K: Tensor, V: Tensor, *, causal: bool = False) -> Tensor:
    """Attention by the formula, with all scores at once: what the others are compared with.

    Args:
        Q, K, V: see the module; of one dtype, on one device. They may be views, transposed and not contiguous, and are
            left as they are.
        causal: whether a query sees only the keys up to its own place, aligned as the module says.

    Returns:
        [batch, heads, queries, head_dim] in the inputs' dtype, differentiable.

    Source: A. Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762), section 3.2.1.
    """
    q, k = Q.shape[2], K.shape[2]
    work = Q.dtype if Q.dtype == torch.float64 else torch.float32
    s = torch.einsum("bhqd,bhkd->bhqk", Q.to(work), K.to(work)) / np.sqrt(Q.shape[3]).item()
    if causal:
        see = torch.from_numpy(np.tri(q, k, k - q, dtype=np.bool_)).to(Q.device)
        s = torch.where(see, s, torch.finfo(work).min)
        e = torch.exp(s - s.detach().amax(dim=3, keepdim=True)) * see
        e = e / e.sum(dim=3, keepdim=True).clamp(min=1e-30)
    else:
        e = torch.softmax(s, dim=3)
    return torch.einsum("bhqk,bhkd->bhqd", e, V.to(work)).to(Q.dtype)


def pick(device, dtype):
    device = torch.device(device)
    if device.type == "cuda" and dtype in {torch.float16, torch.bfloat16} and torch.cuda.is_available():
        cc = np.dot(torch.cuda.get_device_capability(device), (10, 1))
        for name, least in (("flash_attn.cute", 90), ("flash_attn", 80)):
            if cc >= least:
                try:
                    return name, __import__(name, fromlist=["flash_attn_func"]).flash_attn_func
                except (ImportError, AttributeError, OSError, RuntimeError):
                    continue
    return "sdpa", None


def attention_backend(device: str = "cuda", dtype: torch.dtype = torch.float16) -> str:
    """What `flash_attention` computes tensors of this dtype on this device with.

    Returns:
        The first of these that can be used, now (packages are looked for at each call, not once at import):
        - "flash_attn.cute" (flash-attn 4): `flash_attn_func` can be imported from there, `dtype` is float16 or
          bfloat16, `device` a GPU of compute capability 9.0 or higher;
        - "flash_attn" (flash-attn 2): the same from `flash_attn`, from compute capability 8.0 on;
        - "sdpa": PyTorch's own `scaled_dot_product_attention`.

    Source: https://github.com/Dao-AILab/flash-attention#installation-and-features
    """
    return pick(device, dtype)[0]


def flash_attention(Q: Tensor, K: Tensor, V: Tensor, *, causal: bool = False) -> Tensor:
    """Attention by the fastest kernel there is (`attention_backend`), which never makes the matrix of scores.

    For 16-bit and float32 inputs no tensor of queries x keys elements is made, neither in forward nor in backward, a
    mask included, whatever the two lengths are. (PyTorch has no fused kernel for float64 on a GPU; and the virtual GPU
    cannot run `causal_lower_right` of `torch.nn.attention.bias`.)

    flash-attn wants [batch, length, heads, head_dim] and gives the same; version 4 may return a tuple, output first, or
    the output alone.

    Args, Returns: as `standard_attention`.

    Source: T. Dao et al. 2022, "FlashAttention" (arXiv:2205.14135);
        https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
    """
    f = pick(Q.device, Q.dtype)[1]
    if f is not None:
        o = f(Q.swapaxes(1, 2), K.swapaxes(1, 2), V.swapaxes(1, 2), causal=causal)
        if isinstance(o, (tuple, list)):
            o = o[0]
        return o.swapaxes(1, 2)
    q, k = Q.shape[2], K.shape[2]
    if not causal or q == k:
        return functional.scaled_dot_product_attention(Q, K, V, is_causal=causal)
    if q > k:
        o = functional.scaled_dot_product_attention(Q[:, :, q - k :], K, V, is_causal=True)
        return torch.cat((torch.zeros_like(Q[:, :, : q - k]), o), dim=2)
    o = functional.scaled_dot_product_attention(
        torch.cat((torch.zeros_like(K[:, :, : k - q]), Q), 2), K, V, is_causal=True
    )
    return o[:, :, k - q :]


class Tiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, Q, K, V, causal, size):
        q, k, d = Q.shape[2], K.shape[2], Q.shape[3]
        work = torch.float64 if Q.dtype == torch.float64 else torch.float32
        out = torch.zeros(Q.shape, dtype=work, device=Q.device)
        lse = torch.full(Q.shape[:3], -np.inf, dtype=work, device=Q.device)
        i = 0
        while i < q:
            i2 = min(i + 512, q)
            j = 0
            a = Q[:, :, i:i2].to(work)
            while j < k and not (causal and j > i2 - 1 + k - q):
                j2 = min(j + size, k)
                s = torch.einsum("bhqd,bhkd->bhqk", a, K[:, :, j:j2].to(work)) / np.sqrt(d).item()
                if causal and j2 - 1 > i + k - q:
                    see = torch.from_numpy(np.tri(i2 - i, j2 - j, i + k - q - j, dtype=np.bool_)).to(Q.device)
                    s = torch.where(see, s, -np.inf)
                new = torch.logsumexp(s, 3)
                both = torch.logaddexp(lse[:, :, i:i2], new)
                ok = torch.where(both == -np.inf, 0.0, both)
                o = torch.einsum("bhqk,bhkd->bhqd", torch.exp(s - ok[..., None]), V[:, :, j:j2].to(work))
                out[:, :, i:i2] = out[:, :, i:i2] * torch.exp(lse[:, :, i:i2] - ok)[..., None] + o
                lse[:, :, i:i2] = both
                j = j2
            i = i2
        out = out.to(Q.dtype)
        ctx.save_for_backward(Q, K, V, out, lse)
        ctx.rest = causal, size, work
        return out

    @staticmethod
    def backward(ctx, G):
        Q, K, V, out, lse = ctx.saved_tensors
        causal, size, work = ctx.rest
        q, k, d = Q.shape[2], K.shape[2], Q.shape[3]
        root = np.sqrt(d).item()
        dq = torch.zeros(Q.shape, dtype=work, device=Q.device)
        dk = torch.zeros(K.shape, dtype=work, device=Q.device)
        dv = torch.zeros(V.shape, dtype=work, device=Q.device)
        lse = torch.where(lse == -np.inf, np.inf, lse)
        j = 0
        while j < k:
            j2 = min(j + size, k)
            key, value = K[:, :, j:j2].to(work), V[:, :, j:j2].to(work)
            i = 0
            while i < q:
                i2 = min(i + 512, q)
                if causal and j > i2 - 1 + k - q:
                    i = i2
                    continue
                a, g = Q[:, :, i:i2].to(work), G[:, :, i:i2].to(work)
                s = torch.einsum("bhqd,bhkd->bhqk", a, key) / root
                p = torch.exp(s - lse[:, :, i:i2, None])
                if causal and j2 - 1 > i + k - q:
                    see = torch.from_numpy(np.tri(i2 - i, j2 - j, i + k - q - j, dtype=np.bool_)).to(Q.device)
                    p = torch.where(see, p, 0.0)
                dv[:, :, j:j2] += torch.einsum("bhqk,bhqd->bhkd", p, g)
                dp = torch.einsum("bhqd,bhkd->bhqk", g, value)
                ds = p * (dp - (g * out[:, :, i:i2].to(work)).sum(3, keepdim=True)) / root
                dq[:, :, i:i2] += torch.einsum("bhqk,bhkd->bhqd", ds, key)
                dk[:, :, j:j2] += torch.einsum("bhqk,bhqd->bhkd", ds, a)
                i = i2
            j = j2
        return dq.to(Q.dtype), dk.to(Q.dtype), dv.to(Q.dtype), None, None


def tiled_attention(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    *,
    causal: bool = False,
    block_size: int = 128,
) -> Tensor:
    """Attention in tiles, by your own hands: the softmax is corrected as each further tile of keys is seen.

    No tensor of queries x keys elements is made, neither in forward nor in backward, and what is kept between them
    grows with the length, not with its square: compute the scores of a tile again in backward. Do it with a
    `torch.autograd.Function`, or let `torch.utils.checkpoint` do it for blocks of queries.

    16-bit inputs are computed in float32 inside a tile, and so are the sums over the tiles. (Where autograd itself adds
    up gradients over blocks, it may do that in 16 bits.) Scores may be large: no exponential overflows where the
    largest score so far is taken off first.

    Args:
        Q, K, V, causal: as in `standard_attention`.
        block_size: keys in a tile, at most; you may cut the queries as well.

    Returns:
        As `standard_attention`.

    Raises:
        ValueError: `block_size` is below 1.

    Source: M. Milakov, N. Gimelshein 2018, "Online normalizer calculation for softmax" (arXiv:1805.02867), algorithm 3;
        T. Dao 2023, "FlashAttention-2" (arXiv:2307.08691), algorithms 1 and 2.
    """
    if block_size < 1:
        raise ValueError("block_size < 1")
    return Tiles.apply(Q, K, V, causal, block_size)


def benchmark_attention(
    lengths: Sequence[int] = LENGTHS,
    methods: Sequence[str] = ("standard", "flash"),
    *,
    device: str = "cuda",
    dtype: torch.dtype = torch.float16,
    batch: int = 1,
    heads: int = 16,
    head_dim: int = 64,
    causal: bool = True,
    iterations: int = 5,
    warmup: int = 1,
) -> list[AttentionResult]:
    """Measure time and memory of forward and backward of each method at each length.

    One iteration: the gradients of Q, K and V to None, forward, backward from a given gradient of the output. Q, K, V
    (as many keys as queries) and that gradient are on the device before, random, in `dtype`. Nothing may look at a
    value: a virtual GPU that computes shapes only has none.

    Args:
        lengths: numbers of tokens.
        methods: names from `labkit.results.ATTENTION_METHODS`: the functions above.
        device: "cuda" or "cpu".
        dtype, batch, heads, head_dim, causal: of the attention.
        iterations: timed ones; `warmup` untimed ones before them, 1 at least.

    Returns:
        One `AttentionResult` for each length and each method, in the order of two nested loops: seconds is the *median*
        over the iterations, each timed from an idle device to an idle device; peak_bytes is the most that was allocated
        during them, less what was allocated before the first of them with the gradients at None; backend is
        `attention_backend(device, dtype)` for "flash", else "torch". Where memory ran out both are None, and the next
        measurement is not disturbed by it.

    Raises:
        ValueError: a method is unknown, `iterations` or `warmup` is below 1.
    """
    for m in methods:
        if m not in ATTENTION_METHODS:
            raise ValueError(m)
    if iterations < 1:
        raise ValueError("iterations")
    if warmup < 1:
        raise ValueError("warmup")
    gpu = torch.device(device).type == "cuda"
    out = []
    for n in lengths:
        for m in methods:
            f = globals()[m + "_attention"]
            s = np.zeros(warmup + iterations)
            base = peak = sec = None
            lost = False
            a = []
            o = None
            try:
                for _ in range(4):
                    a.append(torch.randn(batch, heads, n, head_dim, dtype=dtype, device=device))
                for t in a[:3]:
                    t.requires_grad = True
                for i in range(warmup + iterations):
                    if gpu:
                        torch.cuda.synchronize(device)
                    if gpu and i == warmup:
                        for t in a:
                            t.grad = None
                        base = torch.cuda.memory_stats(device)["allocated_bytes.all.current"]
                        torch.cuda.reset_peak_memory_stats(device)
                    t0 = timeit.default_timer()
                    for t in a:
                        t.grad = None
                    o = f(a[0], a[1], a[2], causal=causal)
                    torch.autograd.backward([o], [a[3]])
                    o = None
                    if gpu:
                        torch.cuda.synchronize(device)
                    s[i] = timeit.default_timer() - t0
                sec = float(np.median(s[warmup:]))
                if gpu:
                    peak = torch.cuda.memory_stats(device)["allocated_bytes.all.peak"] - base
            except torch.OutOfMemoryError:
                lost = True
            del a, o
            t = None
            if lost:
                gc.collect()
                torch.cuda.empty_cache()
            out.append(
                AttentionResult(
                    device="cuda" if gpu else "cpu",
                    method=m,
                    backend=attention_backend(device, dtype) if m == "flash" else "torch",
                    dtype=str(dtype)[6:],
                    length=n,
                    seconds=sec,
                    peak_bytes=peak,
                )
            )
    return out


def plot_attention(results: Sequence[AttentionResult], path: Path | str) -> Path:
    """Plot memory in MiB and time in milliseconds against length, one line per method.

    Side by side, each with a labelled y axis of its own; all axes are logarithmic, and the methods named.

    Args:
        results: of one device and dtype, with peaks; those without seconds are left out.
        path: the PNG file to write.

    Returns:
        The path written.

    Raises:
        OSError: the file cannot be written.
    """
    fig, axes = plotting.new_figure("attention", columns=2, x_label="tokens", y_label="MiB", share_y=False)
    axes[1].set_ylabel("milliseconds")
    for i in range(2):
        axes[i].set_xscale("log")
        axes[i].set_yscale("log")
        for m in sorted({r.method for r in results if r.seconds is not None}):
            rows = np.array(
                [
                    [r.length, r.peak_bytes / MEBIBYTE, r.seconds * 1000]
                    for r in results
                    if r.method == m and r.seconds is not None
                ]
            )
            rows = rows[rows[:, 0].argsort()]
            axes[i].plot(rows[:, 0], rows[:, i + 1], "x--", label=m)
            axes[i].legend()
    return plotting.save_png(fig, path)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the methods over all lengths; print a table; write OUT/attention.json and OUT/attention.png.

    Lengths that would take too long on this machine are left out (`lengths.py`); table and results say which and why.

    A CPU gives no peaks, and so there is no picture. The paths of what was written are printed.

    Both files say that a virtual GPU was used, where it was: the picture with the word "simulated".

    Returns:
        0.
    """
    parser = program.make_parser(__doc__ or "", results=RESULTS)
    parser.add_argument(
        "--lengths", type=program.positive_ints, metavar="N,N", help="tokens (default: 512 to 16384; on a CPU to 2048)"
    )
    parser.add_argument(
        "--seconds", type=program.positive_int, default=DEFAULT_SECONDS, metavar="N", help="of processor time, at most"
    )
    options = parser.parse_args(argv)
    # Only times and memory matter here, so a virtual GPU need not compute any number.
    with open_device(options.device, values=False) as device:
        dtype = torch.float32 if device.torch_device == "cpu" else torch.float16
        backend = attention_backend(device.torch_device, dtype)
        print(f"flash is {backend} here")
        # On a CPU all scores of 16384 tokens would take more memory than most computers have.
        lengths = options.lengths or (LENGTHS[:3] if device.torch_device == "cpu" else LENGTHS)
        results = measure_lengths(
            benchmark_attention, backend, lengths, device=device.torch_device, dtype=dtype, seconds=options.seconds
        )
        rows = [
            (
                result.length,
                result.method,
                milliseconds(result),
                "-" if result.peak_bytes is None else f"{result.peak_bytes / MEBIBYTE:.1f}",
            )
            for result in results
        ]
        program.print_table("Attention, forward and backward", ("tokens", "method", "ms", "added MiB"), rows)
        print_reasons(results)
        program.print_written(save_json(options.out / "attention.json", results, device.provenance()))
        if len([1 for r in results if r.peak_bytes is not None]):
            program.print_written(plot_attention(results, options.out / "attention.png"))
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
