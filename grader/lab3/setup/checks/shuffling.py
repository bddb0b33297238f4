"""Judges that each epoch has other shares of the samples, which follow from seed and epoch alone."""

from __future__ import annotations

from collections.abc import Sequence

from gradebox.run.assertions import Cause, require
from grader.lab3.setup.cases.training import TrainReply
from grader.lab3.setup.checks.training import epochs_of

_HINT_EPOCH = "Call sampler.set_epoch(epoch) before each epoch."
_RESHUFFLED = "lab3.setup.reshuffled_each_epoch"
NO_SET_EPOCH = Cause(
    "no_set_epoch",
    _HINT_EPOCH,
    _RESHUFFLED,
    mistake="The sampler never gets the number of the epoch, so every epoch has the same samples in the same order",
)
NOT_SHUFFLED = Cause(
    "not_shuffled",
    "Let the sampler shuffle by seed and epoch: DistributedSampler(..., shuffle=True, seed=seed), set_epoch(epoch).",
    _RESHUFFLED,
    mistake="The samples are never shuffled: each epoch has the same order, whatever the seed",
)
_BY_CHANCE = 1
"""Shares of a few samples that are the same in two epochs, although each is drawn anew."""


def require_shuffled(replies: Sequence[TrainReply], epochs: int, *, shared: bool) -> None:
    """Fail unless each epoch is shuffled anew, by seed and epoch; not `shared`, only the order of samples is judged."""
    for rank, reply in enumerate(replies):
        shares = epochs_of(reply, epochs)
        what = f"train(), rank {rank}"
        hint: str = _HINT_EPOCH
        orders = {tuple(share) for share in shares}
        if len(orders) == 1:
            drawn = [number for batch in reply.again[1].samples for number in batch]
            hint = NOT_SHUFFLED if drawn[: len(shares[0])] == shares[0] else NO_SET_EPOCH
        require(len(orders) == len(shares), f"{what}: the same samples in the same order in two epochs", hint)
        members = {frozenset(share) for share in shares}
        require(
            len(members) >= len(shares) - _BY_CHANCE or not shared,
            f"{what}: the same share of the samples in two epochs",
            hint,
        )
    for rank, reply in enumerate(replies):
        first = epochs_of(reply, epochs)[0]
        same, other = (
            [number for batch in training.samples[: len(reply.samples) // epochs] for number in batch]
            for training in reply.again
        )
        what = f"train(), rank {rank}: the first epoch's share"
        require(
            bool(same and other),
            f"train(), rank {rank}: a model that was in evaluation mode before was not trained in training mode",
            "Call model.train() before the first epoch.",
        )
        hint = "Draw the shares from seed and epoch alone: DistributedSampler(..., seed=seed)."
        taken = set if shared else list
        require(taken(same) == taken(first), f"{what} differs in two trainings with the same seed", hint)
        require(taken(other) != taken(first), f"{what} is the same with another seed", hint)
