"""Judges Lab 4's checkpointing: nothing changes but memory and time, and both are measured right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradebox.course.criterion import builds_on, criterion
from gradebox.run.assertions import (
    mebibytes,
    picturing,
    require,
    require_arrays_close,
    require_between,
    require_close,
    require_equal,
    seconds,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab4.checks.common import judge_plot, judge_program, judge_refusals, memory_bars
from grader.lab4.truth.reference import runs
from grader.shared.cards import Card, card_of
from grader.shared.cases import full_rows

LAYERS = 13
"""So that most intervals leave a short last segment: one kept as a whole is not taken for a first one kept."""
SAME = 1e-9
"""In float64; measured: 0 with the same operations in the same order, 1e-2 with other dropout masks."""
MEASURED = 0.03
REAL_TOLERANCE = 0.25
"""Beyond what the course's own steps took before and after: forward alone is a third of a step."""
REAL_STEP_SECONDS = 0.1
"""Of a step on a real card, where a batch of one sample allows it: a probe makes 50, and has a minute."""
REAL_MEMORY, SAMPLE_TENSORS = 0.4, 40
"""Of what is free of a real card's memory, and how many tensors like its input a block keeps of a sample at most."""
RNG_HINT = "the second computation must draw what the first one drew (preserve_rng_state), and leave no trace after it"


_GIVEN = ("width", "heads", "dropout", "checkpoint_every")


def by_default(generator: InputGenerator) -> dict[str, Any]:
    """A transformer that is made as the document makes it: of so many layers, everything else by default."""
    generator = generator.shared("lab4.checkpointing, by default")
    return {
        "layers": generator.integer(2, 3),
        "width": 256,
        "heads": 8,
        "dropout": 0.1,
        "given": [],
        "batch": 2,
        "length": generator.odd(3, 7),
        "seed": generator.integer(1, 10**6),
    }


def small(generator: InputGenerator) -> dict[str, Any]:
    """A small transformer with dropout, the same for all checks of one grading."""
    generator = generator.shared("lab4.checkpointing")
    heads = generator.integer(2, 4)
    return {
        "layers": 3,
        "width": heads * generator.odd(3, 7),
        "heads": heads,
        "dropout": generator.uniform(0.1, 0.3),
        "batch": generator.integer(2, 3),
        "length": generator.odd(5, 9),
        "seed": generator.integer(1, 10**6),
        "given": list(_GIVEN),
    }


def _kept_too_much(held: float, plain: float, unit: float, interval: int) -> str:
    """What the bytes that are held look like."""
    if abs(held - plain) < 0.1 * plain:
        return "that is all of it: ask the module's mode and whether gradients are on; the input need not require one"
    if abs(held - unit * min(interval, LAYERS)) < unit / 2:
        return "checkpoint_every is the blocks of a segment, not the number of segments"
    return "each segment of that many blocks keeps its input, and nothing from inside it"


@criterion("lab4.checkpointing")
class TestCheckpointing:
    def test_outputs_unchanged(self, submission: Submission, generator: InputGenerator) -> None:
        """Leaves the outputs unchanged."""
        _require_outputs(_trained(submission, generator, by_default(generator), _BY_DEFAULT))
        _require_evaluated(submission, by_default(generator), [1])

    @builds_on("outputs_unchanged")
    def test_gradients_unchanged(self, submission: Submission, generator: InputGenerator) -> None:
        """Leaves the gradients unchanged."""
        _require_gradients(_trained(submission, generator, by_default(generator), _BY_DEFAULT))

    @builds_on("outputs_unchanged", "gradients_unchanged")
    def test_saved_bytes_follow_the_interval(self, submission: Submission, generator: InputGenerator) -> None:
        """Keeps only what the interval allows."""
        case = {**by_default(generator), "layers": LAYERS, "batch": 4, "length": generator.odd(61, 81)}
        case["given"] = ["checkpoint_every"]
        # With 3, as many segments as each should have blocks would be other ones: 3, and not 5.
        intervals = [None, 1, 3, generator.integer(4, 6)]
        needs = generator.shuffled([False, True, generator.integer(0, 1) == 1])
        ways = [(None, False), *zip(intervals[1:], needs, strict=True)]
        seen = submission.probe("lab4.checkpointing.saved", values=False, case=case, ways=ways)
        unit, plain = float(seen.input_bytes), float(seen.runs[0]["held_bytes"])
        require(
            plain > 12 * LAYERS * unit,
            f"without checkpointing the forward pass keeps {mebibytes(plain)}, less than {LAYERS} blocks need",
            "checkpoint_every=None means that every activation is kept",
        )
        rows = [
            (str(interval), run["held_bytes"], -(-LAYERS // (interval or 1)) * unit)
            for (interval, _), run in zip(ways[1:], seen.runs[1:], strict=True)
        ]
        with picturing(lambda: memory_bars("what the forward pass leaves, by interval", rows)):
            for (interval, needed), run in zip(ways[1:], seen.runs[1:], strict=True):
                assert interval is not None
                given = f"an input that requires {'a' if needed else 'no'} gradient"
                segments, last = -(-LAYERS // interval), (LAYERS - 1) % interval + 1
                # One tensor per segment and the output, the model's own input aside. Room for a copy of that input. Or
                # the last segment kept as a whole, as checkpoint_sequential does. Bugs measured: first segment only, 10
                # times as much; interval ignored, 3 times; none, 20 times.
                every = segments * unit
                kept_last = (segments - 1) * unit + last * plain / LAYERS
                held, saved = run["held_bytes"], run["saved_bytes"]
                fits = any(
                    abs(held - expected) <= 1.3 * unit + 0.03 * (expected - segments * unit)
                    for expected in (every, kept_last)
                )
                require(
                    fits,
                    f"a forward pass with checkpoint_every={interval} and {given} leaves {mebibytes(held)}, without "
                    f"checkpointing {mebibytes(plain)}; expected about {mebibytes(every)}: {segments} tensors of "
                    f"{unit:,.0f} bytes",
                    _kept_too_much(held, plain, unit, interval),
                )
                require(
                    saved <= kept_last + 2.3 * unit,
                    f"with checkpoint_every={interval} {mebibytes(saved)} were saved for backward, expected at most "
                    f"{mebibytes(kept_last)}",
                    "every segment must be checkpointed, not the first one only",
                )
        trained = _trained(submission, generator, small(generator), _ways(generator))
        _require_outputs(trained)
        _require_gradients(trained)
        for (interval, _, _), run, _ in trained:
            require_equal(
                run["names"],
                trained[0][1]["names"],
                what=f"names of the parameters with checkpoint_every={interval}",
                hint="as without checkpointing: one state dict fits every interval",
            )
        _require_evaluated(submission, small(generator), [None, 1])

    def test_no_recompute_in_evaluation(self, submission: Submission, generator: InputGenerator) -> None:
        """Recomputes nothing in evaluation."""
        case = by_default(generator)
        (run,) = submission.numeric_probe("lab4.checkpointing.evaluation", case=case, intervals=[1]).runs
        (once,) = submission.numeric_probe(
            "lab4.checkpointing.evaluation", student=False, case=case, intervals=[None]
        ).runs
        for name, how in (("flops", "forward and backward"), ("flops_without_gradients", "under torch.no_grad()")):
            require_close(
                run[name],
                once[name],
                relative=0.01,  # one block computed twice adds 7 % and more
                what=f"work of CheckpointedTransformer in evaluation mode, {how}, in FLOPs of products",
                hint="ask self.training and torch.is_grad_enabled() before you checkpoint",
            )

    @builds_on("gradients_unchanged", "saved_bytes_follow_the_interval")
    def test_measured_table_equals_truth(self, submission: Submission, generator: InputGenerator) -> None:
        """Measures true step seconds and peaks."""
        intervals = generator.shuffled([None, generator.integer(1, 2)])
        steps, warmup = generator.integer(3, 5), generator.integer(2, 3)
        large = not submission.device.simulated  # so that a step of a real GPU is long against its launches
        sizes = {
            "num_layers": 3,
            "width": 4
            * (generator.odd(221, 281) if large else generator.odd(81, 145)),  # not divisible by 8, the usual heads
            "heads": 4,
            "batch": generator.integer(7, 9) if large else generator.integer(3, 5),
            "length": generator.odd(701, 801) if large else generator.odd(301, 401),
        }
        card = card_of(submission)
        if card is not None:
            sizes["batch"] = _batch_for(card, sizes)
        # One product of a timed step takes far too long: there are twelve and more per block and step.
        before = 12 * sizes["num_layers"] * (warmup + 2) + 5
        late = {"factor": 200.0, "skip": before, "count": 1, "min_flops": 2.0 * sizes["width"] ** 2}
        seen = submission.probe(
            "lab4.checkpointing.measured",
            values=False,  # neither seconds nor peaks depend on them
            conditions=[late] if submission.device.simulated else [],
            intervals=intervals,
            sizes=sizes,
            steps=steps,
            warmup=warmup,
        )
        require_equal([row["checkpoint_every"] for row in seen.rows], intervals, what="intervals in the table")
        # Somebody may make a block in vain; those of two whole models are too many.
        require(
            seen.most_blocks < 2 * sizes["num_layers"],
            f"measure_checkpointing(): {seen.most_blocks} blocks are there at once, of models of {sizes['num_layers']}",
            "a loop's variables hold the model of one interval until the next one is made: let go of it before",
        )
        _require_steps(seen.forwards, steps)
        peaks = [
            (str(row["checkpoint_every"]), row["peak_bytes"], truth["peak_bytes"])
            for row, truth in zip(seen.rows, seen.truths, strict=True)
        ]
        for row, truth in zip(seen.rows, seen.truths, strict=True):
            what = f"measure_checkpointing(), interval {row['checkpoint_every']}"
            require_equal(row["device"], seen.device, what=f"{what}: device")
            slack = REAL_TOLERANCE if large else MEASURED
            low, high = min(truth["seconds"]), max(truth["seconds"])
            require_between(
                row["step_seconds"],
                low * (1 - slack),
                high * (1 + slack),
                what=f"{what}: step_seconds",
                show=seconds,
                expected=f"{seconds(low)} within {slack:.0%}",
                hint="the median of single steps, each from an idle device to an idle device, after a warm-up",
            )
            with picturing(lambda: memory_bars("peak_bytes by interval", peaks)):
                require_close(
                    row["peak_bytes"],
                    truth["peak_bytes"],
                    relative=2 * MEASURED,  # the allocator leaves up to 1 MiB of each large block unsplit
                    what=f"{what}: peak_bytes",
                    show=mebibytes,
                    hint="reset the peak after the warm-up; the model before must be gone, no gradients kept from it",
                )

        ran = seen.flops / sum(truth["flops"] for truth in seen.truths)
        # Somebody may run one more, to wake the libraries up.
        require(
            steps + warmup - 0.1 < ran < steps + warmup + 1.1,
            f"measure_checkpointing(steps={steps}, warmup={warmup}) ran {ran:.3g} steps per interval, expected "
            f"{steps + warmup}",
            "as many timed steps, after as many untimed ones, as the arguments say",
        )
        (row,) = seen.on_cpu
        require_equal(
            [row["device"], row["checkpoint_every"], row["peak_bytes"]],
            ["cpu", 2, None],
            what='device, interval and peak of measure_checkpointing(device="cpu")',
            hint="PyTorch does not count the memory of a CPU: None",
        )

    def test_best_interval_found(self, submission: Submission, generator: InputGenerator) -> None:
        """Finds the fastest interval that fits."""
        drawn = [*(_case(generator) for _ in range(4)), *(_case(generator, smallest_may_win=False) for _ in range(3))]
        enough = {"fits": "all", "budget": "roomy", "equally fast": False, "without checkpointing": "fits"}
        rows = [enough, *full_rows(generator, _MEASURED, 3, _can_be_measured)]
        drawn += [_mixed_case(generator, row) for row in rows]
        cases = generator.shuffled([*drawn, {**_case(generator), "budget": 10}])
        seen = submission.numeric_probe("lab4.checkpointing.best", cases=cases)
        for case, chosen in zip(cases, seen.chosen, strict=True):
            fitting = [(took, peak, every) for every, took, peak in case["rows"] if peak <= case["budget"]]
            what = f"best_interval() of (interval, seconds, bytes) {case['rows']} within {case['budget']} bytes"
            if not fitting:
                require_equal(chosen, "ValueError", what=what, hint="nothing fits: say so")
                continue
            require(isinstance(chosen, dict), f"{what} raised {chosen}", "a peak equal to the budget still fits")
            wanted = min(fitting, key=lambda one: one[:2])[2]
            require_equal(
                chosen["checkpoint_every"], wanted, what=what, hint="the fastest of those that fit, then the smallest"
            )

    def test_nonsense_refused(self, submission: Submission) -> None:
        """Refuses arguments that make no sense."""
        judge_refusals(submission, "checkpointing")

    @builds_on("outputs_unchanged", "gradients_unchanged", "measured_table_equals_truth")
    def test_results_and_plot_saved(self, submission: Submission, generator: InputGenerator) -> None:
        """Saves the results and a plot."""
        # In four layers an interval fits into half of the peak, in one layer none does.
        for layers in ("4", "1"):
            rows = judge_program(submission, "gradient_checkpointing", ["--steps", "1", "--layers", layers])
            found = [row.get("checkpoint_every", "?") for row in rows if isinstance(row, dict)]
            require({None, 1} <= set(found), f"intervals in the results: {found}, expected none, 1 and others")
        judge_plot(submission, "checkpointing", generator)


def _batch_for(card: Card, sizes: Mapping[str, int]) -> int:
    """At most so many samples as are drawn: fewer on a slow card, and on one with little memory."""
    tokens, blocks = sizes["length"], sizes["num_layers"]
    work = 4 * 24 * blocks * tokens * sizes["width"] ** 2  # per sample: forward, forward again, twice as much backward
    held = 4 * SAMPLE_TENSORS * blocks * tokens * sizes["width"]
    most = min(REAL_STEP_SECONDS * card.flops["float32"] / work, REAL_MEMORY * card.free_bytes / held)
    return max(1, min(sizes["batch"], int(most)))


def _require_steps(forwards: list[list[dict[str, Any]]], steps: int) -> None:
    """Fail unless the forward passes of each model begin as a step does.

    Neither shows in the peak for sure: a variable that holds the output weighs as much as the input's gradient, and
    where activations are many those of a block outweigh what is cleared between forward and backward.
    """
    for passes in forwards:
        # A forward pass may itself ask its input for a gradient, so the first one counts as well.
        require(
            not all(begun["input_requires_gradient"] for begun in passes),
            "measure_checkpointing(): the model's input requires a gradient, which every step then computes and keeps",
            "an input is data: torch.randn(..., device=device), without requires_grad",
        )
        most = max(begun["gradients"] for begun in passes[-steps:])
        require(
            most == 0,
            f"measure_checkpointing(): when the forward pass of a timed step begins, {most} parameters have the "
            "gradients of the step before, expected None",
            "they lie beside the activations: model.zero_grad(set_to_none=True) before the forward pass",
        )


_WAYS: dict[str, Sequence[Any]] = {"interval": (None, 1, 2, 3, 4), "needed": (False, True), "passes": (1, 2)}
Way = tuple[int | None, bool, int]
"""An interval, whether the input requires a gradient, and the forward passes before one backward pass."""


_BY_DEFAULT: list[Way] = [(1, True, 1), (1, False, 1), (1, False, 2)]
"""The interval that a model has by default; with both kinds of input, and two forward passes before one backward."""


def _ways(generator: InputGenerator) -> list[Way]:
    # 2 does not divide the three blocks, and 4 is more than there are.
    ways: list[Way] = [(None, True, 1), (1, True, 1), (2, False, 1), (1, False, 2), (4, True, 1)]
    (row,) = generator.shared("lab4.ways").cases(_WAYS, 1)
    return [*ways, (row["interval"], row["needed"], row["passes"])]


def _trained(
    submission: Submission, generator: InputGenerator, case: dict[str, Any], ways: list[Way]
) -> list[tuple[Way, dict[str, Any], dict[str, Any]]]:
    """(way, what the student's model gave, what the plain chain of blocks gave), with both kinds of input."""
    seen = runs(submission.numeric_probe("lab4.checkpointing.equivalence", case=case, ways=ways))
    truth = runs(
        submission.numeric_probe(
            "lab4.checkpointing.equivalence",
            student=False,
            case=case,
            ways=[(None, needed, passes) for _, needed, passes in ways],
        )
    )
    return list(zip(ways, seen, truth, strict=True))


def _require_outputs(trained: Sequence[tuple[Way, dict[str, Any], dict[str, Any]]]) -> None:
    for (interval, _, _), seen, expected in trained:
        require_arrays_close(
            seen["output"],
            expected["output"],
            rtol=SAME,
            atol=SAME,
            what=f"output of CheckpointedTransformer in training with checkpoint_every={interval}, and the same seed",
            hint="the blocks one after the other, each once and in order",
        )
        require(
            not seen["input_changed"],
            f"with checkpoint_every={interval} the input, which required no gradient, requires one after the call",
            "it is the caller's: x.requires_grad_() changes it, and use_reentrant=False needs nothing of the kind",
        )


def _require_gradients(trained: Sequence[tuple[Way, dict[str, Any], dict[str, Any]]]) -> None:
    for (interval, _, passes), seen, expected in trained:
        what = f"checkpoint_every={interval}" + (", two forward passes before one backward" if passes > 1 else "")
        require_equal(
            seen["missing"],
            0,
            what=f"parameters without a gradient after backward, {what}",
            hint="with use_reentrant=True a checkpoint whose input requires no gradient passes none on",
        )
        require_arrays_close(
            seen["gradients"],
            expected["gradients"],
            rtol=SAME,
            atol=SAME,
            what=f"gradients of the parameters with dropout, {what}",
            hint=RNG_HINT,
        )
        require_arrays_close(
            seen["input_gradient"],
            expected["input_gradient"],
            rtol=SAME,
            atol=SAME,
            what=f"gradient of the input, {what}",
            hint="the gradient must pass through every segment",
        )
        for where, half in (("the device", slice(3)), ("the CPU", slice(3, 6))):
            require_arrays_close(
                seen["after"][half],
                expected["after"][half],
                rtol=SAME,
                what=f"random numbers that {where} draws after backward, {what}",
                hint=RNG_HINT,
            )


def _require_evaluated(submission: Submission, case: dict[str, Any], intervals: list[int | None]) -> None:
    """Fail unless nothing is dropped in evaluation mode."""
    seen = submission.numeric_probe("lab4.checkpointing.evaluation", case=case, intervals=intervals)
    truth = runs(
        submission.probe("lab4.checkpointing.evaluation", device="cpu", student=False, case=case, intervals=[None])
    )[0]
    for interval, run in zip(intervals, runs(seen), strict=True):
        for name, how in (("output", "with"), ("again", "without")):
            require_arrays_close(
                run[name],
                truth["output"],
                rtol=SAME,
                atol=SAME,
                what=f"output in evaluation mode {how} gradients, checkpoint_every={interval}",
                hint="no dropout in evaluation mode",
            )


def _case(generator: InputGenerator, *, smallest_may_win: bool = True) -> dict[str, Any]:
    """Measurements whose answer is known: the fastest is too large, two that fit are equally fast.

    The smallest may be one of these two, and then it is the answer, if `smallest_may_win`.
    """
    peaks = sorted(generator.integer(1000, 9000) for _ in range(5))
    budget = peaks[2]
    took = [generator.uniform(2.0, 3.0) for _ in range(3)]
    one, other = generator.shuffled(range(3))[:2] if smallest_may_win else (1, 2)
    took[one] = took[other] = min(took)
    *small, large = generator.shuffled((1, 2, 3, 4, 6, 8))[:4]
    rows: list[Any] = [[every, time, peak] for every, time, peak in zip(small, took, peaks[:3], strict=True)]
    rows += [[large, generator.uniform(1.0, 1.5), peaks[3] + 1], [None, 0.5, peaks[4] + 2]]
    return {"rows": [rows[index] for index in generator.shuffled(list(range(5)))], "budget": budget}


_MEASURED: dict[str, Sequence[Any]] = {
    "fits": ("none", "one", "some", "all"),
    "budget": ("exact", "roomy"),
    "equally fast": (False, True),
    "without checkpointing": ("fits", "does not"),
}


def _can_be_measured(row: Mapping[str, Any]) -> bool:
    fits, plain = row["fits"], row["without checkpointing"] == "fits"
    return not (
        (fits == "none" and (plain or row["equally fast"] or row["budget"] == "exact"))
        or (fits == "one" and row["equally fast"])
        or (fits == "all" and not plain)
    )


def _mixed_case(generator: InputGenerator, row: Mapping[str, Any]) -> dict[str, Any]:
    """Five measurements, of which so many fit, and two of these are equally fast or not."""
    peaks = sorted(int(peak) for peak in generator.rng.choice(range(1000, 9000, 10), 5, replace=False))
    fitting = {"none": 0, "one": 1, "some": generator.integer(2, 4), "all": 5}[row["fits"]]
    budget = peaks[fitting - 1] if fitting else peaks[0] - 9
    if fitting and row["budget"] == "roomy":
        budget += 5
    took = [generator.uniform(1.0, 3.0) for _ in peaks]
    if row["equally fast"]:
        one, other = generator.shuffled(list(range(fitting)))[:2]
        took[one] = took[other] = min(took) * generator.uniform(0.5, 0.9)
    plain = (
        generator.integer(0, fitting - 1) if row["without checkpointing"] == "fits" else generator.integer(fitting, 4)
    )
    if row["without checkpointing"] == "fits" and not row["equally fast"]:
        took[plain] = 0.9 * min(took)
    intervals: list[int | None] = list(generator.shuffled((1, 2, 3, 4, 6, 8))[:5])
    intervals[plain] = None
    rows = [[every, time, peak] for every, time, peak in zip(intervals, took, peaks, strict=True)]
    return {"rows": generator.shuffled(rows), "budget": budget}
