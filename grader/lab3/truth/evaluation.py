"""The truth about Lab 3's evaluation: which samples each rank's model gets right, and what all of them count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradebox.run.assertions import number, require, require_between
from gradebox.run.input_generator import InputGenerator

_REPEATED = 3
"""The first samples are those that a sampler repeats: wrong, and the same on all ranks."""


def evaluations(generator: InputGenerator) -> dict[int, list[dict[str, Any]]]:
    """For each number of ranks: fewer samples than ranks, shares that differ, equal shares; with batches of one sample,
    of which the last is short or full, and of more than a share."""
    draws: list[tuple[int, int]] = []
    sizes: list[int] = []
    for ranks, samples in (
        (2, generator.odd(9, 17)),
        (2, 12),
        (3, 3 * generator.integer(3, 5) + generator.integer(1, 2)),
        (3, 12),
    ):
        draws.append((ranks, samples))
    kinds = generator.shuffled(["one", "short", "full", "long"])
    for (ranks, samples), kind in zip(draws, kinds, strict=True):
        share = -(-samples // ranks)
        divisors = [size for size in range(2, share + 1) if share % size == 0]
        others = [size for size in range(2, share) if share % size]
        sizes.append(
            {
                "one": 1,
                "short": generator.shuffled(others)[0],
                "full": generator.shuffled(divisors)[0],
                "long": share + 2,
            }[kind]
        )
    draws += [(2, 1), (3, generator.integer(1, 2))]
    sizes += generator.shuffled([1, 3])
    found: dict[int, list[dict[str, Any]]] = {2: [], 3: []}
    for (ranks, samples), size in zip(draws, sizes, strict=True):
        found[ranks].append({**evaluation(generator, ranks, samples), "batch_size": size})
    return found


def evaluation(generator: InputGenerator, ranks: int, samples: int) -> dict[str, Any]:
    """Logits and targets, and samples of which the ranks' models say different things (`turned`).

    `right` [ranks, samples] is the truth: no two ranks get the same number right, so that a rank that counts for
    itself cannot be right.
    """
    if samples <= _REPEATED:
        return _few(generator, ranks, samples)
    classes = generator.odd(5, 9)
    logits = np.array([generator.shuffled(list(range(classes))) for _ in range(samples)], dtype=np.float32) * 4
    said = logits.argmax(axis=1)
    targets = said.copy()
    wrong = [0, 1, *range(_REPEATED, _REPEATED + generator.integer(1, 3))]
    targets[wrong] = (targets[wrong] + 1) % classes
    while True:
        turned = np.zeros((ranks, samples), dtype=np.float32)
        for own in turned:
            own[generator.shuffled(list(range(_REPEATED, samples)))[: generator.integer(1, 5)]] = 1
        right: NDArray[np.bool_] = (said + turned.astype(np.int64)) % classes == targets
        if len(set(right.sum(axis=1).tolist())) == ranks:
            return {"logits": logits, "targets": targets, "turned": turned, "right": right}


def _few(generator: InputGenerator, ranks: int, samples: int) -> dict[str, Any]:
    """Fewer samples than ranks, of which all ranks' models say the same: some rank has nothing to do."""
    classes = generator.odd(5, 9)
    logits = np.array([generator.shuffled(list(range(classes))) for _ in range(samples)], dtype=np.float32)
    right = np.array([generator.integer(0, 1) == 1 for _ in range(samples)])
    right[0] = True  # a rank that has nothing to do says 0
    turned = np.zeros((ranks, samples), dtype=np.float32)
    targets = (logits.argmax(axis=1) + ~right) % classes
    return {"logits": logits, "targets": targets, "turned": turned, "right": np.tile(right, (ranks, 1))}


def require_divided(seen: Sequence[Mapping[str, Any]], samples: int, batch_size: int, what: str) -> None:
    """Fail unless the ranks divided the work, in batches as large as they should be."""
    batches_in_all = -(-samples // batch_size)
    most = -(-batches_in_all // len(seen)) * batch_size
    for rank, each in enumerate(seen):
        own, batches = len(each["samples"]), each["batches"]
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
