"""Judges Lab 4's prediction of memory, against what a step of the course's own models holds, and its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradebox.course.criterion import builds_on, criterion
from gradebox.run.assertions import (
    Cause,
    mebibytes,
    picturing,
    recognising,
    require,
    require_between,
    require_equal,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab4.analysis.cases import Part, Predictions, Setup, Steps, made_up_results, setups_of
from grader.lab4.analysis.checks import report
from grader.lab4.analysis.checks.plot import require_shown
from grader.lab4.analysis.reference import CHECKPOINTED, NEAR, PLAIN, Mistake, mistake_in, numbers_per_parameter
from grader.lab4.checkpointing.mistakes import ending_without_a_graph
from grader.lab4.shared.cases import Fields
from grader.lab4.shared.checks import judge_plot, judge_program, judge_refusals, memory_bars

WITHIN = 0.05
"""What the task asks for; the reference is right to 1e-5. The mistakes seen are off by 10 percent and more."""
_NUMBERS = {"sgd": 0, "momentum": 1, "adam": 2}
"""Numbers per parameter that an optimizer keeps."""


@criterion("lab4.analysis")
class TestAnalysis:
    def test_parameters_and_gradients_predicted(self, submission: Submission, generator: InputGenerator) -> None:
        hint = "Count weights and biases with 4 bytes each, in every precision: autocast leaves them in float32."
        parts: tuple[Part, ...] = ("parameter_bytes", "gradient_bytes")
        for part in parts:
            with recognising(lambda: _halved(submission, generator, part)):  # noqa: B023 - called in here
                _judge(submission, generator, part, lambda setup: True, hint)

    @builds_on("parameters_and_gradients_predicted")
    def test_optimizer_state_predicted(
        self, submission: Submission, generator: InputGenerator, without: frozenset[str]
    ) -> None:
        hint = "Count two numbers per parameter for Adam, one for momentum, and none for plain SGD, each of 4 bytes."
        setups = setups_of(generator)
        if without:  # so many numbers per parameter, of as many parameters as are predicted
            predictions = list(zip(setups, _predictions(submission, setups), strict=True))
            for optimizer, expected in _NUMBERS.items():
                ratio = numbers_per_parameter(predictions, optimizer)
                require_equal(ratio, expected, what=f"numbers per parameter that {optimizer} keeps", hint=hint)
            return
        with recognising(lambda: _state_of(submission, setups)):
            _judge(submission, generator, "optimizer_state_bytes", lambda setup: True, hint)

    def test_activations_predicted(self, submission: Submission, generator: InputGenerator) -> None:
        hint = (
            "Go through a layer, operation by operation: what does each need in backward, and which two keep the same "
            "tensor?"
        )

        def plain(setup: Setup) -> bool:
            return setup["dtype"] == "float32" and setup["checkpoint_every"] is None

        _judge(submission, generator, "activation_bytes", plain, hint, PLAIN)
        setups = setups_of(generator)
        reply = submission.numeric_probe(Predictions(setups=setups))
        flops = reply.flops + reply.host_flops
        require(
            flops == 0,
            f"predict_memory() runs a model: for {len(setups)} setups it computed {flops:.3g} FLOPs in matrix "
            "products, expected 0",
            "Work the prediction out from the numbers of the setup: make no model, and run nothing.",
        )

    def test_mixed_precision_activations_predicted(self, submission: Submission, generator: InputGenerator) -> None:
        hint = (
            "Count 2 bytes per number behind linear layers and attention, 4 on the path of the sums, and 2 per weight "
            "that is copied."
        )

        def mixed(setup: Setup) -> bool:
            return setup["dtype"] != "float32" and setup["checkpoint_every"] is None

        _judge(submission, generator, "activation_bytes", mixed, hint, PLAIN)

    def test_checkpointed_activations_predicted(self, submission: Submission, generator: InputGenerator) -> None:
        hint = (
            "Count the input of each segment except the model's own, and the output, with 4 bytes per number. A short "
            "last segment is a segment."
        )

        def checkpointed(setup: Setup) -> bool:
            return setup["checkpoint_every"] is not None

        _judge(submission, generator, "activation_bytes", checkpointed, hint, CHECKPOINTED)

    def test_nonsense_refused(self, submission: Submission, generator: InputGenerator) -> None:
        judge_refusals(submission, generator, "analysis")

    def test_results_and_plot_saved(self, submission: Submission, generator: InputGenerator) -> None:
        with ending_without_a_graph(submission, generator):
            rows = judge_program(submission, "memory_analysis", [])
        require(
            all(isinstance(row, dict) and {"setup", "predicted", "measured"} <= row.keys() for row in rows),
            "the results of memory_analysis are no comparisons of predicted and measured",
            "Call save_json(path, comparisons, device.provenance()).",
        )
        judge_plot(submission, "memory", made_up_results(generator.shared("lab4.plots.memory")), require_shown)

    def test_report_agrees_with_results(self, submission: Submission) -> None:
        report.judge(submission)


def _predictions(submission: Submission, setups: Sequence[Setup]) -> list[Fields]:
    predictions: list[Fields] = submission.numeric_probe(Predictions(setups=list(setups))).predictions
    return predictions


def _judge(
    submission: Submission,
    generator: InputGenerator,
    part: Part,
    chosen: Callable[[Setup], bool],
    hint: str,
    mistakes: Sequence[Mistake] = (),
) -> None:
    """Compare one part of the predictions with what a step holds, for the chosen setups."""
    setups = setups_of(generator)
    predictions = _predictions(submission, setups)
    # A T4 has no fused attention for bfloat16; both 16-bit types take the same.
    run: list[Setup] = [{**setup, "dtype": setup["dtype"].replace("bfloat16", "float16")} for setup in setups]
    steps = submission.probe(Steps(setups=run), values=False, student=False).steps
    rows = [
        (setup, prediction[part], step[part])
        for setup, prediction, step in zip(setups, predictions, steps, strict=True)
        if chosen(setup)
    ]
    checkpointed = mistakes is CHECKPOINTED
    alike = [
        (setup, prediction[part])
        for setup, prediction in zip(setups, predictions, strict=True)
        if (setup["checkpoint_every"] is not None) is checkpointed
    ]
    own = [(setup, prediction) for setup, prediction, _ in rows]
    bars = [(_short(setup), prediction, expected) for setup, prediction, expected in rows]
    with picturing(lambda: memory_bars(f"{part} of each setup", bars)):
        for setup, prediction, expected in rows:
            slack = WITHIN * expected + 4096  # plain SGD keeps nothing; Adam keeps its count of steps elsewhere
            with recognising(lambda: _mistake_of(mistakes, (alike, own), setup["model"])):  # noqa: B023
                require_between(
                    prediction,
                    expected - slack,
                    expected + slack,
                    what=f"predict_memory(), {_described(setup)}: {part}",
                    show=mebibytes,
                    expected=f"{mebibytes(expected)} within {WITHIN:.0%}",
                    hint=hint,
                )


def _mistake_of(
    mistakes: Sequence[Mistake], predictions: Sequence[Sequence[tuple[Setup, object]]], model: str
) -> Cause | None:
    """The mistake that explains the predictions of a model: all of them, or else all that one check compares."""
    mistake = next((found for rows in predictions if (found := mistake_in(mistakes, rows, model))), None)
    if mistake is None:
        return None
    # In each precision a mistake may be made on its own, so a hint says how to look and not what to add.
    return Cause(
        f"{mistake.name} in {model}",
        "Go through a layer of the model, operation by operation, and write down each tensor that is kept, once, with "
        "its bytes."
        if mistakes is PLAIN
        else "Count the segments: the last one may be short. Each keeps one tensor of 4 bytes per number.",
        mistake=f"In the predicted activations of the {model}, {mistake.text}",
    )


def _halved(submission: Submission, generator: InputGenerator, part: Part) -> Cause | None:
    """Whether what is predicted in 16-bit types is half of what would be right, and right in float32."""
    setups = setups_of(generator)
    predictions = [prediction[part] for prediction in _predictions(submission, setups)]
    run: list[Setup] = [{**setup, "dtype": setup["dtype"].replace("bfloat16", "float16")} for setup in setups]
    steps = submission.probe(Steps(setups=run), values=False, student=False).steps
    for setup, predicted, step in zip(setups, predictions, steps, strict=True):
        expected = step[part] / (1 if setup["dtype"] == "float32" else 2)
        if not isinstance(predicted, (int, float)) or abs(predicted - expected) > NEAR * expected:
            return None
    return Cause(
        "parameters_in_16_bits",
        "Count 4 bytes per parameter and per gradient in every precision: autocast casts copies, not the parameters.",
        "lab4.analysis.parameters_and_gradients_predicted",
        mistake="Autocast is taken to halve parameters or gradients, which stay in float32",
    )


def _state_of(submission: Submission, setups: Sequence[Setup]) -> Cause | None:
    """Whether an optimizer is predicted to keep another number of numbers per parameter."""
    predictions = list(zip(setups, _predictions(submission, setups), strict=True))
    for optimizer, expected in _NUMBERS.items():
        ratio = numbers_per_parameter(predictions, optimizer)
        if ratio is not None and ratio != expected:
            return Cause(
                f"state of {optimizer}",
                "Look into optimizer.state after one step: how many tensors of a parameter's shape are there?",
                "lab4.analysis.optimizer_state_predicted",
                mistake=f"The optimizer's state for {optimizer!r} is predicted as {ratio} numbers per parameter, "
                f"expected {expected}",
            )
    return None


def _described(setup: Setup) -> str:
    heads = f" with {setup['heads']} heads" if setup["model"] == "transformer" else ""
    return f"{_short(setup)}, {setup['layers']} layers{heads}, width {setup['width']}, {setup['tokens']} tokens"


def _short(setup: Setup) -> str:
    every = setup["checkpoint_every"]
    return f"{setup['model']}, {setup['optimizer']}, {setup['dtype']}" + (f", every {every}" if every else "")
