"""Judges the tiled matrix product: values, reuse of operands, races, and tiles that are chosen by measuring."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import mebibytes, require, require_arrays_close, require_between, require_equal, seconds
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.kernels.matmul import cases
from grader.kernels.matmul.reference import product
from grader.kernels.shared.cases import Observed
from grader.kernels.shared.checks import (
    SECTOR,
    ask,
    hint_for,
    judge_refusals,
    require_inside,
    require_kernel,
    require_loaded,
    require_no_library,
    require_no_race,
)

# Of the largest value, for inner sides below 100. Measured: float32 2e-7, float16 4e-4. With TF32 float32
# would be 5e-4.
_TOLERANCE = {"float32": 5e-6, "float16": 2e-3}
_MANY, _LONG = 1000, 1e-3
"""Of so many products and more, in float16: measured 2e-4 to 5e-4, the rounding of the result. With sums in 16 bits it
is 2e-3 and more."""
_LAUNCH_SECONDS = 2e-4
"""What a launch costs beside the kernel: measured 25 microseconds between two events; a compilation takes 0.5 s."""
_SLOWER = (150.0, 250.0)
"""Times as long as on a T4."""
_REAL_RATIO = 2
"""Between two medians on a real card, whose clock changes: milliseconds for seconds are a thousand."""
_TUNED = 1.1


@criterion("kernels.matmul")
class TestMatmul:
    def test_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        inputs = cases.sizes_types_and_strides(generator)
        for case, run in zip(inputs["cases"], _runs(submission, inputs), strict=True):
            what, dtype = _what(case), case["dtype"]
            shape = [case["m"], case["n"]]
            require_equal([run["shape"], run["dtype"]], [shape, dtype], what=f"{what}: shape and dtype")
            require_kernel(run, what, submission)
            require_no_library(run, what)
            _require_product(inputs, case, run)

    @requires("equals_reference")
    def test_stays_inside(self, submission: Submission, generator: InputGenerator) -> None:
        for case, run in _counted(submission, generator):
            require_inside(run["runs"], _what(case))

    @requires("equals_reference")
    def test_operands_reused_in_tiles(self, submission: Submission, generator: InputGenerator) -> None:
        for case, run in list(_counted(submission, generator))[1:]:
            assert case["tiles"] is not None
            tiles, m, n, k = case["tiles"], case["m"], case["n"], case["k"]
            what = f"{_what(case)}, tiles {tiles['m']} x {tiles['n']}"
            require_equal(len(run["kernels"]), 1, what=f"{what}: kernels", hint="one launch: no copy, no fill")
            (launch,) = run["runs"]
            require_equal(
                int(launch["flops"]), 2 * m * n * k, what=f"{what}: FLOPs of tl.dot", hint="each tile once, with tl.dot"
            )
            require(
                not launch["tf32"],
                f"{what}: float32 may be multiplied in TF32",
                'tl.dot(..., input_precision="ieee"): its default rounds the operands to 10 bits where a card has TF32',
            )
            read = 4 * m * n * k * (1 / tiles["n"] + 1 / tiles["m"])
            # Measured: as much as that. Tiles of half the size read twice as much.
            require(
                0.99 * read <= launch["read_bytes"] <= 1.3 * read,
                f"{what}: all programs read {mebibytes(launch['read_bytes'])}, expected {mebibytes(read)}",
                "a program reads its rows of a and its columns of b once, tile by tile along the inner side",
            )
            inputs = cases.sides_with_and_without_a_rest(generator)
            require_loaded(run, {"a": inputs["a"][:m, :k], "b": inputs["b"][:k, :n]}, what)
            require_kernel(run, what, submission)
            require(
                4 * m * n <= launch["written_bytes"] <= 1.3 * 4 * m * n + SECTOR,
                f"{what}: {mebibytes(launch['written_bytes'])} are written, expected {mebibytes(4 * m * n)}",
                "sums stay in the program until they are complete",
            )

    @requires("equals_reference")
    def test_no_race_between_programs(self, submission: Submission, generator: InputGenerator) -> None:
        for case, run in _counted(submission, generator):
            require_no_race(run["runs"], _what(case))

    @requires("equals_reference")
    def test_tiles_timed(self, submission: Submission, generator: InputGenerator) -> None:
        simulated = submission.device.simulated
        inputs = cases.tiles_to_time(generator, simulated=simulated)
        actual = ask(
            submission,
            "kernels.matmul.timings",
            device="vgpu:T4" if simulated else None,
            values=simulated,  # no value is looked at, and a rehearsal's CPU could not compute so large a product
            # Next to kernels of some microseconds, any time below a launch would do.
            conditions=[{"factor": generator.uniform(*_SLOWER)}] if simulated else [],
            **inputs,
        )
        rows: list[cases.TimingRow] = actual.rows
        candidates = inputs["candidates"]
        what = f"time_tiles({', '.join(map(str, inputs['sizes']))}, dtype=torch.float32)"
        require_equal(sorted(_key(row["tiles"]) for row in rows), sorted(map(_key, candidates)), what=f"{what}: tiles")
        measured = {_key(tiles): took for tiles, took in zip(candidates, actual.device_seconds, strict=True)}
        for row in rows:
            expected = measured[_key(row["tiles"])]
            low, high = expected / _REAL_RATIO, _REAL_RATIO * expected
            if simulated:
                low, high = expected, expected + _LAUNCH_SECONDS
            require_between(
                row["seconds"],
                0.98 * low,
                high,
                what=f"{what}: seconds with tiles {_key(row['tiles'])}",
                show=seconds,
                hint="of one product that has been compiled before; do_bench returns milliseconds",
            )
        m, n, k = inputs["sizes"]
        least = 2.0 * m * n * k * len(candidates)
        require(
            actual.flops is None or actual.flops >= 0.98 * least,
            f"{what}: the device computed {actual.flops or 0:.3g} FLOPs, expected {least:.3g} at least",
            "run a product with each of the tiles, and measure it",
        )
        order = [row["seconds"] for row in rows]
        require(order == sorted(order), f"{what}: seconds {order}", "the fastest first")

    @requires("equals_reference")
    def test_fastest_tiles_chosen(self, submission: Submission, generator: InputGenerator) -> None:
        simulated = submission.device.simulated
        inputs = cases.sizes_to_choose_for(generator)
        actual = ask(submission, "kernels.matmul.choice", device="vgpu:T4" if simulated else None, **inputs)
        choice: cases.Choice = {"tiles": actual.tiles, "runs": actual.runs}
        tiles = [_key(size) for size in choice["tiles"]]
        shapes = {(size["m"], size["n"]) for size in choice["tiles"]}
        require(
            len(set(tiles)) >= 4 and len(shapes) >= 3,
            f"TILES has {len(set(tiles))} different sizes with {len(shapes)} different tiles of the result, expected "
            "4 and 3 at least",
        )
        if not simulated:
            return
        for (m, n, k), run in zip(inputs["sizes"], choice["runs"], strict=True):
            what = f"matmul() of {m} x {k} and {k} x {n}"
            first, second = len(run["first"]), len(run["second"])
            require(
                first > len(tiles),
                f"{what}: the first product launched {first} kernels, expected more than {len(tiles)}",
                "each size is measured again: m, n and k belong in the key",
            )
            ran = {(launch["programs"], launch["flops"]) for launch in run["first"]}
            for size, launches in zip(tiles, run["launches"], strict=True):
                require(
                    all((launch["programs"], launch["flops"]) in ran for launch in launches),
                    f"{what}: the first product launched no kernel with tiles {size}",
                    "measure each of TILES, and take the fastest",
                )
            require_equal(second, 1, what=f"{what}: launches of the second product", hint="what was measured is kept")
            require_between(
                run["seconds"],
                0,
                _TUNED * min(run["each"]),
                what=f"{what}: seconds of the kernel, with TILES it takes {', '.join(map(seconds, run['each']))}",
                show=seconds,
                hint="the tiles that were fastest for this size",
            )

    def test_nonsense_refused(self, submission: Submission) -> None:
        judge_refusals(submission, "kernels.matmul.refusals")


def _key(tiles: cases.Tiles) -> tuple[int, int, int]:
    return tiles["m"], tiles["n"], tiles["k"]


def _what(case: cases.Case) -> str:
    layouts = f", left {case['left']}" * (case["left"] != "plain")
    layouts += f", right {case['right']}" * (case["right"] != "plain")
    return f"matmul() of {case['m']} x {case['k']} and {case['k']} x {case['n']}, {case['dtype']}{layouts}"


def _runs(submission: Submission, inputs: cases.Inputs, *, counted: bool = False) -> list[Observed]:
    runs: list[Observed] = ask(submission, "kernels.matmul.matmul", counted=counted, **inputs).whole("runs")
    return runs


def _counted(submission: Submission, generator: InputGenerator) -> Iterator[tuple[cases.Case, Observed]]:
    """Cases and what happened; fails unless the products are right for which it was counted."""
    inputs = cases.sides_with_and_without_a_rest(generator)
    for case, run in zip(inputs["cases"], _runs(submission, inputs, counted=True), strict=True):
        _require_product(inputs, case, run)
        yield case, run


def _require_product(inputs: cases.Inputs, case: cases.Case, run: Observed) -> None:
    expected = product(inputs, case)
    tolerance = _LONG if case["k"] > _MANY else _TOLERANCE[case["dtype"]]
    require_arrays_close(
        run["output"],
        expected,
        rtol=0,
        atol=tolerance * float(np.abs(expected).max()),
        what=_what(case),
        hint=hint_for(
            run["output"],
            "sums in float32, products of float32 in full precision (input_precision), zeros beyond the sides",
        ),
    )
