"""Judges the tiled matrix product: values, reuse of operands, races, and tiles that are chosen by measuring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import mebibytes, require, require_arrays_close, require_between, require_equal, seconds
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.kernels.checks.common import (
    SECTOR,
    ask,
    hint_for,
    judge_refusals,
    require_inside,
    require_kernel,
    require_no_race,
)
from grader.kernels.truth.reference import rounded

# Of the largest value, for inner sides below 100. Measured: float32 2e-7, float16 4e-4. With TF32 float32
# would be 5e-4.
_TOLERANCE = {"float32": 5e-6, "float16": 2e-3}
_MANY, _LONG = 1000, 1e-3
"""Of so many products and more, in float16: measured 2e-4 to 5e-4, the rounding of the result. With sums in 16 bits it
is 2e-3 and more."""
_LAUNCH_SECONDS = 2e-4
"""What a launch costs beside the kernel: measured 25 microseconds between two events; a compilation takes 0.5 s."""
_REAL_RATIO = 2
"""Between two medians on a real card, whose clock changes: milliseconds for seconds are a thousand."""
_TUNED = 1.1
_SMALL: dict[str, int] = {"m": 16, "n": 16, "k": 32}


@criterion("kernels.matmul")
class TestMatmul:
    def test_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        """Multiplies matrices of any sizes, types and strides."""
        plain: dict[str, Any] = {"dtype": "float32", "left": "plain", "right": "plain", "tiles": None}
        tiles = {"m": 32, "n": 64, "k": 16}
        cases: list[dict[str, Any]] = [
            {
                **plain,
                "m": generator.odd(33, 65),
                "n": generator.odd(67, 99),
                "k": generator.odd(35, 61),
                "tiles": tiles,
            },
            {**plain, "m": generator.odd(17, 31), "n": 32, "k": 64, "left": "transposed", "tiles": tiles},
            {**plain, "m": 32, "n": generator.odd(17, 31), "k": 33, "right": "transposed", "tiles": _SMALL},
            {**plain, "m": 20, "n": 24, "k": generator.odd(41, 63), "dtype": "float16", "left": "view", "tiles": tiles},
            {**plain, "m": 40, "n": 17, "k": 31, "dtype": "float16", "right": "view", "tiles": _SMALL},
            {**plain, "m": generator.odd(3, 9), "n": 1, "k": generator.odd(3, 9)},
            {
                **plain,
                "m": 16,
                "n": 16,
                "k": generator.odd(1901, 2047),
                "dtype": "float16",
                "tiles": _SMALL | {"k": 16},
            },
        ]
        a, b = generator.normal(99, 2047), generator.normal(2047, 99)
        seen = ask(submission, "products.matmul", cases=cases, a=a, b=b)
        for index, (case, run) in enumerate(zip(cases, seen.whole("runs"), strict=True)):
            what = _what(case)
            m, n, k, dtype = case["m"], case["n"], case["k"], case["dtype"]
            require_equal([run["shape"], run["dtype"]], [[m, n], dtype], what=f"{what}: shape and dtype")
            if index == 0:
                require_kernel(run, what, submission)
            left, right = (rounded(one, dtype).astype(np.float64) for one in (a[:m, :k], b[:k, :n]))
            truth = left @ right
            require_arrays_close(
                run["output"],
                truth,
                rtol=0,
                atol=(_LONG if k > _MANY else _TOLERANCE[dtype]) * float(np.abs(truth).max()),
                what=what,
                hint=hint_for(
                    run["output"],
                    "sums in float32, products of float32 in full precision (input_precision), zeros beyond the sides",
                ),
            )

    @requires("equals_reference")
    def test_stays_inside(self, submission: Submission, generator: InputGenerator) -> None:
        """Reaches no element outside of its matrices."""
        for case, run in _counted(submission, generator):
            require_inside(run["runs"], _what(case))

    @requires("equals_reference")
    def test_operands_reused_in_tiles(self, submission: Submission, generator: InputGenerator) -> None:
        """Reads operands as often as the tiles say."""
        for case, run in _counted(submission, generator)[1:]:
            what = f"{_what(case)}, tiles {case['tiles']['m']} x {case['tiles']['n']}"
            m, n, k = case["m"], case["n"], case["k"]
            require_equal(len(run["kernels"]), 1, what=f"{what}: kernels", hint="one launch: no copy, no fill")
            (one,) = run["runs"]
            require_equal(
                int(one["flops"]), 2 * m * n * k, what=f"{what}: FLOPs of tl.dot", hint="each tile once, with tl.dot"
            )
            require(
                not one["tf32"],
                f"{what}: float32 may be multiplied in TF32",
                'tl.dot(..., input_precision="ieee"): its default rounds the operands to 10 bits where a card has TF32',
            )
            read = 4 * m * n * k * (1 / case["tiles"]["n"] + 1 / case["tiles"]["m"])
            # Measured: as much as that. Tiles of half the size read twice as much.
            require(
                one["read_bytes"] <= 1.3 * read,
                f"{what}: all programs read {mebibytes(one['read_bytes'])}, expected {mebibytes(read)}",
                "a program reads its rows of a and its columns of b once, tile by tile along the inner side",
            )
            require(
                one["written_bytes"] <= 1.3 * 4 * m * n + SECTOR,
                f"{what}: {mebibytes(one['written_bytes'])} are written, expected {mebibytes(4 * m * n)}",
                "sums stay in the program until they are complete",
            )

    @requires("equals_reference")
    def test_no_race_between_programs(self, submission: Submission, generator: InputGenerator) -> None:
        """Lets no two programs of a launch race."""
        for case, run in _counted(submission, generator):
            require_no_race(run["runs"], _what(case))

    @requires("equals_reference")
    def test_tiles_timed(self, submission: Submission, generator: InputGenerator) -> None:
        """Times tiles, and tells the fastest first."""
        simulated = submission.device.simulated
        sizes = [128, 128, 64] if simulated else [2048, 2048, 2048]
        candidates = generator.shuffled([_SMALL, {"m": 32, "n": 32, "k": 64}, {"m": 64, "n": 64, "k": 64}])
        seen = ask(
            submission,
            "products.timings",
            device="vgpu:T4" if simulated else None,
            values=simulated,  # no value is looked at, and a rehearsal's CPU could not compute so large a product
            sizes=sizes,
            candidates=candidates,
            dtype="float32",
        )
        what = f"time_tiles({', '.join(map(str, sizes))}, dtype=torch.float32)"
        told = [row["tiles"] for row in seen.rows]
        require_equal(sorted(map(_key, told)), sorted(map(_key, candidates)), what=f"{what}: tiles")
        truth = {_key(one): took for one, took in zip(candidates, seen.device_seconds, strict=True)}
        for row in seen.rows:
            wanted = truth[_key(row["tiles"])]
            low, high = (
                (wanted, wanted + _LAUNCH_SECONDS) if simulated else (wanted / _REAL_RATIO, _REAL_RATIO * wanted)
            )
            require_between(
                row["seconds"],
                0.98 * low,
                high,
                what=f"{what}: seconds with tiles {_key(row['tiles'])}",
                show=seconds,
                hint="of one product that has been compiled before; do_bench tells milliseconds",
            )
        order = [row["seconds"] for row in seen.rows]
        require(order == sorted(order), f"{what}: seconds {order}", "the fastest first")

    @requires("equals_reference")
    def test_fastest_tiles_chosen(self, submission: Submission, generator: InputGenerator) -> None:
        """Measures each size once, takes the fastest tiles."""
        simulated = submission.device.simulated
        inner = generator.shuffled([32, 64])
        # In float16 a T4 takes 3.1 microseconds for the last one with tiles of 32 x 32, and 2.5 with larger ones.
        sizes = [[128, 64, inner[0]], [128, 64, inner[1]], [256, 512, 128]]
        seen = ask(submission, "products.choice", device="vgpu:T4" if simulated else None, sizes=sizes, dtype="float16")
        tiles = [_key(one) for one in seen.tiles]
        shapes = {(one["m"], one["n"]) for one in seen.tiles}
        require(
            len(set(tiles)) >= 4 and len(shapes) >= 3,
            f"TILES has {len(set(tiles))} different sizes with {len(shapes)} different tiles of the result, expected "
            "4 and 3 at least",
        )
        if not simulated:
            return
        for size, run in zip(sizes, seen.runs, strict=True):
            what = f"matmul() of {size[0]} x {size[2]} and {size[2]} x {size[1]}"
            first, second = run["launches"]
            require(
                first > len(tiles),
                f"{what}: the first product launched {first} kernels, expected more than {len(tiles)}",
                "each size is measured anew: m, n and k belong into the key",
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
        """Refuses arguments that make no sense."""
        judge_refusals(submission, "matmul")


def _key(tiles: Mapping[str, int]) -> tuple[int, int, int]:
    return tiles["m"], tiles["n"], tiles["k"]


def _what(case: Mapping[str, Any]) -> str:
    layouts = "".join(f", {side} {case[side]}" for side in ("left", "right") if case[side] != "plain")
    return f"matmul() of {case['m']} x {case['k']} and {case['k']} x {case['n']}, {case['dtype']}{layouts}"


def _counted(submission: Submission, generator: InputGenerator) -> list[tuple[dict[str, Any], Mapping[str, Any]]]:
    """One product whose sides no tiles fit, and two that they do."""
    generator = generator.shared("kernels.matmul.counted")
    plain: dict[str, Any] = {"dtype": "float32", "left": "plain", "right": "plain"}
    one, other = generator.shuffled([{"m": 32, "n": 64, "k": 32}, {"m": 64, "n": 16, "k": 64}])
    cases: list[dict[str, Any]] = [
        {**plain, "m": generator.odd(67, 95), "n": generator.odd(35, 61), "k": generator.odd(35, 61), "tiles": one},
        {**plain, "m": 128, "n": 128, "k": 128, "tiles": one},
        {**plain, "m": 128, "n": 64, "k": 128, "tiles": other},
    ]
    a, b = generator.normal(128, 128), generator.normal(128, 128)
    seen = ask(submission, "products.matmul", counted=True, cases=cases, a=a, b=b)
    return list(zip(cases, seen.runs, strict=True))
