"""What Lab 3's trainings must be: shares of the samples, batches, weights, what they report, patience."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np

from gradebox.run.assertions import (
    Cause,
    numbers,
    recognising,
    require,
    require_arrays_close,
    require_between,
    require_close,
    require_equal,
    seconds,
)
from gradebox.run.submission import Submission
from grader.lab3.setup import reference
from grader.lab3.setup.cases.training import Options, Passed, Train, TrainReply
from grader.lab3.setup.reference import RTOL, Trained
from grader.lab3.shared.reference import Array, are_close
from grader.shared.results import require_result

PATIENCE_SECONDS = 10.0
"""What the probe passes as `timeout_seconds`, less the number of ranks."""
SUMMED = Cause(
    "summed_over_ranks",
    "the weights are those of a training that adds up the gradients of all ranks, or multiplies the learning rate by "
    "their number: each step follows their mean, with the learning rate given",
    "lab3.setup.gradients_equal_full_batch",
)
TIMEOUT = Cause(
    "timeout_not_passed_on",
    "init_process_group takes a timeout: timeout_seconds is passed on to setup(), and from there to it",
    "lab3.setup.joins_and_leaves",
)


def train(submission: Submission, case: Train) -> list[TrainReply]:
    """What each rank observed when it trained on the CPU."""
    return submission.rank_probe(case, case.ranks, device="cpu")


def steps_of(replies: Sequence[Passed]) -> list[list[list[int]]]:
    """The samples of each step, by rank.

    Raises:
        CheckFailed: the ranks made different numbers of steps, or none.
    """
    counts = [len(reply.samples) for reply in replies]
    require(len(set(counts)) == 1 and counts[0] > 0, f"steps on each rank: saw {counts}, expected the same of all")
    return [reply.samples for reply in replies]


def epochs_of(reply: Passed, epochs: int) -> list[list[int]]:
    """The samples that one rank went through in each epoch.

    Raises:
        CheckFailed: its steps cannot be divided by the number of epochs.
    """
    steps = len(reply.samples)
    require(steps > 0 and steps % epochs == 0, f"{epochs} epochs made {steps} steps on one rank")
    length = steps // epochs
    return [
        [number for batch in reply.samples[epoch * length : (epoch + 1) * length] for number in batch]
        for epoch in range(epochs)
    ]


def follow(case: Train, replies: Sequence[TrainReply], *, summed: bool = False) -> Trained:
    """What the steps come to that the ranks made. Raises as `steps_of`."""
    return reference.follow(case, steps_of(replies), summed=summed)


def recognised(case: Train, replies: Sequence[TrainReply]) -> AbstractContextManager[None]:
    """Where a comparison in here fails, say which mistake leads to the ranks' weights, if one does."""

    def are(expected: Array) -> bool:
        return all(are_close(reply.weight, expected, RTOL[case.dtype]) for reply in replies)

    def mistake() -> Cause | None:
        right, summed = follow(case, replies).weight, follow(case, replies, summed=True).weight
        return SUMMED if are(summed) and not are(right) else None

    return recognising(mistake)


def require_weights(replies: Sequence[TrainReply], expected: Array, *, rtol: float, what: str, hint: str) -> None:
    """Fail unless every rank's weights are those expected."""
    atol = rtol * float(np.abs(expected).max())
    for rank, reply in enumerate(replies):
        what_of_rank = f"{what}, weights of rank {rank}"
        require_arrays_close(reply.weight, expected, rtol=rtol, atol=atol, what=what_of_rank, hint=hint)


def require_exchanged(replies: Sequence[TrainReply], *, what: str) -> None:
    """Fail unless the ranks' collectives carried as much as the gradients of every step."""
    for rank, reply in enumerate(replies):
        least = len(reply.samples) * reply.gradient_bytes
        require(
            reply.carried_bytes >= least,
            f"{what}: collectives on rank {rank} carried {reply.carried_bytes} bytes, fewer than the {least} of "
            f"{len(reply.samples)} steps' gradients",
            "the ranks tell each other their gradients in every step, through the process group",
        )


def require_shared(shares: Sequence[Sequence[int]], samples: int, *, what: str, hint: str) -> None:
    """Fail unless the ranks' samples hold every one, none of them twice except what must be filled up."""
    together = [number for share in shares for number in share]
    missing = samples - len(set(together))
    twice = len(together) - len(set(together))
    spare = -samples % len(shares)
    require(
        missing == 0 and twice <= spare,
        f"{what}, {samples} samples: {missing} were left out (expected none), {twice} came twice (expected at most "
        f"{spare})",
        hint,
    )


def require_batches(replies: Sequence[Passed], samples: int, options: Options, *, what: str, hint: str) -> None:
    """Fail unless every rank's epoch was batches of `batch_size`, and a smaller one at its end at most."""
    size = options["batch_size"]
    expected = reference.batch_sizes(samples, len(replies), size)
    for rank, reply in enumerate(replies):
        sizes = [len(batch) for batch in reply.samples]
        require(
            sizes == expected * options["epochs"],
            f"{what}, batch_size={size}: rank {rank} made batches of {sizes[: len(expected)]} samples in an epoch, "
            f"expected {expected}",
            hint,
        )


def require_reported(case: Train, replies: Sequence[TrainReply], *, what: str) -> None:
    """Fail unless each rank's `DdpTraining` reports the training that its model saw."""
    steps = steps_of(replies)
    trained = follow(case, replies)
    epochs, size = case.options["epochs"], case.options["batch_size"]
    losses = reference.epoch_losses(trained, steps, epochs)
    accuracy = reference.accuracy(case, trained.weight)
    expected = {
        "device": "cpu",
        "backend": "gloo",
        "world_size": case.ranks,
        "batch_size": size,
        "effective_batch_size": case.ranks * size,
        "epochs": epochs,
        "optimizer_steps": len(steps[0]),
    }
    for rank, reply in enumerate(replies):
        require_equal(
            reply.dtype,
            case.dtype,
            what=f"{what}, dtype of rank {rank}'s model afterwards",
            hint="in the dtype that it has: float64 takes twice the memory, and on GPUs far more than twice the time",
        )
        report = require_result(reply.result)
        for name, value in expected.items():
            require_equal(report[name], value, what=f"{what}: DdpTraining.{name} on rank {rank}")
        reported = numbers(report["losses"], epochs, f"{what}: DdpTraining.losses on rank {rank}")
        for epoch, (actual, loss) in enumerate(zip(reported, losses, strict=True)):
            require_close(
                actual,
                loss,
                relative=max(1e-6, RTOL[case.dtype]),
                what=f"{what}: DdpTraining.losses[{epoch}] on rank {rank}",
                hint="the mean over all samples on all ranks: sum up losses times samples, reduce, divide",
            )
        accuracy_of = f"{what}: DdpTraining.accuracy on rank {rank}"
        if accuracy is None:
            require_equal(report["accuracy"], None, what=accuracy_of, hint="there was no test set")
        else:
            hint = "of the trained model: evaluate() of the test set at the end, by all ranks together"
            least, most = accuracy
            require_between(report["accuracy"], least - 1e-6, most + 1e-6, what=accuracy_of, hint=hint)
        require_between(
            report["seconds"],
            reply.least_seconds,
            reply.whole_seconds,
            what=f"{what}: DdpTraining.seconds on rank {rank}",
            show=seconds,
            expected=f"{seconds(reply.least_seconds)} (first to last forward pass, test included) to "
            f"{seconds(reply.whole_seconds)} (all of the call)",
            hint="the time that passes (not processor time) from the first epoch to the end of the test",
        )


def require_patience(replies: Sequence[TrainReply], *, what: str) -> None:
    """Fail unless the process group waited as long for a rank as the call said."""
    for rank, reply in enumerate(replies):
        expected = PATIENCE_SECONDS + len(replies)
        require(
            abs(reply.patience - expected) < 1e-3,
            f"{what} with timeout_seconds={expected:g}: the process group of rank {rank} waits {reply.patience:g} s "
            "for a rank that does not come",
            TIMEOUT,
        )
