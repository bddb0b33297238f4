"""What the checks of several criteria of Lab 2 require of a training, of a result and of a refusal."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from gradebox.run.assertions import (
    Cause,
    CheckFailed,
    number,
    recognising,
    require,
    require_between,
    require_equal,
    shown,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab2.shared.cases import (
    DIGITS,
    DIGITS_EPOCHS,
    AmpResult,
    ClearedDigits,
    Digits,
    Passes,
    digits,
    passes,
)
from grader.lab2.shared.causes import NEVER_CLEARED
from grader.lab2.shared.endings import trained_by
from grader.lab2.shared.reference import FloatArray, relative_error, trained_on
from grader.shared.results import is_result

ACCURACY_LOSS = 0.01
"""Over all 1797 digits. Measured over 20 seeds: float16 lost 0.0006 at most, bfloat16 0.0011."""


def listed(value: object, what: str) -> list[object]:
    """`value`, which a docstring says is a tuple; fails the check, naming `what`, for anything else."""
    if not isinstance(value, list):
        raise CheckFailed(f"{what}: saw {shown(value, 80)}, expected a tuple")
    return value


def as_reported(value: object, what: str) -> int | float:
    """`value` if it is a finite number, whole or not as it was reported; fails the check, naming `what`, if not."""
    as_float = number(value, what)
    return value if isinstance(value, int) else as_float


def require_accurate(
    submission: Submission, generator: InputGenerator, dtype: str, usual: Callable[[], Sequence[str]]
) -> None:
    """Fail unless training digits in `dtype` is as good as in float32, to within 1 %.

    `usual` looks up in which dtypes other trainings in `dtype` multiply. If they do so in another one, another check
    charges for it; but digits must be no exception.
    """
    training = digits(generator)
    reply = trained_by(submission, Digits(**training.fields_by_name(), dtype=dtype))
    expected = submission.probe(training, device="cpu", student=False).accuracy

    def cause() -> Cause | None:
        """A control experiment: who clears gradients himself comes to the same."""
        control = submission.numeric_probe(ClearedDigits(**training.fields_by_name(), dtype=dtype))
        return NEVER_CLEARED if control.accuracy >= expected - ACCURACY_LOSS else None

    with recognising(cause):
        require_between(
            reply.accuracy,
            expected - ACCURACY_LOSS,
            1.0,
            what=f"accuracy on digits after {DIGITS_EPOCHS} epochs in {dtype}, where float32 reaches {expected:.4f}",
            hint="Keep the weights in float32, and make a step for each batch. Autocast changes the type of products, "
            "not what is learned.",
        )
    what = f"matrix products of the training on digits in {dtype}"
    dtypes = sorted({product["dtype"] for product in reply.products})
    if dtypes != [dtype]:
        require_equal(dtypes, list(usual()), what=f"{what}: dtypes", hint="Train each model in the same way.")
    first, second = np.size(training.first), np.size(training.second)
    least = DIGITS_EPOCHS * DIGITS * 2 * (2 * first + 3 * second)
    done = sum(product["flops"] * product["count"] for product in reply.products)
    require(
        done >= least,
        f"{what}: {done:,} FLOPs, fewer than the {least:,} of a forward and a backward pass of each",
        "Send every batch of every epoch through the model, and go back from its loss.",
    )


def require_ran(result: AmpResult, dtype: str, taken: int, skipped: int) -> None:
    """Fail unless a result counts these steps. A check that is not about the result passes over what is none."""
    if not is_result(result):
        return
    require_equal(result["dtype"], dtype, what="AmpTraining.dtype of train_with_amp()")
    require_equal(
        result["optimizer_steps"],
        taken,
        what=f"AmpTraining.optimizer_steps of train_with_amp() in {dtype}",
        hint="Count one optimizer step per window. A step was skipped only if `update()` lowered the scale.",
    )
    require_equal(result["skipped_steps"], skipped, what=f"AmpTraining.skipped_steps in {dtype}")


def require_refused(refused: bool, expected: bool, call: str) -> None:
    """Fail unless `call` raised a ValueError if it makes no sense, and none if it does."""
    if expected:
        require(refused, f"{call} raised no ValueError", "Raise what its docstring names under Raises.")
    else:
        require(
            not refused,
            f"{call} raised a ValueError although it makes sense",
            "Refuse what its docstring names under Raises, and nothing else.",
        )


_NEARER = 0.5
"""Of the distance to what passed: trainings on the two differ by a fifth of their way and more."""


READ_ONCE = Cause(
    "loader_read_once",
    "Go through the loader itself in each epoch. One that shuffles has other batches each time.",
    "lab2.amp.returns_result",
    mistake="The loader is read once, and its batches are trained on again in every epoch",
)
UNSTABLE_READ_ONCE = Cause(
    "unstable_loader_read_once", str(READ_ONCE), "lab2.stability.unstable_model_trained", mistake=READ_ONCE.mistake
)


def require_passes(submission: Submission, generator: InputGenerator, function: str) -> None:
    """Fail unless each epoch of a training goes through its loader again, and trains on all that it then has."""
    inputs = passes(generator, function)
    reply = trained_by(submission, inputs)
    seen = reply.batches
    count = inputs.batches
    epochs = [seen[first : first + count] for first in range(0, len(seen), count)]
    replayed = [*range(count)] * inputs.epochs
    numbers = [batches[0] // count for batches in epochs]
    # Another pass before the training, to count samples perhaps, does no harm.
    is_right = len(epochs) == inputs.epochs and all(
        batches == [*range(number * count, (number + 1) * count)]
        for batches, number in zip(epochs, numbers, strict=True)
    )
    is_right = is_right and all(earlier < later for earlier, later in itertools.pairwise(numbers))
    cause = UNSTABLE_READ_ONCE if function == "train_unstable" else READ_ONCE
    require(
        is_right,
        f"{function}() for {inputs.epochs} epochs of a loader that has {count} new batches in each: trained on batches "
        f"{seen}, expected {[*range(count * inputs.epochs)]}",
        cause if seen and len(seen) == len(replayed) and len(set(numbers)) == 1 else str(READ_ONCE),
    )
    if reply.weight is not None:
        require(
            not _learned_again(inputs, seen, reply.weight),
            f"{function}() for {inputs.epochs} epochs of a loader that has {count} new batches in each: batches "
            f"{seen} passed the model, but its weights are nearer to those of a training on {replayed}",
            cause,
        )


def _learned_again(case: Passes, passed: Sequence[int], weight: FloatArray) -> bool:
    """Whether weights follow from the first epoch's batches in each epoch rather than from those that passed the model.

    Which of the two is nearer: another mistake leads away from both, and is for another check.
    """
    first = passed[: case.batches]
    replayed = [*first] * case.epochs

    def distance(batches: Sequence[int]) -> float:
        ways = [trained_on(case, batches, cleared=cleared) for cleared in (True, False)]
        return min(relative_error(np.ravel(weight), way, np.asarray(case.weight)) for way in ways)

    return distance(replayed) < _NEARER * distance(passed)
