"""What Lab 3's evaluation must do: divide the work among the ranks, and count each sample once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradebox.run.assertions import number, require, require_between
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
            "the ranks divide the work: each takes a share of its own",
        )
        require(
            max(batches, default=0) <= batch_size and len(batches) <= -(-own // batch_size),
            f"{what} with batch_size={batch_size}: rank {rank} made batches of {batches}",
            "batch_size samples in each forward pass, fewer in the last one only",
        )


def require_counted(replies: Sequence[Evaluated], right: NDArray[np.bool_], what: str) -> None:
    """Fail unless each sample passed a rank's model, and every rank returned the share that these models get right.

    Of a sample that passed on more ranks than one, any of them may be the one that counts it.
    """
    samples = right.shape[1]
    by = [[rank for rank, reply in enumerate(replies) if sample in reply.samples] for sample in range(samples)]
    missing = sum(not ranks for ranks in by)
    require(missing == 0, f"{what}: {missing} of them never passed the model")
    least, most = (sum(pick(bool(right[rank, n]) for rank in by[n]) for n in range(samples)) for pick in (min, max))
    shares = [number(reply.share, f"{what}, as told by rank {rank}") for rank, reply in enumerate(replies)]
    for rank, share in enumerate(shares):
        require_between(
            share,
            least / samples - 1e-6,
            most / samples + 1e-6,
            what=f"{what}, as told by rank {rank}",
            expected=f"{least / samples:.6g}" if least == most else f"{least / samples:.6g} to {most / samples:.6g}",
            hint="right samples of all ranks / all samples: nothing counts twice, no mean of means, and no rank counts "
            "for itself alone (here the ranks' models say different things of some samples)",
        )
    require(
        max(shares) - min(shares) <= 1e-6,
        f"{what}: the ranks told {', '.join(f'{share:.6g}' for share in shares)}, expected the same of all",
        "sum the counts of all ranks with a collective",
    )
