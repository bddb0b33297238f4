"""Judges Lab 1's conclusions, on data whose answer is known, and the report."""

from __future__ import annotations

from typing import cast

from gradebox.course.criterion import criterion
from gradebox.run.assertions import require_close, require_equal, seconds
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab1.analysis import reference
from grader.lab1.analysis.cases import BoundCall, Bounds, Crossover, PeakShares, ProfileCall, ProfileOnCpu, Slowest
from grader.lab1.analysis.cases.products import bound_cases, crossover_cases, peak_share_cases, usual_bound
from grader.lab1.analysis.cases.profiles import bottleneck_profiles, made_up_operations, profile_cases
from grader.lab1.analysis.checks import mistakes, report
from grader.lab1.analysis.checks.operations import require_profiled, require_profiled_on_cpu
from grader.lab1.shared.checks.refusals import calls_of, require_refused

_CPU_SIZE = 512
"""Rows and columns of a product that a CPU is busy with for milliseconds."""


@criterion("lab1.analysis")
class TestAnalysis:
    def test_crossover_found(self, submission: Submission, generator: InputGenerator) -> None:
        cases = crossover_cases(generator)
        reply = submission.numeric_probe(Crossover(cases=cases))
        with mistakes.recognised(cases, reply.sizes, mistakes.CROSSOVER):
            for case, size in zip(cases, reply.sizes, strict=True):
                shown = ", ".join(f"{row[0]}: {row[1] / row[2]:.4g}x" for row in sorted(case)) or "of no size at all"
                require_equal(
                    size,
                    reference.crossover(case),
                    what=f"find_crossover() for speedups {shown}",
                    hint="Return the smallest size from which on the GPU is faster (above 1) at every larger measured "
                    "size, and None if there is none.",
                )

    def test_bound_named(self, submission: Submission, generator: InputGenerator) -> None:
        cases = bound_cases(generator)
        nonsense = [
            {name: value}
            for name in ("size", "bytes_per_element", "peak_tflops", "bandwidth_bytes_per_second")
            for value in (0, -generator.integer(1, 9))
        ]
        refused = [cast(BoundCall, {**usual_bound(), **wrong}) for wrong in nonsense]
        reply = submission.numeric_probe(Bounds(cases=[case.call for case in cases], refused=refused))
        with mistakes.recognised(cases, reply.bounds, mistakes.BOUNDS):
            for case, bound in zip(cases, reply.bounds, strict=True):
                shown = ", ".join(f"{name} {seconds(value)}" for name, value in sorted(case.limits.items()))
                require_equal(
                    bound,
                    reference.bound(case.limits),
                    what=f"classify_bound() where the three limits are {shown}",
                    hint="Name what takes longest: the launch, moving 3 n² elements, or 2 n³ operations. Of equal ones "
                    "name the first of launch, memory, compute.",
                )
        require_refused(calls_of("classify_bound", nonsense), reply.endings)

    def test_peak_share_computed(self, submission: Submission, generator: InputGenerator) -> None:
        cases = peak_share_cases(generator)
        refused = [0, -generator.uniform(1, 99)]
        reply = submission.numeric_probe(PeakShares(cases=[case for case, _ in cases], refused=refused))
        shares = [expected for _, expected in cases]
        hint = "Return a ratio: measured TFLOPS over peak TFLOPS."
        with mistakes.recognised(shares, reply.shares, mistakes.SHARES):
            for expected, share in zip(shares, reply.shares, strict=True):
                require_close(share, expected, relative=1e-6, what="peak_share()", hint=hint)
        require_refused(calls_of("peak_share", [{"peak_tflops": peak} for peak in refused]), reply.endings)

    def test_bottleneck_found(self, submission: Submission, generator: InputGenerator) -> None:
        inputs = bottleneck_profiles(generator)
        reply = submission.numeric_probe(inputs)
        figures = list(zip(inputs.peaks, inputs.allocated, inputs.reserved, strict=True))
        with mistakes.recognised(figures, reply.stages, mistakes.BOTTLENECKS):
            for peaks, stage in zip(inputs.peaks, reply.stages, strict=True):
                require_equal(
                    stage,
                    reference.bottleneck(peaks),
                    what=f"find_bottleneck() for peaks {peaks}",
                    hint="Return the stage with the largest peak_bytes, and the first of equal ones.",
                )
        with mistakes.recognised(inputs.allocated, reply.increases, mistakes.INCREASES):
            for allocated, increases in zip(inputs.allocated, reply.increases, strict=True):
                require_equal(
                    increases,
                    reference.increases(allocated),
                    what=f"stage_increases() for allocated bytes {allocated}",
                    hint="Subtract what the stage before held, in the order of the stages. Count the first from 0.",
                )

    def test_slowest_operation_found(self, submission: Submission, generator: InputGenerator) -> None:
        simulated = submission.device.simulated
        for case in profile_cases(generator, simulated=simulated):
            paces = case.paces.items() if simulated else ()
            profile = submission.probe(
                case.inputs,
                values=False,
                conditions=[{"name": name, "factor": factor} for name, factor in paces],
            )
            require_profiled(profile, case.inputs, f"aten::{case.slowest}", timed=simulated)
        nonsense: list[ProfileCall] = generator.shuffled([{"steps": 0}, {"steps": -1}, {"warmup": -1}])
        steps, warmup = generator.integer(3, 5), generator.integer(0, 3)
        on_cpu = submission.probe(
            ProfileOnCpu(size=_CPU_SIZE, steps=steps, warmup=warmup, refused=nonsense), device="cpu"
        )
        require_profiled_on_cpu(on_cpu, steps, warmup)
        require_refused(calls_of("profile_operations", nonsense), on_cpu.endings)
        lists, counts = made_up_operations(generator)
        refused = [0, -generator.integer(1, 9)]
        reply = submission.numeric_probe(Slowest(cases=lists, counts=counts, refused=refused))
        asked = list(zip(lists, counts, strict=True))
        with mistakes.recognised(asked, reply.names, mistakes.SLOWEST):
            for (rows, count), names in zip(asked, reply.names, strict=True):
                expected, field = reference.slowest(rows, count)
                require_equal(
                    names,
                    expected,
                    what=f"names of slowest(operations{'' if count is None else f', {count}'}) by {field}",
                    hint="Compare device_seconds, and cpu_seconds only if no operation has any device_seconds.",
                )
        require_refused(calls_of("slowest", [{"count": count} for count in refused]), reply.endings)

    def test_report_agrees_with_results(self, submission: Submission) -> None:
        report.judge(submission)
