"""Judges Lab 3's scaling analysis: what is computed from measurements, and the measurements themselves.

Ranks of a virtual machine share one virtual time, so the seconds of a step are known; those figures are simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradebox.course.criterion import builds_on, criterion, requires
from gradebox.run.assertions import (
    Cause,
    number,
    numbers,
    positive,
    recognising,
    require,
    require_between,
    require_close,
    require_equal,
    seconds,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab3.scaling.cases import measuring
from grader.lab3.scaling.cases.analysis import KINDS, Bottlenecks, Plot, Plotted, Ratios, Shares
from grader.lab3.scaling.cases.analysis import points as drawn_points
from grader.lab3.scaling.cases.measuring import Call, CallReply, MeasuredReply, Several, TimedReply
from grader.lab3.scaling.checks import report
from grader.lab3.scaling.reference import named_steps, shared_steps, split
from grader.lab3.shared.cases.modules import SCALING
from grader.lab3.shared.cases.programs import Program
from grader.lab3.shared.checks.programs import require_simulation_declared
from grader.shared.programs import picture_and_json

TOLERANCE = 0.05
"""Of a step, simulated: styles that are right differ by less than 1 %, a step without exchange by 34 to 48 %."""


def _another_base(answers: Mapping[str, object], ratios: Mapping[str, float]) -> Cause | None:
    """Recognises speedups that are all the same factor away from the true ones, one of which then is another's 1."""
    reported = [(answers[size], ratio) for size, ratio in ratios.items()]
    factors = [speedup / ratio for speedup, ratio in reported if isinstance(speedup, float)]
    alike = len(factors) == len(ratios) and max(factors) < min(factors) * (1 + 1e-6)
    return _BASE if alike and abs(factors[0] - 1) > 1e-6 else None


_BASE = Cause(
    "another_base",
    "all speedups are the same factor away: they are against another measurement than the one on one process",
    "lab3.scaling.speedup_and_efficiency_strong",
)


def steps(
    submission: Submission, generator: InputGenerator, ranks: int, kind: str, *, uneven: bool
) -> tuple[list[MeasuredReply], list[TimedReply]]:
    """A step measured by the student and by ourselves, on virtual GPUs whose interconnect is slow for their speed."""
    measured, timed, conditions = measuring.steps(generator, ranks, kind, uneven=uneven)
    device = submission.device.name if submission.device.simulated else "vgpu:T4"
    return (
        submission.rank_probe(measured, ranks, device=device, values=False, conditions=conditions),
        submission.rank_probe(timed, ranks, device=device, values=False, conditions=conditions, student=False),
    )


def _is_perfect(line: list[list[float]], sizes: Sequence[int]) -> bool:
    """Whether something drawn is the perfect speedup: a line on which both numbers are the same, or markers or bars of
    each size, wherever these stand."""
    ends = [point for point in line if abs(point[0] - point[1]) <= 1e-6 * abs(point[1])]
    if len(ends) == len(line) >= 2 and ends[0] != ends[-1]:
        return True
    heights = [height for _, height in line]
    return len(line) >= 2 and all(any(abs(height - size) <= 1e-6 * size for height in heights) for size in sizes)


@criterion("lab3.scaling", early=True, timeline=True)
class TestScaling:
    def test_speedup_and_efficiency_strong(self, submission: Submission, generator: InputGenerator) -> None:
        hint = "strong: the same work, so T(1) / T(n); the efficiency is that per process"
        self._require_ratios(submission, generator, "strong", hint)

    def test_speedup_and_efficiency_weak(self, submission: Submission, generator: InputGenerator) -> None:
        hint = "weak: a step on n processes does n times the work, so the speedup is n T(1) / T(n)"
        self._require_ratios(submission, generator, "weak", hint)

    @staticmethod
    def _require_ratios(submission: Submission, generator: InputGenerator, kind: str, hint: str) -> None:
        points, ratios = drawn_points(generator)
        reply = submission.probe(Ratios(points=points, kind=kind), device="cpu")
        sizes = {str(size): ratio for size, ratio in ratios[kind].items()}
        for name in ("speedup", "efficiency"):
            answers = reply.answers[name]
            require_equal(sorted(answers), sorted(sizes), what=f"{name}(points, {kind!r}): world sizes")
            for size, ratio in sizes.items():
                expected = ratio if name == "speedup" else ratio / int(size)
                what = f"{name}(points, {kind!r})[{size}]"
                with recognising(lambda: _another_base(reply.answers["speedup"], sizes)):
                    require_close(number(answers[size], what), expected, relative=1e-6, what=what, hint=hint)
        for name, refused in zip(("speedup", "efficiency"), reply.refused, strict=True):
            require(
                refused,
                f"{name}(points, {kind!r}) raised no ValueError, although only the other kind was measured on "
                "one process",
            )

    def test_communication_share_found(self, submission: Submission, generator: InputGenerator) -> None:
        made = shared_steps(generator)
        reply = submission.probe(Shares(profiles=[profile for profile, _ in made]), device="cpu")
        for actual, (profile, share) in zip(reply.shares, made, strict=True):
            waits = max(profile["communication_seconds"]) - min(profile["communication_seconds"])
            about = "in which ranks wait for a slow one" if waits > 1e-9 else "in which nobody waits for others"
            what = f"communication_share() of a step {about}"
            hint = "the slowest rank waits for nobody: what it spends on communication is communication"
            require_close(number(actual, what, hint), share, relative=1e-6, what=what, hint=hint)
        for actual_parts, order, (profile, _) in zip(reply.parts, reply.order, made, strict=True):
            parts = split(profile)
            require_equal(order, list(parts), what="names in what split_step() returned, in their order")
            whole = sum(parts.values())
            for name, value in parts.items():
                require_between(
                    number(actual_parts[name], f"split_step()[{name!r}]"),
                    value - 1e-6 * whole,
                    value + 1e-6 * whole,
                    what=f"split_step()[{name!r}] of a step of {len(profile['data_seconds'])} ranks",
                    show=seconds,
                    expected=seconds(value),
                    hint="the docstring has a line for each of the four; together they are the step",
                )

    def test_bottleneck_named(self, submission: Submission, generator: InputGenerator) -> None:
        made = named_steps(generator)
        bottlenecks = Bottlenecks(
            profiles=[step.profile for step in made], thresholds=[step.threshold for step in made]
        )
        for actual, step in zip(submission.probe(bottlenecks, device="cpu").names, made, strict=True):
            parts = split(step.profile)
            shown = ", ".join(f"{part} {value / sum(parts.values()):.0%}" for part, value in parts.items())
            at = "the default threshold" if step.threshold is None else f"threshold={step.threshold}"
            require_equal(actual, step.name, what=f"name_bottleneck() of a step with {shown}, at {at}")

    def test_step_seconds_equal_reference(self, submission: Submission, generator: InputGenerator) -> None:
        for ranks, kind in zip((2, 4), generator.shuffled(KINDS), strict=True):
            measured, timed = steps(submission, generator, ranks, kind, uneven=False)
            for rank, (reply, expected) in enumerate(zip(measured, timed, strict=True)):
                point, what = reply.point, f"measure_rank() on rank {rank} of {ranks}, {kind} (simulated)"
                batch = positive(point["batch_size"], f"{what}: batch_size")
                require_equal(point["world_size"], ranks, what=f"{what}: world_size")
                require_equal(point["kind"], kind, what=f"{what}: kind")
                require_equal([point["device"], point["backend"]], ["cuda", "nccl"], what=f"{what}: device and backend")
                hint = "samples per step on all ranks together: strong divides them, weak multiplies"
                require_equal(int(batch), expected.batch_size, what=f"{what}: batch_size", hint=hint)
                hint = "the median whole step: batch, forward, backward with exchange, optimizer; the device idle"
                require_close(
                    number(point["step_seconds"], f"{what}: step_seconds", hint),
                    expected.step_seconds,
                    relative=TOLERANCE,
                    what=f"{what}: step_seconds",
                    show=seconds,
                    hint=hint,
                )
                rate = batch / positive(point["step_seconds"], f"{what}: step_seconds")
                samples_per_second = number(point["samples_per_second"], f"{what}: samples_per_second")
                require_close(samples_per_second, rate, relative=1e-6, what=f"{what}: samples_per_second")
                require_between(
                    reply.taken,
                    reply.expected,
                    reply.expected + 2,
                    what=f"{what}: batches taken in two sorts of steps, each with its warm-up",
                    show=lambda count: f"{count:.0f}",
                    hint="steps and warmup are arguments: a step takes one batch",
                )
                same = point == measured[0].point
                require(same, f"{what}: told another ScalingPoint than rank 0", "tell each other the figures of all")
                require_equal(reply.in_group, False, what=f"{what}: process group still there afterwards")
                self._require_refused(reply, what)

    @staticmethod
    def _require_refused(reply: MeasuredReply, what: str) -> None:
        for argument, refused in reply.refused.items():
            require(refused, f"{what}: no ValueError from {argument}", "before anything is joined: all ranks refuse it")
        require_equal(reply.failed, "LookupError", what=f"{what}: error where the first batch cannot be read")
        require_equal(
            reply.in_group_after_failure,
            False,
            what=f"{what}: process group still there after an error",
            hint="finally: whatever happens, this rank leaves",
        )

    @requires("step_seconds_equal_reference")
    def test_profile_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        for ranks, kind in zip((2, 1), generator.shuffled(KINDS), strict=True):
            self._require_profile(*steps(submission, generator, ranks, kind, uneven=True))

    @staticmethod
    def _require_profile(measured: list[MeasuredReply], timed: list[TimedReply]) -> None:
        ranks = len(timed)
        for reply in measured:
            profile = reply.point["profile"]
            for rank, step in enumerate(timed):
                parts = {
                    "data_seconds": step.data_seconds,
                    "compute_seconds": step.compute_seconds,
                    "communication_seconds": max(0.0, step.step_seconds - step.data_seconds - step.compute_seconds),
                }
                slack = TOLERANCE * step.step_seconds
                for name, value in parts.items():
                    figures = numbers(profile[name], ranks, f"{name} of measure_rank() on {ranks} ranks")
                    require_between(
                        figures[rank],
                        max(0.0, value - slack),
                        value + slack,
                        what=f"measure_rank() on {ranks} ranks: {name} of rank {rank} (simulated)",
                        show=seconds,
                        expected=f"{seconds(value)}, give or take {seconds(slack)}",
                        hint="data and compute in steps without exchange; communication is the rest of a whole step",
                    )

    @builds_on("step_seconds_equal_reference", "profile_equals_reference")
    def test_results_and_plot_saved(self, submission: Submission, generator: InputGenerator) -> None:
        points, ratios = drawn_points(generator)
        plots = submission.probe(Plotted(points=points), device="cpu").plots
        for plot, kinds in zip(plots, (list(ratios), [points[0]["kind"]]), strict=True):
            _require_plotted(plot, {kind: ratios[kind] for kind in kinds})
        arguments = ["--world-sizes", "1,2", "--batch-size", "32", "--steps", "2", "--device", "vgpu:T4"]
        reply = submission.probe(Program(module=SCALING, argv=arguments), device="cpu")
        rows = picture_and_json(reply, f"python -m labs.{SCALING}")
        require_simulation_declared(reply, simulated=True, what=f"python -m labs.{SCALING} {' '.join(arguments)}")
        actual = sorted((str(row.get("kind")), row.get("world_size")) for row in rows if isinstance(row, dict))
        expected = [("strong", 1), ("strong", 2), ("weak", 1), ("weak", 2)]
        require_equal(actual, expected, what=f"kinds and world sizes in the results of `{' '.join(arguments[:2])}`")
        sizes = [row["batch_size"] for row in sorted(rows, key=lambda row: (row["kind"], row["world_size"]))]
        require_equal(sizes, [32, 32, 32, 64], what=f"batch_size of these four with `{' '.join(arguments[2:4])}`")
        calls = measuring.calls(generator)
        whole, short = submission.probe(Several(calls=calls), device="cpu").replies
        for call, call_reply in zip(calls, (whole, short), strict=True):
            _require_measured(call, call_reply)
        require(
            whole.calls["1"] > short.calls["1"],
            f"measure_scaling(..., steps={calls[0]['steps']}) calls its model as often as with steps=1: "
            f"{whole.calls['1']} times",
            "it hands on all that measure_rank is told: kind, batch_size, device and steps",
        )

    def test_report_agrees_with_results(self, submission: Submission) -> None:
        report.judge(submission)


def _require_plotted(plot: Plot, ratios: Mapping[str, Mapping[int, float]]) -> None:
    """Fail unless a plot of these kinds shows their speedups, and the perfect ones."""
    what = f"plot_scaling() of {' and '.join(ratios)} scaling"
    require(plot.written and plot.returned_path, f"{what} did not write and return the path that it was given")
    for kind, speedups in ratios.items():
        require(
            any(_is_perfect(line, list(speedups)) for line in plot.drawn),
            f"{what}: no line, markers or bars at {', '.join(map(str, sorted(speedups)))}, the perfect speedups of "
            f"{kind} scaling",
            "the speedup on n processes would be n",
        )
        shown = [line for line in plot.drawn if _shows(line, speedups)]
        require(
            bool(shown),
            f"{what}: no line, markers or bars at {', '.join(f'{ratio:.3g}' for ratio in speedups.values())}, the "
            f"speedups of {kind} scaling",
            "a line for each kind: its speedups over the numbers of processes",
        )
        _require_called(plot, kind, ratios, what)
        places = [[x for x, _ in line] for line in shown]
        require(
            any(place == sorted(place) for place in places),
            f"{what}: the line of {kind} scaling runs back and forth along the numbers of processes",
            "points come in any order: sort them by the number of processes",
        )


def _shows(line: list[list[float]], speedups: Mapping[int, float]) -> bool:
    """Whether something drawn has all of these speedups as heights."""
    return all(any(abs(y - ratio) <= 1e-6 * ratio for _, y in line) for ratio in speedups.values())


def _require_called(plot: Plot, kind: str, ratios: Mapping[str, Mapping[int, float]], what: str) -> None:
    """Fail if the legend calls by this kind's name what shows another's speedups."""
    others = [other for other in ratios if other != kind]
    for label, line in zip(plot.labels, plot.drawn, strict=True):
        if kind not in label.casefold() or any(other in label.casefold() for other in others):
            continue
        for other in others:
            require(
                not _shows(line, ratios[other]),
                f"{what}: what is called {label!r} are the speedups of {other} scaling",
                "the label belongs to the line that it is given with",
            )


def _require_measured(call: Call, reply: CallReply) -> None:
    """Fail unless `measure_scaling` returned a point for each number of processes, measured as the call says."""
    batch, weak = call["batch_size"], call["kind"] == "weak"
    require_equal(
        [(point["world_size"], point["kind"], point["batch_size"], point["device"]) for point in reply.points],
        [(size, call["kind"], size * batch if weak else batch, call["device"]) for size in call["world_sizes"]],
        what=f"world_size, kind, batch_size and device that measure_scaling({call['world_sizes']}, "
        f"kind={call['kind']!r}, batch_size={batch}, device={call['device']!r}) told",
        hint="one point for each number of processes, in the order in which they are given",
    )
