"""The truth about Lab 3's evaluation: which samples each rank's model gets right, and what all of them count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradebox.assertions import number, require, require_between
from gradebox.fresh import Fresh

_REPEATED = 3
"""The first samples are those that a sampler repeats: wrong, and the same on all ranks."""


def evaluation(fresh: Fresh, ranks: int, samples: int) -> dict[str, Any]:
    """Logits and targets, and samples of which the ranks' models say different things (`turned`).

    `right` [ranks, samples] is the truth: no two ranks get the same number right, so that a rank that counts for
    itself cannot be right.
    """
    classes = fresh.odd(5, 9)
    logits = np.array([fresh.shuffled(list(range(classes))) for _ in range(samples)], dtype=np.float32) * 4
    said = logits.argmax(axis=1)
    targets = said.copy()
    wrong = [0, 1, *range(_REPEATED, _REPEATED + fresh.integer(1, 3))]
    targets[wrong] = (targets[wrong] + 1) % classes
    while True:
        turned = np.zeros((ranks, samples), dtype=np.float32)
        for own in turned:
            own[fresh.shuffled(list(range(_REPEATED, samples)))[: fresh.integer(1, 5)]] = 1
        right: NDArray[np.bool_] = (said + turned.astype(np.int64)) % classes == targets
        if len(set(right.sum(axis=1).tolist())) == ranks:
            return {"logits": logits, "targets": targets, "turned": turned, "right": right}


def require_counted(seen: Sequence[Mapping[str, Any]], right: NDArray[np.bool_], what: str) -> None:
    """Fail unless each sample passed a rank's model, and every rank told the share that those who saw them get right.

    Of a sample that passed on more ranks than one, any of them may be the one that counts it.
    """
    samples = right.shape[1]
    by = [[rank for rank, each in enumerate(seen) if sample in each["samples"]] for sample in range(samples)]
    missing = sum(not ranks for ranks in by)
    require(missing == 0, f"{what}: {missing} of them never passed the model")
    least, most = (sum(pick(bool(right[rank, n]) for rank in by[n]) for n in range(samples)) for pick in (min, max))
    told = [number(each["told"], f"{what}, as told by rank {rank}") for rank, each in enumerate(seen)]
    for rank, share in enumerate(told):
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
        max(told) - min(told) <= 1e-6,
        f"{what}: the ranks told {', '.join(f'{share:.6g}' for share in told)}, expected the same of all",
        "sum the counts of all ranks with a collective",
    )
