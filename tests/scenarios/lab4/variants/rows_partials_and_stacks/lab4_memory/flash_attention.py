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

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from labkit import plotting, program
from labkit.allowance import DEFAULT_SECONDS
from labkit.device import open_device
from labkit.results import ATTENTION_METHODS, AttentionResult, save_json

from .lengths import measure_lengths, milliseconds, print_reasons
from .readings import allocated_bytes, now, peak_bytes, reset_peak

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
    queries, keys, width = Q.size(-2), K.size(-2), Q.size(-1)
    scores = torch.einsum("bhqd,bhkd->bhqk", Q, K) * width**-0.5
    if not causal:
        return scores.softmax(-1) @ V
    places = torch.arange(keys, device=Q.device) - keys + queries
    visible = places[None, :] <= torch.arange(queries, device=Q.device)[:, None]
    return _weigh(scores, visible) @ V


def _weigh(scores: Tensor, visible: Tensor) -> Tensor:
    """Softmax over what is visible, 0 where nothing is; rows that see nothing keep away from infinities."""
    blind = ~visible.any(-1, keepdim=True)
    return scores.masked_fill(~(visible | blind), -torch.inf).softmax(-1) * ~blind


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
    # --- solution: task 4.2 ---
    return _kernel(device, dtype)[0]
    # --- end ---


# --- solution only ---
def _kernel(device: str | torch.device, dtype: torch.dtype) -> tuple[str, Callable[..., Any] | None]:
    """The backend's name, and flash-attn's function where it is one of theirs."""
    if torch.device(device).type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return "sdpa", None
    capability = torch.cuda.get_device_capability(device)
    for module, least in (("flash_attn.cute", (9, 0)), ("flash_attn", (8, 0))):
        if capability >= least:
            try:
                return module, getattr(__import__(module, fromlist=["flash_attn_func"]), "flash_attn_func")  # noqa: B009
            except (ImportError, AttributeError):
                continue
    return "sdpa", None


# --- end ---


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
    # --- solution: task 4.2 ---
    _, kernel = _kernel(Q.device, Q.dtype)
    if kernel is not None:
        output = kernel(Q.transpose(1, 2), K.transpose(1, 2), V.transpose(1, 2), causal=causal)
        output = output[0] if isinstance(output, tuple) else output
        swapped: Tensor = output.transpose(1, 2)
        return swapped
    queries, keys = Q.shape[-2], K.shape[-2]
    if not causal or queries == 1:  # a single query is the last one, and sees everything
        return functional.scaled_dot_product_attention(Q, K, V)
    if queries > keys:
        seeing = functional.scaled_dot_product_attention(Q[..., queries - keys :, :], K, V, is_causal=True)
        return functional.pad(seeing, (0, 0, queries - keys, 0))
    # Zero queries in front make a square problem, whose last rows are ours: linear in memory, at the price of time.
    padded = functional.pad(Q, (0, 0, keys - queries, 0))
    return functional.scaled_dot_product_attention(padded, K, V, is_causal=True)[..., keys - queries :, :]
    # --- end ---


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
    # Most of the lines belong into an autograd.Function or a function of your own, beside this one.
    # 1. Keep for each query: the largest score so far, the sum of exp(score - largest), the weighted sum of values.
    # 2. For each tile of keys: its scores; the new largest; what the old sums must be multiplied by; add the tile.
    # 3. Causal: leave out what is hidden, and whole tiles that nobody sees.
    # 4. Divide in the end. Which queries have nothing to divide by?
    # 5. Backward: from the saved output and log-sum-exp, tile by tile.
    if block_size <= 0:
        raise ValueError(f"a tile has one key at least, not {block_size}")
    rows = max(1, min(Q.shape[-2], block_size))
    parts = [
        _row_block(
            Q[..., first : first + rows, :], K, V, first + K.shape[-2] - Q.shape[-2] if causal else None, block_size
        )
        for first in range(0, Q.shape[-2], rows)
    ]
    return torch.cat(parts, dim=-2)


def _row_block(Q: Tensor, K: Tensor, V: Tensor, last: int | None, block_size: int) -> Tensor:
    """A block of queries, computed again in backward; `last`: the last key that the first of them sees."""
    output: Tensor = checkpoint(
        functools.partial(_row_tiles, last=last, block_size=block_size), Q, K, V, use_reentrant=False
    )
    return output


def _row_tiles(Q: Tensor, K: Tensor, V: Tensor, *, last: int | None, block_size: int) -> Tensor:
    wide = torch.promote_types(Q.dtype, torch.float32)
    query = Q.to(wide) * Q.shape[-1] ** -0.5
    top = query.new_full((*Q.shape[:-1], 1), -torch.inf)
    total, weighted = torch.zeros_like(top), torch.zeros_like(query[..., :1] * V[..., :1, :].to(wide))
    for first in range(0, K.shape[-2], block_size):
        if last is not None and first > last + Q.shape[-2] - 1:
            break
        key, value = (operand[..., first : first + block_size, :].to(wide) for operand in (K, V))
        scores = query @ key.mT
        if last is not None:
            seen = torch.arange(last, last + Q.shape[-2], device=Q.device)[:, None]
            scores = scores.masked_fill(torch.arange(first, first + key.shape[-2], device=Q.device) > seen, -torch.inf)
        new = torch.maximum(top, scores.detach().amax(-1, keepdim=True))
        safe = new.masked_fill(new == -torch.inf, 0.0)
        old, weights = (top - safe).exp(), (scores - safe).exp()
        total, weighted = total * old + weights.sum(-1, keepdim=True), weighted * old + weights @ value
        top = new
    return (weighted / total.masked_fill(total == 0, 1.0)).to(Q.dtype)


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
    known = dict(zip(ATTENTION_METHODS, _FUNCTIONS, strict=True))
    if any(method not in known for method in methods):
        raise ValueError(f"{methods} are not all among {', '.join(known)}")
    if min(iterations, warmup) < 1:
        raise ValueError("iterations and warmup are 1 at least")

    def measured(length: int, method: str) -> AttentionResult:
        seconds, added = None, None
        with contextlib.suppress(torch.OutOfMemoryError):
            attend = functools.partial(known[method], causal=causal)
            seconds, added = _time(attend, (batch, heads, length, head_dim), device, dtype, iterations, warmup)
        return AttentionResult(
            device=torch.device(device).type,
            method=method,
            backend="torch" if method != "flash" else attention_backend(device, dtype),
            dtype=str(dtype).split(".")[1],
            length=length,
            seconds=seconds,
            peak_bytes=added,
        )

    return list(itertools.starmap(measured, itertools.product(lengths, methods)))


_FUNCTIONS = (standard_attention, flash_attention, tiled_attention)


def _time(
    attend: Callable[..., Tensor],
    shape: tuple[int, ...],
    device: str,
    dtype: torch.dtype,
    iterations: int,
    warmup: int,
) -> tuple[float, int | None]:
    """Median seconds, and bytes beyond what was there."""
    make = functools.partial(torch.rand, *shape, device=device, dtype=dtype)
    operands = [make().requires_grad_() for _ in "QKV"]
    direction = make()
    seconds = []
    before = None
    for number in range(warmup + iterations):
        for operand in operands:
            operand.grad = None
        if number == warmup:
            before = allocated_bytes(device)
            reset_peak(device)
        start = now(device)
        attend(*operands).backward(direction)
        seconds.append(now(device) - start)
    peak = peak_bytes(device)
    return float(np.median(seconds[warmup:])), None if peak is None else peak - (before or 0)


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
    # --- solution: task 4.2 ---
    figure, axes = plotting.new_figure("Attention: forward and backward", columns=2, x_label="tokens", share_y=False)
    lengths = sorted({result.length for result in results})
    for axis, label in zip(axes, ("added MiB at the peak", "milliseconds"), strict=True):
        axis.set_title(label, fontsize=11)
        for color, method in zip(plotting.COLORS, ATTENTION_METHODS, strict=False):
            rows = [row for row in results if row.method == method and row.seconds is not None]
            values = [(row.peak_bytes or 0) / MEBIBYTE if axis is axes[0] else (row.seconds or 0) * 1e3 for row in rows]
            if rows:
                axis.plot([row.length for row in rows], values, "o-", color=color, label=method)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(lengths, labels=[str(length) for length in lengths])
    axes[0].legend(frameon=False)
    return plotting.save_png(figure, path)
    # --- end ---


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
        # --- solution: task 4.2 ---
        written = [save_json(options.out / "attention.json", results, device.provenance())]
        if device.torch_device != "cpu":
            written.append(plot_attention(results, options.out / "attention.png"))
        program.print_written(*written)
        # --- end ---
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
