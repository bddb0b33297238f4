"""Judges whether Lab 1's numbers are true: seconds, TFLOPS, synchronisation, robustness."""

from __future__ import annotations

from typing import Any

from gradebox.course.criterion import builds_on, criterion, requires
from gradebox.run.assertions import number, positive, require, require_between, require_close, seconds
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab1.truth.mistakes import (
    NOT_THE_MEDIAN,
    OLDER_WORK,
    recognised,
    recognised_among_others,
    seen_elsewhere,
)
from grader.lab1.truth.readings import SYNC_HINT, require_crossed, require_seconds
from grader.lab1.truth.timing import (
    LAUNCHED,
    Call,
    aligned_size,
    crossed,
    devices,
    expected,
    long_size,
    long_sizes,
    measure,
    peak_tflops,
    require_ran,
    short_sizes,
)
from grader.shared.cards import Card, card_of

_DISTURBED, _RUN = 25, 5
"""Products of a call, and how many of them in a row are slow, and how many fast.

A run of five lies in two blocks of four or five products at most, in three of two or three: the median of five or more
single times or blocks stays what it is, wherever the runs begin. The mean, the smallest, the largest are wrong."""
_NAPS = (0.008, 0.016)
"""Seconds that a product on a CPU waits: far more than it computes."""
_BUSY = 3
"""Times as long as the longest of the products a median may be, on a machine that does other things, too."""
_OLDER_WORK, _REAL_OLDER_WORK = 1.5, 4
"""Times as long as a product one may be before which 20 others were queued. On a real GPU a single one is late now and
then, and who has waited for no other reads the time of 20 and more."""
_NEAR = 0.02


@criterion("lab1.measurements", timeline=LAUNCHED)
class TestMeasurements:
    @requires("lab1.benchmark.returns_result")
    def test_seconds_equal_truth(self, submission: Submission, generator: InputGenerator) -> None:
        """Measures the seconds that the GPU really takes."""
        card = card_of(submission)
        for device in devices(submission.device):
            calls: list[Call] = [{"size": long_size(device, generator, card=card), "iterations": 10} for _ in range(2)]
            for call, seen in zip(calls, measure(submission, generator, device, calls, **_between(card)), strict=True):
                require_seconds(device, call, seen)
        for call, seen in zip(*crossed(submission, generator, by_default=True), strict=True):
            require_crossed(submission.device, call, seen)
        # A CPU on which each product waits for something: only a clock on the wall sees that.
        nap = round(generator.uniform(*_NAPS), 4)
        seen = submission.probe(
            "lab1.slow_cpu.matmul", device="cpu", size=generator.odd(31, 63), iterations=5, warmup=1, nap_seconds=nap
        )
        require_between(
            seen.result["seconds"],
            0.98 * nap,
            _BUSY * max(seen.took),
            what=f"seconds per product on a CPU that takes {seconds(nap)} for each",
            show=seconds,
            hint="the time that passes (time.perf_counter), not the time for which a processor was busy",
        )

    @requires("lab1.benchmark.returns_result")
    def test_small_products_within_interval(self, submission: Submission, generator: InputGenerator) -> None:
        """Measures very small products right."""
        device = submission.device.name
        calls = [
            {"size": size, "iterations": 50} for size in short_sizes(device, generator, 6, card=card_of(submission))
        ]
        for call, seen in zip(calls, measure(submission, generator, device, calls, warm=True), strict=True):
            with recognised(device, call, seen):
                expected(device, call, seen).require(
                    seen["result"]["seconds"],
                    f"seconds per product of {call['size']}, which takes no longer than some launches",
                    "time many products and wait for them once, or for each; nothing else between start and stop",
                )

    @requires("lab1.benchmark.returns_result")
    def test_tflops_counted(self, submission: Submission, generator: InputGenerator) -> None:
        """Counts TFLOPS from the size and the seconds."""
        device = submission.device.name
        sizes = sorted((generator.odd(101, 999) for _ in range(3)), reverse=True)
        calls = [{"size": size, "iterations": 5} for size in sizes]
        # One slow product: only the median's TFLOPS are those of the seconds that are told.
        hiccups = [[{"first": generator.integer(0, 4), "count": 1, "factor": 200.0}] for _ in calls]
        how = {"hiccups": hiccups} if submission.device.simulated else {}
        for call, seen in zip(calls, measure(submission, generator, device, calls, **how), strict=True):
            took = positive(seen["result"]["seconds"], "MatmulResult.seconds")
            reached = 2 * call["size"] ** 3 / took / 1e12
            require_close(
                seen["result"]["tflops"],
                reached,
                relative=0.005,
                what=f"TFLOPS of a product of {call['size']} that took {seconds(took)}",
                show=lambda value: f"{value:.5g} TFLOPS",
                hint=_symptom(number(seen["result"]["tflops"], "MatmulResult.tflops") / reached),
            )

    @requires("lab1.benchmark.returns_result")
    def test_synchronised_before_start(self, submission: Submission, generator: InputGenerator) -> None:
        """Starts the clock when the GPU is idle."""
        device = submission.device.name
        sizes = long_sizes(device, generator, 3, card=card_of(submission))
        calls: list[Call] = [{"size": size, "iterations": 1} for size in sizes]
        for call, seen in zip(
            calls, measure(submission, generator, device, calls, warm=True, busy_products=20), strict=True
        ):
            with seen_elsewhere(call, seen):
                require_ran(call, seen, "time the products that are asked for")
                took = number(seen["result"]["seconds"], "MatmulResult.seconds")
                honest = expected(device, call, seen)
                most = _OLDER_WORK if submission.device.simulated else _REAL_OLDER_WORK
                require(
                    took <= most * honest.high,
                    f"with work still queued when benchmark_matmul was called: saw {seconds(took)}, expected "
                    f"{seconds(honest.high)}",
                    OLDER_WORK,
                )
                # A clock that stops too early reads less; that the device was idle at the start is then seen there.
                require(
                    took >= 0.9 * honest.low or seen["idle_at_start"] is True,
                    f"with work still queued when benchmark_matmul was called: saw {seconds(took)}, and the first "
                    "timed product was put behind that work",
                    OLDER_WORK,
                )

    @requires("lab1.benchmark.returns_result")
    def test_synchronised_before_stop(self, submission: Submission, generator: InputGenerator) -> None:
        """Stops the clock when the GPU has finished."""
        device = submission.device.name
        sizes = long_sizes(device, generator, 5, card=card_of(submission))
        calls = [{"size": size, "iterations": 12} for size in sizes]
        for call, seen in zip(calls, measure(submission, generator, device, calls, warm=True), strict=True):
            with recognised(device, call, seen):
                took = number(seen["result"]["seconds"], "MatmulResult.seconds")
                honest = expected(device, call, seen)
                require(
                    took >= 0.9 * honest.low,
                    f"the clock was stopped before the GPU had finished: saw {seconds(took)}, expected "
                    f"{seconds(honest.low)}",
                    SYNC_HINT,
                )
                require(
                    took <= 3 * honest.high,
                    f"not the time of a product: saw {seconds(took)}, not {seconds(honest.high)}",
                )

    @requires("lab1.benchmark.returns_result")
    @builds_on("seconds_equal_truth", "synchronised_before_start")
    def test_robust_against_one_slow_iteration(self, submission: Submission, generator: InputGenerator) -> None:
        """Is not misled by outliers."""
        device = submission.device.name if submission.device.simulated else "vgpu:T4"
        hiccups = _hiccups(generator)
        # The largest first: a hiccup that is left over, whoever has run fewer products, hits no smaller one.
        sizes = sorted(long_sizes(device, generator, len(hiccups)), reverse=True)
        calls = [{"size": size, "iterations": _DISTURBED} for size in sizes]
        few = sorted(long_sizes(device, generator, 2), reverse=True)
        for size, count in zip(few, (generator.integer(10, 14), generator.integer(5, 9)), strict=True):
            # The first one and the last one: two of at least five measurements, whatever their lengths.
            calls.append({"size": size, "iterations": count})
            hiccups.append([{"first": place, "count": 1, "factor": 200.0} for place in (0, count - 1)])
        for call, seen in zip(calls, measure(submission, generator, device, calls, hiccups=hiccups), strict=True):
            with recognised_among_others(device, call, {**seen, "disturbed": True}):
                require_ran(call, seen, "time the products that are asked for")
                took = number(seen["result"]["seconds"], "MatmulResult.seconds")
                honest = expected(device, call, seen)
                require(
                    0.9 * honest.low <= took <= 1.1 * honest.high,
                    f"of {call['iterations']} products {_disturbance(call)}: saw {seconds(took)}, expected "
                    f"{seconds(honest.high)}",
                    str(NOT_THE_MEDIAN),
                )

    @requires("lab1.benchmark.returns_result")
    @builds_on("seconds_equal_truth", "tflops_counted")
    def test_never_above_the_roofline(self, submission: Submission, generator: InputGenerator) -> None:
        """Tells no more TFLOPS than the GPU can reach."""
        card = card_of(submission)
        for device in devices(submission.device):
            sizes = (generator.integer(3, 9) * 128, aligned_size(generator, "float32", card))
            calls: list[Call] = [{"size": size, "iterations": 8} for size in sizes]
            for call, seen in zip(calls, measure(submission, generator, device, calls, **_between(card)), strict=True):
                with recognised(device, call, seen):
                    told = number(seen["result"]["tflops"], "MatmulResult.tflops")
                    peak = peak_tflops(device, "float32", seen)
                    if peak is None:
                        peak = 2 * call["size"] ** 3 / (0.9 * min(seen["truth"])) / 1e12
                    require(
                        told <= peak,
                        f"a product of {call['size']} on {device}: saw {told:.5g} TFLOPS, "
                        f"but no more than {peak:.5g} can be reached",
                        "a number above the peak means that the clock stopped too early or that work was counted twice",
                    )
                    # A share of the peak that is told without measuring lies below the roofline, too.
                    slowest = 2 * call["size"] ** 3 / (1.25 * expected(device, call, seen).high) / 1e12
                    require(
                        told >= slowest,
                        f"a product of {call['size']} on {device}: saw {told:.5g} TFLOPS, but its "
                        f"products reach {slowest:.5g} and more",
                        "count the work of the products that were timed, by the seconds that they took",
                    )


def _between(card: Card | None) -> dict[str, Any]:
    """On a real card the reference is measured before the first call as well, whose clock changes meanwhile."""
    return {} if card is None else {"warm": True}


def _disturbance(call: Call) -> str:
    if call["iterations"] == _DISTURBED:
        return f"{_RUN} took 200 times as long as the others, and {_RUN} a twentieth"
    return "the first and the last took 200 times as long as the others"


def _symptom(ratio: float) -> str:
    """Which mistake multiplies TFLOPS by this."""
    known = {
        0.5: "each of the n² results takes n multiplications and n additions",
        2.0: "each of the n² results takes n multiplications and n additions, and no more",
        1e3: "that is a number of GFLOPS: TFLOPS count in 1e12",
        1e12: "that is a number of FLOPS: TFLOPS count in 1e12",
        1e12 / 2**40: "TFLOPS count in 1e12 operations, not in 2^40",
        1e-3: "that is a number of PFLOPS: TFLOPS count in 1e12",
    }
    return next(
        (hint for factor, hint in known.items() if abs(ratio / factor - 1) < _NEAR),
        "2 n³ operations, divided by the seconds that stand beside them",
    )


def _hiccups(generator: InputGenerator) -> list[list[dict[str, Any]]]:
    """A slow run and a fast one for each call. Whichever product is timed alone, it is in one of them in some call."""
    # Outermost, between and innermost: together they cover every product.
    pairs = [(0, 20), (5, 15), (10, generator.shuffled((0, 20))[0])]
    for _ in range(2):
        first = generator.integer(0, _DISTURBED - 2 * _RUN)
        pairs.append((first, generator.integer(first + _RUN, _DISTURBED - _RUN)))
    calls = []
    for pair in generator.shuffled(pairs):
        slow, fast = generator.shuffled(pair)
        calls.append(
            [
                {"first": slow, "count": _RUN, "factor": 200.0},
                {"first": fast, "count": _RUN, "factor": 0.05},
            ]
        )
    return calls
