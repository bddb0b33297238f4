"""Judges what Lab 4's attention makes on the way: no tensor as large as all scores."""

from __future__ import annotations

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import mebibytes, require, require_arrays_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab4.attention.cases.draws import square_calls
from grader.lab4.attention.cases.types import Call, Largest, LargestRun
from grader.lab4.attention.reference import attention

_CLOSE = 1e-3
_SOME = 0.9
"""Of the products that no way of computing attention does without."""
_KEPT, _KEPT_OF_A_SCORE = 3, 0.35
"""Times the float32 of queries and keys, and bytes. Who keeps operands and output has nothing of each score. Who puts a
checkpoint around each pair of tiles has 0.16 bytes, the sums so far; tiles in 8 bits have one."""
_NARROW = 8
"""Of a head, where tiles are judged by their size."""


@criterion("lab4.attention")
class TestTensors:
    @requires("flash_equals_reference", "tiled_equals_reference")
    def test_no_square_tensor_made(self, submission: Submission, generator: InputGenerator) -> None:
        require_no_square(submission, "flash_attention", square_calls(generator, "flash_attention", causal=False))
        # Each case of tiles takes its time.
        without_mask, *_ = square_calls(generator, "tiled_attention", causal=False)
        cases = [without_mask, *square_calls(generator, "tiled_attention", causal=True)]
        require_no_square(submission, "tiled_attention", cases)
        _require_tiles(submission, generator)
        require_no_square_of_values(submission, generator, causal=False)


def require_no_square(submission: Submission, function: str, cases: list[Call]) -> None:
    """Fail if a function makes a tensor as large as all scores."""
    # With narrow heads, sums of a tile are small next to its scores.
    head_dim = 64 if function == "flash_attention" else _NARROW
    reply = submission.probe(
        Largest(function=function, cases=cases, head_dim=head_dim),
        device="vgpu:T4",  # on any machine: 8 MiB of workspace, where newer GPUs have 32
        values=False,
    )
    for case, run in zip(cases, reply.runs, strict=True):
        square = case.queries * case.keys
        mask = "causal, " if case.causal else ""
        what = f"{mask}{case.queries} queries, {case.keys} keys, {case.dtype}, one head"
        # Measured: tiles of 256 keys 0.09, strips of 512 queries 0.18; all scores or their mask 1.
        require(
            run.largest_elements < 0.5 * square,
            f"{function}() makes a tensor as large as all scores, of {run.largest_elements:,} elements: {what}, "
            f"{square:,} scores",
            "Make neither scores nor mask nor weights for all pairs of queries and keys, in forward or in backward.",
        )
        _require_on_device(function, case, run, head_dim=head_dim, what=what)
        # Measured: 0.56 and less where tiles are computed again (most with fewer queries than keys), 1.2 and
        # more where they are kept for backward.
        # Strips with a mask each, which PyTorch keeps for backward, are allowed in flash_attention: 0.9.
        require(
            function == "flash_attention" or run.added_bytes < 0.85 * 4 * square,
            f"{function}() keeps its tiles for backward, or as much as they are: forward and backward add "
            f"{mebibytes(run.added_bytes)}, as much as all scores would: {what}",
            "Compute the tiles again in backward: what is kept of each adds up to all scores.",
        )
        if function == "tiled_attention":
            _require_little_kept(case, run, head_dim, what)


def _pairs(case: Call) -> int:
    """Of a query and a key that it sees."""
    return sum(
        max(0, min(case.keys, case.keys - case.queries + row + 1)) if case.causal else case.keys
        for row in range(case.queries)
    )


def _require_little_kept(case: Call, run: LargestRun, head_dim: int, what: str) -> None:
    """Fail if something of each score waits for backward, in whatever dtype."""
    linear = 4 * head_dim * (case.queries + case.keys)
    allowed = _KEPT_OF_A_SCORE * _pairs(case) + _KEPT * linear
    require(
        run.kept_bytes < allowed,
        f"tiled_attention() keeps {mebibytes(run.kept_bytes)} between forward and backward, of {_pairs(case):,} "
        f"scores: {what}; expected less than {mebibytes(allowed)}",
        "Keep what grows with the length: operands, output and log-sum-exp. Compute the tiles again in backward, and "
        "keep them in no other dtype either.",
    )


def _require_on_device(function: str, case: Call, run: LargestRun, *, head_dim: int, what: str) -> None:
    """Fail unless the device computed the products that there must be, and sent no operand away."""
    # Tiles are computed again in backward; flash_attention may keep strips.
    least = (6 if function == "flash_attention" else 7) * 2 * _pairs(case) * head_dim
    require(
        run.flops >= _SOME * least,
        f"{function}(): forward and backward computed {run.flops:.3g} FLOPs of products on the device, expected "
        f"{least:.3g} at least: {what}",
        "Compute where the operands are: scores and output in forward, and four products with gradients in backward.",
    )
    require(
        run.copied_bytes < 4 * case.queries * head_dim // 2,
        f"{function}() copies {mebibytes(run.copied_bytes)} from the device to the host: {what}",
        "Compute where the operands are, and keep there what backward needs.",
    )


def _require_computed(function: str, case: Call, run: LargestRun) -> None:
    """Fail unless what was watched is what computes attention: shapes alone say nothing of that."""
    given, computed = run.values[:4], run.values[4:]
    expected = attention(*given, causal=case.causal)
    names = ("output", "d_query", "d_key", "d_value")
    require_equal(len(computed), len(names), what=f"results of {function}(), the gradients of Q, K and V included")
    for name, actual in zip(names, computed, strict=True):
        require_arrays_close(
            actual,
            expected[name],
            rtol=_CLOSE,
            atol=_CLOSE,
            what=f"{name} of {function}() of one head with {case.queries} queries and {case.keys} keys",
        )


def require_no_square_of_values(submission: Submission, generator: InputGenerator, *, causal: bool) -> None:
    """Fail if flash_attention makes a tensor as large as all scores where its values are looked at."""
    # With a mask some go through strips of 512 queries, of which each has a mask of its own.
    low, high = (1401, 1601) if causal else (301, 401)
    case = Call(queries=generator.odd(low, high), keys=generator.odd(low, high), causal=causal, dtype="float32")
    (run,) = submission.probe(
        Largest(function="flash_attention", cases=[case], head_dim=_NARROW, returned=True),
        device="vgpu:T4",
    ).runs
    _require_computed("flash_attention", case, run)
    square = case.queries * case.keys
    require(
        run.largest_elements < 0.5 * square,
        f"flash_attention() makes a tensor as large as all scores, of {run.largest_elements:,} elements: "
        f"{'causal, ' if causal else ''}"
        f"{case.queries} queries, {case.keys} keys, {square:,} scores",
        "Make neither scores nor weights for all pairs of queries and keys, in forward or in backward.",
    )


def _tiled(submission: Submission, generator: InputGenerator) -> tuple[Call, LargestRun]:
    """A call of tiled_attention whose operands are small next to its tiles, and what it made."""
    generator = generator.shared("lab4.attention.tiles")
    # Who cuts the queries as well makes the square of so many tiles, each of many operations.
    queries, keys, block = generator.odd(201, 251), generator.odd(201, 251), generator.integer(9, 12)
    case = Call(queries=queries, keys=keys, causal=False, dtype="float32", block_size=block)
    (run,) = submission.probe(
        Largest(function="tiled_attention", cases=[case], head_dim=_NARROW, returned=True),
        device="vgpu:T4",
    ).runs
    return case, run


def require_own_tiles(submission: Submission, generator: InputGenerator) -> None:
    """Fail if tiled_attention leaves the attention to a library."""
    _, run = _tiled(submission, generator)
    require(
        not run.attention_kernels,
        f"tiled_attention() ran {', '.join(run.attention_kernels)}, which computes attention by itself",
        "Compute scores, weights and sums of each tile yourself, by products and exponentials.",
    )


def _require_tiles(submission: Submission, generator: InputGenerator) -> None:
    """Fail if tiles have more keys than `block_size`, or there are none."""
    require_own_tiles(submission, generator)
    case, run = _tiled(submission, generator)
    queries, keys, block = case.queries, case.keys, case.block_size or 0
    _require_computed("tiled_attention", case, run)
    # Of the operands a few may be put together; a tile and what is made with it has as many rows as it has.
    most = 4 * max(block, _NARROW) * max(queries, keys)
    require(
        run.largest_elements <= most,
        f"tiled_attention(block_size={block}) makes tiles of more than {block} keys: with {queries} queries and {keys} "
        f"keys a tensor has {run.largest_elements:,} elements, and a tile with all queries has {block * queries:,}",
        "Cut the keys into tiles of block_size, whatever it is.",
    )
