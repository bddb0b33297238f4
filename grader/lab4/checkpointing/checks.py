"""Judges Lab 4's checkpointing: nothing changes but memory and time, and both are measured right."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from numpy.typing import ArrayLike

from gradebox.course.criterion import builds_on, criterion, requires
from gradebox.run.assertions import (
    Cause,
    CheckFailed,
    mebibytes,
    picturing,
    recognising,
    require,
    require_arrays_close,
    require_between,
    require_close,
    require_equal,
    seconds,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab4.checkpointing.cases.draws import (
    ALL_OPTIONS,
    BY_DEFAULT,
    LAYERS,
    by_default,
    choices,
    kept_ways,
    long,
    made_up_results,
    measured,
    small,
    training_ways,
)
from grader.lab4.checkpointing.cases.types import (
    CPU_INTERVALS,
    Best,
    Choice,
    Equivalence,
    Evaluation,
    ForwardStart,
    KeptBytes,
    Measured,
    MeasuredReply,
    Model,
    Result,
    Saved,
    Sizes,
    TrainedRun,
    Way,
)
from grader.lab4.checkpointing.mistakes import NO_GRADIENT, ending_without_a_graph
from grader.lab4.checkpointing.reference import (
    CHOICE_MISTAKES,
    KEPT_MISTAKES,
    ChoiceMistake,
    KeptMistake,
    best_interval,
    chosen_with,
    kept_bytes,
    kept_with,
)
from grader.lab4.shared.cases import Shown
from grader.lab4.shared.checks import (
    MEBIBYTE,
    all_points,
    among,
    judge_plot,
    judge_program,
    judge_refusals,
    memory_bars,
)
from grader.shared.cards import Card, card_of

SAME = 1e-9
"""In float64; measured: 0 with the same operations in the same order, 1e-2 with other dropout masks."""
MEASURED = 0.03
REAL_TOLERANCE = 0.25
"""Beyond what the course's own steps took before and after: forward alone is a third of a step."""
REAL_STEP_SECONDS = 0.1
"""Of a step on a real card, where a batch of one sample allows it: a probe makes 50, and has a minute."""
REAL_MEMORY, SAMPLE_TENSORS = 0.4, 40
"""Of what is free of a real card's memory, and how many tensors like its input a block keeps of a sample at most."""
_OUTPUTS, _GRADIENTS = "lab4.checkpointing.outputs_unchanged", "lab4.checkpointing.gradients_unchanged"
_INPUT_CHANGED = Cause(
    "input_made_to_require_a_gradient",
    "Leave the caller's input as it is: use_reentrant=False needs no x.requires_grad_().",
    _OUTPUTS,
    mistake="The model changes its caller's input, which requires a gradient after the call",
)
_DROPS_IN_EVALUATION = Cause(
    "dropout_in_evaluation",
    "Run the blocks in the model's own mode: model.eval() switches dropout off in every block, and nothing may switch "
    "it on again.",
    _OUTPUTS,
    mistake="Dropout stays on in evaluation mode",
)
_OTHER_MASKS = Cause(
    "other_dropout_masks",
    "Let the second computation draw what the first one drew: preserve_rng_state=True, or a generator state kept for "
    "each forward pass.",
    _GRADIENTS,
    mistake="When backward computes a segment again, dropout draws other random numbers than the first time",
)
_NO_BACKWARD = Cause(
    "step_without_backward",
    "Time whole steps: gradients to None, forward, the mean of the squares, backward.",
    mistake="The measured step has no backward pass",
)
_NOT_THE_MEDIAN = Cause(
    "not_the_median",
    "Take the median of the single steps. One disturbed step must not decide the result.",
    mistake="step_seconds is not the median of the steps: one slow step decides it",
)


_SOME = 0.6
"""Of the products of what is computed again: PyTorch stops before the last one of a segment, a third of a block's."""
_KEPT_HINT = "Checkpoint every segment as one: it keeps its input, and nothing from inside it."
_KEPT: Mapping[KeptMistake, str] = {
    "nothing_checkpointed": "Nothing is checkpointed: a forward pass keeps every activation",
    "only_with_input_gradient": "Blocks are checkpointed only if the input requires a gradient",
    "interval_ignored": "The interval is ignored: every block is a segment of its own",
    "interval_taken_for_segments": "checkpoint_every is taken for the number of segments; it is their length in blocks",
    "one_block_per_interval": "Only one block per interval is checkpointed, and the others keep their activations",
    "only_the_first_segment": "Only the first segment is checkpointed",
}
_CHOSEN: Mapping[ChoiceMistake, tuple[str, str]] = {
    "budget_ignored": (
        "The fastest interval is chosen whether it fits into the budget or not",
        "Leave out what needs more than the budget first, and raise ValueError if nothing is left.",
    ),
    "smallest_peak": (
        "The interval with the smallest peak is chosen, not the fastest that fits",
        "Take the fastest interval that fits. The peak decides between equally fast ones only.",
    ),
    "never_without": (
        "Training without checkpointing (None) is never chosen, although it fits",
        "Treat None as any other interval, and test it with `is None`, not by its truth.",
    ),
    "ties_as_they_come": (
        "Of equally fast intervals the first is chosen, not the one with the smallest peak",
        "Compare by seconds and then by peak.",
    ),
    "full_budget_refused": (
        "A peak that is exactly the budget is taken for too large",
        "Compare with <=: exactly the budget is still allowed.",
    ),
}
_CHARGED_AT: Mapping[ChoiceMistake, str] = {"full_budget_refused": "lab4.checkpointing.full_budget_may_be_used"}
"""Mistakes that have a check of their own."""


@criterion("lab4.checkpointing")
class TestCheckpointing:
    def test_outputs_unchanged(self, submission: Submission, generator: InputGenerator) -> None:
        _require_outputs(_trained(submission, by_default(generator), BY_DEFAULT))
        _require_evaluated(submission, by_default(generator), [1])

    @builds_on("outputs_unchanged")
    def test_gradients_unchanged(
        self, submission: Submission, generator: InputGenerator, without: frozenset[str]
    ) -> None:
        case, ways = by_default(generator), BY_DEFAULT
        if without:  # the gradients of a wrong output are wrong as well
            ways = _fitting(submission, case, ways, _require_outputs)
        _require_gradients(submission, case, _trained(submission, case, ways))

    @builds_on("outputs_unchanged", "gradients_unchanged")
    def test_saved_bytes_follow_the_interval(
        self, submission: Submission, generator: InputGenerator, without: frozenset[str]
    ) -> None:
        case, ways = long(generator), kept_ways(generator)
        reply = submission.probe(Saved(case=case, ways=ways), values=False)
        unit, plain = float(reply.input_bytes), float(reply.runs[0].held_bytes)
        require(
            plain > 12 * LAYERS * unit,
            f"without checkpointing the forward pass keeps {mebibytes(plain)}, less than {LAYERS} blocks need",
            "Keep every activation with checkpoint_every=None.",
        )
        kept = [
            (way.interval, way.input_gradient, run)
            for way, run in zip(ways, reply.runs, strict=True)
            if way.interval is not None
        ]
        rows = [
            (str(every), run.held_bytes, kept_bytes(LAYERS, every, unit, plain).every_segment) for every, _, run in kept
        ]
        with (
            picturing(lambda: memory_bars("what the forward pass leaves, by interval", rows)),
            recognising(lambda: _kept_mistake(kept, unit, plain)),
        ):
            for interval, input_gradient, run in kept:
                _require_kept(interval, input_gradient, run, unit, plain)
                _require_computed_again(interval, run, reply.runs[0], unit)
        small_case, ways = small(generator), training_ways(generator)
        trained = _trained(submission, small_case, ways)
        # In a control experiment, only ways that go right if each block is a segment, which is the premises' interval.
        outputs_of = gradients_of = ways
        if "outputs_unchanged" in without:
            outputs_of = gradients_of = _fitting(submission, small_case, ways, _require_outputs)
        if "gradients_unchanged" in without:
            gradients_of = _fitting(
                submission, small_case, gradients_of, lambda rows: _require_gradients(submission, small_case, rows)
            )
        _require_outputs([row for row in trained if row[0] in outputs_of])
        _require_gradients(submission, small_case, [row for row in trained if row[0] in gradients_of])
        for way, of_way, _ in trained:
            require_equal(
                of_way.names,
                trained[0][1].names,
                what=f"names of the parameters with checkpoint_every={way.interval}",
                hint="Name the parameters as without checkpointing, so that one state dict fits every interval.",
            )
        if "outputs_unchanged" not in without or _holds(lambda: _require_evaluated(submission, small_case, [1])):
            _require_evaluated(submission, small_case, [None, 1])

    def test_no_recompute_in_evaluation(self, submission: Submission, generator: InputGenerator) -> None:
        case = by_default(generator)
        (run,) = submission.numeric_probe(Evaluation(case=case, intervals=[1])).runs
        (once,) = submission.numeric_probe(Evaluation(case=case, intervals=[None]), student=False).runs
        for flops, expected, how in (
            (run.flops, once.flops, "forward and backward"),
            (run.flops_without_gradients, once.flops_without_gradients, "under torch.no_grad()"),
        ):
            require_close(
                flops,
                expected,
                relative=0.01,  # one block computed twice adds 7 % and more
                what=f"work of CheckpointedTransformer in evaluation mode, {how}, in FLOPs of products",
                hint="Ask self.training and torch.is_grad_enabled() before you checkpoint.",
            )

    def test_measured_table_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        large = not submission.device.simulated
        inputs, card = measured(generator, large=large), card_of(submission)
        if card is not None:
            inputs = replace(inputs, sizes={**inputs.sizes, "batch": _batch_for(card, inputs.sizes)})
        sizes, steps, warmup = inputs.sizes, inputs.steps, inputs.warmup
        # One product of a timed step takes far too long: there are twelve and more per block and step.
        before = 12 * sizes["num_layers"] * (warmup + 2) + 5
        late = {"factor": 200.0, "skip": before, "count": 1, "min_flops": 2.0 * sizes["width"] ** 2}
        with ending_without_a_graph(submission, generator):
            reply = submission.probe(
                inputs,
                values=False,  # neither seconds nor peaks depend on them
                conditions=[late] if submission.device.simulated else [],
            )
        require_equal([row["checkpoint_every"] for row in reply.rows], inputs.intervals, what="intervals in the table")
        blocks = sizes["num_layers"] * len(reply.forwards)
        require(
            reply.blocks_made >= blocks,
            f"measure_checkpointing() made {reply.blocks_made} transformer blocks for {len(reply.forwards)} models, "
            f"expected {blocks}",
            "Make a CheckpointedTransformer of `num_layers` blocks, and leave PyTorch's hooks as they are.",
        )
        # Somebody may make a block in vain; those of two whole models are too many.
        require(
            reply.most_blocks < 2 * sizes["num_layers"],
            f"measure_checkpointing(): the model of one interval is still there when the next is made: "
            f"{reply.most_blocks} blocks at once, of models of {sizes['num_layers']}",
            "Let go of the model before the next one is made (`del model`): a loop's variable holds it until then.",
        )
        _require_steps(reply.forwards, steps)
        peaks = [
            (str(row["checkpoint_every"]), row["peak_bytes"], step.peak_bytes)
            for row, step in zip(reply.rows, reply.steps, strict=True)
        ]
        for row, step in zip(reply.rows, reply.steps, strict=True):
            what = f"measure_checkpointing(), interval {row['checkpoint_every']}"
            require_equal(row["device"], reply.device, what=f"{what}: device")
            slack = REAL_TOLERANCE if large else MEASURED
            low, high = min(step.seconds), max(step.seconds)
            with recognising(lambda: _seconds_of(submission, inputs, reply)):
                require_between(
                    row["step_seconds"],
                    low * (1 - slack),
                    high * (1 + slack),
                    what=f"{what}: step_seconds",
                    show=seconds,
                    expected=f"{seconds(low)} within {slack:.0%}",
                    hint="Take the median of single steps, each timed from an idle device to an idle device.",
                )
            with picturing(lambda: memory_bars("peak_bytes by interval", peaks)):
                require_close(
                    row["peak_bytes"],
                    step.peak_bytes,
                    relative=2 * MEASURED,  # the allocator leaves up to 1 MiB of each large block unsplit
                    what=f"{what}: peak_bytes",
                    show=mebibytes,
                    hint=_peak_hint(row["peak_bytes"], step.peak_bytes),
                )

        ran = reply.flops / sum(step.flops for step in reply.steps)
        # Somebody may run one more, to wake the libraries up.
        require(
            steps + warmup - 0.1 < ran < steps + warmup + 1.1,
            f"measure_checkpointing(steps={steps}, warmup={warmup}) ran {ran:.3g} steps per interval, expected "
            f"{steps + warmup}",
            "Time as many steps, after as many untimed ones, as the arguments say.",
        )
        require_equal(
            reply.updates,
            0,
            what="steps of an optimizer in measure_checkpointing()",
            hint="Leave the optimizer out: a step here is forward and backward.",
        )
        for row in reply.on_cpu:
            require_equal(
                [row["device"], row["peak_bytes"]],
                ["cpu", None],
                what='device and peak of measure_checkpointing(device="cpu")',
                hint="Report None: PyTorch does not count the memory of a CPU.",
            )
        require_equal(
            [row["checkpoint_every"] for row in reply.on_cpu],
            list(CPU_INTERVALS),
            what='intervals in the table of measure_checkpointing(device="cpu") of a model of 2 blocks',
            hint="Give one row for each interval, with the interval as it was passed, in the order of `intervals`.",
        )

    def test_best_interval_found(self, submission: Submission, generator: InputGenerator) -> None:
        cases = choices(generator)
        reply = submission.numeric_probe(Best(cases=cases))
        with recognising(lambda: _choice_mistake(cases, reply.chosen)):
            for case, chosen in zip(cases, reply.chosen, strict=True):
                _require_best(case, chosen)

    @requires("best_interval_found")
    def test_full_budget_may_be_used(self, submission: Submission, generator: InputGenerator) -> None:
        budget, interval = generator.integer(1000, 9000), generator.integer(1, 8)
        reply = submission.numeric_probe(Best(cases=[Choice([(interval, 1.0, budget)], budget)]))
        (chosen,) = reply.chosen
        require_equal(
            chosen["checkpoint_every"] if isinstance(chosen, dict) else chosen,
            interval,
            what=f"best_interval() of one result whose peak is the budget, {budget} bytes",
            hint=choice_cause("full_budget_refused"),
        )

    def test_nonsense_refused(self, submission: Submission) -> None:
        judge_refusals(submission, "checkpointing")

    def test_results_and_plot_saved(self, submission: Submission, generator: InputGenerator) -> None:
        # In four layers an interval fits into half of the peak, in one layer none does.
        for layers in ("4", "1"):
            with ending_without_a_graph(submission, generator):
                rows = judge_program(submission, "gradient_checkpointing", ["--steps", "1", "--layers", layers])
            intervals = [row.get("checkpoint_every", "?") for row in rows if isinstance(row, dict)]
            require({None, 1} <= set(intervals), f"intervals in the results: {intervals}, expected none, 1 and others")
        judge_plot(
            submission, "checkpointing", made_up_results(generator.shared("lab4.plots.checkpointing")), require_shown
        )


def require_shown(shown: Shown, rows: list[Result]) -> None:
    """Fail unless the plot shows these results: a point for each, in milliseconds and MiB."""
    points = [point for axes in shown.axes for point in all_points(axes)]
    for row in rows:
        expected = (row["step_seconds"] * 1e3, row["peak_bytes"] / MEBIBYTE)
        require(
            among(points, expected),
            f"plot_checkpointing() has no point at {expected[0]:.4g} ms and {expected[1]:.5g} MiB, for {row}",
            "Draw milliseconds to the right and MiB upwards: 1 MiB has 2**20 bytes.",
        )
        every = row["checkpoint_every"]
        require(
            every is None or any(re.search(rf"\b{every}\b", text) for text in (*shown.texts, *shown.legend)),
            f"plot_checkpointing() does not say which point is that of interval {every}",
            "Write the interval next to its point.",
        )


def _require_best(case: Choice, chosen: Mapping[str, object] | str) -> None:
    """Fail unless the interval is the fastest of those within the budget, then the smallest."""
    rows = ", ".join(f"{every}: {took:.4g} s, {peak} bytes" for every, took, peak in case.rows)
    what = f"best_interval() within {case.budget} bytes, of the intervals {{{rows}}}"
    if not case.fitting:
        hint = "Raise ValueError if nothing fits."
        require(chosen == "ValueError", f"{what}: chose {_interval_of(chosen)}, expected a ValueError", hint)
        return
    if not isinstance(chosen, dict):
        raise CheckFailed(f"{what} raised {chosen}", "Accept a peak that is equal to the budget: it still fits.")
    require_equal(
        chosen["checkpoint_every"],
        best_interval(case),
        what=what,
        hint="Take the fastest interval that fits, and of equally fast ones the smallest.",
    )


def _interval_of(chosen: Mapping[str, object] | str) -> object:
    return chosen if isinstance(chosen, str) else chosen["checkpoint_every"]


def _choice_mistake(cases: Sequence[Choice], chosen: Sequence[Mapping[str, object] | str]) -> Cause | None:
    """The mistake that explains all choices."""
    for mistake in CHOICE_MISTAKES:
        rows = [chosen_with(mistake, case) for case in cases]
        expected = ["ValueError" if row is None else row[0] for row in rows]
        if [_interval_of(each) for each in chosen] == expected:
            return choice_cause(mistake)
    return None


def choice_cause(mistake: ChoiceMistake) -> Cause:
    """The mistake as a hint that names it."""
    text, hint = _CHOSEN[mistake]
    return Cause(f"best interval: {mistake}", hint, _CHARGED_AT.get(mistake, ""), mistake=text)


def _kept_mistake(kept: Sequence[tuple[int, bool, KeptBytes]], unit: float, plain: float) -> Cause | None:
    """The mistake that explains what is held with every interval."""
    graphs = [
        abs(run.held_bytes - (kept_bytes(LAYERS, interval, unit, plain).every_segment if needed else unit))
        < (1.3 if needed else 0.5) * unit
        for interval, needed, run in kept
    ]
    if all(graphs) and not all(needed for _, needed, _ in kept):
        return NO_GRADIENT  # without a graph the output alone is left

    def explains(mistake: KeptMistake) -> bool:
        return all(
            abs(run.held_bytes - expected) <= 1.3 * unit + 0.03 * expected
            for interval, needed, run in kept
            for expected in [kept_with(mistake, LAYERS, interval, unit, plain, input_gradient=needed)]
        )

    mistake = next((mistake for mistake in KEPT_MISTAKES if explains(mistake)), None)
    return None if mistake is None else Cause(f"kept bytes: {mistake}", _KEPT_HINT, mistake=_KEPT[mistake])


def _require_kept(interval: int, input_gradient: bool, run: KeptBytes, unit: float, plain: float) -> None:
    """Fail unless a forward pass keeps the inputs of segments alone; without checkpointing it keeps `plain` bytes."""
    # One tensor per segment and the output, the model's own input aside. Room for a copy of that input. Or the last
    # segment kept as a whole. Bugs measured: first segment only, 10 times as much; interval ignored, 3 times; none, 20.
    expected = kept_bytes(LAYERS, interval, unit, plain)
    fits = any(
        abs(run.held_bytes - held) <= 1.3 * unit + 0.03 * (held - expected.every_segment)
        for held in (expected.every_segment, expected.all_but_last)
    )
    require(
        fits,
        f"a forward pass with checkpoint_every={interval} and an input that requires {'a' if input_gradient else 'no'} "
        f"gradient leaves {mebibytes(run.held_bytes)}, without checkpointing {mebibytes(plain)}; expected about "
        f"{mebibytes(expected.every_segment)}: {expected.segments} tensors of {unit:,.0f} bytes",
        _KEPT_HINT,
    )
    require(
        run.saved_bytes <= expected.all_but_last + 2.3 * unit,
        f"with checkpoint_every={interval} {mebibytes(run.saved_bytes)} were saved for backward, expected at most "
        f"{mebibytes(expected.all_but_last)}",
        _KEPT_HINT,
    )


def _require_computed_again(interval: int, run: KeptBytes, plain: KeptBytes, unit: float) -> None:
    """Fail unless backward computes what was not kept, and nothing was sent to the host instead."""
    again = plain.forward_flops * kept_bytes(LAYERS, interval, unit, 0.0).computed_again
    least = 0.99 * plain.backward_flops + _SOME * again
    require(
        run.backward_flops >= least,
        f"backward with checkpoint_every={interval} computes products of {run.backward_flops:.4g} FLOPs, without "
        f"checkpointing {plain.backward_flops:.4g}; expected {least:.4g} at least",
        "Keep the input of each segment alone, and compute the segment again in backward.",
    )
    require(
        run.copied_bytes is None or run.copied_bytes < unit / 2,
        f"a forward pass with checkpoint_every={interval} copies {mebibytes(run.copied_bytes or 0)} to the host",
        "Compute a segment again in backward; what it keeps does not leave the device.",
    )


def _peak_hint(peak: object, expected: float) -> str:
    if isinstance(peak, (int, float)) and peak < expected:
        return "Report the most that was allocated during the steps (the peak), not what is left at their end."
    return "Reset the peak after the warm-up, and let go of the interval before: its model, its input, its gradients."


def _seconds_of(submission: Submission, inputs: Measured, reply: MeasuredReply) -> Cause | None:
    """The mistake that explains the seconds of a step, if they are those of a simulated device."""
    if not submission.device.simulated:
        return None
    # Without checkpointing, backward takes twice as many products as forward.
    plain = next((step.flops for step, every in zip(reply.steps, inputs.intervals, strict=True) if every is None), 0.0)
    forwards = reply.flops / (plain / 3 * len(inputs.intervals)) if plain else 0.0
    steps = inputs.steps + inputs.warmup
    if steps - 0.1 < forwards < steps + 1.1:
        return _NO_BACKWARD
    steady = submission.probe(inputs, values=False)
    right = all(
        _holds(lambda: require_close(row["step_seconds"], step.seconds[0], relative=MEASURED, what=""))  # noqa: B023
        for row, step in zip(steady.rows, steady.steps, strict=True)
    )
    return _NOT_THE_MEDIAN if right else None


def _batch_for(card: Card, sizes: Sizes) -> int:
    """At most so many samples as are drawn: fewer on a slow card, and on one with little memory."""
    tokens, blocks = sizes["length"], sizes["num_layers"]
    work = 4 * 24 * blocks * tokens * sizes["width"] ** 2  # per sample: forward, forward again, twice as much backward
    held = 4 * SAMPLE_TENSORS * blocks * tokens * sizes["width"]
    most = min(REAL_STEP_SECONDS * card.flops["float32"] / work, REAL_MEMORY * card.free_bytes / held)
    return max(1, min(sizes["batch"], int(most)))


def _require_steps(forwards: list[list[ForwardStart]], steps: int) -> None:
    """Fail unless the forward passes of each model begin as a step does.

    Neither shows in the peak for sure: a variable that holds the output weighs as much as the input's gradient, and
    where activations are many those of a block outweigh what is cleared between forward and backward.
    """
    for passes in forwards:
        # A forward pass may itself ask its input for a gradient, so the first one counts as well.
        require(
            not all(start.input_requires_gradient for start in passes),
            "measure_checkpointing(): the model's input requires a gradient, which every step then computes and keeps",
            "Make the input as data: torch.randn(..., device=device), without requires_grad.",
        )
        most = max(start.gradients for start in passes[-steps:])
        require(
            most == 0,
            f"measure_checkpointing(): when the forward pass of a timed step begins, {most} parameters have the "
            "gradients of the step before, expected None",
            "Call model.zero_grad(set_to_none=True) before the forward pass: else they are next to the activations.",
        )


Trained: TypeAlias = tuple[Way, TrainedRun, TrainedRun]
"""A way, what the student's model gave, and what the plain chain of blocks gave."""


def _trained(submission: Submission, case: Model, ways: list[Way]) -> list[Trained]:
    """The model trained in each of these ways."""
    runs = submission.numeric_probe(Equivalence(case=case, ways=ways)).runs
    plain = [replace(way, interval=None) for way in ways]
    expected = submission.numeric_probe(Equivalence(case=case, ways=plain), student=False).runs
    return list(zip(ways, runs, expected, strict=True))


def _require_outputs(trained: Sequence[Trained]) -> None:
    for way, run, expected in trained:
        require_arrays_close(
            run.output,
            expected.output,
            rtol=SAME,
            atol=SAME,
            what=f"output of CheckpointedTransformer in training with checkpoint_every={way.interval}, and the same "
            "seed",
            hint="Run the blocks one after the other, each once and in order.",
        )
        require(
            not run.input_changed,
            f"with checkpoint_every={way.interval} the input, which required no gradient, requires one after the call",
            _INPUT_CHANGED,
        )


def _require_gradients(submission: Submission, case: Model, trained: Sequence[Trained]) -> None:
    for way, run, expected in trained:
        what = f"checkpoint_every={way.interval}"
        if way.passes > 1:
            what += ", two forward passes before one backward"
        none_at_all = run.missing == len(run.names) and not way.input_gradient
        require_equal(
            run.missing,
            0,
            what=f"parameters without a gradient after backward, {what}, of an input that requires "
            f"{'a' if way.input_gradient else 'no'} gradient",
            hint=NO_GRADIENT if none_at_all else "Let the gradient pass through every segment to all parameters.",
        )
        with recognising(lambda: _masks_of(submission, case, way)):  # noqa: B023 - called in here
            require_arrays_close(
                run.gradients,
                expected.gradients,
                rtol=SAME,
                atol=SAME,
                what=f"gradients of the parameters with dropout, {what}",
            )
        with recognising(lambda: _masks_of(submission, case, way)):  # noqa: B023 - called in here
            require_arrays_close(
                run.input_gradient,
                expected.input_gradient,
                rtol=SAME,
                atol=SAME,
                what=f"gradient of the input, {what}",
            )
        for where, half in (("the device", slice(3)), ("the CPU", slice(3, 6))):
            require_arrays_close(
                run.after[half],
                expected.after[half],
                rtol=SAME,
                what=f"random numbers that {where} draws after backward, {what}",
                hint="Put the generators back after the second computation, so that they go on as if there had been "
                "none.",
            )


def _masks_of(submission: Submission, case: Model, way: Way) -> Cause | None:
    """Whether gradients are wrong with dropout alone: without it, those of the same model and way are right."""
    still = replace(case, dropout=0.0, options=ALL_OPTIONS)
    ((_, run, expected),) = _trained(submission, still, [way])
    right = (run.gradients, run.input_gradient), (expected.gradients, expected.input_gradient)
    return _OTHER_MASKS if _holds(lambda: _require_all_close(*right)) else None


def _dropout_of(submission: Submission, case: Model, interval: int | None) -> Cause | None:
    """Whether an output in evaluation mode is wrong with dropout alone: without it, that of the same model is right."""
    still = replace(case, dropout=0.0, options=ALL_OPTIONS)
    (run,) = submission.numeric_probe(Evaluation(case=still, intervals=[interval])).runs
    (plain,) = submission.probe(Evaluation(case=still, intervals=[None]), device="cpu", student=False).runs
    right = (run.output, run.again), (plain.output, plain.output)
    return _DROPS_IN_EVALUATION if _holds(lambda: _require_all_close(*right)) else None


def _require_all_close(observed: Sequence[object], expected: Sequence[ArrayLike]) -> None:
    for actual, right in zip(observed, expected, strict=True):
        require_arrays_close(actual, right, rtol=SAME, atol=SAME, what="without dropout")


def _holds(requirement: Callable[[], None]) -> bool:
    try:
        requirement()
    except CheckFailed:
        return False
    return True


def _fitting(
    submission: Submission, case: Model, ways: Sequence[Way], requirement: Callable[[Sequence[Trained]], None]
) -> list[Way]:
    """Of some ways those in which a requirement holds if every block is checkpointed by itself, as by default."""
    by_block = _trained(submission, case, [replace(way, interval=1) for way in ways])
    return [way for way, row in zip(ways, by_block, strict=True) if _holds(lambda: requirement([row]))]  # noqa: B023


def _require_evaluated(submission: Submission, case: Model, intervals: list[int | None]) -> None:
    """Fail unless nothing is dropped in evaluation mode."""
    runs = submission.numeric_probe(Evaluation(case=case, intervals=intervals)).runs
    (plain,) = submission.probe(Evaluation(case=case, intervals=[None]), device="cpu", student=False).runs
    for interval, run in zip(intervals, runs, strict=True):
        for output, how in ((run.output, "with"), (run.again, "without")):
            with recognising(lambda: _dropout_of(submission, case, interval)):  # noqa: B023 - called in here
                require_arrays_close(
                    output,
                    plain.output,
                    rtol=SAME,
                    atol=SAME,
                    what=f"output in evaluation mode {how} gradients, checkpoint_every={interval}",
                    hint="Run every block once and in order, in evaluation mode as well.",
                )
