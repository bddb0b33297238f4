"""Judges Lab 4's attention: equal to a float64 reference, nothing quadratic made, the right library, time, memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradebox.course.criterion import builds_on, criterion, requires
from gradebox.run.assertions import (
    mebibytes,
    picturing,
    recognising,
    require,
    require_arrays_close,
    require_between,
    require_equal,
    seconds,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from gradebox.sandbox import Limits
from grader.lab4.checks.attention_values import LENGTHS_HINT, TOLERANCE, distance_of, judge
from grader.lab4.checks.common import judge_plot, judge_program, judge_refusals, memory_bars
from grader.lab4.checks.operands import calls_of, flash_calls, standard_calls
from grader.lab4.truth import masks
from grader.lab4.truth.reference import as_bfloat16, attention, runs
from grader.shared.cards import Card, card_of

MEASURED = 0.03
UNSPLIT_BYTES = 3 * 2**20
"""The allocator leaves up to 1 MiB of a block unsplit, depending on what was freed before; inputs alone are 11 MiB."""

_NARROW = 8
"""Of a head, where tiles are judged by their size."""
_KERNELS = (
    "flash_attn: float16 or bfloat16, compute capability 8.0 or higher; flash_attn.cute: 9.0 or higher, and before it; "
    "each looked for at each call"
)
_HOST_SECONDS = 5e-4
"""By so much one call of a real GPU's host may be longer than another: seen on an H100 of a virtual machine."""
_REAL_TOLERANCE = 0.25
_REAL_FITS, _REAL_TENSORS = 0.4, 8
"""Of what is free of a real card's memory, the share that the shorter lengths may take, and how many tensors as large
as all scores standard attention and its gradients may be at once: three in the reference."""
_REAL_TOO_LARGE = 1.5
"""Times a real card's memory, what all scores of the longest take, each of them a single tensor."""
_REAL_LIMITS = Limits(wall_seconds=180.0, cpu_seconds=180.0)
"""A slow card with much memory takes seconds for each pass of the longest."""


@criterion("lab4.attention")
class TestAttention:
    def test_standard_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        """Computes standard attention right."""
        judge(submission, generator, "standard_attention", standard_calls(generator), causal=False)

    def test_flash_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        """Computes flash attention right."""
        judge(submission, generator, "flash_attention", flash_calls(generator), causal=False)

    def test_tiled_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        """Computes tiled attention right."""
        # Equal, fewer and more queries, causal; once without a mask, once in a single tile, once in each 16-bit type.
        calls = calls_of(generator, ("float64",), block_size=generator.odd(7, 13))[:6]
        calls += calls_of(generator, ("float64",), block_size=128)[1:2]
        # Few queries, many tiles.
        many = {"queries": 5, "keys": calls[2]["keys"], "block_size": 3}
        calls += [{"dtype": "float16", "causal": True, **many}, {"dtype": "bfloat16", "causal": False, **many}]
        calls.append({**calls[0], "dtype": "bfloat16"})
        # Large scores; tiles of one key; more queries than a single key.
        calls.append({**calls[generator.integer(0, 3)], "factor": 256})
        calls.append({"dtype": "float64", "queries": 5, "keys": 7, "causal": True, "block_size": 1})
        calls.append({"dtype": "float64", "queries": 2, "keys": 7, "causal": True, "block_size": 4})
        calls.append(
            {"dtype": "float64", "queries": 3, "keys": 1, "causal": generator.integer(0, 1) == 1, "block_size": 4}
        )
        judge(submission, generator, "tiled_attention", calls)

    @builds_on("standard_equals_reference", "flash_equals_reference", "tiled_equals_reference")
    def test_no_query_sees_the_future(self, submission: Submission, generator: InputGenerator) -> None:
        """Lets no query see a key of its future."""
        judge(submission, generator, "standard_attention", standard_calls(generator), causal=True)
        judge(submission, generator, "flash_attention", flash_calls(generator), causal=True)
        long, short = generator.odd(25, 31), generator.odd(9, 15)
        # Of `long` queries and `short` keys the first ones see nothing at all.
        cases = [
            {"queries": queries, "keys": keys, "changed": generator.integer(keys // 2, keys - 1)}
            for queries, keys in ((long, long), (short, long), (long, short))
        ]
        seed = generator.integer(1, 10**6)
        seen = submission.numeric_probe(
            "lab4.attention.future", functions=["flash_attention", "tiled_attention"], cases=cases, seed=seed
        )
        for name, rows in seen.moved.items():
            found = [(cases[index // 2], distance_of(moved)) for index, moved in enumerate(rows)]
            with recognising(lambda: masks.of_influence(found)):  # noqa: B023 - called in here
                self._require_causal(name, found)
        self._require_no_square(submission, "flash_attention", _square_cases(generator, "flash_attention", causal=True))
        for model, modules, dtype, wanted in generator.shuffled(_libraries(generator))[:2]:
            self._require_library(submission, generator, model, modules, dtype, wanted, causal=True)

    @staticmethod
    def _require_causal(name: str, found: list[tuple[dict[str, int], Any]]) -> None:
        for index, (case, distance) in enumerate(found):
            how = "in training" if index % 2 == 0 else "under torch.no_grad()"
            sees = np.arange(case["queries"]) + case["keys"] - case["queries"] >= case["changed"]
            what = f"{name}(), causal, {how}, {case['queries']} queries and {case['keys']} keys"
            early = np.flatnonzero(~sees & (distance > 1e-9))
            require(
                not early.size,
                f"{what}: key {case['changed']} was changed, and the output of query {early[:1]} moved, which must "
                "not see it",
                LENGTHS_HINT,
            )
            late = np.flatnonzero(sees & (distance < 1e-6))
            require(
                not late.size,
                f"{what}: key {case['changed']} was changed, and the output of query {late[:1]} did not move, "
                "although it sees it",
                LENGTHS_HINT,
            )

    @requires("flash_equals_reference", "tiled_equals_reference")
    def test_no_square_tensor_made(self, submission: Submission, generator: InputGenerator) -> None:
        """Makes no tensor as large as all scores."""
        for function in ("flash_attention", "tiled_attention"):
            cases = _square_cases(generator, function, causal=False)
            if function == "tiled_attention":  # of tiles each case takes its time
                cases = [*cases[:1], *_square_cases(generator, function, causal=True)]
            self._require_no_square(submission, function, cases)
            if function == "tiled_attention":
                self._require_tiles(submission, generator)

    @staticmethod
    def _require_no_square(submission: Submission, function: str, cases: list[dict[str, Any]]) -> None:
        seen = submission.probe(
            "lab4.attention.largest",
            device="vgpu:T4",  # on any machine: 8 MiB of workspace, where newer GPUs have 32
            values=False,
            function=function,
            cases=cases,
            head_dim=64,
        )
        for case, run in zip(cases, seen.runs, strict=True):
            square = case["queries"] * case["keys"]
            mask = "causal, " if case["causal"] else ""
            what = f"{function}(), {mask}{case['queries']} queries, {case['keys']} keys, {case['dtype']}, one head"
            # Measured: tiles of 256 keys 0.09, strips of 512 queries 0.18; all scores or their mask 1.
            require(
                run["largest_elements"] < 0.5 * square,
                f"{what}: a tensor of {run['largest_elements']:,} elements was made; all scores are {square:,}",
                "neither scores nor mask nor weights for all pairs, in forward or in backward",
            )
            # Measured: 0.56 and less where tiles are computed again (most with fewer queries than keys), 1.2 and
            # more where they are kept for backward.
            # Strips with a mask each, which PyTorch keeps for backward, are allowed in flash_attention: 0.9.
            require(
                function == "flash_attention" or run["added_bytes"] < 0.85 * 4 * square,
                f"{what}: forward and backward add {mebibytes(run['added_bytes'])}, as much as all scores would",
                "what is kept for backward adds up: compute the tiles again there",
            )

    @staticmethod
    def _require_tiles(submission: Submission, generator: InputGenerator) -> None:
        """Fail where tiles have more keys than `block_size`; in operands that are small beside them."""
        queries, keys, block = generator.odd(301, 401), generator.odd(301, 401), generator.integer(9, 12)
        (run,) = submission.probe(
            "lab4.attention.largest",
            device="vgpu:T4",
            values=False,
            function="tiled_attention",
            cases=[{"queries": queries, "keys": keys, "causal": False, "dtype": "float32", "block_size": block}],
            head_dim=_NARROW,
        ).runs
        # Of the operands a few may be put together; a tile and what is made beside it has as many rows as it has.
        most = 4 * max(block, _NARROW) * max(queries, keys)
        require(
            run["largest_elements"] <= most,
            f"tiled_attention(block_size={block}), {queries} queries, {keys} keys: a tensor of "
            f"{run['largest_elements']:,} elements was made; with all queries such a tile has {block * queries:,}",
            "block_size says how many keys a tile has at most",
        )

    def test_flash_attn_used_when_installed(self, submission: Submission, generator: InputGenerator) -> None:
        """Uses flash-attn where it is installed."""
        for model, modules, dtype, wanted in _libraries(generator):
            self._require_library(submission, generator, model, modules, dtype, wanted)

    @staticmethod
    def _require_library(
        submission: Submission,
        generator: InputGenerator,
        model: str,
        modules: list[str],
        dtype: str,
        wanted: str,
        *,
        causal: bool = False,
    ) -> None:
        """Fail unless flash_attention() calls the library that is wanted, once it is installed."""
        generator = generator.shared("lab4.installed")
        queries, keys = generator.odd(5, 9), generator.odd(11, 15)
        operands: dict[str, Any] = {
            name: as_bfloat16(generator.normal(2, 3, count, 8))
            for name, count in (("q", queries), ("k", keys), ("v", keys))
        }
        seen = submission.probe(
            "lab4.attention.installed",
            device=f"vgpu:{model}",
            modules=modules,
            dtype=dtype,
            causal=causal,
            **operands,
        )
        what = f"on a virtual {model} in {dtype}, with {' and '.join(modules) or 'no flash-attn'} installed"
        hint = "look for the packages at each call, not at import, and keep no answer of an earlier call"
        require_equal(seen.before, "sdpa", what="attention_backend() before anything is installed", hint=hint)
        require_equal(seen.backend, wanted, what=f"attention_backend() {what} since its first call", hint=_KERNELS)
        require_equal(seen.on_cpu, "sdpa", what=f'attention_backend("cpu") {what}', hint="ask for the device given")
        expected = [wanted, wanted] if wanted != "sdpa" else []
        called = [call["module"] for call in seen.calls]
        require_equal(called, expected, what=f"libraries that flash_attention() called {what}")
        for call in seen.calls:
            shapes = [[2, count, 3, 8] for count in (queries, keys, keys)]
            hint = "flash-attn wants [batch, length, heads, head_dim]: swap heads and length, and swap back"
            require_equal(call["shapes"], shapes, what=f"shapes that {wanted} was given {what}", hint=hint)
            require_equal(call["causal"], causal, what=f"causal that {wanted} was given {what}")
        if wanted == "sdpa":  # what comes out then is judged by flash_equals_reference
            return
        truth = attention(operands["q"], operands["k"], operands["v"], None, causal=causal)["output"]
        hints = ["swap heads back", "version 4 may return a tuple, or the output alone"]
        for run, hint in zip(runs(seen, "outputs"), hints, strict=True):
            require_arrays_close(
                run["output"],
                truth,
                rtol=0,
                atol=TOLERANCE[dtype] * 4,
                what=f"output of flash_attention() {what}",
                hint=hint,
            )

    def test_benchmark_equals_truth(self, submission: Submission, generator: InputGenerator) -> None:
        """Measures true seconds and peaks of attention."""
        simulated = submission.device.simulated
        arguments: dict[str, Any] = {
            "lengths": [generator.odd(3101, 3501), generator.odd(2101, 2501), 40001],
            "methods": generator.shuffled(["standard", "flash"]),
            "dtype": "float16",
            "batch": 1 if simulated else 2,  # so that a real GPU's times are long against its launches
            "heads": generator.integer(9, 12),
            "head_dim": 64,
            "causal": generator.integer(0, 1) == 1,
        }
        card = card_of(submission)
        if card is not None:
            arguments["lengths"] = _lengths_for(card, arguments)
        iterations = generator.integer(2, 3)
        warmup = 2 * iterations + 1  # exchanged, most of the timed ones would be such as wake the device up
        others = {"batch": 2, "heads": 2, "head_dim": 8, "causal": not arguments["causal"], "dtype": "float32"}
        counted = {"lengths": [65], "methods": ["tiled", "standard"], "iterations": iterations, "warmup": warmup}
        on_cpu = {"lengths": [7], "methods": ["flash"], "iterations": 1, "warmup": 1}
        seen = submission.probe(
            "lab4.attention.benchmark",
            values=False,  # the longest have tens of gigabytes, and seconds and peaks do not depend on them
            arguments=arguments,
            counted={**others, **counted},
            on_cpu={**others, **on_cpu, "causal": generator.integer(0, 1) == 1},
            limits=None if card is None else _REAL_LIMITS,
        )
        lengths, methods = arguments["lengths"], arguments["methods"]
        require_equal(
            [[row["length"], row["method"]] for row in seen.rows],
            [[length, method] for length in [*lengths, lengths[1]] for method in methods],
            what="lengths and methods of benchmark_attention()",
            hint="every length with every method; one that runs out of memory has a row, too, and the next is tried",
        )
        peaks = [
            (f"{row['method']}, {row['length']}", row["peak_bytes"], truth["peak_bytes"])
            for row, truth in zip(seen.rows, seen.truths, strict=True)
        ]
        for index, (row, truth) in enumerate(zip(seen.rows, seen.truths, strict=True)):
            causal = arguments["causal"] is (index < len(lengths) * len(methods))
            what = f"benchmark_attention(causal={causal}), {row['method']}, {row['length']} tokens"
            wanted = seen.backend if row["method"] == "flash" else "torch"
            require_equal(row["backend"], wanted, what=f"{what}: backend")
            require_equal([row["device"], row["dtype"]], [seen.device, "float16"], what=f"{what}: device and dtype")
            if truth["seconds"] is None:
                require(
                    row["seconds"] is None and row["peak_bytes"] is None,
                    f"{what}: seconds {row['seconds']!r} and peak {row['peak_bytes']!r}, but it runs out of memory",
                    "None for both, and on to the next",
                )
                continue
            low, high = min(truth["seconds"]), max(truth["seconds"])
            close = MEASURED * high if simulated else max(_REAL_TOLERANCE * high, _HOST_SECONDS)
            require_between(
                row["seconds"],
                low - close,
                high + close,
                what=f"{what}: seconds",
                show=seconds,
                expected=f"{seconds(low)}, give or take {seconds(close)}",
                hint="forward and backward together, the median, from an idle device to an idle device",
            )
            # Whether the output of the iteration before is still in a variable is a matter of style: one output more.
            one_output = 2 * arguments["batch"] * arguments["heads"] * row["length"] * arguments["head_dim"]
            slack = MEASURED * truth["peak_bytes"] + UNSPLIT_BYTES + one_output
            with picturing(lambda: memory_bars("peak_bytes by method and tokens", peaks)):
                require_between(
                    row["peak_bytes"],
                    truth["peak_bytes"] - slack,
                    truth["peak_bytes"] + slack,
                    what=f"{what}: peak_bytes",
                    show=mebibytes,
                    expected=f"{mebibytes(truth['peak_bytes'])}, give or take {mebibytes(slack)}",
                    hint="less what was allocated before the first timed one, with the gradients at None",
                )

        require_equal(
            [[row["method"], row["dtype"], row["backend"]] for row in seen.small],
            [["tiled", "float32", "torch"], ["standard", "float32", "torch"]],
            what="method, dtype and backend of benchmark_attention() of tiled and standard attention in float32",
        )
        # Somebody may run one more, to wake the libraries up.
        total = iterations + warmup
        require(
            total - 0.1 < (ran := seen.flops / seen.flops_of_one_each) < total + 1.1,
            f"benchmark_attention(iterations={iterations}, warmup={warmup}) ran {ran:.3g} iterations of "
            f"each method, expected {total}",
            "as many timed iterations, after as many untimed ones, as the arguments say",
        )
        for row in seen.small:
            if len(seen.gradients[row["method"]]) < total or row["seconds"] is None:
                continue  # it calls another function than the module's
            require(
                row["seconds"] < 0.5 * seen.busy_seconds,
                f"benchmark_attention(iterations={iterations}, warmup={warmup}), {row['method']}: "
                f"{seconds(row['seconds'])}, as the first {warmup} iterations take, which wake the device up",
                "untimed iterations come first, as many as `warmup` says",
            )
        for method, gradients in seen.gradients.items():
            most = max(gradients[-iterations:], default=0)
            require(
                most == 0,
                f"benchmark_attention(), {method}: when a timed iteration's forward pass begins, {most} of Q, K, V "
                "have the gradient of the one before, expected None",
                "gradients to None, then forward, then backward: else they lie beside the scores",
            )
        (row,) = seen.on_cpu
        require_equal(
            [row["device"], row["backend"], row["peak_bytes"]],
            ["cpu", "sdpa", None],
            what='device, backend and peak of benchmark_attention(device="cpu")',
            hint="PyTorch does not count the memory of a CPU: None",
        )
        require(
            seen.of_integers not in ("", "OutOfMemoryError"),
            "benchmark_attention(dtype=torch.int64) told a result, but nothing of integers has a gradient: PyTorch "
            "refuses that with a RuntimeError",
            "catch torch.OutOfMemoryError alone: other errors are the caller's",
        )
        zeros: dict[str, Any] = {name: np.zeros((1, 1, 3, 8), dtype=np.float32) for name in "qkv"}
        installed = submission.probe(
            "lab4.attention.installed",
            device="vgpu:A100-80GB",
            modules=["flash_attn"],
            dtype="float16",
            causal=False,
            benchmarks=generator.shuffled(["float16", "float32"]),
            **zeros,
        )
        for dtype, backend, wanted in installed.benchmarked:
            require_equal(
                backend,
                wanted,
                what=f"backend of benchmark_attention() in {dtype}, on a virtual A100-80GB with flash_attn installed",
                hint="attention_backend(device, dtype): of the dtype that is measured",
            )

    def test_nonsense_refused(self, submission: Submission) -> None:
        """Refuses arguments that make no sense."""
        judge_refusals(submission, "attention")

    def test_results_and_plot_saved(self, submission: Submission, generator: InputGenerator) -> None:
        """Saves the results and a plot."""
        rows = judge_program(submission, "flash_attention", ["--lengths", "128,256"])
        found = sorted({row.get("length", 0) for row in rows if isinstance(row, dict)})
        require_equal(found, [128, 256], what="lengths in the results")
        judge_program(submission, "flash_attention", ["--lengths", "16,32", "--device", "cpu"], on_cpu=True)
        judge_plot(submission, "attention", generator)


def _libraries(generator: InputGenerator) -> list[tuple[str, list[str], str, str]]:
    """GPU, what is installed, dtype, and what flash_attention() must call."""
    v2, cute = ["flash_attn"], ["flash_attn.cute"]
    both = [*v2, *cute]
    low = generator.shuffled(["float16", "bfloat16"] * 3)
    # Which of the two float32 is asked on, and what is installed there and on the T4, is drawn.
    (row,) = generator.cases({"model": ("A100-80GB", "H100"), "float32": (v2, cute, both), "T4": (v2, both)}, 1)
    return [
        ("A100-80GB", v2, low[0], "flash_attn"),
        ("H100", both, low[1], "flash_attn.cute"),
        (row["model"], row["float32"], "float32", "sdpa"),
        ("T4", row["T4"], low[2], "sdpa"),
        ("A100-80GB", cute, low[3], "sdpa"),
        ("H100", v2, low[4], "flash_attn"),
    ]


def _square_cases(generator: InputGenerator, function: str, *, causal: bool) -> list[dict[str, Any]]:
    """As many keys as queries, fewer and more, of long sequences, in float32 and float16."""
    generator = generator.shared(f"lab4.largest.{function}.{causal}")
    long, short = generator.odd(3901, 4101), generator.odd(2701, 2901)
    others = {"block_size": 256} if function == "tiled_attention" else {}
    lengths = generator.shuffled([(long, long), (short, long), (long, short)])
    dtypes = generator.shuffled(["float32", "float32", "float16"])
    return [
        {"queries": queries, "keys": keys, "causal": causal, "dtype": dtype, **others}
        for (queries, keys), dtype in zip(lengths, dtypes, strict=True)
    ]


def _lengths_for(card: Card, arguments: dict[str, Any]) -> list[int]:
    """These lengths as they suit a card's memory: two that fit well, and one whose scores are larger than all of it."""
    *short, _ = arguments["lengths"]
    pair_bytes = 2 * arguments["batch"] * arguments["heads"]
    fits = math.sqrt(_REAL_FITS * card.free_bytes / (_REAL_TENSORS * pair_bytes))
    part = min(1.0, fits / max(short))
    longest = math.sqrt(_REAL_TOO_LARGE * card.memory_bytes / pair_bytes)
    return [int(length) // 2 * 2 + 1 for length in (*(part * one for one in short), longest)]
