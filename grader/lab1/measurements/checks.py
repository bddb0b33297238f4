"""Judges whether Lab 1's numbers are true: seconds, TFLOPS, synchronisation, robustness."""

from __future__ import annotations

from dataclasses import replace

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import number, positive, recognising, require, require_between, require_close, seconds
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
    TOTAL,
    mistake_of,
    mistake_on_cpu,
    recognised,
    recognised_among_others,
    recognised_tflops,
)
from grader.lab1.shared.checks.readings import (
    SYNC_HINT,
    TIME_ALL,
    are_explained,
    require_crossed,
    require_seconds,
    require_started_idle,
)
from grader.lab1.shared.reference import Measurement, expected, peak_tflops
from grader.shared.cards import card_of

_NAPS = (0.008, 0.016)
"""Seconds that a product on a CPU waits: far more than it computes."""
_QUEUED = 20
"""Products before a call."""
_BUSY = 3
"""Times as long as the longest of the products a median may be, on a machine that does other things, too."""
_NOT_MEASURED = 30.0
"""Times the right seconds: more than all products of a call together take."""


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
        require_crossed(submission.device, crossed(submission, generator, by_default=True))
        # A CPU on which each product waits for something: only a clock on the wall sees that.
        nap = round(generator.uniform(*_NAPS), 4)
        inputs = SlowCpu(size=generator.odd(31, 63), iterations=5, warmup=1, nap_seconds=nap)
        reply = submission.probe(inputs, device="cpu")
        timed = len(reply.took)
        require(
            timed >= inputs.iterations,
            f"benchmark_matmul('cpu', {inputs.size}, {inputs.iterations}): {timed} matrix products ran on the CPU, of "
            f"which {inputs.iterations} were to be timed",
            TIME_ALL,
        )
        longest = _BUSY * max(reply.took)
        with recognising(lambda: mistake_on_cpu(reply.result["seconds"], 0.98 * nap, longest, inputs.iterations)):
            require_between(
                reply.result["seconds"],
                0.98 * nap,
                longest,
                what=f"seconds per product on a CPU that takes {seconds(nap)} for each",
                show=seconds,
                hint="Measure the time that passes, with time.perf_counter().",
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
                    "Time many products and wait for them once, or for each. Let nothing else stand between start and "
                    "stop.",
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
        simulated = submission.device.simulated
        runs = measure(submission, generator, device, calls, hiccups=one_slow if simulated else ())
        for run, slow in zip(runs, one_slow, strict=True):
            run = replace(run, hiccups=slow if simulated else ())
            took, tflops = positive(run.seconds, "MatmulResult.seconds"), run.observed.result["tflops"]
            reached = 2 * run.call["size"] ** 3 / took / 1e12
            with recognised_tflops(device, run):
                require_close(
                    tflops,
                    reached,
                    relative=0.0049,
                    what=f"TFLOPS of a product of {run.call['size']} that took {seconds(took)}",
                    show=lambda value: f"{value:.5g} TFLOPS",
                    hint="Divide 2 n³ operations by MatmulResult.seconds and by 1e12.",
                )

    @requires("lab1.benchmark.returns_result")
    def test_synchronised_before_start(self, submission: Submission, generator: InputGenerator) -> None:
        device = submission.device.name
        sizes = long_sizes(device, generator, 3, card=card_of(submission))
        calls: list[Call] = [{"size": size, "iterations": 1} for size in sizes]
        for run in measure(submission, generator, device, calls, warm=True, busy_products=_QUEUED):
            require_started_idle(submission.device, run, _QUEUED)

    @requires("lab1.benchmark.returns_result")
    def test_synchronised_before_stop(self, submission: Submission, generator: InputGenerator) -> None:
        device = submission.device.name
        sizes = long_sizes(device, generator, 5, card=card_of(submission))
        calls: list[Call] = [{"size": size, "iterations": 12} for size in sizes]
        runs = measure(submission, generator, device, calls, warm=True)
        most = 3 if are_explained(device, runs) else 1.1
        for run in runs:
            with recognised(device, run):
                took = seconds_of(run)
                honest = expected(device, run)
                what = f"seconds per product of {run.call['size']}, which the GPU works on long after the launch"
                require(
                    took >= 0.9 * honest.low,
                    f"{what}: saw {seconds(took)}, expected {seconds(honest.low)}: the clock was stopped too early",
                    SYNC_HINT,
                )
                if mistake_of(device, run) is TOTAL:
                    took /= run.iterations  # that is charged elsewhere
                require(
                    took <= most * honest.high,
                    f"{what}: saw {seconds(took)}, expected {seconds(honest.high)}",
                    SYNC_HINT,
                )

    @requires("lab1.benchmark.returns_result")
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
        for measured, slow in zip(
            measure(submission, generator, device, calls, hiccups=disturbed), disturbed, strict=True
        ):
            run = replace(measured, hiccups=slow)
            with recognised_among_others(device, run):
                require_ran(run.call, run.observed.products, TIME_ALL)
                took = seconds_of(run)
                honest = expected(device, run)
                require(
                    0.9 * honest.low <= took <= 1.1 * honest.high,
                    f"of {run.iterations} products {_disturbance(run)}: saw {seconds(took)}, expected "
                    f"{seconds(honest.high)}",
                    str(NOT_THE_MEDIAN),
                )

    @requires("lab1.benchmark.returns_result")
    def test_never_above_the_roofline(self, submission: Submission, generator: InputGenerator) -> None:
        card = card_of(submission)
        for device in devices(submission.device):
            sizes = (generator.integer(3, 9) * 128, aligned_size(generator, "float32", card))
            calls: list[Call] = [{"size": size, "iterations": 8} for size in sizes]
            runs = measure(submission, generator, device, calls, warm=card is not None)
            explained = are_explained(device, runs)
            for run in runs:
                with recognised_tflops(device, run), recognised(device, run):
                    size, tflops = run.call["size"], number(run.observed.result["tflops"], "MatmulResult.tflops")
                    peak = peak_tflops(device, "float32", run)
                    require(
                        tflops <= peak,
                        f"a product of {size} on {device}: saw {tflops:.5g} TFLOPS, "
                        f"but no more than {peak:.5g} can be reached",
                        "Wait for the GPU before the clock is stopped, and count each operation once.",
                    )
                    # A share of the peak that is reported without measuring lies below the roofline, too.
                    # Other checks charge for seconds that are too long. If no mistake explains them, they are made up.
                    longest = took = 1.25 * expected(device, run).high
                    if explained:
                        took = max(longest, min(1.01 * seconds_of(run), _NOT_MEASURED * longest))
                    slowest = 2 * size**3 / took / 1e12
                    require(
                        tflops >= slowest,
                        f"a product of {size} on {device}: saw {tflops:.5g} TFLOPS, but its "
                        f"products reach {slowest:.5g} and more",
                        "Count the work of the products that were timed, and divide it by the seconds that they took.",
                    )


def _disturbance(measured: Measurement) -> str:
    if measured.iterations == DISTURBED:
        slow, fast = sorted((run["factor"] for run in measured.hiccups), reverse=True)
        return f"{RUN} took {slow:.3g} times as long as the others, and {RUN} took {fast:.2g} times as long"
    return "the first and the last took 200 times as long as the others"
