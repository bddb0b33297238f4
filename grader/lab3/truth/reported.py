"""The truth about what Lab 3's trainings tell of themselves, and how they were made: batches, patience."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradebox.run.assertions import Cause, numbers, require, require_between, require_close, require_equal, seconds
from gradebox.run.submission import Seen
from grader.lab3.truth.training import Case, steps_of
from grader.shared.programs import require_provenance, require_simulated_pictures

PATIENCE_SECONDS = 10.0
"""What the probe passes as `timeout_seconds`, less the number of ranks."""


def require_batches(seen: Sequence[Seen], samples: int, arguments: dict[str, Any], *, what: str, hint: str) -> None:
    """Fail unless every rank's epoch was batches of `batch_size`, and a smaller one at its end at most."""
    share, size = -(-samples // len(seen)), arguments["batch_size"]
    wanted = [size] * (share // size) + ([share % size] if share % size else [])
    for rank, each in enumerate(seen):
        sizes = [len(batch) for batch in each.samples]
        require(
            sizes == wanted * arguments["epochs"],
            f"{what}, batch_size={size}: rank {rank} made batches of {sizes[: len(wanted)]} samples in an epoch, "
            f"expected {wanted}",
            hint,
        )


def require_told(given: Case, seen: Sequence[Seen], *, what: str) -> None:
    """Fail unless each rank's `DdpTraining` tells of the training that its model saw."""
    steps = steps_of(seen)
    weight, losses = given.follow(seen)
    epochs, size = given.arguments["epochs"], given.arguments["batch_size"]
    expected = {
        "device": "cpu",
        "backend": "gloo",
        "world_size": given.ranks,
        "batch_size": size,
        "effective_batch_size": given.ranks * size,
        "epochs": epochs,
        "optimizer_steps": len(steps),
    }
    for rank, each in enumerate(seen):
        require_equal(
            each.dtype,
            given.dtype,
            what=f"{what}, dtype of rank {rank}'s model afterwards",
            hint="in the dtype that it has: float64 takes twice the memory, and on GPUs far more than twice the time",
        )
        told = each.result
        for name, value in expected.items():
            require_equal(told[name], value, what=f"{what}: DdpTraining.{name} on rank {rank}")
        for epoch, loss in enumerate(numbers(told["losses"], epochs, f"{what}: DdpTraining.losses on rank {rank}")):
            part = slice(epoch * len(steps) // epochs, (epoch + 1) * len(steps) // epochs)
            sizes = np.array([len(samples) for samples in steps[part]])
            require_close(
                loss,
                float((np.array(losses[part]) * sizes).sum() / sizes.sum()),
                relative=max(1e-6, given.rtol),
                what=f"{what}: DdpTraining.losses[{epoch}] on rank {rank}",
                hint="the mean over all samples on all ranks: sum up losses times samples, reduce, divide",
            )
        accuracy = given.accuracy(weight)
        name = f"{what}: DdpTraining.accuracy on rank {rank}"
        if accuracy is None:
            require_equal(told["accuracy"], None, what=name, hint="there was no test set")
        else:
            hint = "of the trained model: evaluate() of the test set at the end, by all ranks together"
            least, most = accuracy
            require_between(told["accuracy"], least - 1e-6, most + 1e-6, what=name, hint=hint)
        require_between(
            told["seconds"],
            each.least_seconds,
            each.whole_seconds,
            what=f"{what}: DdpTraining.seconds on rank {rank}",
            show=seconds,
            expected=f"{seconds(each.least_seconds)} (first to last forward pass, test included) to "
            f"{seconds(each.whole_seconds)} (all of the call)",
            hint="the time that passes (not processor time) from the first epoch to the end of the test",
        )


TIMEOUT = Cause(
    "timeout_not_passed_on",
    "init_process_group takes a timeout: timeout_seconds is passed on to setup(), and from there to it",
    "lab3.setup.joins_and_leaves",
)


def require_patience(seen: Sequence[Seen], *, what: str) -> None:
    """Fail unless the process group waited as long for a rank as it was told to."""
    for rank, each in enumerate(seen):
        wanted = PATIENCE_SECONDS + len(seen)
        require(
            abs(each.patience - wanted) < 1e-3,
            f"{what} with timeout_seconds={wanted:g}: the process group of rank {rank} waits {each.patience:g} s for a "
            "rank that does not come",
            TIMEOUT,
        )


def require_said(seen: Seen, *, simulated: bool, what: str) -> None:
    """Fail unless the results that a program wrote say whether its GPUs were virtual, and a picture does if they were.

    Of a picture that another process draws, such as a rank, no words are known.
    """
    require_provenance(seen, what, simulated=simulated)
    if simulated and seen.words:
        require_simulated_pictures(seen, what)
