"""Judges whether Lab 1's numbers are true: seconds, TFLOPS, synchronisation, robustness."""

from __future__ import annotations

from dataclasses import replace

from gradebox.course.criterion import builds_on, criterion, requires
from gradebox.run.assertions import number, positive, require, require_between, require_close, seconds
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab1.measurements.cases import DISTURBED, RUN, SlowCpu, hiccups
from grader.lab1.shared.cases.drawn import (
    aligned_size,
    devices,
    first_and_last,
    long_size,
    long_sizes,
    short_sizes,
)
from grader.lab1.shared.cases.products import Call, Hiccup
from grader.lab1.shared.checks.measuring import (
    LAUNCHED,
    crossed,
    measure,
    require_ran,
    require_within,
    seconds_of,
)
from grader.lab1.shared.checks.mistakes import (
    NOT_THE_MEDIAN,
    OLDER_WORK,
    recognised,
    recognised_among_others,
    recognised_elsewhere,
)
from grader.lab1.shared.checks.readings import SYNC_HINT, require_crossed, require_seconds
from grader.lab1.shared.reference import Measurement, expected, peak_tflops
from grader.shared.cards import card_of

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
    def test_seconds_equal_reference(self, submission: Submission, generator: InputGenerator) -> None:
        card = card_of(submission)
        for device in devices(submission.device):
            calls: list[Call] = [{"size": long_size(device, generator, card=card), "iterations": 10} for _ in range(2)]
            # On a real card the reference is measured before the first call as well, whose clock changes meanwhile.
            for run in measure(submission, generator, device, calls, warm=card is not None):
                require_seconds(device, run)
        for run in crossed(submission, generator, by_default=True):
            require_crossed(submission.device, run)
        # A CPU on which each product waits for something: only a clock on the wall sees that.
        nap = round(generator.uniform(*_NAPS), 4)
        inputs = SlowCpu(size=generator.odd(31, 63), iterations=5, warmup=1, nap_seconds=nap)
        reply = submission.probe(inputs, device="cpu")
        require_between(
            reply.result["seconds"],
            0.98 * nap,
            _BUSY * max(reply.took),
            what=f"seconds per product on a CPU that takes {seconds(nap)} for each",
            show=seconds,
            hint="the time that passes (time.perf_counter), not the time for which a processor was busy",
        )

    @requires("lab1.benchmark.returns_result")
    def test_small_products_within_interval(self, submission: Submission, generator: InputGenerator) -> None:
        device = submission.device.name
        sizes = short_sizes(device, generator, 6, card=card_of(submission))
        calls: list[Call] = [{"size": size, "iterations": 50} for size in sizes]
        for run in measure(submission, generator, device, calls, warm=True):
            with recognised(device, run):
                require_within(
                    expected(device, run),
                    run.seconds,
                    f"seconds per product of {run.call['size']}, which takes no longer than some launches",
                    "time many products and wait for them once, or for each; nothing else between start and stop",
                )

    @requires("lab1.benchmark.returns_result")
    def test_tflops_counted(self, submission: Submission, generator: InputGenerator) -> None:
        device = submission.device.name
        sizes = sorted((generator.odd(101, 999) for _ in range(3)), reverse=True)
        calls: list[Call] = [{"size": size, "iterations": 5} for size in sizes]
        # One slow product: only the median's TFLOPS are those of the seconds beside them.
        one_slow: list[list[Hiccup]] = [
            [{"first": generator.integer(0, 4), "count": 1, "factor": 200.0}] for _ in calls
        ]
        for run in measure(
            submission, generator, device, calls, hiccups=one_slow if submission.device.simulated else ()
        ):
            took, tflops = positive(run.seconds, "MatmulResult.seconds"), run.observed.result["tflops"]
            reached = 2 * run.call["size"] ** 3 / took / 1e12
            require_close(
                tflops,
                reached,
                relative=0.005,
                what=f"TFLOPS of a product of {run.call['size']} that took {seconds(took)}",
                show=lambda value: f"{value:.5g} TFLOPS",
                hint=_symptom(number(tflops, "MatmulResult.tflops") / reached),
            )

    @requires("lab1.benchmark.returns_result")
    def test_synchronised_before_start(self, submission: Submission, generator: InputGenerator) -> None:
        device = submission.device.name
        sizes = long_sizes(device, generator, 3, card=card_of(submission))
        calls: list[Call] = [{"size": size, "iterations": 1} for size in sizes]
        for run in measure(submission, generator, device, calls, warm=True, busy_products=20):
            with recognised_elsewhere(run):
                require_ran(run.call, run.observed.products, "time the products that are asked for")
                took = seconds_of(run)
                honest = expected(device, run)
                most = _OLDER_WORK if submission.device.simulated else _REAL_OLDER_WORK
                require(
                    took <= most * honest.high,
                    f"with work still queued when benchmark_matmul was called: saw {seconds(took)}, expected "
                    f"{seconds(honest.high)}",
                    OLDER_WORK,
                )
                # A clock that stops too early reads less; that the device was idle at the start is then seen there.
                require(
                    took >= 0.9 * honest.low or run.observed.idle_at_start is True,
                    f"with work still queued when benchmark_matmul was called: saw {seconds(took)}, and the first "
                    "timed product was put behind that work",
                    OLDER_WORK,
                )

    @requires("lab1.benchmark.returns_result")
    def test_synchronised_before_stop(self, submission: Submission, generator: InputGenerator) -> None:
        device = submission.device.name
        sizes = long_sizes(device, generator, 5, card=card_of(submission))
        calls: list[Call] = [{"size": size, "iterations": 12} for size in sizes]
        for run in measure(submission, generator, device, calls, warm=True):
            with recognised(device, run):
                took = seconds_of(run)
                honest = expected(device, run)
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
    @builds_on("seconds_equal_reference", "synchronised_before_start")
    def test_robust_against_one_slow_iteration(self, submission: Submission, generator: InputGenerator) -> None:
        device = submission.device.name if submission.device.simulated else "vgpu:T4"
        disturbed = hiccups(generator)
        # The largest first: a hiccup that is left over, because fewer products ran, hits no smaller one.
        sizes = sorted(long_sizes(device, generator, len(disturbed)), reverse=True)
        calls: list[Call] = [{"size": size, "iterations": DISTURBED} for size in sizes]
        few = sorted(long_sizes(device, generator, 2), reverse=True)
        for size, count in zip(few, (generator.integer(10, 14), generator.integer(5, 9)), strict=True):
            # The first one and the last one: two of at least five measurements, whatever their lengths.
            calls.append({"size": size, "iterations": count})
            disturbed.append(first_and_last(calls[-1]))
        for measured in measure(submission, generator, device, calls, hiccups=disturbed):
            run = replace(measured, disturbed=True)
            with recognised_among_others(device, run):
                require_ran(run.call, run.observed.products, "time the products that are asked for")
                took = seconds_of(run)
                honest = expected(device, run)
                require(
                    0.9 * honest.low <= took <= 1.1 * honest.high,
                    f"of {run.iterations} products {_disturbance(run)}: saw {seconds(took)}, expected "
                    f"{seconds(honest.high)}",
                    str(NOT_THE_MEDIAN),
                )

    @requires("lab1.benchmark.returns_result")
    @builds_on("seconds_equal_reference", "tflops_counted")
    def test_never_above_the_roofline(self, submission: Submission, generator: InputGenerator) -> None:
        card = card_of(submission)
        for device in devices(submission.device):
            sizes = (generator.integer(3, 9) * 128, aligned_size(generator, "float32", card))
            calls: list[Call] = [{"size": size, "iterations": 8} for size in sizes]
            for run in measure(submission, generator, device, calls, warm=card is not None):
                with recognised(device, run):
                    size, tflops = run.call["size"], number(run.observed.result["tflops"], "MatmulResult.tflops")
                    peak = peak_tflops(device, "float32", run)
                    require(
                        tflops <= peak,
                        f"a product of {size} on {device}: saw {tflops:.5g} TFLOPS, "
                        f"but no more than {peak:.5g} can be reached",
                        "a number above the peak means that the clock stopped too early or that work was counted twice",
                    )
                    # A share of the peak that is reported without measuring lies below the roofline, too.
                    slowest = 2 * size**3 / (1.25 * expected(device, run).high) / 1e12
                    require(
                        tflops >= slowest,
                        f"a product of {size} on {device}: saw {tflops:.5g} TFLOPS, but its "
                        f"products reach {slowest:.5g} and more",
                        "count the work of the products that were timed, by the seconds that they took",
                    )


def _disturbance(measured: Measurement) -> str:
    if measured.iterations == DISTURBED:
        return f"{RUN} took 200 times as long as the others, and {RUN} a twentieth"
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
