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

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from labkit import plotting, program
from labkit.allowance import DEFAULT_SECONDS
from labkit.device import open_device
from labkit.results import ATTENTION_METHODS, AttentionResult, save_json

from .lengths import measure_lengths, milliseconds, print_reasons, require_backend
from .readings import allocated_bytes, median_seconds, peak_bytes

RESULTS = Path(__file__).parent / "results"
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
MEBIBYTE = 2**20


def standard_attention(Q: Tensor, K: Tensor, V: Tensor, *, causal: bool = False) -> Tensor:  # noqa: N803
    """Attention by the formula, with all scores at once: what the others are compared with.

    Args:
        Q, K, V: see the module; of one dtype, on one device. They may be views, transposed and not contiguous, and are
            left as they are.
        causal: whether a query sees only the keys up to its own place, aligned as the module says.

    Returns:
        [batch, heads, queries, head_dim] in the inputs' dtype, differentiable.

    Source: A. Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762), section 3.2.1.
    """
    # TODO(task 4.2):
    # 1. Scores: products of queries and keys, divided by the root of head_dim.
    # 2. Causal: minus infinity where a query must not look. Which keys does the first query see, which the last?
    # 3. Softmax over the keys, and the weighted values; 0 where a query sees nothing.
    raise NotImplementedError(
        "Task 4.2 is open: write standard_attention "
        "in labs/lab4_memory/flash_attention.py (about 7 lines)"
    )


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
    # TODO(task 4.2):
    # 1. Ask for dtype and device, then for the compute capability (torch.cuda.get_device_capability).
    # 2. Try the imports. An import that fails is no error here. flash_attention needs what you import as well: a
    #    function of your own that both call may do the work.
    raise NotImplementedError(
        "Task 4.2 is open: write attention_backend "
        "in labs/lab4_memory/flash_attention.py (about 13 lines)"
    )


def flash_attention(Q: Tensor, K: Tensor, V: Tensor, *, causal: bool = False) -> Tensor:  # noqa: N803
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
    # TODO(task 4.2):
    # 1. With flash-attn: swap heads and length, call it, swap back.
    # 2. With PyTorch: not causal, or as many queries as keys, is one call.
    # 3. Causal, and more queries than keys: which queries see nothing, and what do the others see?
    # 4. Causal, and fewer queries than keys: which rows before Q would make is_causal right?
    raise NotImplementedError(
        "Task 4.2 is open: write flash_attention "
        "in labs/lab4_memory/flash_attention.py (about 14 lines)"
    )


def tiled_attention(
    Q: Tensor,  # noqa: N803
    K: Tensor,  # noqa: N803
    V: Tensor,  # noqa: N803
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
        block_size: keys in a tile, at most; you may cut the queries as well, into blocks no longer than that.

    Returns:
        As `standard_attention`.

    Raises:
        ValueError: `block_size` is below 1.

    Source: M. Milakov, N. Gimelshein 2018, "Online normalizer calculation for softmax" (arXiv:1805.02867), algorithm 3;
        T. Dao 2023, "FlashAttention-2" (arXiv:2307.08691), algorithms 1 and 2.
    """
    # TODO(task 4.2):
    # Most of the lines belong into an autograd.Function or a function of your own, next to this one.
    # 1. Keep for each query: the largest score so far, the sum of exp(score - largest), the weighted sum of values.
    # 2. For each tile of keys: its scores; the new largest; what the old sums must be multiplied by; add the tile.
    # 3. Causal: leave out what is hidden, and whole tiles that nobody sees.
    # 4. Divide in the end. Which queries have nothing to divide by?
    # 5. Backward: from the saved output and log-sum-exp, tile by tile.
    raise NotImplementedError(
        "Task 4.2 is open: write tiled_attention "
        "in labs/lab4_memory/flash_attention.py (about 58 lines)"
    )


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
        `attention_backend(device, dtype)` for "flash", else "torch". If memory ran out, both are None, and the next
        measurement is not disturbed by it.

    Raises:
        ValueError: a method is unknown, `iterations` or `warmup` is below 1.
    """
    # TODO(task 4.2):
    # 1. Refuse arguments that make no sense.
    # 2. For each length and method: inputs, warm-up, gradients to None, what is allocated now, timed iterations, peak.
    # 3. torch.OutOfMemoryError is a result, not an error; no other exception is.
    raise NotImplementedError(
        "Task 4.2 is open: write benchmark_attention "
        "in labs/lab4_memory/flash_attention.py (about 48 lines)"
    )


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
    # TODO(task 4.2):
    # 1. Take a figure with two columns from labkit.plotting.new_figure; their y axes differ in meaning, so share none
    #    and label both.
    # 2. Draw MiB in the first and milliseconds in the second, with a legend.
    # 3. Save it with labkit.plotting.save_png.
    raise NotImplementedError(
        "Task 4.2 is open: write plot_attention "
        "in labs/lab4_memory/flash_attention.py (about 16 lines)"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the methods over all lengths; print a table; write OUT/attention.json and OUT/attention.png.

    Lengths that would take too long on this machine are left out (`lengths.py`); table and results say which and why.
    With `--backend NAME` the program ends with an error if flash is not computed by this backend.

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
    parser.add_argument("--backend", metavar="NAME", help="what flash must be computed by, such as flash_attn")
    options = parser.parse_args(argv)
    # Only times and memory matter here, so a virtual GPU need not compute any number.
    with open_device(options.device, values=False) as device:
        dtype = torch.float32 if device.torch_device == "cpu" else torch.float16
        backend = attention_backend(device.torch_device, dtype)
        require_backend(options.backend, backend)
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
        # TODO(task 4.2):
        # 1. Save the results with save_json as OUT/attention.json, with device.provenance().
        # 2. Where there are peaks: draw OUT/attention.png. Print the paths with program.print_written.
        raise NotImplementedError("Task 4.2 is open: write main in labs/lab4_memory/flash_attention.py (about 4 lines)")
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
