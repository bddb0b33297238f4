"""Judges Lab 4's checkpointing: nothing changes but memory and time, and both are measured right."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gradebox.course.criterion import builds_on, criterion, requires
from gradebox.run.assertions import (
    Cause,
    CheckFailed,
    mebibytes,
    picturing,
    recognising,
    require,
    require_between,
    require_close,
    require_equal,
    seconds,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab4.checkpointing.cases.draws import (
    BY_DEFAULT,
    by_default,
    choices,
    kept_ways,
    long,
    made_up_results,
    measured,
    small,
    training_ways,
)
from grader.lab4.checkpointing.cases.types import CPU_INTERVALS, Best, Choice, Evaluation, Result, Saved
from grader.lab4.checkpointing.checks.kept import (
    kept_mistake,
    require_computed_again,
    require_kept,
    require_kept_where_compared,
)
from grader.lab4.checkpointing.checks.timed import (
    MEASURED,
    REAL_TOLERANCE,
    batch_for,
    peak_hint,
    require_steps,
    require_whole_steps,
    seconds_of,
)
from grader.lab4.checkpointing.checks.trained import (
    fitting,
    holds,
    require_evaluated,
    require_gradients,
    require_outputs,
    require_own_gradients,
    train,
)
from grader.lab4.checkpointing.mistakes import ending_without_a_graph
from grader.lab4.checkpointing.reference import (
    CHOICE_MISTAKES,
    ChoiceMistake,
    best_interval,
    chosen_with,
    kept_bytes,
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
from grader.shared.cards import card_of

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
        require_outputs(train(submission, by_default(generator), BY_DEFAULT))
        require_evaluated(submission, by_default(generator), [1])

    @builds_on("outputs_unchanged")
    def test_gradients_unchanged(
        self, submission: Submission, generator: InputGenerator, without: frozenset[str]
    ) -> None:
        case = by_default(generator)
        if without:  # the gradients of a wrong output are others, but still its own
            require_own_gradients(submission, case, BY_DEFAULT)
        else:
            require_gradients(submission, case, train(submission, case, BY_DEFAULT))

    @builds_on("outputs_unchanged", "gradients_unchanged")
    def test_saved_bytes_follow_the_interval(
        self, submission: Submission, generator: InputGenerator, without: frozenset[str]
    ) -> None:
        case = long(generator)
        layers, ways = case.layers, kept_ways(generator, case.layers)
        reply = submission.probe(Saved(case=case, ways=ways), values=False)
        unit, plain = float(reply.input_bytes), float(reply.runs[0].held_bytes)
        require(
            plain > 12 * layers * unit,
            f"without checkpointing the forward pass keeps {mebibytes(plain)}, less than {layers} blocks need",
            "Keep every activation with checkpoint_every=None.",
        )
        kept = [
            (way.interval, way.input_gradient, run)
            for way, run in zip(ways, reply.runs, strict=True)
            if way.interval is not None
        ]
        rows = [
            (str(every), run.held_bytes, kept_bytes(layers, every, unit, plain).every_segment) for every, _, run in kept
        ]
        with (
            picturing(lambda: memory_bars("what the forward pass leaves, by interval", rows)),
            recognising(lambda: kept_mistake(layers, kept, unit, plain)),
        ):
            for interval, input_gradient, run in kept:
                require_kept(layers, interval, input_gradient, run, unit, plain)
                require_computed_again(layers, interval, run, reply.runs[0], unit)
        small_case, ways = small(generator), training_ways(generator)
        trained = train(submission, small_case, ways)
        # In a control experiment, only ways that go right if each block is a segment, which is the premises' interval.
        outputs_of = gradients_of = ways
        if "outputs_unchanged" in without:
            outputs_of = gradients_of = fitting(submission, small_case, ways, require_outputs)
        if "gradients_unchanged" in without:
            gradients_of = fitting(
                submission, small_case, gradients_of, lambda rows: require_gradients(submission, small_case, rows)
            )
        require_outputs([row for row in trained if row[0] in outputs_of])
        require_gradients(submission, small_case, [row for row in trained if row[0] in gradients_of])
        require_kept_where_compared(small_case.layers, [row for row in trained if row[0] in gradients_of])
        for way, of_way, _ in trained:
            require_equal(
                of_way.names,
                trained[0][1].names,
                what=f"names of the parameters with checkpoint_every={way.interval}",
                hint="Name the parameters as without checkpointing, so that one state dict fits every interval.",
            )
        if "outputs_unchanged" not in without or holds(lambda: require_evaluated(submission, small_case, [1])):
            require_evaluated(submission, small_case, [None, 1])

    def test_no_recompute_in_evaluation(self, submission: Submission, generator: InputGenerator) -> None:
        case = by_default(generator)
        named = replace(case, options=("checkpoint_every",))
        interval = generator.integer(2, case.layers)
        (once,) = submission.numeric_probe(Evaluation(case=case, intervals=[None]), student=False).runs
        for model, every, said in ((case, 1, ""), (named, interval, f", checkpoint_every={interval}")):
            (run,) = submission.numeric_probe(Evaluation(case=model, intervals=[every])).runs
            for flops, expected, how in (
                (run.flops, once.flops, "forward and backward"),
                (run.flops_without_gradients, once.flops_without_gradients, "under torch.no_grad()"),
            ):
                require_close(
                    flops,
                    expected,
                    relative=0.01,  # one block computed twice adds 7 % and more
                    what=f"work of CheckpointedTransformer in evaluation mode{said}, {how}, in FLOPs of products",
                    hint="Ask self.training and torch.is_grad_enabled() before you checkpoint.",
                )

    def test_measured_table_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        large = not submission.device.simulated
        inputs, card = measured(generator, large=large), card_of(submission)
        if card is not None:
            inputs = replace(inputs, sizes={**inputs.sizes, "batch": batch_for(card, inputs.sizes)})
        sizes, steps, warmup = inputs.sizes, inputs.steps, inputs.warmup
        # Products take longer than their launches. Of two timed steps one product takes far too long, and another
        # twelve next to no time: there are twelve and more per block and step, sixteen if forward is computed again.
        products = (12 if inputs.intervals[0] is None else 16) * sizes["num_layers"]
        least = 2.0 * sizes["width"] ** 2
        before = products * (warmup + 2) + 5
        uneven = [
            {"factor": 10.0, "min_flops": least},
            {"factor": 200.0, "skip": before, "count": 1, "min_flops": least},
            {"factor": 0.05, "skip": before - products, "count": 12, "min_flops": least},
        ]
        with ending_without_a_graph(submission, generator):
            reply = submission.probe(
                inputs,
                values=False,  # neither seconds nor peaks depend on them
                conditions=uneven if submission.device.simulated else [],
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
        require_steps(reply.forwards, steps)
        require_whole_steps(inputs, reply)
        peaks = [
            (str(row["checkpoint_every"]), row["peak_bytes"], step.peak_bytes)
            for row, step in zip(reply.rows, reply.steps, strict=True)
        ]
        for row, step in zip(reply.rows, reply.steps, strict=True):
            what = f"measure_checkpointing(), interval {row['checkpoint_every']}"
            require_equal(row["device"], reply.device, what=f"{what}: device")
            slack = REAL_TOLERANCE if large else MEASURED
            low, high = min(step.seconds), max(step.seconds)
            with recognising(lambda: seconds_of(submission, inputs, reply)):
                require_between(
                    row["step_seconds"],
                    low * (1 - slack),
                    high * (1 + slack),
                    what=f"{what}: step_seconds",
                    show=seconds,
                    expected=f"{seconds(low)} within {slack:.0%}",
                    hint="Time a step alone: gradients to None, forward, mean of squares, backward. The model and its "
                    "input are on the device before. Take the median of steps from an idle device to an idle one.",
                )
            with picturing(lambda: memory_bars("peak_bytes by interval", peaks)):
                require_close(
                    row["peak_bytes"],
                    step.peak_bytes,
                    relative=2 * MEASURED,  # the allocator leaves up to 1 MiB of each large block unsplit
                    what=f"{what}: peak_bytes",
                    show=mebibytes,
                    hint=peak_hint(row["peak_bytes"], step.peak_bytes),
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

    def test_nonsense_refused(self, submission: Submission, generator: InputGenerator) -> None:
        judge_refusals(submission, generator, "checkpointing")

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
    right = [(row["step_seconds"] * 1e3, row["peak_bytes"] / MEBIBYTE) for row in rows]
    others = sum(not any(among([point], place) for place in right) for point in points)
    require(
        others <= len(rows),  # lines may end elsewhere
        f"plot_checkpointing() has {others} points that are those of no interval, in milliseconds and MiB",
        "Draw one point per interval.",
    )
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
