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
import importlib
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from labkit import plotting, program
from labkit.allowance import DEFAULT_SECONDS
from labkit.device import open_device
from labkit.results import ATTENTION_METHODS, AttentionResult, save_json

from .lengths import measure_lengths, milliseconds, print_reasons
from .readings import allocated_bytes, median_seconds, peak_bytes

RESULTS = Path(__file__).parent / "results"
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
MEBIBYTE = 2**20


@dataclass(frozen=True)
class Corner:
    """Where the causal triangle lies: its last row ends at the last key."""

    queries: int
    keys: int
    causal: bool

    @classmethod
    def of(cls, query: Tensor, key: Tensor, causal: bool) -> "Corner":
        return cls(query.shape[-2], key.shape[-2], causal)

    @property
    def shift(self) -> int:
        return self.keys - self.queries

    @property
    def blind(self) -> int:
        """Queries that see nothing."""
        return min(self.queries, max(0, -self.shift)) if self.causal else 0

    def hidden(self, rows: range, columns: range, device: torch.device) -> Tensor:
        """[rows, columns]: true where a query must not look."""
        row = torch.arange(rows.start, rows.stop, device=device).unsqueeze(1)
        column = torch.arange(columns.start, columns.stop, device=device)
        return column > row + self.shift

    def end(self, rows: range) -> int:
        """One past the last key that any of the rows sees."""
        return max(0, min(self.keys, rows.stop + self.shift)) if self.causal else self.keys


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
    corner = Corner.of(Q, K, causal)
    scores = (Q / math.sqrt(Q.shape[-1])) @ K.mT
    if causal:
        hidden = corner.hidden(range(corner.queries), range(corner.keys), Q.device)
        scores = scores.masked_fill(hidden, -math.inf)
        weights = scores.softmax(-1).masked_fill(hidden, 0.0)
    else:
        weights = scores.softmax(-1)
    return weights @ V


@dataclass(frozen=True)
class Library:
    """A package with a flash_attn_func."""

    module: str
    capability: tuple[int, int]

    def load(self) -> Callable[..., Any] | None:
        try:
            found: Callable[..., Any] = importlib.import_module(self.module).flash_attn_func
        except Exception:  # a broken installation is one that cannot be used
            return None
        return found


LIBRARIES = (Library("flash_attn.cute", (9, 0)), Library("flash_attn", (8, 0)))


def _choose(device: str | torch.device, dtype: torch.dtype) -> tuple[str, Callable[..., Any] | None]:
    device = torch.device(device)
    if device.type == "cuda" and dtype in (torch.float16, torch.bfloat16) and torch.cuda.is_available():
        capability = torch.cuda.get_device_capability(device)
        for library in LIBRARIES:
            function = library.load() if capability >= library.capability else None
            if function is not None:
                return library.module, function
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
    return _choose(device, dtype)[0]


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
    _, function = _choose(Q.device, Q.dtype)
    if function is not None:
        answer = function(*(tensor.transpose(1, 2) for tensor in (Q, K, V)), causal=causal)
        output: Tensor = answer[0] if isinstance(answer, tuple) else answer
        return output.transpose(1, 2)
    corner = Corner.of(Q, K, causal)
    ahead = max(0, corner.shift) if causal else 0
    query = functional.pad(Q[..., corner.blind :, :], (0, 0, ahead, 0))
    seen = functional.scaled_dot_product_attention(query, K, V, is_causal=causal)[..., ahead:, :]
    return functional.pad(seen, (0, 0, corner.blind, 0))


@dataclass
class RunningSoftmax:
    """What is known of some queries after some of the keys; everything in the dtype of computation."""

    largest: Tensor
    total: Tensor
    weighted: Tensor

    @classmethod
    def of(cls, query: Tensor) -> "RunningSoftmax":
        column = query[..., :1].detach()
        return cls(torch.full_like(column, -math.inf), torch.zeros_like(column), torch.zeros_like(query))

    def add(self, scores: Tensor, value: Tensor) -> None:
        largest = torch.maximum(self.largest, scores.detach().amax(-1, keepdim=True))
        safe = largest.masked_fill(largest == -math.inf, 0.0)
        grown = (scores - safe).exp()
        shrink = (self.largest - safe).exp()
        self.total = self.total * shrink + grown.sum(-1, keepdim=True)
        self.weighted = self.weighted * shrink + grown @ value
        self.largest = largest

    def result(self) -> Tensor:
        return self.weighted / self.total.masked_fill(self.total == 0, 1.0)


def _rows(query: Tensor, key: Tensor, value: Tensor, corner: Corner, rows: range, block_size: int) -> Tensor:
    query = query.to(key.dtype) / math.sqrt(query.shape[-1])
    state = RunningSoftmax.of(query)
    end = corner.end(rows)
    for start in range(0, end, block_size):
        columns = range(start, min(start + block_size, end))
        scores = query @ key[..., columns.start : columns.stop, :].mT
        if corner.causal:
            scores = scores.masked_fill(corner.hidden(rows, columns, query.device), -math.inf)
        state.add(scores, value[..., columns.start : columns.stop, :])
    return state.result()


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
        raise ValueError(f"block_size must be 1 or more, not {block_size}")
    corner = Corner.of(Q, K, causal)
    exact = torch.promote_types(Q.dtype, torch.float32)
    key, value = K.to(exact), V.to(exact)
    height = 256
    parts = []
    for start in range(0, corner.queries, height):
        rows = range(start, min(start + height, corner.queries))
        part: Tensor = checkpoint(
            _rows,
            Q[..., rows.start : rows.stop, :],
            key,
            value,
            corner,
            rows,
            block_size,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        parts.append(part.to(Q.dtype))
    return torch.cat(parts, dim=-2) if parts else torch.zeros_like(Q)


class AttentionStep:
    """Inputs of an attention; a call is forward and backward."""

    def __init__(self, function: Callable[..., Tensor], causal: bool, shape: tuple[int, ...], **kind: Any) -> None:
        self.function, self.causal = function, causal
        self.inputs = [torch.randn(shape, requires_grad=True, **kind) for _ in range(3)]
        self.gradient = torch.randn(shape, **kind)

    def forget(self) -> None:
        for tensor in self.inputs:
            tensor.grad = None

    def __call__(self) -> None:
        self.forget()
        self.function(*self.inputs, causal=self.causal).backward(self.gradient)


@dataclass
class Reading:
    """Time and memory, unless memory runs out."""

    seconds: float | None = None
    peak: int | None = None

    def take(self, step: AttentionStep, device: str, iterations: int, warmup: int) -> None:
        for _ in range(warmup):
            step()
        step.forget()
        before = allocated_bytes(device)
        seconds = median_seconds(step, device, steps=iterations, warmup=0)
        highest = peak_bytes(device)
        self.seconds = seconds
        self.peak = None if highest is None or before is None else highest - before


class NoMemoryIsFine:
    """Swallows torch.OutOfMemoryError, and gives back what the cache holds."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, torch.OutOfMemoryError)


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
    functions = {"standard": standard_attention, "flash": flash_attention, "tiled": tiled_attention}
    unknown = [method for method in methods if method not in functions]
    if unknown:
        raise ValueError(f"unknown methods {unknown}: there are {ATTENTION_METHODS}")
    if iterations < 1 or warmup < 1:
        raise ValueError(f"iterations and warmup must be 1 or more, not {iterations} and {warmup}")
    results = []
    for length in lengths:
        for method in methods:
            reading = Reading()
            with NoMemoryIsFine():
                shape = (batch, heads, length, head_dim)
                reading.take(
                    AttentionStep(functions[method], causal, shape, device=device, dtype=dtype),
                    device,
                    iterations,
                    warmup,
                )
            if reading.seconds is None:
                gc.collect()
                torch.cuda.empty_cache()
            results.append(
                AttentionResult(
                    device=torch.device(device).type,
                    method=method,
                    backend=attention_backend(device, dtype) if method == "flash" else "torch",
                    dtype=str(dtype).removeprefix("torch."),
                    length=length,
                    seconds=reading.seconds,
                    peak_bytes=reading.peak,
                )
            )
    return results


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
    figure, axes = plotting.new_figure("Attention", columns=2, x_label="tokens", share_y=False)
    methods = list(dict.fromkeys(result.method for result in results))
    for axis, label in zip(axes, ("memory (MiB)", "time (ms)"), strict=True):
        axis.set_ylabel(label, color=plotting.INK)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
    for method, color in zip(methods, plotting.COLORS, strict=False):
        mine = sorted(
            (r for r in results if r.method == method and r.seconds is not None and r.peak_bytes is not None),
            key=lambda result: result.length,
        )
        if not mine:
            continue
        lengths = [result.length for result in mine]
        axes[0].plot(lengths, [(r.peak_bytes or 0) / MEBIBYTE for r in mine], "o-", color=color, label=method)
        axes[1].plot(lengths, [(r.seconds or 0.0) * 1e3 for r in mine], "o-", color=color, label=method)
    for axis in axes:
        if axis.lines:
            axis.legend(frameon=False)
    return plotting.save_png(figure, path)


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
        written = [save_json(options.out / "attention.json", results, device.provenance())]
        if any(result.peak_bytes is not None for result in results):
            written.append(plot_attention(results, options.out / "attention.png"))
        program.print_written(*written)
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
