"""Judges Lab 1's conclusions, on data whose answer is known, and the report."""

from __future__ import annotations

from gradebox.assertions import number, require, require_between, require_close, require_equal, seconds, shown
from gradebox.criterion import criterion
from gradebox.fresh import Fresh
from gradebox.submission import Submission
from grader.lab1.checks import report as lab1_report
from labkit.results import STAGES


@criterion("lab1.analysis")
class TestAnalysis:
    def test_crossover_found(self, submission: Submission, fresh: Fresh) -> None:
        """Finds the size from which on the GPU is faster."""
        cases, answers = [], []
        for wins in _outcomes(fresh):
            sizes = sorted(fresh.odd(10 + 400 * i, 380 + 400 * i) for i in range(len(wins)))
            rows = []
            for size, win in zip(sizes, wins, strict=True):
                gpu = fresh.log_uniform(1e-5, 1e-2)
                rows.append([size, gpu * fresh.uniform(1.2, 40) if win else gpu / fresh.uniform(1.2, 40), gpu])
            stays = [i for i in range(len(wins)) if all(wins[i:])]
            answers.append(sizes[stays[0]] if stays else None)
            order = fresh.shuffled(list(range(len(rows))))
            cases.append([rows[index] for index in order])
        seen = submission.numeric_probe("lab1.gpu_basics.crossover", cases=cases)
        for case, answer, told in zip(cases, answers, seen.sizes, strict=True):
            shown = ", ".join(f"{row[0]}: {row[1] / row[2]:.3g}x" for row in sorted(case))
            require_equal(
                told,
                answer,
                what=f"find_crossover() for speedups {shown}",
                hint="the smallest size from which on the GPU is faster at every larger measured size; None if never",
            )

    def test_bound_named(self, submission: Submission, fresh: Fresh) -> None:
        """Names what bounds a product: launch, memory or compute."""
        cases, answers = [], []
        for answer in fresh.shuffled(("launch", "memory", "compute") * 3):
            size, element = fresh.integer(64, 8192), 2 ** fresh.integer(1, 3)
            rest = [fresh.log_uniform(1e-6, 1e-3) for _ in range(2)]
            longest = max(rest) * fresh.uniform(1.2, 1.8)  # close, so that a wrong factor of 2 or 3 shows
            names = [name for name in ("launch", "memory", "compute") if name != answer]
            took = {answer: longest, names[0]: rest[0], names[1]: rest[1]}
            cases.append(
                {
                    "size": size,
                    "peak_tflops": 2 * size**3 / took["compute"] / 1e12,
                    "bandwidth_bytes_per_second": 3 * size**2 * element / took["memory"],
                    "launch_seconds": took["launch"],
                    "bytes_per_element": element,
                }
            )
            answers.append((answer, took))
        seen = submission.numeric_probe("lab1.gpu_basics.bounds", cases=cases)
        for (answer, took), told in zip(answers, seen.bounds, strict=True):
            shown = ", ".join(f"{name} {seconds(value)}" for name, value in sorted(took.items()))
            require_equal(
                told,
                answer,
                what=f"classify_bound() where the three limits are {shown}",
                hint="the bound is what takes longest: the launch, moving 3 n² elements, or 2 n³ operations",
            )

    def test_peak_share_computed(self, submission: Submission, fresh: Fresh) -> None:
        """Computes the share of the peak that was reached."""
        cases, answers = [], []
        for _ in range(4):
            size, share, peak = fresh.odd(101, 4097), fresh.uniform(0.05, 0.95), fresh.uniform(5, 900)
            cases.append({"size": size, "seconds": 2 * size**3 / (share * peak * 1e12), "peak_tflops": peak})
            answers.append(share)
        seen = submission.numeric_probe("lab1.gpu_basics.peak_share", cases=cases)
        for answer, told in zip(answers, seen.shares, strict=True):
            require_close(
                told, answer, relative=1e-6, what="peak_share()", hint="a ratio: achieved TFLOPS over peak TFLOPS"
            )

    def test_bottleneck_found(self, submission: Submission, fresh: Fresh) -> None:
        """Finds the stage that needs the most memory."""
        count = len(STAGES)
        winners = fresh.shuffled(list(range(count)))[:4]
        peaks = [[fresh.integer(10**6, 5 * 10**8) for _ in STAGES] for _ in winners]
        for row, winner in zip(peaks, winners, strict=True):
            row[winner] = max(row) + fresh.integer(10**6, 10**8)
        allocated = [[fresh.integer(10**5, peak) for peak in row] for row in peaks]
        for held, winner in zip(allocated, winners, strict=True):  # who needs most is never who holds most
            held[winner] = max(size for stage, size in enumerate(held) if stage != winner) // 2
        seen = submission.numeric_probe("lab1.gpu_basics.bottleneck", peaks=peaks, allocated=allocated)
        for row, winner, told in zip(peaks, winners, seen.stages, strict=True):
            require_equal(
                told, STAGES[winner], what=f"find_bottleneck() for peaks {row}", hint="the largest peak_bytes"
            )
        for held, told in zip(allocated, seen.increases, strict=True):
            steps = [after - before for before, after in zip([0, *held], held, strict=False)]
            wanted = dict(zip(STAGES, steps, strict=True))
            require(
                isinstance(told, dict), f"stage_increases() returned {shown(told)}, expected a dict of stage: bytes"
            )
            told = {name: value for name, value in told.items() if name != STAGES[0]}
            wanted.pop(STAGES[0])
            require_equal(told, wanted, what=f"stage_increases() for allocated bytes {held}")

    def test_slowest_operation_found(self, submission: Submission, fresh: Fresh) -> None:
        """Finds the slowest operation of a training step."""
        steps = fresh.integer(3, 7)
        # One long kernel beside many launches, and many short kernels beside one product.
        cases: list[tuple[str, int, dict[str, int]]] = [
            ("mm", fresh.integer(1000, 1200), {"mm": 1, "exp": fresh.integer(4, 5)}),
            ("exp", fresh.integer(88, 104), {"exp": fresh.integer(30, 60), "mm": 1}),
        ]
        for slowest, size, repeats in fresh.shuffled(cases):
            # A pace for each kind of kernel, which no data sheet tells; the longest stays the longest.
            longer = round(fresh.uniform(1.6, 4.0), 3)
            shorter = round(fresh.uniform(1.2, longer), 3)
            paces = [[f"aten::{name}", longer if name == slowest else shorter] for name in repeats]
            seen = submission.probe(
                "lab1.gpu_basics.operations",
                values=not submission.device.simulated,
                size=size,
                repeats=repeats,
                steps=steps,
                warmup=2,
                paces=paces if submission.device.simulated else [],
            )
            require(bool(seen.operations), "profile_operations() returned nothing")
            first = seen.operations[0]
            require(
                first["name"] == f"aten::{slowest}",
                f"the slowest operation of a step with {repeats}: saw {first['name']!r}, expected 'aten::{slowest}'",
                "operations, not kernels, have names that begin with aten::; the longest self time on the device first",
            )
            require_equal(
                first["calls"],
                steps * repeats[slowest],
                what=f"calls of {first['name']} in {steps} profiled steps",
                hint="warm-up steps run before the profiler starts; every profiled step is counted",
            )
            took = [number(row["device_seconds"], "device_seconds") for row in seen.operations]
            require(took == sorted(took, reverse=True), f"the operations are not sorted by device_seconds: {took[:5]}")
            if submission.device.simulated:
                require(
                    seen.steps_run >= steps and f"aten::{slowest}" in seen.device_seconds,
                    f"profile_operations(): the step ran {seen.steps_run} times, expected at least {steps}",
                    "call step() in the profiled steps: what was not run cannot be profiled",
                )
                kernel = seen.device_seconds[f"aten::{slowest}"] * steps / seen.steps_run
                require_close(
                    took[0],
                    kernel,
                    relative=0.02,
                    what=f"device seconds of {first['name']} in {steps} steps",
                    show=seconds,
                    hint="the profiler's times are in microseconds",
                )
                everything = sum(seen.device_seconds.values()) * steps / seen.steps_run
                require_between(
                    sum(took),
                    0,
                    1.02 * everything,
                    what=f"device seconds of all operations together in {steps} steps",
                    show=seconds,
                    hint="self times: without the operations called in turn, and without listing kernels a second time",
                )

    def test_report_agrees_with_results(self, submission: Submission) -> None:
        """Writes a report that agrees with the results."""
        lab1_report.judge(submission)


def _outcomes(fresh: Fresh) -> list[list[int]]:
    """For each case whether the GPU is faster, from the smallest size to the largest; nothing tells the next case."""

    def row(value: int, least: int) -> list[int]:
        return [value] * fresh.integer(least, 3)

    lucky = [[*row(0, 0), *row(1, 1), *row(0, 1), *row(1, 1)] for _ in range(3)]
    rising = [[*row(0, 1), *row(1, 1)] for _ in range(3)]
    return fresh.shuffled([*lucky, *rising, row(1, 2), row(0, 2), [*row(0, 0), *row(1, 1), *row(0, 1)]])
