"""What Lab 3's evaluation must do: divide the work among the ranks, and count each sample once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradebox.run.assertions import Cause, number, recognising, require, require_between
from grader.lab3.setup.cases.evaluation import Evaluated


def require_divided(replies: Sequence[Evaluated], samples: int, batch_size: int, what: str) -> None:
    """Fail unless the ranks divided the work, in batches as large as they should be."""
    batches_in_all = -(-samples // batch_size)
    most = -(-batches_in_all // len(replies)) * batch_size
    for rank, reply in enumerate(replies):
        own, batches = len(reply.samples), reply.batches
        require(
            own <= most,
            f"{what}: rank {rank} evaluated {own} of them, expected {most} at most",
            Cause(
                "evaluate_not_divided",
                "Divide the work: let each rank take a share of its own.",
                mistake=f"The ranks do not divide the work of evaluate(): rank {rank} does more than its share",
            ),
        )
        require(
            max(batches, default=0) <= batch_size and len(batches) <= -(-own // batch_size),
            f"{what} with batch_size={batch_size}: rank {rank} made batches of {batches}",
            "Pass batch_size samples in each forward pass, fewer in the last one only.",
        )


def require_counted(replies: Sequence[Evaluated], right: NDArray[np.bool_], what: str) -> None:
    """Fail unless each sample passed a rank's model, and every rank returned the share that these models get right.

    Of a sample that passed on more ranks than one, any of them may be the one that counts it.
    """
    samples = right.shape[1]
    passed = np.array([np.isin(np.arange(samples), reply.samples) for reply in replies])
    missing = int((~passed.any(axis=0)).sum())
    require(
        missing == 0,
        f"{what}: {missing} of them never passed the model",
        "Give each sample to one rank, and drop nothing: the last batch of a rank may be smaller.",
    )
    least, most = int((right | ~passed).all(axis=0).sum()), int((right & passed).any(axis=0).sum())
    shares = [number(reply.share, f"{what}, as reported by rank {rank}") for rank, reply in enumerate(replies)]
    expected = f"{least / samples:.6g}" if least == most else f"{least / samples:.6g} to {most / samples:.6g}"
    with recognising(lambda: _cause_of(replies, right, shares)):
        for rank, share in enumerate(shares):
            require_between(
                share,
                least / samples - 1e-6,
                most / samples + 1e-6,
                what=f"{what}, as reported by rank {rank}",
                expected=expected,
                hint="Divide the right samples of all ranks by all samples: nothing counts twice, and there is no mean "
                "of means. (Here the ranks' models say different things of some samples.)",
            )
        require(
            max(shares) - min(shares) <= 1e-6,
            f"{what}: the ranks reported {', '.join(f'{share:.6g}' for share in shares)}, expected the same of all",
            "Sum the counts of all ranks with a collective.",
        )


def _cause_of(replies: Sequence[Evaluated], right: NDArray[np.bool_], shares: Sequence[float]) -> Cause | None:
    """The mistake that leads to what all ranks returned."""
    samples, ranks = right.shape[1], len(replies)
    if ranks == 1:
        return None
    counts = [sum(bool(right[rank, sample]) for sample in reply.samples) for rank, reply in enumerate(replies)]
    sizes = [max(1, len(reply.samples)) for reply in replies]
    own = [count / size for count, size in zip(counts, sizes, strict=True)]
    add_up = "Sum the counts of all ranks with a collective (dist.all_reduce), then divide once by all samples."
    wrong = [
        (own, "counts_of_one_rank", add_up, "Each rank of evaluate() counts for itself alone, and adds up nothing"),
        (
            [count / samples for count in counts],
            "own_counts_by_all_samples",
            add_up,
            "Each rank of evaluate() returns its own count, divided by all samples",
        ),
        ([sum(own) / ranks] * ranks, "mean_of_the_ranks", add_up, "evaluate() takes the mean of the ranks' shares"),
        ([sum(own)] * ranks, "shares_added_up", add_up, "evaluate() adds up the ranks' shares and does not divide"),
    ]
    if sum(len(reply.samples) for reply in replies) > samples:
        once = "Let each rank take every world_size-th sample, so that no sample counts twice."
        mistake = "Samples that a sampler repeats count twice in evaluate()"
        for divisor in (samples, -(-samples // ranks) * ranks):
            wrong.append(([sum(counts) / divisor] * ranks, "counts_twice", once, mistake))
    for expected, name, hint, mistake in wrong:
        if np.allclose(shares, expected, rtol=0, atol=1e-6):
            return Cause(f"evaluate_{name}", hint, mistake=mistake)
    return None
