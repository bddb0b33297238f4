"""Judges Lab 4's prediction of memory, against what a step of the course's own models holds, and its report."""

from __future__ import annotations

from collections.abc import Callable

from gradebox.course.criterion import builds_on, criterion
from gradebox.run.assertions import mebibytes, picturing, require, require_between
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab4.analysis.cases import Part, Predictions, Setup, Steps, made_up_results, setups_of
from grader.lab4.analysis.checks import report
from grader.lab4.analysis.checks.plot import require_shown
from grader.lab4.shared.checks import judge_plot, judge_program, judge_refusals, memory_bars

WITHIN = 0.05
"""What the task asks for; the reference is right to 1e-5. The mistakes seen are off by 10 percent and more."""


@criterion("lab4.analysis")
class TestAnalysis:
    def test_parameters_and_gradients_predicted(self, submission: Submission, generator: InputGenerator) -> None:
        hint = "weights and biases, 4 bytes each, in any precision"
        _judge(submission, generator, "parameter_bytes", lambda setup: True, hint)
        _judge(submission, generator, "gradient_bytes", lambda setup: True, hint)

    @builds_on("parameters_and_gradients_predicted")
    def test_optimizer_state_predicted(self, submission: Submission, generator: InputGenerator) -> None:
        hint = "Adam keeps two numbers per parameter, momentum one, plain SGD none"
        _judge(submission, generator, "optimizer_state_bytes", lambda setup: True, hint)

    def test_activations_predicted(self, submission: Submission, generator: InputGenerator) -> None:
        hint = "go through a layer: what does each operation need in backward, and which two keep the same tensor?"

        def plain(setup: Setup) -> bool:
            return setup["dtype"] == "float32" and setup["checkpoint_every"] is None

        _judge(submission, generator, "activation_bytes", plain, hint)
        setups = setups_of(generator)
        flops = submission.numeric_probe(Predictions(setups=setups)).flops
        require(
            flops == 0,
            f"predict_memory() of {len(setups)} setups computed {flops:.3g} FLOPs in matrix products",
            "a prediction is worked out from the numbers of the setup: no model is made, and nothing is run",
        )

    @builds_on("activations_predicted")
    def test_mixed_precision_activations_predicted(self, submission: Submission, generator: InputGenerator) -> None:
        hint = "2 bytes behind linear layers and attention, 4 on the path of the sums; copies of the weights, too"

        def mixed(setup: Setup) -> bool:
            return setup["dtype"] != "float32" and setup["checkpoint_every"] is None

        _judge(submission, generator, "activation_bytes", mixed, hint)

    @builds_on("activations_predicted")
    def test_checkpointed_activations_predicted(self, submission: Submission, generator: InputGenerator) -> None:
        hint = "the input of each segment but the model's own, and the output; the short last segment counts as well"
        _judge(submission, generator, "activation_bytes", lambda setup: setup["checkpoint_every"] is not None, hint)

    def test_nonsense_refused(self, submission: Submission) -> None:
        judge_refusals(submission, "analysis")

    def test_results_and_plot_saved(self, submission: Submission, generator: InputGenerator) -> None:
        rows = judge_program(submission, "memory_analysis", [])
        require(
            all(isinstance(row, dict) and {"setup", "predicted", "measured"} <= row.keys() for row in rows),
            "the results of memory_analysis are no comparisons of predicted and measured",
            "save_json(path, comparisons, device.provenance())",
        )
        judge_plot(submission, "memory", made_up_results(generator.shared("lab4.plots.memory")), require_shown)

    def test_report_agrees_with_results(self, submission: Submission) -> None:
        report.judge(submission)


def _judge(
    submission: Submission, generator: InputGenerator, part: Part, chosen: Callable[[Setup], bool], hint: str
) -> None:
    """Compare one part of the predictions with what a step holds, for the chosen setups."""
    setups = setups_of(generator)
    predictions = submission.numeric_probe(Predictions(setups=setups)).predictions
    # A T4 has no fused attention for bfloat16; both 16-bit types take the same.
    run: list[Setup] = [{**setup, "dtype": setup["dtype"].replace("bfloat16", "float16")} for setup in setups]
    steps = submission.probe(Steps(setups=run), values=False, student=False).steps
    rows = [
        (setup, prediction[part], step[part])
        for setup, prediction, step in zip(setups, predictions, steps, strict=True)
        if chosen(setup)
    ]
    bars = [(_short(setup), prediction, expected) for setup, prediction, expected in rows]
    with picturing(lambda: memory_bars(f"{part} of each setup", bars)):
        for setup, prediction, expected in rows:
            slack = WITHIN * expected + 4096  # plain SGD keeps nothing; Adam keeps its count of steps elsewhere
            require_between(
                prediction,
                expected - slack,
                expected + slack,
                what=f"predict_memory() of {setup}: {part}",
                show=mebibytes,
                expected=f"{mebibytes(expected)} within {WITHIN:.0%}",
                hint=hint,
            )


def _short(setup: Setup) -> str:
    every = setup["checkpoint_every"]
    return f"{setup['model']}, {setup['optimizer']}, {setup['dtype']}" + (f", every {every}" if every else "")
