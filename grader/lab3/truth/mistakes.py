"""What accumulation comes to with one mistake in it, so that a mistake can be recognised by its result.

Whoever weighs the batches of a window alike misses the weights of several checks, and is right in everything else.
Passes that come to what one of these mistakes leads to, all of them, have this mistake and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from gradebox.run.assertions import Cause, recognising
from gradebox.run.submission import Seen
from grader.lab3.truth.training import Array

_LARGE_BATCH = "lab3.accumulation.equals_one_large_batch"
_TAIL = "lab3.accumulation.short_last_window"
_COUNTS = "lab3.accumulation.uneven_counts"
_SEEN = "the weights are those of a training"

CAUSES = {
    cause.name: cause
    for cause in (
        Cause("never_cleared", f"{_SEEN} that never clears its gradients: once per window, zero_grad()", _LARGE_BATCH),
        Cause(
            "cleared_each_batch",
            f"{_SEEN} in which a window consists of its last batch: clear the gradients once per window, not before "
            "each batch",
            _LARGE_BATCH,
        ),
        Cause(
            "not_cleared_before",
            f"{_SEEN} whose first window has in it what the gradients were before: clear them before the first batch",
            _LARGE_BATCH,
        ),
        Cause(
            "summed", f"{_SEEN} that adds up the losses of a window: weigh each batch by its share of it", _LARGE_BATCH
        ),
        Cause(
            "all_alike",
            f"{_SEEN} in which each batch of a window weighs the same, a mean of means: weigh it by what counts in it",
            _COUNTS,
        ),
        Cause(
            "by_full_windows",
            f"{_SEEN} that divides each loss by accumulation_steps: a last, shorter window has fewer batches",
            _TAIL,
        ),
        Cause(
            "last_window_dropped",
            f"{_SEEN} that makes no step after a last, shorter window: a window is a window",
            _TAIL,
        ),
    )
}  # fmt: skip

LOSSES = Cause(
    "losses_of_a_step",
    "the weights are right: the loss of a step is the mean over all samples of its window, on all ranks, each batch "
    "with its share",
    _LARGE_BATCH,
)
MODE = Cause("not_in_training_mode", "model.train(), whatever mode the model comes in", _LARGE_BATCH)

Truth = Callable[[str], Array]
"""The final weights with a mistake; without one, the right ones."""


def share(mistake: str, counted: int, of_window: int, batches: int, steps: int, ranks: int) -> float:
    """By what the mean loss of a batch is multiplied, before ranks' gradients are added up.

    Args:
        mistake: one of `CAUSES`, or none.
        counted: samples or tokens that count in the batch.
        of_window: and in its window, on all ranks.
        batches: of the window, on a rank.
        steps: of a full window.
        ranks: that take part.
    """
    each = {"summed": 1.0, "all_alike": 1 / batches, "by_full_windows": 1 / steps}
    return each[mistake] / ranks if mistake in each else counted / of_window


@contextmanager
def recognised(passes: Sequence[tuple[Truth, float, Sequence[Seen]]]) -> Iterator[None]:
    """Where a comparison in here fails, say which mistake leads to the weights of all these passes, if one does.

    Of each pass the truth, a tolerance relative to the largest weight, and what was seen on each rank.
    """
    with recognising(lambda: cause_of(passes)):
        yield


def cause_of(passes: Sequence[tuple[Truth, float, Sequence[Seen]]]) -> Cause | None:
    """The mistake that leads to all of these weights; None where there is none, or where they are right."""
    if _explained(passes, ""):
        return None
    return next((cause for name, cause in CAUSES.items() if _explained(passes, name)), None)


def _explained(passes: Sequence[tuple[Truth, float, Sequence[Seen]]], mistake: str) -> bool:
    for truth, rtol, seen in passes:
        expected = truth(mistake)
        room = rtol * float(np.abs(expected).max())
        for each in seen:
            told = np.asarray(each.weight, dtype=np.float64)
            if told.shape != expected.shape or not np.allclose(told, expected, rtol=rtol, atol=room):
                return False
    return True
