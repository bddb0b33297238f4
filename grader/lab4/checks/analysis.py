"""Judges Lab 4's prediction of memory, against what a step of the course's own models holds, and its report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradebox.course.criterion import builds_on, criterion
from gradebox.run.assertions import mebibytes, picturing, require, require_between
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab4.checks import report as lab4_report
from grader.lab4.checks.common import judge_plot, judge_program, judge_refusals, memory_bars

WITHIN = 0.05
"""What the task asks for; the reference is right to 1e-5. The mistakes seen are off by 10 percent and more."""


def setups_of(generator: InputGenerator) -> list[dict[str, Any]]:
    """Training steps nobody has tried, one for each thing there is to predict; the same for all checks of a grading."""
    generator = generator.shared("lab4.setups")

    def mlp(optimizer: str, dtype: str) -> dict[str, Any]:
        return {
            "model": "mlp",
            "layers": generator.integer(3, 6),
            "width": 8 * generator.odd(61, 121),
            "heads": 1,
            "tokens": generator.odd(701, 1501),
            "optimizer": optimizer,
            "dtype": dtype,
            "checkpoint_every": None,
        }

    def transformer(optimizer: str, dtype: str, every: int | None) -> dict[str, Any]:
        heads = generator.integer(5, 9)
        return {
            "model": "transformer",
            "layers": generator.integer(3, 5),
            "width": 64 * heads,
            "heads": heads,
            "tokens": generator.odd(1101, 1901),
            "optimizer": optimizer,
            "dtype": dtype,
            "checkpoint_every": every,
        }

    low, other = generator.shuffled(["float16", "bfloat16"])
    one, two, three = generator.shuffled(["sgd", "momentum", "adam"])
    return [
        mlp(one, "float32"),
        mlp(two, low),
        transformer(three, "float32", None),
        transformer(one, other, None),
        *(
            {**transformer(optimizer, dtype, every), "layers": 5}
            # Every block, some of them with a short last segment, and all of them in one.
            for optimizer, dtype, every in zip(
                generator.shuffled(["sgd", "momentum", "adam"]),
                ["float32", *generator.shuffled([low, other])],
                generator.shuffled([1, generator.integer(2, 3), 7]),
                strict=True,
            )
        ),
    ]


@criterion("lab4.analysis")
class TestAnalysis:
    def test_parameters_and_gradients_predicted(self, submission: Submission, generator: InputGenerator) -> None:
        """Predicts parameters and gradients."""
        for name in ("parameter_bytes", "gradient_bytes"):
            _judge(
                submission, generator, name, lambda setup: True, "weights and biases, 4 bytes each, in any precision"
            )

    @builds_on("parameters_and_gradients_predicted")
    def test_optimizer_state_predicted(self, submission: Submission, generator: InputGenerator) -> None:
        """Predicts the optimizer's state."""
        hint = "Adam keeps two numbers per parameter, momentum one, plain SGD none"
        _judge(submission, generator, "optimizer_state_bytes", lambda setup: True, hint)

    def test_activations_predicted(self, submission: Submission, generator: InputGenerator) -> None:
        """Predicts activations in float32."""
        hint = "go through a layer: what does each operation need in backward, and which two keep the same tensor?"

        def plain(setup: dict[str, Any]) -> bool:
            return setup["dtype"] == "float32" and setup["checkpoint_every"] is None

        _judge(submission, generator, "activation_bytes", plain, hint)
        flops = submission.numeric_probe("lab4.analysis.predictions", setups=setups_of(generator)).flops
        require(
            flops == 0,
            f"predict_memory() of {len(setups_of(generator))} setups computed {flops:.3g} FLOPs in matrix products",
            "a prediction is worked out from the numbers of the setup: no model is made, and nothing is run",
        )

    @builds_on("activations_predicted")
    def test_mixed_precision_activations_predicted(self, submission: Submission, generator: InputGenerator) -> None:
        """Predicts activations under autocast."""
        hint = "2 bytes behind linear layers and attention, 4 on the path of the sums; copies of the weights, too"

        def mixed(setup: dict[str, Any]) -> bool:
            return setup["dtype"] != "float32" and setup["checkpoint_every"] is None

        _judge(submission, generator, "activation_bytes", mixed, hint)

    @builds_on("activations_predicted")
    def test_checkpointed_activations_predicted(self, submission: Submission, generator: InputGenerator) -> None:
        """Predicts checkpointed activations."""
        hint = "the input of each segment but the model's own, and the output; the short last segment counts as well"
        _judge(submission, generator, "activation_bytes", lambda setup: setup["checkpoint_every"] is not None, hint)

    def test_nonsense_refused(self, submission: Submission) -> None:
        """Refuses arguments that make no sense."""
        judge_refusals(submission, "analysis")

    def test_results_and_plot_saved(self, submission: Submission, generator: InputGenerator) -> None:
        """Saves the results and a plot."""
        rows = judge_program(submission, "memory_analysis", [])
        require(
            all(isinstance(row, dict) and {"setup", "predicted", "measured"} <= row.keys() for row in rows),
            "the results of memory_analysis are no comparisons of predicted and measured",
            "save_json(path, comparisons, device.provenance())",
        )
        judge_plot(submission, "memory", generator)

    def test_report_agrees_with_results(self, submission: Submission) -> None:
        """Claims what results/ say, and has 60 words."""
        lab4_report.judge(submission)


def _judge(
    submission: Submission, generator: InputGenerator, name: str, wanted: Callable[[dict[str, Any]], bool], hint: str
) -> None:
    """Compare one field of the predictions with the truth, for the setups wanted."""
    setups = setups_of(generator)
    told = submission.numeric_probe("lab4.analysis.predictions", setups=setups).predictions
    # A T4 has no fused attention for bfloat16; both 16-bit types take the same.
    run = [{**setup, "dtype": setup["dtype"].replace("bfloat16", "float16")} for setup in setups]
    truths = submission.probe("lab4.analysis.truth", values=False, student=False, setups=run).truths
    rows = [
        (_short(setup), prediction[name], truth[name])
        for setup, prediction, truth in zip(setups, told, truths, strict=True)
        if wanted(setup)
    ]
    with picturing(lambda: memory_bars(f"{name} of each setup", rows)):
        for setup, prediction, truth in zip(setups, told, truths, strict=True):
            if not wanted(setup):
                continue
            real = truth[name]
            slack = WITHIN * real + 4096  # plain SGD keeps nothing; Adam keeps its count of steps elsewhere
            require_between(
                prediction[name],
                real - slack,
                real + slack,
                what=f"predict_memory() of {setup}: {name}",
                show=mebibytes,
                expected=f"{mebibytes(real)} within {WITHIN:.0%}",
                hint=hint,
            )


def _short(setup: dict[str, Any]) -> str:
    every = setup["checkpoint_every"]
    return f"{setup['model']}, {setup['optimizer']}, {setup['dtype']}" + (f", every {every}" if every else "")
