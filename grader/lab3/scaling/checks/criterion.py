"""Judges Lab 3's scaling analysis: what is computed from measurements, and the measurements themselves.

Ranks of a virtual machine share one virtual time, so the seconds of a step are known; those figures are simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import (
    Cause,
    CheckFailed,
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
from grader.lab3.scaling.cases.analysis import (
    KINDS,
    Bottlenecks,
    Plot,
    Plotted,
    Profile,
    Ratios,
    Shares,
    SharesReply,
)
from grader.lab3.scaling.cases.analysis import points as drawn_points
from grader.lab3.scaling.cases.measuring import Call, CallReply, Measured, MeasuredReply, Several, Timed, TimedReply
from grader.lab3.scaling.cases.mistakes import TimedWrongly
from grader.lab3.scaling.checks import report
from grader.lab3.scaling.checks.mistakes import (
    NO_BASE,
    cause_of_names,
    cause_of_parts,
    cause_of_ratios,
    cause_of_times,
)
from grader.lab3.scaling.reference import named_steps, shared_steps, split
from grader.lab3.setup.checks.joining import ALWAYS_GLOO, cause_of_error, joins_the_cpu_by_nccl
from grader.lab3.shared.cases.modules import SCALING
from grader.lab3.shared.cases.programs import Program
from grader.lab3.shared.checks.programs import require_simulation_declared
from grader.shared.programs import picture_and_json

_NO_VALUES = "Cannot copy out of meta tensor"
"""What gloo says of a simulated GPU that computes no values; NCCL reduces there without them."""
TOLERANCE = 0.05
"""Of a step, simulated: styles that are right differ by less than 1 %, a step without exchange by 34 to 48 %."""


def steps(
    submission: Submission, generator: InputGenerator, ranks: int, kind: str, *, uneven: bool
) -> tuple[list[MeasuredReply], list[TimedReply], Callable[[], Cause | None]]:
    """A step measured by the student and by ourselves, on virtual GPUs whose interconnect is slow for their speed.

    And what looks for the mistake in it.
    """
    case, right, conditions = measuring.steps(generator, ranks, kind, uneven=uneven)
    device = submission.device.name if submission.device.simulated else "vgpu:T4"
    measured = _measured(submission, case, ranks, device, conditions)

    def timed_by(inputs: Timed | TimedWrongly) -> list[TimedReply]:
        return submission.rank_probe(inputs, ranks, device=device, values=False, conditions=conditions, student=False)

    timed = timed_by(right)

    def cause() -> Cause | None:
        return cause_of_times(measured, timed, lambda mistake: timed_by(TimedWrongly(**vars(right), mistake=mistake)))

    return measured, timed, cause


def _measured(
    submission: Submission, case: Measured, ranks: int, device: str, conditions: list[dict[str, object]]
) -> list[MeasuredReply]:
    """What the student measured.

    Raises:
        CheckFailed: the code did not end. If that is a mistake of `setup`, and the code does end where it does not
            matter (one rank alone, or values that exist), the failure is that mistake's.
    """
    try:
        return submission.rank_probe(case, ranks, device=device, values=False, conditions=conditions)
    except CheckFailed as failed:
        cause = ALWAYS_GLOO if _NO_VALUES in failed.message else cause_of_error(failed.message)
        if cause is None:
            raise
        few = replace(case, width=32, layers=1, batch_size=8 * ranks)
        ends = True
        try:
            submission.rank_probe(few, ranks if cause is ALWAYS_GLOO else 1, device=device)
        except CheckFailed:
            ends = False
        raise CheckFailed(failed.message, cause, answered=ends, evidence=failed.evidence) from failed


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
        hint = "Divide T(1) by T(n): the work is the same. The efficiency is the speedup per process."
        self._require_ratios(submission, generator, "strong", hint)

    def test_speedup_and_efficiency_weak(self, submission: Submission, generator: InputGenerator) -> None:
        hint = "Take n T(1) / T(n) for the speedup: a step on n processes does n times the work."
        self._require_ratios(submission, generator, "weak", hint)

    @staticmethod
    def _require_ratios(submission: Submission, generator: InputGenerator, kind: str, hint: str) -> None:
        points, ratios = drawn_points(generator)
        reply = submission.probe(Ratios(points=points, kind=kind), device="cpu")
        sizes = {str(size): ratio for size, ratio in ratios[kind].items()}
        with recognising(lambda: cause_of_ratios(points, kind, reply.answers["speedup"], reply.answers["efficiency"])):
            for name in ("speedup", "efficiency"):
                answers = reply.answers[name]
                require_equal(sorted(answers), sorted(sizes), what=f"{name}(points, {kind!r}): world sizes")
                for size, ratio in sizes.items():
                    expected = ratio if name == "speedup" else ratio / int(size)
                    what = f"{name}(points, {kind!r})[{size}]"
                    require_close(number(answers[size], what), expected, relative=1e-6, what=what, hint=hint)
        for name, refused in zip(("speedup", "efficiency"), reply.refused, strict=True):
            require(
                refused,
                f"{name}(points, {kind!r}) raised no ValueError, although only the other kind was measured on "
                "one process",
                NO_BASE,
            )

    def test_communication_share_found(self, submission: Submission, generator: InputGenerator) -> None:
        made = shared_steps(generator)
        reply = submission.probe(Shares(profiles=[profile for profile, _ in made]), device="cpu")
        with recognising(lambda: cause_of_parts([profile for profile, _ in made], reply.parts)):
            _require_shares(reply, made)

    def test_bottleneck_named(self, submission: Submission, generator: InputGenerator) -> None:
        made = named_steps(generator)
        bottlenecks = Bottlenecks(
            profiles=[step.profile for step in made], thresholds=[step.threshold for step in made]
        )
        names = submission.probe(bottlenecks, device="cpu").names
        hint = "Find the largest loss first (of equal ones the first), then compare it with threshold * step."
        shares = Shares(profiles=[step.profile for step in made])
        with recognising(lambda: cause_of_names(made, names, lambda: submission.probe(shares, device="cpu").parts)):
            for actual, step in zip(names, made, strict=True):
                parts = split(step.profile)
                shown = ", ".join(f"{part} {value / sum(parts.values()):.0%}" for part, value in parts.items())
                at = "the default threshold" if step.threshold is None else f"threshold={step.threshold}"
                require_equal(actual, step.name, what=f"name_bottleneck() of a step with {shown}, at {at}", hint=hint)

    def test_step_seconds_equal_reference(self, submission: Submission, generator: InputGenerator) -> None:
        for ranks, kind in zip((2, 3), generator.shuffled(KINDS), strict=True):
            measured, timed, cause = steps(submission, generator, ranks, kind, uneven=False)
            for rank, (reply, expected) in enumerate(zip(measured, timed, strict=True)):
                point, what = reply.point, f"measure_rank() on rank {rank} of {ranks}, {kind} (simulated)"
                batch = positive(point["batch_size"], f"{what}: batch_size")
                require_equal(point["world_size"], ranks, what=f"{what}: world_size")
                require_equal(point["kind"], kind, what=f"{what}: kind")
                require_equal([point["device"], point["backend"]], ["cuda", "nccl"], what=f"{what}: device and backend")
                hint = "Report the samples of a step on all ranks together: strong divides them, weak multiplies."
                require_equal(int(batch), expected.batch_size, what=f"{what}: batch_size", hint=hint)
                hint = (
                    "Take the median of whole steps: batch, forward, backward with exchange, optimizer. Read the clock "
                    "while the device is idle."
                )
                with recognising(cause):
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
                with recognising(cause):
                    require_between(
                        reply.taken,
                        reply.expected,
                        reply.expected + 2,
                        what=f"{what}: batches taken in two sorts of steps, each with its warm-up",
                        show=lambda count: f"{count:.0f}",
                        hint="Make `warmup` untimed and `steps` timed steps of each sort. A step takes one batch.",
                    )
                require(
                    point == measured[0].point,
                    f"{what}: returned another ScalingPoint than rank 0",
                    "Send the figures of all ranks to all, and build the same point.",
                )
                require_equal(reply.in_group, False, what=f"{what}: process group still there afterwards")
                self._require_refused(reply, what)

    @staticmethod
    def _require_refused(reply: MeasuredReply, what: str) -> None:
        for argument, refused in reply.refused.items():
            require(
                refused, f"{what}: no ValueError from {argument}", "Refuse it on all ranks, before anything is joined."
            )
        require_equal(reply.failed, "LookupError", what=f"{what}: error where the first batch cannot be read")
        require_equal(
            reply.in_group_after_failure,
            False,
            what=f"{what}: process group still there after an error",
            hint="Call cleanup() in `finally:`, whatever happens.",
        )

    @requires("step_seconds_equal_reference")
    def test_profile_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        for ranks, kind in zip((3, 1), generator.shuffled(KINDS), strict=True):
            self._require_profile(*steps(submission, generator, ranks, kind, uneven=True))

    @staticmethod
    def _require_profile(
        measured: list[MeasuredReply], timed: list[TimedReply], cause: Callable[[], Cause | None]
    ) -> None:
        with recognising(cause):
            _require_parts(measured, timed)

    def test_results_and_plot_saved(self, submission: Submission, generator: InputGenerator) -> None:
        points, ratios = drawn_points(generator)
        plots = submission.probe(Plotted(points=points), device="cpu").plots
        own = {kind: _own_speedups(submission, generator, kind) or ratios[kind] for kind in ratios}
        for plot, kinds in zip(plots, (list(ratios), [points[0]["kind"]]), strict=True):
            _require_plotted(plot, {kind: own[kind] for kind in kinds})
        try:
            _require_saved(submission, "vgpu:T4")
        except CheckFailed as failed:
            if failed.answered or _ends_on_gpus(submission, generator):
                raise
            _require_saved(submission, "cpu")
        _require_scaling_measured(submission, generator)

    def test_report_agrees_with_results(self, submission: Submission) -> None:
        report.judge(submission)


def _own_speedups(submission: Submission, generator: InputGenerator, kind: str) -> dict[int, float] | None:
    """What the student's `speedup` returns for the points of the plot, which draws them; None if they are no numbers of
    the right world sizes."""
    points, ratios = drawn_points(generator)
    try:
        answers = submission.probe(Ratios(points=points, kind=kind), device="cpu").answers["speedup"]
    except CheckFailed:
        return None
    numbers_of = {int(size): answer for size, answer in answers.items() if isinstance(answer, float) and answer > 0}
    return numbers_of if numbers_of.keys() == ratios[kind].keys() else None


def _ends_on_gpus(submission: Submission, generator: InputGenerator) -> bool:
    """Whether `measure_rank` comes to its end on GPUs; if not, `step_seconds_equal_reference` says so."""
    try:
        steps(submission, generator, 2, "strong", uneven=False)
    except CheckFailed as failed:
        return failed.cause is None
    return True


def _require_saved(submission: Submission, device: str) -> None:
    """Fail unless the program saves the points of both kinds, and a picture."""
    arguments = ["--world-sizes", "1,2", "--batch-size", "32", "--steps", "2", "--device", device]
    what = f"python -m labs.{SCALING} {' '.join(arguments)}"
    reply = submission.probe(Program(module=SCALING, argv=arguments), device="cpu")
    rows = picture_and_json(reply, f"python -m labs.{SCALING}")
    require_simulation_declared(reply, simulated=device != "cpu", what=what)
    actual = sorted((str(row.get("kind")), row.get("world_size")) for row in rows if isinstance(row, dict))
    expected = [("strong", 1), ("strong", 2), ("weak", 1), ("weak", 2)]
    require_equal(actual, expected, what=f"kinds and world sizes in the results of `{' '.join(arguments[:2])}`")
    sizes = [row["batch_size"] for row in sorted(rows, key=lambda row: (row["kind"], row["world_size"]))]
    require_equal(sizes, [32, 32, 32, 64], what=f"batch_size of these four with `{' '.join(arguments[2:4])}`")


def _require_scaling_measured(submission: Submission, generator: InputGenerator) -> None:
    """Fail unless `measure_scaling` measures as it is told, with the steps that are asked for."""
    calls = measuring.calls(generator)
    try:
        replies = submission.probe(Several(calls=calls), device="cpu").replies
    except CheckFailed as failed:
        # On GPUs alone, or on the CPU alone, if ranks cannot meet on the other one.
        if failed.answered:
            raise
        if not _ends_on_gpus(submission, generator):
            where = "cpu"
        elif joins_the_cpu_by_nccl(submission):
            where = "cuda"
        else:
            raise
        for call in calls:
            call["device"] = where
        replies = submission.probe(Several(calls=calls), device="cpu").replies
    for call, call_reply in zip(calls, replies, strict=True):
        _require_measured(call, call_reply)


def _require_shares(reply: SharesReply, made: Sequence[tuple[Profile, float]]) -> None:
    """Fail unless the share of communication and the four parts of each step are right."""
    for actual, (profile, share) in zip(reply.shares, made, strict=True):
        waits = max(profile["communication_seconds"]) - min(profile["communication_seconds"])
        about = "in which ranks wait for a slow one" if waits > 1e-9 else "in which nobody waits for others"
        what = f"communication_share() of a step {about}"
        hint = "Count the least that any rank spends on communication, whichever rank it is: what is more is waiting."
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
                hint="Follow the docstring's line for each of the four; together they are the step.",
            )


def _require_parts(measured: Sequence[MeasuredReply], timed: Sequence[TimedReply]) -> None:
    """Fail unless every rank reports the right parts of every rank's step."""
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
                    hint="Time data and compute in steps without exchange. Communication is the rest of a whole step.",
                )


def _require_plotted(plot: Plot, ratios: Mapping[str, Mapping[int, float]]) -> None:
    """Fail unless a plot of these kinds shows their speedups, and the perfect ones."""
    what = f"plot_scaling() of {' and '.join(ratios)} scaling"
    require(plot.written and plot.returned_path, f"{what} did not write and return the path that it was given")
    for kind, speedups in ratios.items():
        require(
            any(_is_perfect(line, list(speedups)) for line in plot.drawn),
            f"{what}: no line, markers or bars at {', '.join(map(str, sorted(speedups)))}, the perfect speedups of "
            f"{kind} scaling",
            "Draw the perfect speedup, too: n on n processes.",
        )
        shown = [line for line in plot.drawn if _shows(line, speedups)]
        require(
            bool(shown),
            f"{what}: what is drawn are the efficiencies of {kind} scaling, and not its speedups"
            if any(_shows(line, {size: ratio / size for size, ratio in speedups.items()}) for line in plot.drawn)
            else f"{what}: no line, markers or bars at {', '.join(f'{ratio:.3g}' for ratio in speedups.values())}, the "
            f"speedups of {kind} scaling",
            "Draw a line for each kind: its speedups over the numbers of processes.",
        )
        require(
            any(_shows(line, speedups) for line in plot.visible),
            f"{what}: the limits of the axes cut off some of the speedups of {kind} scaling, "
            f"{', '.join(f'{ratio:.3g}' for ratio in speedups.values())}",
            "Leave the limits to matplotlib, or set them beyond all that is drawn.",
        )
        _require_called(plot, kind, ratios, what)
        others = [other for other in ratios.values() if other != speedups]
        require(
            any(_in_order(line, speedups) and not any(_shows(line, other) for other in others) for line in shown),
            f"{what}: no line of {kind} scaling alone goes from the fewest processes to the most",
            "Draw a line for each kind, and sort its points by the number of processes: they come in any order.",
        )


def _in_order(line: list[list[float]], speedups: Mapping[int, float]) -> bool:
    """Whether it goes from left to right, by the speedups from the fewest processes to the most."""
    places, heights = [x for x, _ in line], iter([y for _, y in line])
    in_turn = all(any(abs(y - ratio) <= 1e-6 * ratio for y in heights) for _, ratio in sorted(speedups.items()))
    return places == sorted(places) and in_turn


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
                "Give each line the label of its own kind.",
            )


def _require_measured(call: Call, reply: CallReply) -> None:
    """Fail unless `measure_scaling` returned a point for each number of processes, measured as the call says."""
    batch, weak, made = call["batch_size"], call["kind"] == "weak", measuring.steps_made(call)
    backend = "nccl" if call["device"] == "cuda" else "gloo"  # a GPU for each process
    require_equal(
        [[point[name] for name in ("world_size", "kind", "batch_size", "device", "backend")] for point in reply.points],
        [
            [size, call["kind"], size * batch if weak else batch, call["device"], backend]
            for size in call["world_sizes"]
        ],
        what=f"world_size, kind, batch_size, device and backend that measure_scaling({call['world_sizes']}, "
        f"kind={call['kind']!r}, batch_size={batch}, device={call['device']!r}) returned",
        hint="Return one point for each number of processes, in the order in which they are given.",
    )
    for size in call["world_sizes"] if call["device"] == "cuda" else ():
        require_between(
            reply.steps[str(size)],
            made - 2,  # a warm-up that is missing is charged elsewhere
            made + 1,
            what=f"steps of two sorts, with warm-up, on rank 0 of {size} in measure_scaling(steps={call['steps']})",
            hint="Pass on all arguments of measure_rank: kind, batch_size, device and steps.",
        )
        require_equal(
            reply.samples[str(size)],
            batch if weak else batch // size,
            what=f"samples per step on rank 0 of {size} in measure_scaling(kind={call['kind']!r}, batch_size={batch})",
            hint="Where measure_rank() gets no batches, make them of as many samples as this rank has.",
        )
