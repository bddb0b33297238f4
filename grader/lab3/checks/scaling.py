"""Judges Lab 3's scaling analysis: what is computed from measurements, and the measurements themselves.

Ranks of a virtual machine share one virtual time, so the truth about a step is known; those figures are simulated.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

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
from gradebox.run.submission import Seen, Submission
from grader.lab3.checks import report as lab3_report
from grader.lab3.truth.reported import require_said
from grader.lab3.truth.steps import point, profile, split, tied_profiles, uneven_profile
from grader.shared.programs import picture_and_json

PROGRAM = "lab3_distributed.scaling_analysis"
KINDS = ("strong", "weak")
TRUTH_TOLERANCE = 0.05
"""Of a step, simulated: styles that are right differ by less than 1 %, a step without exchange by 34 to 48 %."""


def points(generator: InputGenerator) -> tuple[list[dict[str, Any]], dict[str, dict[int, float]]]:
    """Measurements of both kinds on 1 to 12 processes, shuffled, and the speedups that were put into them.

    Of neither kind is the one on one process the first or the last, or the slowest.
    """
    generator = generator.shared("lab3.points")
    made, ratios = [], {}
    for kind in ("strong", "weak"):
        alone, batch = generator.log_uniform(1e-3, 1.0), 8 * generator.integer(4, 40)
        sizes = (generator.integer(2, 3), generator.integer(4, 6), generator.integer(8, 12))
        ratios[kind] = {1: 1.0} | {size: size * generator.uniform(0.4, 0.95) for size in sizes}
        ratios[kind][sizes[0]] = generator.uniform(0.5, 0.9)  # two processes can be slower than one
        ratios[kind][sizes[1]] = sizes[1] * generator.uniform(1.03, 1.2)  # and some more than so many times as fast
        for size, ratio in ratios[kind].items():
            work = batch if kind == "strong" else batch * size
            took = alone / ratio * work / batch
            shares = profile(generator, ranks=max(2, size), communication=0.1, data=0.05, imbalance=0.05)
            made.append(point(kind, size, work, took, shares))
    order = generator.shuffled(list(range(len(made))))
    while any(
        [made[n]["world_size"] for n in order if made[n]["kind"] == kind][end] == 1
        for kind in ratios
        for end in (0, -1)
    ):
        order = generator.shuffled(order)
    return [made[index] for index in order], ratios


def _another_base(told: Mapping[str, Any], ratios: Mapping[str, float]) -> Cause | None:
    """Recognises speedups that are all the same factor away from the true ones, one of which then is another's 1."""
    factors = [told[size] / ratio for size, ratio in ratios.items() if isinstance(told.get(size), float)]
    alike = len(factors) == len(ratios) and max(factors) < min(factors) * (1 + 1e-6)
    return _BASE if alike and abs(factors[0] - 1) > 1e-6 else None


_BASE = Cause(
    "another_base",
    "all speedups are the same factor away: they are against another measurement than the one on one process",
    "lab3.scaling.speedup_and_efficiency_strong",
)
_LOSSES: dict[str, Sequence[Any]] = {
    "name": ("communication", "data", "imbalance", "compute"),
    "threshold": (None, 0.1, 0.3),
    "ranks": (1, 2, 5),
}
"""What names a bottleneck: the largest loss, if any, the limit, and the number of ranks."""
Steps = list[Seen]


def _waits(generator: InputGenerator, count: int) -> list[float]:
    """For how long timed batches are waited for, in shares of the usual time: that is the median, one comes very late,
    one at once, and without the first one or two the median is another.
    """
    around = [ratio for step in range(1, count // 2) for ratio in (1 - 0.3 * step, 1 + 0.6 * step)]
    while True:
        ratios = generator.shuffled([0.0, 1.0, *around, 100.0])
        if all(abs(statistics.median(ratios[left_out:]) - 1) > 0.1 for left_out in (1, 2)):
            return ratios


def steps(
    submission: Submission, generator: InputGenerator, ranks: int, kind: str, *, uneven: bool
) -> tuple[Steps, Steps]:
    """A step measured by the student and by ourselves, on virtual GPUs whose interconnect is slow for their speed.

    The batches of the first steps, which are not to be timed, take long to come, in both series of steps; each of those
    that are timed takes a time of its own.
    """
    generator = generator.shared(f"lab3.steps.{ranks}.{kind}.{uneven}")
    width, layers, batch = 64 * generator.integer(24, 32), generator.integer(3, 5), 64 * generator.integer(3, 6)
    if kind == "weak":
        batch += 1  # nothing is shared
    load = generator.uniform(0.5e-3, 1.5e-3)
    slow, factor = generator.integer(0, ranks - 1), generator.uniform(2.0, 4.0)
    timed, warmup = 7, generator.integer(5, 6)
    loads = [load * generator.uniform(1.0, 3.0) if uneven else load for _ in range(ranks)]
    ratios = _waits(generator, timed)
    first = []
    for own in loads:
        taken: list[float] = []
        for usual in (own, 3 * own if ranks == 1 else own):  # alone, later steps take longer than whole ones before
            taken += [0.1] * warmup + [usual * ratio for ratio in ratios]
        first.append(taken)
    case: dict[str, Any] = {
        "kind": kind,
        "batch_size": batch,
        "width": width,
        "layers": layers,
        "steps": timed,
        "warmup": warmup,
        "load_seconds": loads,
        "first_seconds": first,
    }
    if uneven:
        case["conditions"] = [{"factor": factor, "name": "aten::mm", "rank": slow}]
    device = submission.device.name if submission.device.simulated else "vgpu:T4"
    return (
        submission.rank_probe("lab3.scaling.measured", ranks, device=device, values=False, **case),
        submission.rank_probe("lab3.scaling_truth.truth", ranks, device=device, values=False, student=False, **case),
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
        """Computes strong speedup and efficiency."""
        hint = "strong: the same work, so T(1) / T(n); the efficiency is that per process"
        self._require_ratios(submission, generator, "strong", hint)

    def test_speedup_and_efficiency_weak(self, submission: Submission, generator: InputGenerator) -> None:
        """Computes weak speedup and efficiency."""
        hint = "weak: a step on n processes does n times the work, so the speedup is n T(1) / T(n)"
        self._require_ratios(submission, generator, "weak", hint)

    @staticmethod
    def _require_ratios(submission: Submission, generator: InputGenerator, kind: str, hint: str) -> None:
        made, ratios = points(generator)
        seen = submission.probe("lab3.scaling.analyse", device="cpu", points=made, kinds=[kind])
        told = seen.answers[kind]
        sizes = {str(size): ratio for size, ratio in ratios[kind].items()}
        for name in ("speedup", "efficiency"):
            require_equal(sorted(told[name]), sorted(sizes), what=f"{name}(points, {kind!r}): world sizes")
            for size, ratio in sizes.items():
                wanted = ratio if name == "speedup" else ratio / int(size)
                what = f"{name}(points, {kind!r})[{size}]"
                with recognising(lambda: _another_base(told["speedup"], sizes)):
                    require_close(number(told[name][size], what), wanted, relative=1e-6, what=what, hint=hint)
        for name, refused in zip(("speedup", "efficiency"), seen.refused, strict=True):
            require(
                refused,
                f"{name}(points, {kind!r}) raised no ValueError, although only the other kind was measured on "
                "one process",
            )

    def test_communication_share_found(self, submission: Submission, generator: InputGenerator) -> None:
        """Finds the share of communication in a step."""
        profiles, wanted = [], []
        for imbalance in (0.0, 0.0, 0.3):
            share, ranks = generator.uniform(0.05, 0.5), generator.integer(2, 6)
            profiles.append(
                profile(generator, ranks=ranks, communication=share, data=0.1, imbalance=imbalance * (1 - share))
            )
            wanted.append(share)
        for ranks in (1, generator.odd(3, 7)):
            wanted.append(generator.uniform(0.05, 0.5))
            profiles.append(uneven_profile(generator, ranks=ranks, communication=wanted[-1]))
        seen = submission.probe("lab3.scaling.shares", device="cpu", profiles=profiles)
        for told, share, given in zip(seen.shares, wanted, profiles, strict=True):
            waits = max(given["communication_seconds"]) - min(given["communication_seconds"])
            about = "in which ranks wait for a slow one" if waits > 1e-9 else "in which nobody waits for others"
            hint = "the slowest rank waits for nobody: what it spends on communication is communication"
            require_close(told, share, relative=1e-6, what=f"communication_share() of a step {about}", hint=hint)
        for told, order, given in zip(seen.parts, seen.order, profiles, strict=True):
            parts = split(given)
            require_equal(order, list(parts), what="names in what split_step() returned, in their order")
            whole = sum(parts.values())
            for name, value in parts.items():
                require_between(
                    number(told[name], f"split_step()[{name!r}]"),
                    value - 1e-6 * whole,
                    value + 1e-6 * whole,
                    what=f"split_step()[{name!r}] of a step of {len(given['data_seconds'])} ranks",
                    show=seconds,
                    expected=seconds(value),
                    hint="the docstring has a line for each of the four; together they are the step",
                )

    def test_bottleneck_named(self, submission: Submission, generator: InputGenerator) -> None:
        """Names the bottleneck of a step."""
        names = ["communication", "data", "imbalance", "compute"]
        profiles, wanted = [], []
        thresholds: list[float | None] = []
        for name in generator.shuffled([*names, *names]):
            # At least 0.3 for the culprit, 0.27 at most for one that is above the limit of 0.2, too, 0.1 for the third.
            shares = {each: generator.uniform(0.02, 0.1) for each in names[:3]}
            if name != "compute":
                second = generator.shuffled([each for each in names[:3] if each != name])[0]
                shares |= {second: generator.uniform(0.22, 0.27), name: generator.uniform(0.3, 0.45)}
            profiles.append(profile(generator, ranks=generator.integer(2, 6), **shares))
            wanted.append(name)
            thresholds.append(None)
        culprit = generator.shuffled(names[:3])[0]
        shares = dict.fromkeys(names[:3], 0.03) | {culprit: 0.12}
        for least in generator.shuffled([0.08, 0.16]):
            profiles.append(profile(generator, ranks=3, **shares))
            wanted.append(culprit if least < 0.12 else "compute")
            thresholds.append(least)
        for row in generator.cases(_LOSSES, 3, lambda row: row["ranks"] > 1 or row["name"] != "imbalance"):
            name, least = row["name"], row["threshold"]
            # A loss of 0.24 is above the default limit of 0.2, and above or below one that is given.
            shares = dict.fromkeys(names[:3], 0.03) | ({name: 0.24} if name != "compute" else {})
            shares |= {"imbalance": 0.0} if row["ranks"] == 1 else {}
            profiles.append(profile(generator, ranks=row["ranks"], **shares))
            wanted.append("compute" if least == 0.3 else name)
            thresholds.append(least)
        for given, limit, name in generator.shuffled(tied_profiles(generator)):
            profiles.append(given)
            wanted.append(name)
            thresholds.append(limit)
        seen = submission.probe("lab3.scaling.bottlenecks", device="cpu", profiles=profiles, thresholds=thresholds)
        for told, name, given, threshold in zip(seen.names, wanted, profiles, thresholds, strict=True):
            parts = split(given)
            shown = ", ".join(f"{part} {value / sum(parts.values()):.0%}" for part, value in parts.items())
            at = "the default threshold" if threshold is None else f"threshold={threshold}"
            require_equal(told, name, what=f"name_bottleneck() of a step with {shown}, at {at}")

    def test_step_seconds_equal_truth(self, submission: Submission, generator: InputGenerator) -> None:
        """Measures the true seconds of a step."""
        for ranks, kind in zip((2, 4), generator.shuffled(KINDS), strict=True):
            measured, truth = steps(submission, generator, ranks, kind, uneven=False)
            for rank, (seen, real) in enumerate(zip(measured, truth, strict=True)):
                told, what = seen.point, f"measure_rank() on rank {rank} of {ranks}, {kind} (simulated)"
                batch = positive(told["batch_size"], f"{what}: batch_size")
                require_equal(told["world_size"], ranks, what=f"{what}: world_size")
                require_equal(told["kind"], kind, what=f"{what}: kind")
                require_equal([told["device"], told["backend"]], ["cuda", "nccl"], what=f"{what}: device and backend")
                hint = "samples per step on all ranks together: strong divides them, weak multiplies"
                require_equal(int(batch), real.batch_size, what=f"{what}: batch_size", hint=hint)
                require_close(
                    told["step_seconds"],
                    real.step_seconds,
                    relative=TRUTH_TOLERANCE,
                    what=f"{what}: step_seconds",
                    show=seconds,
                    hint="the median whole step: batch, forward, backward with exchange, optimizer; the device idle",
                )
                rate = batch / positive(told["step_seconds"], f"{what}: step_seconds")
                require_close(told["samples_per_second"], rate, relative=1e-6, what=f"{what}: samples_per_second")
                require_between(
                    seen.taken,
                    seen.asked,
                    seen.asked + 2,
                    what=f"{what}: batches taken in two sorts of steps, each with its warm-up",
                    show=lambda count: f"{count:.0f}",
                    hint="steps and warmup are arguments: a step takes one batch",
                )
                same = told == measured[0].point
                require(same, f"{what}: told another ScalingPoint than rank 0", "tell each other the figures of all")
                require_equal(seen.in_group, False, what=f"{what}: process group still there afterwards")
                self._require_refused(seen, what)

    @staticmethod
    def _require_refused(seen: Seen, what: str) -> None:
        for given, refused in seen.refused.items():
            require(refused, f"{what}: no ValueError from {given}", "before anything is joined: all ranks refuse it")
        require_equal(seen.failed, "LookupError", what=f"{what}: error where the first batch cannot be read")
        require_equal(
            seen.in_group_after_failure,
            False,
            what=f"{what}: process group still there after an error",
            hint="finally: whatever happens, this rank leaves",
        )

    @requires("step_seconds_equal_truth")
    def test_profile_equals_truth(self, submission: Submission, generator: InputGenerator) -> None:
        """Splits a step into its true parts."""
        for ranks, kind in zip((2, 1), generator.shuffled(KINDS), strict=True):
            self._require_profile(*steps(submission, generator, ranks, kind, uneven=True))

    @staticmethod
    def _require_profile(measured: Steps, truth: Steps) -> None:
        ranks = len(truth)
        for seen in measured:
            told = seen.point["profile"]
            for rank, real in enumerate(truth):
                parts = {
                    "data_seconds": real.data_seconds,
                    "compute_seconds": real.compute_seconds,
                    "communication_seconds": max(0.0, real.step_seconds - real.data_seconds - real.compute_seconds),
                }
                slack = TRUTH_TOLERANCE * real.step_seconds
                for name, value in parts.items():
                    figures = numbers(told[name], ranks, f"{name} of measure_rank() on {ranks} ranks")
                    require_between(
                        figures[rank],
                        max(0.0, value - slack),
                        value + slack,
                        what=f"measure_rank() on {ranks} ranks: {name} of rank {rank} (simulated)",
                        show=seconds,
                        expected=f"{seconds(value)}, give or take {seconds(slack)}",
                        hint="data and compute in steps without exchange; communication is the rest of a whole step",
                    )

    @builds_on("step_seconds_equal_truth", "profile_equals_truth")
    def test_results_and_plot_saved(self, submission: Submission, generator: InputGenerator) -> None:
        """Saves the results and a plot."""
        made, ratios = points(generator)
        for plot, kinds in zip(
            submission.probe("lab3.scaling.plotted", device="cpu", points=made).plots,
            (list(ratios), [made[0]["kind"]]),
            strict=True,
        ):
            self._require_plotted(plot, {kind: ratios[kind] for kind in kinds})
        arguments = ["--world-sizes", "1,2", "--batch-size", "32", "--steps", "2", "--device", "vgpu:T4"]
        seen = submission.probe("lab3.launch.program", device="cpu", module=PROGRAM, arguments=arguments)
        rows = picture_and_json(seen, f"python -m labs.{PROGRAM}")
        require_said(seen, simulated=True, what=f"python -m labs.{PROGRAM} {' '.join(arguments)}")
        found = sorted((str(row.get("kind")), row.get("world_size")) for row in rows if isinstance(row, dict))
        wanted = [("strong", 1), ("strong", 2), ("weak", 1), ("weak", 2)]
        require_equal(found, wanted, what=f"kinds and world sizes in the results of `{' '.join(arguments[:2])}`")
        sizes = [row["batch_size"] for row in sorted(rows, key=lambda row: (row["kind"], row["world_size"]))]
        require_equal(sizes, [32, 32, 32, 64], what=f"batch_size of these four with `{' '.join(arguments[2:4])}`")
        sizes, batch, steps = [2, 1], 2 * generator.integer(1, 3), generator.integer(3, 4)
        many, few = generator.shuffled(KINDS)
        asked: dict[str, Any] = {"world_sizes": sizes, "kind": many, "batch_size": batch, "steps": steps}
        calls = [{**asked, "device": "cuda"}, {**asked, "device": "cpu", "kind": few, "world_sizes": [1], "steps": 1}]
        whole, short = submission.probe("lab3.scaling.several", device="cpu", asked=calls).seen
        for call, told in zip(calls, (whole["points"], short["points"]), strict=True):
            require_equal(
                [(point["world_size"], point["kind"], point["batch_size"], point["device"]) for point in told],
                [
                    (size, call["kind"], size * batch if call["kind"] == "weak" else batch, call["device"])
                    for size in call["world_sizes"]
                ],
                what=f"world_size, kind, batch_size and device that measure_scaling({call['world_sizes']}, "
                f"kind={call['kind']!r}, batch_size={batch}, device={call['device']!r}) told",
                hint="one point for each number of processes, in the order in which they are given",
            )
        require(
            whole["calls"]["1"] > short["calls"]["1"],
            f"measure_scaling(..., steps={steps}) calls its model as often as with steps=1: "
            f"{whole['calls']['1']} times",
            "it hands on all that measure_rank is told: kind, batch_size, device and steps",
        )

    @staticmethod
    def _require_plotted(plot: dict[str, Any], ratios: dict[str, dict[int, float]]) -> None:
        what = f"plot_scaling() of {' and '.join(ratios)} scaling"
        require(plot["written"] and plot["told"], f"{what} did not write and return the path that it was given")
        for kind, wanted in ratios.items():
            require(
                any(_is_perfect(line, list(wanted)) for line in plot["drawn"]),
                f"{what}: no line, markers or bars at {', '.join(map(str, sorted(wanted)))}, the perfect speedups of "
                f"{kind} scaling",
                "the speedup on n processes would be n",
            )
            shown = [
                line
                for line in plot["drawn"]
                if all(any(abs(y - ratio) <= 1e-6 * ratio for _, y in line) for ratio in wanted.values())
            ]
            require(
                bool(shown),
                f"{what}: no line, markers or bars at {', '.join(f'{ratio:.3g}' for ratio in wanted.values())}, the "
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

    def test_report_agrees_with_results(self, submission: Submission) -> None:
        """Claims what results/ say, and has 60 words."""
        lab3_report.judge(submission)


def _require_called(plot: dict[str, Any], kind: str, ratios: dict[str, dict[int, float]], what: str) -> None:
    """Fail where the legend calls by this kind's name what shows another's speedups."""
    others = [other for other in ratios if other != kind]
    for label, line in zip(plot["labels"], plot["drawn"], strict=True):
        if kind not in label.casefold() or any(other in label.casefold() for other in others):
            continue
        heights = [y for _, y in line]
        for other in others:
            require(
                not all(any(abs(y - ratio) <= 1e-6 * ratio for y in heights) for ratio in ratios[other].values()),
                f"{what}: what is called {label!r} are the speedups of {other} scaling",
                "the label belongs to the line that it is given with",
            )
