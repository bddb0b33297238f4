"""Recognises the mistake in a comparison of precisions: the course's own steps with it take as long, or as much memory,
and a control experiment without what is forgotten comes to the right accuracy.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from gradebox.run.assertions import Cause
from gradebox.run.submission import Submission
from grader.lab2.comparison.cases.cleared import ClearedAccuracies
from grader.lab2.comparison.cases.measuring import (
    Accuracies,
    AccuraciesReply,
    Network,
    Plan,
    PrecisionRow,
    ReferenceAccuracies,
    TrainedModel,
)
from grader.lab2.comparison.cases.mistaken import MistakenReply, MistakenSteps
from grader.lab2.scaling.checks.mistakes import MISTAKES
from grader.lab2.shared.cases import DIGITS
from grader.lab2.shared.causes import DEFAULT_DTYPE, EVALUATED_IN_TRAINING_MODE

_OVERHEAD_SECONDS = 60e-6
"""What an honest method may add to a step: synchronisations, readings of clocks, a loss that is looked at."""
_SECONDS_ERROR, _PEAK_ERROR = 0.02, 0.02
ACCURACY_ERROR = 0.02
"""More than twice what bfloat16 was seen to change (`TRAINING_BATCH` of the probes)."""

_SECONDS = "lab2.comparison.step_seconds_equal_reference"
_PEAKS = "lab2.comparison.peaks_equal_reference"
_MEDIAN = "lab2.comparison.throughput_from_the_median_step"
_ACCURACIES = "lab2.comparison.accuracies_equal_reference"

MEAN = Cause(
    "mean_of_the_steps",
    "Time the steps one by one, and take the median. One slow step must not change it.",
    _MEDIAN,
    mistake="step_seconds is the mean of the timed steps, not their median",
)
FIRST_STEP = Cause(
    "first_step",
    "Time the steps one by one, and take the median.",
    _MEDIAN,
    mistake="step_seconds is what the first timed step took, not the median",
)
NUMBERS_COUNTED = Cause(
    "numbers_counted_for_samples",
    "Divide N, the first dimension of the inputs, by the seconds of a step.",
    _MEDIAN,
    mistake="samples_per_second counts all numbers of the inputs, not the samples",
)
NOT_WAITED = Cause(
    "clock_stops_too_early",
    "Wait for the device before you stop the clock: `torch.cuda.synchronize()`, or `now(device)` of readings.py.",
    _SECONDS,
    mistake="The clock stops before the GPU has finished",
)
BATCH_MOVED = Cause(
    "batch_moved_in_each_step",
    "Move the batch to the device once, before the first step.",
    _SECONDS,
    mistake="The batch is copied from the host to the device in every step, while the clock runs",
)
TIMED_CAST = Cause(
    "timed_model_cast",
    "Leave the model in float32, and put forward and loss into autocast.",
    _SECONDS,
    mistake="The timed model is cast to 16 bits, instead of autocast",
)
MODELS_KEPT = Cause(
    "models_kept",
    "Measure each precision in a function call of its own, whose locals end with it.",
    _PEAKS,
    mistake="The models of earlier precisions are still on the device",
)
PEAK_NOT_RESET = Cause(
    "peak_not_reset_between_precisions",
    "Reset the peak for each precision, before its steps.",
    _PEAKS,
    mistake="The peak is not reset between precisions: one shows that of another",
)
ONE_MODEL = Cause(
    "one_model_for_all_precisions",
    "Make a new model for each precision, inside of the loop.",
    _ACCURACIES,
    mistake="One model goes on through all precisions: each begins where the one before has stopped",
)
TRAINING_IMAGES = Cause(
    "evaluated_on_training_images",
    "Train on `train_loader`, and evaluate on `test_loader`.",
    _ACCURACIES,
    mistake="The accuracy is that on the training images, not on the test images",
)
EVALUATED_IN_FLOAT32 = Cause(
    "evaluated_in_float32",
    "Pass the dtype to `evaluate`, too.",
    _ACCURACIES,
    mistake="Models that are trained in 16 bits are evaluated in float32",
)
_OF_STEPS = {
    "not_waited": NOT_WAITED,
    "batch_moved": BATCH_MOVED,
    "batch_moved_again": BATCH_MOVED,
    "model_cast": TIMED_CAST,
    "models_kept": MODELS_KEPT,
}

Rows = Sequence[PrecisionRow]
Statistic = Callable[[Sequence[float]], float]


class Comparison:
    """A plan that was carried out somewhere, to be compared with the same plan carried out with a mistake."""

    def __init__(
        self,
        submission: Submission,
        device: str,
        network: Network,
        plan: Plan,
        conditions: list[dict[str, float]] | None = None,
    ) -> None:
        self._submission, self._device = submission, device
        self._network, self._plan = network, plan
        self._conditions = conditions or []

    def _with(self, mistake: str) -> MistakenReply:
        return self._submission.probe(
            MistakenSteps(network=self._network, plan=self._plan, mistake=mistake),
            device=self._device,
            values=False,
            student=False,
            conditions=self._conditions,
        )

    def cause_of_seconds(self, rows: Rows) -> Cause | None:
        """The mistake that leads to all of these seconds; a real GPU's are not repeated."""
        if self._device == "cuda":
            return None
        if self._take(rows, "", statistics.median):
            return None
        for cause, statistic in ((MEAN, statistics.mean), (FIRST_STEP, lambda seconds: seconds[0])):
            if self._take(rows, "", statistic):
                return cause
        timed = ("not_waited", "batch_moved", "batch_moved_again", "model_cast")
        return next((_OF_STEPS[name] for name in timed if self._take(rows, name, statistics.median)), None)

    def _take(self, rows: Rows, mistake: str, statistic: Statistic) -> bool:
        taken = self._with(mistake).rows
        return all(
            isinstance(seconds := row["step_seconds"], float)
            and abs(seconds - (expected := statistic(taken[name].seconds)))
            <= _SECONDS_ERROR * expected + _OVERHEAD_SECONDS * (mistake != "not_waited")
            for row, (name, _) in zip(rows, self._plan.accuracies, strict=True)
        )

    def cause_of_peaks(self, rows: Rows) -> Cause | None:
        """The mistake that leads to all of these peaks."""
        if self._device == "cuda":
            return None
        names = [name for name, _ in self._plan.accuracies]
        right = [self._with("").rows[name].peak_bytes for name in names]
        if _are_near(rows, right):
            return None
        if _are_near(rows, [max(right[: index + 1]) for index in range(len(right))]):
            return PEAK_NOT_RESET
        for mistake in ("batch_moved", "batch_moved_again", "model_cast", "models_kept"):
            taken = self._with(mistake).rows
            if _are_near(rows, [taken[name].peak_bytes for name in names]):
                return _OF_STEPS[mistake]
        return None


def _are_near(rows: Rows, peaks: Sequence[int]) -> bool:
    return all(
        isinstance(peak := row["peak_bytes"], int) and abs(peak - expected) <= _PEAK_ERROR * expected
        for row, expected in zip(rows, peaks, strict=True)
    )


def cause_of_accuracies(
    submission: Submission, inputs: Accuracies, reply: AccuraciesReply, reference: ReferenceAccuracies
) -> Cause | None:
    """The mistake that leads to these accuracies, or to the dtypes in which the models ran."""
    if len(reply.models) == 1 < len(inputs.precisions):
        return ONE_MODEL
    test_batches = -(-len(inputs.wrong) // 57)
    if cause := _cause_of_models(inputs, reply.models, test_batches):
        return cause
    if _all_near(reply.accuracies, inputs, reference.test):
        return None
    if _all_near(reply.accuracies, inputs, reference.train):
        return TRAINING_IMAGES
    control = submission.numeric_probe(ClearedAccuracies(**inputs.fields_by_name()))
    return MISTAKES["never_cleared"] if _all_near(control.accuracies, inputs, reference.test) else None


def _all_near(accuracies: object, inputs: Accuracies, expected: float) -> bool:
    if not isinstance(accuracies, dict):
        return False
    values = [accuracies.get(name) for name in inputs.precisions]
    return all(isinstance(value, float) and abs(value - expected) <= ACCURACY_ERROR for value in values)


def _cause_of_models(inputs: Accuracies, models: Sequence[TrainedModel], test_batches: int) -> Cause | None:
    """The mistake that leads to the dtypes of all models' outputs."""
    batches = inputs.epochs * -(-DIGITS // 200)

    def right(name: str) -> TrainedModel:
        return TrainedModel(training=[name], evaluation=[name], batches=batches)

    def is_seen(expected: Callable[[str], TrainedModel]) -> bool:
        return list(models) == [expected(name) for name in inputs.precisions]

    def low(name: str, training: str, evaluation: str) -> TrainedModel:
        if name == "float32":
            return right(name)
        return TrainedModel(training=[training], evaluation=[evaluation], batches=batches)

    if is_seen(right):
        return None
    candidates: list[tuple[Cause, Callable[[str], TrainedModel]]] = [
        (MISTAKES["forward_in_float32"], lambda name: low(name, "float32", name)),
        (EVALUATED_IN_FLOAT32, lambda name: low(name, name, "float32")),
        (DEFAULT_DTYPE, lambda name: low(name, "float16", "float16")),
        (
            EVALUATED_IN_TRAINING_MODE,
            lambda name: TrainedModel(training=[name], evaluation=[], batches=batches + test_batches),
        ),
    ]
    return next((cause for cause, expected in candidates if is_seen(expected)), None)
