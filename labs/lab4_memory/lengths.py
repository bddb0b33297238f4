"""Given: attention at many lengths, except for lengths that take this machine too long.

Nothing to write here.
"""

from collections.abc import Callable, Sequence

import torch

from labkit import LabError
from labkit.allowance import DEFAULT_SECONDS, Allowance
from labkit.progress import track
from labkit.results import ATTENTION_METHODS, AttentionResult

WARMUP_LENGTH = 64


def measure_lengths(
    benchmark: Callable[..., Sequence[AttentionResult]],
    backend: str,
    lengths: Sequence[int],
    *,
    device: str,
    dtype: torch.dtype,
    seconds: float = DEFAULT_SECONDS,
) -> list[AttentionResult]:
    """Call `benchmark` for each method and each length that will end in time.

    On a virtual GPU each operation costs this machine's processor some time, however short it is on the GPU, and tiles
    of queries and keys are as many as the square of the length. The time of a length is predicted from shorter ones.

    Args:
        benchmark: `benchmark_attention`.
        backend: of "flash" here, as `attention_backend` returns it.
        lengths, device, dtype: for `benchmark`.
        seconds: processor time for all of it.

    Returns:
        One result for each length and each method, in the order of two nested loops. If a length was not measured,
        `left_out` says why.
    """
    # What is loaded once says nothing of longer lengths: so it is paid before anything is noted.
    benchmark([min(WARMUP_LENGTH, *lengths)], ATTENTION_METHODS, device=device, dtype=dtype, iterations=1)
    allowance = Allowance(seconds)
    pairs = [(method, length) for method in ATTENTION_METHODS for length in sorted(set(lengths))]
    works = {f"{method}, {length} tokens": (method, length) for method, length in pairs}
    results: dict[tuple[str, int], Sequence[AttentionResult]] = {}
    for name in track(list(works), "attention"):
        method, length = works[name]
        refusal = allowance.refusal(method, length)
        if refusal is None:
            with allowance.running(method, length):
                results[method, length] = benchmark([length], [method], device=device, dtype=dtype)
            continue
        left_out = AttentionResult(
            device=torch.device(device).type,
            method=method,
            backend=backend if method == "flash" else "torch",
            dtype=str(dtype).removeprefix("torch."),
            length=length,
            seconds=None,
            peak_bytes=None,
            left_out=refusal,
        )
        results[method, length] = [left_out]
    return [result for length in lengths for method in ATTENTION_METHODS for result in results[method, length]]


def require_backend(expected: str | None, backend: str) -> None:
    """Raise LabError, with what to do, if flash is computed by another backend than the one that was asked for."""
    if expected not in (None, backend):
        raise LabError(
            f"flash is computed by {backend} here, not by {expected}. flash_attn needs float16 and a GPU of compute "
            "capability 8.0 or higher: choose a virtual one, where it is simulated (--device vgpu:A100-80GB), or "
            'install it for a real one (pip install "gpu-computing-labs[flash-attn]")'
        )


def milliseconds(result: AttentionResult) -> str:
    """For a table: the time, or why there is none in three words."""
    if result.seconds is not None:
        return f"{result.seconds * 1e3:.4g}"
    return "out of memory" if result.left_out is None else "left out"


def print_reasons(results: Sequence[AttentionResult]) -> None:
    """A line for each length that was left out."""
    for result in results:
        if result.left_out is not None:
            print(f"left out: {result.method}, {result.length} tokens: {result.left_out}; --seconds allows more")
