"""Judges Lab 2's comparison of precisions: what was measured, what follows from it, and the report."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from gradebox.course.criterion import builds_on, criterion, requires
from gradebox.run.assertions import mebibytes, number, require, require_between, require_close, require_equal, seconds
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Seen, Submission
from gradebox.sandbox.devices import Device
from grader.lab2.checks import conclusions
from grader.lab2.checks import report as lab2_report
from grader.lab2.checks.conclusions import PRECISIONS, Case
from grader.lab2.checks.plots import require_plots, require_written
from grader.lab2.checks.refusals import require_refused
from grader.shared.cards import card_of

STEPS = (5, 6)
"""Of which two may be disturbed: a slow one, and the first one where nothing has warmed up."""
SLOW = "slow"
_OVERHEAD_SECONDS = 60e-6
_TF32 = "faster than float32 can be: was the clock stopped too early, or TF32 switched on, which stays off?"
"""What an honest method may add to a step: synchronisations, readings of clocks, a loss that is looked at."""
_TOLERANCE, _REAL_TOLERANCE = 0.02, 0.10
_ACCURACY_TOLERANCE = 0.02
"""More than twice what bfloat16 was seen to change (`TRAINING_BATCH` of the probes)."""
_PEAK_TOLERANCE = 0.02
"""Room for a batch or an output that one method keeps longer than another. Between precisions lie 20 % and more, and a
peak that is not reset, or a model that is not let go, shows in full."""


def network(generator: InputGenerator) -> Case:
    """A fully connected network whose products keep any GPU busy for long against a launch."""
    generator = generator.shared("lab2.comparison")
    widths = [64 * generator.integer(16, 24) for _ in range(4)]
    return {"widths": [*widths, generator.odd(11, 99)], "batch": 128 * generator.integer(96, 128)}


def devices(device: Device) -> list[str]:
    """The GPUs to measure on: one without and one with fast bfloat16 where they are virtual."""
    return list(dict.fromkeys([device.name, "vgpu:T4", "vgpu:H100"])) if device.simulated else [device.name]


_REAL_SHARES = (4.0, 2.0, 1.0, 0.5, 0.25)
"""Times the samples of a batch, on a real card: a fast one gets more, so that steps are long against its jitter."""
_REAL_STEP_SECONDS = 0.1
"""At most, where a share allows it, in the slowest precision: a probe makes 80 steps, and has a minute."""
_REAL_MEMORY = 0.4
"""Of what is free of the card's memory."""
_REAL_UNSPLIT_BYTES = 16 * 2**20
"""The allocator leaves up to 1 MiB of each large block unsplit, depending on what was freed before."""


def on(submission: Submission, device: str, case: Case) -> Case:
    """The case as it is run there: on a real GPU with as many samples as suit the card."""
    card = card_of(submission) if device == "cuda" else None
    if card is None:
        return case
    work = sum(6.0 * case["batch"] * a * b for a, b in itertools.pairwise(case["widths"]))
    held = 4.0 * case["batch"] * 2 * sum(case["widths"])
    slowest = min(card.flops[name] for name in PRECISIONS)
    most = min(_REAL_STEP_SECONDS * slowest / work, _REAL_MEMORY * card.free_bytes / held)
    share = next((share for share in _REAL_SHARES if share <= most), _REAL_SHARES[-1])
    return case | {"batch": round(case["batch"] * share)}


_ACCURACIES = {"bfloat16": 0.91, "float32": 0.93, "float16": 0.92}
"""Made up, and handed in."""


def plans(device: Device, generator: InputGenerator) -> dict[str, Case]:
    """For each GPU, and for the measurement with a slow step: the precisions in an order, and how many steps."""
    generator = generator.shared("lab2.comparison.plans")
    places = [*devices(device), SLOW]
    more = len(places) - 2
    steps = generator.shuffled([*STEPS, *(generator.integer(*STEPS) for _ in range(more))])
    warmups = generator.shuffled([0, generator.integer(1, 3), *(generator.integer(0, 2) for _ in range(more))])
    first, found = generator.shuffled(PRECISIONS), {}
    for index, place in enumerate(places):
        begin = first[index % len(first)]
        order = [begin, *generator.shuffled([name for name in PRECISIONS if name != begin])]
        accuracies = [[name, _ACCURACIES[name]] for name in order]  # pairs: two orders are two questions
        found[place] = {"accuracies": accuracies, "steps": steps[index], "warmup": warmups[index]}
    return found


def asked(submission: Submission, device: str, case: Case, **how: Any) -> Seen:
    """What `compare_precisions` told, what was run for it, and on a real GPU what the course's own steps took there."""
    how |= {"truth_steps": STEPS[0]} if device == "cuda" else {}
    where = on(submission, device, case)
    return submission.probe("lab2.comparison.compare", device=device, values=False, **where, **how)


def measured(submission: Submission, device: str, case: Case, **how: Any) -> list[dict[str, Any]]:
    """The rows of `compare_precisions`, one for each precision; how they came about is judged by one check only."""
    rows: list[dict[str, Any]] = asked(submission, device, case, **how).rows
    require_equal(
        [row["dtype"] for row in rows],
        [name for name, _ in how["accuracies"]],
        what="precisions of compare_precisions(), in order",
    )
    return rows


def require_steps(seen: Seen, plan: Case) -> None:
    """Were full training steps measured, as each precision needs them?"""
    for row, (name, value) in zip(seen.rows, plan["accuracies"], strict=True):
        require_equal(row["accuracy"], value, what=f"PrecisionResult.accuracy of {name}, which was passed in")
        require_equal(row["device"], "cuda", what=f"PrecisionResult.device of {name}")
    for (name, _), model in zip(plan["accuracies"], seen.models, strict=False):
        what = f"compare_precisions(..., steps={plan['steps']}, warmup={plan['warmup']}) in {name}"
        # torch.utils.benchmark warms up on its own account, so there may be more.
        passes, least = model["forwards"], plan["steps"] + plan["warmup"]
        require(passes >= least, f"{what}: the model ran forward {passes} times, expected {least} at least")
        require_equal(model["modes"], [True], what=f"{what}: model.training in each forward pass", hint="model.train()")
        require_equal(model["steps"], passes, what=f"{what}: steps of the optimizer, in {passes} forward passes")
        require(
            not {"float16", "bfloat16"} & set(model["losses"]),
            f"{what}: the cross entropy was computed in {' and '.join(model['losses'])}",
            "compute the loss in autocast, too: there it is computed in float32",
        )
        scaled = passes if name == "float16" else 0
        require_equal(
            model["updates"],
            scaled,
            what=f"{what}: updates of a GradScaler",
            hint="float16 is trained with one, and its time is that of such a training; the others need none",
        )
        adam = {"kind": "Adam", "lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0}
        require_equal(model["optimizers"], [adam], what=f"{what}: its optimizer", hint="Adam with its defaults")
    require_equal(len(seen.models), len(_ACCURACIES), what="models that compare_precisions() made, one per precision")


def truths(submission: Submission, device: str, case: Case) -> dict[str, dict[str, float]]:
    """The same steps measured by the course in a process of their own: a virtual GPU's seconds, and peaks.

    A virtual GPU takes the same time for each step, so there one is measured.
    """
    rows: dict[str, dict[str, float]] = submission.probe(
        "lab2.comparison.compare_truth",
        device=device,
        values=False,
        student=False,
        precisions=["bfloat16", "float32", "float16"],
        steps=1,
        turn=0,
        **on(submission, device, case),
    ).rows
    return rows


@criterion("lab2.comparison", early=True, timeline=True)
class TestComparison:
    def test_step_seconds_equal_truth(self, submission: Submission, generator: InputGenerator) -> None:
        """Measures the true seconds of a training step."""
        case = network(generator)
        for device in devices(submission.device):
            plan = plans(submission.device, generator)[device]
            rows = measured(submission, device, case, **plan)
            seen = asked(submission, device, case, **plan)
            require_steps(seen, plan)
            if device == "cuda":
                slack, took = _REAL_TOLERANCE, seen.truths
            else:
                real = truths(submission, device, case)
                slack, took = _TOLERANCE, {name: [real[name]["step_seconds"]] for name in PRECISIONS}
            for row in rows:
                low, high = min(took[row["dtype"]]), max(took[row["dtype"]])
                require_between(
                    row["step_seconds"],
                    low * (1 - slack),
                    high * (1 + slack) + _OVERHEAD_SECONDS,
                    what=f"seconds of a training step in {row['dtype']} on {device}",
                    show=seconds,
                    expected=f"{seconds(low)} within {slack:.0%}",
                    hint=_TF32
                    if row["dtype"] == "float32" and number(row["step_seconds"], "step_seconds") < low
                    else "from an idle device to an idle device, after the warm-up; forward and loss in autocast, with "
                    "the precision's own dtype",
                )

    @builds_on("step_seconds_equal_truth")
    def test_peaks_equal_truth(self, submission: Submission, generator: InputGenerator) -> None:
        """Measures the true peak of memory."""
        case = network(generator)
        device = submission.device.name
        real = truths(submission, device, case)
        for row in measured(submission, device, case, **plans(submission.device, generator)[device]):
            peak = real[row["dtype"]]["peak_bytes"]
            slack = _PEAK_TOLERANCE * peak + (_REAL_UNSPLIT_BYTES if device == "cuda" else 0)
            require_between(
                row["peak_bytes"],
                peak - slack,
                peak + slack,
                what=f"peak_bytes of training steps in {row['dtype']}",
                show=mebibytes,
                expected=f"{mebibytes(peak)}, give or take {mebibytes(slack)}",
                hint="reset the peak for each precision, and let go of the model before; parameters stay float32",
            )
        elsewhere = submission.numeric_probe("lab2.comparison.compared_on_cpu")
        what = 'compare_precisions(..., device="cpu")'
        require_equal(elsewhere.ran, ["cpu"], what=f"{what}: where its models ran")
        told = [[row["device"], row["peak_bytes"]] for row in elsewhere.rows]
        require_equal(told, [["cpu", None]], what=f"{what}: device and peak_bytes of its rows")

    @builds_on("step_seconds_equal_truth")
    def test_throughput_from_the_median_step(self, submission: Submission, generator: InputGenerator) -> None:
        """Takes throughput from the median step."""
        case = network(generator)
        device = submission.device.name if submission.device.simulated else "vgpu:T4"
        flops = min(2.0 * case["batch"] * a * b for a, b in zip(case["widths"][:3], case["widths"][1:4], strict=True))
        products = 3 * 3 - 1  # per wide layer one forward and two backward, but the inputs need no gradient
        drawn = plans(submission.device, generator)
        plan = drawn[SLOW]
        before = products * (plan["warmup"] + plan["steps"] // 2)
        slow = [{"factor": 200.0, "skip": before, "count": 1, "min_flops": 0.99 * flops}]
        other = drawn.get(device, plan)
        calm = {row["dtype"]: row["step_seconds"] for row in measured(submission, device, case, **other)}
        for row in measured(submission, device, case, **plan, conditions=slow):
            took = number(row["step_seconds"], "step_seconds")
            require_close(
                took,
                number(calm[row["dtype"]], "step_seconds"),
                relative=0.05,
                what=f"step_seconds in {row['dtype']}, when one product of one of {plan['steps']} timed steps takes "
                f"200 times as long, after {plan['warmup']} steps to warm up",
                show=seconds,
                hint="the median of steps that are timed one by one",
            )
            require_close(
                row["samples_per_second"],
                case["batch"] / took,
                relative=1e-6,
                what=f"samples_per_second in {row['dtype']} for steps of {case['batch']} samples in {seconds(took)}",
                show=lambda value: f"{value:.6g}",
                hint="samples of a batch / seconds of a step",
            )

    @requires("lab2.amp.returns_result")
    def test_accuracies_equal_truth(self, submission: Submission, generator: InputGenerator) -> None:
        """Measures the true accuracy on the test images."""
        hidden, share = generator.odd(61, 83), generator.uniform(0.25, 0.5)
        precisions = generator.shuffled(["bfloat16", "float32"])
        case: Case = {
            "first": generator.normal(hidden, 64) / np.float32(8),
            "second": generator.normal(10, hidden) / np.float32(8),
            "order": np.array(generator.shuffled(list(range(1438)))),
            "wrong": np.array([int(generator.uniform(0, 1) < share) for _ in range(359)]),
            "epochs": 3,
        }
        seen = submission.numeric_probe("lab2.comparison.accuracies", precisions=precisions, **case)
        told = seen.accuracies
        real = submission.probe("lab2.comparison.accuracies_truth", device="cpu", student=False, **case)
        require(isinstance(told, dict), f"measure_accuracies() returned {told!r}, expected a dict")
        require_equal(list(told), precisions, what="names in measure_accuracies(), in the order of dtypes")
        for name in precisions:
            require_between(
                told[name],
                real.test - _ACCURACY_TOLERANCE,
                real.test + _ACCURACY_TOLERANCE,
                what=f"accuracy in {name} on 359 test images, {share:.0%} of them with a wrong label",
                expected=f"about {real.test:.3f} (on the training images: {real.train:.3f})",
                hint="a new model for each precision; train on the one loader, evaluate on the other",
            )
        batches = case["epochs"] * -(-1438 // 200)
        require_equal(
            seen.models,
            [{"training": [name], "evaluation": [name], "batches": batches} for name in precisions],
            what="dtypes of the outputs in training and evaluation, and batches trained on, of each model that "
            "measure_accuracies() made",
            hint="a model is trained for all epochs in one precision, and evaluated in the same one",
        )
        elsewhere = submission.numeric_probe("lab2.comparison.accuracies_on_cpu")
        require_equal(elsewhere.ran, ["cpu"], what='measure_accuracies(..., device="cpu"): where its models ran')

    def test_conclusions_follow(self, submission: Submission, generator: InputGenerator) -> None:
        """Draws the conclusions that the figures allow."""
        cases: list[Case] = []
        answers = []
        for answer, fastest, times, losses, options in generator.shuffled(conclusions.profiles(generator)):
            base_seconds, base_peak = generator.log_uniform(1e-4, 1.0), generator.integer(10**7, 10**10)
            base_accuracy = generator.uniform(0.7, 0.97)
            rows = []
            for name in PRECISIONS:
                peak = int(base_peak * (1.0 if name == "float32" else generator.uniform(0.45, 1.2)))
                rows.append([name, base_seconds * times[name], peak, base_accuracy - losses[name]])
            shuffled = [rows[index] for index in generator.shuffled([0, 1, 2])]
            cases.append({"rows": shuffled, **options})
            answers.append((answer, fastest))
        again = generator.integer(0, len(cases) - 1)  # the same on a CPU, whose peaks nobody counts
        rows = [[name, took, None, right] for name, took, _, right in cases[again]["rows"]]
        cases.append(cases[again] | {"rows": rows})
        answers.append(answers[again])
        for case, expected in conclusions.edges(generator):
            cases.append(case)
            answers.append(expected)
        for case in conclusions.crossed(generator):
            cases.append(case)
            answers.append(conclusions.follows(case))
        seen = submission.numeric_probe("lab2.comparison.conclude", cases=cases)
        for case, (recommended, fastest), told in zip(cases, answers, seen.answers, strict=True):
            conclusions.require_conclusions(case, recommended, fastest, told)

    def test_wrong_arguments_refused(self, submission: Submission, generator: InputGenerator) -> None:
        """Refuses arguments that make no sense."""
        compared: list[Case] = [
            {"precisions": ["float32", generator.shuffled(["float64", "float8", "int8"])[0]]},
            {"precisions": ["float32"], "steps": 0},
            {"precisions": ["float32"], "steps": -generator.integer(1, 2)},
            {"precisions": ["float32"], "warmup": -generator.integer(1, 3)},
        ]
        # Those that make sense come last: whoever refuses everything has looked at nothing.
        taken: Case = {"precisions": ["float32"], "steps": 1, "warmup": 0}
        twice = generator.shuffled(PRECISIONS[1:])[0]
        concluded = [
            ["float16", "bfloat16"],
            [],
            [*PRECISIONS, twice],
            generator.shuffled(["float32", "float32", twice]),
        ]
        seen = submission.probe(
            "lab2.arguments.comparison_refused", compared=[*compared, taken], concluded=[*concluded, PRECISIONS]
        )
        for call, told in zip([*compared, taken], seen.compared, strict=True):
            shown = ", ".join(f"{name}={value}" for name, value in call.items())
            require_refused(told, call is not taken, f"compare_precisions() with {shown}")
        for names, told in zip([*concluded, PRECISIONS], seen.concluded, strict=True):
            require_refused(told, names is not PRECISIONS, f"conclude() of results in {', '.join(names) or 'nothing'}")

    @builds_on("conclusions_follow")
    def test_results_and_plots_saved(self, submission: Submission, generator: InputGenerator) -> None:
        """Saves the results and plots."""
        require_plots(submission, generator)
        chosen = ["--precisions=bfloat16,float32", "--epochs=1"]  # float16's own troubles are judged elsewhere
        small = ["--layers=1", "--width=64", "--batch=1", "--steps=1"]
        programs = (("precision_comparison", "precisions", [*chosen, *small]), ("amp_training", "training", chosen))
        for name, stem, arguments in programs:
            rows = require_written(submission, name, stem, arguments)
            names = {row.get("dtype") for row in rows if isinstance(row, dict)}
            require(
                {"bfloat16", "float32"} <= names,
                f"results of {name} with {' '.join(chosen)}: saw precisions {sorted(map(str, names))}",
            )

    def test_report_agrees_with_results(self, submission: Submission) -> None:
        """Claims what results/ say, and has 60 words."""
        lab2_report.judge(submission)
