"""Evaluations by several ranks, whose models say different things of some samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.shared.dimensions import Case, Dimension, Space

if TYPE_CHECKING:
    from gradebox.run.input_generator import InputGenerator
    from gradebox.sandbox import Request

_REPEATED = 3
"""The first samples are those that a sampler repeats: wrong, and the same on all ranks."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Samples to evaluate."""

    logits: Array
    """[samples, classes]: what a model says of them."""
    targets: Array
    turned: Array
    """[ranks, samples]: 1 where the model of a rank says the next class instead, so that no other rank knows how many
    it gets right."""
    batch_size: int

    @property
    def answers(self) -> Array:
        """[ranks, samples]: the class that each rank's model says."""
        return (self.logits.argmax(axis=1) + self.turned.astype(np.int64)) % self.logits.shape[1]


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What one call of `evaluate` did on one rank."""

    share: object
    """The share of right samples, as the call returned it."""
    samples: list[int]
    """Those that passed the model, by number."""
    batches: list[int]
    """Samples in each forward pass."""
    quiet: bool
    """Whether all forward passes were in evaluation mode and without gradients."""
    modes_kept: bool
    """Whether each part of the model was in the mode of before afterwards."""


@dataclass(frozen=True, kw_only=True)
class EvaluationReply:
    """What one rank observed for one set of samples."""

    together: list[Evaluated]
    """By all ranks: with a replicated model, and with a plain one."""
    alone: Evaluated


@dataclass(frozen=True, kw_only=True)
class EvaluateReply:
    """What one rank observed."""

    cases: list[EvaluationReply]
    refused: bool
    """Whether evaluating no samples raised a ValueError."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(ProbeInputs[EvaluateReply], probe="lab3.setup.evaluation.evaluate"):
    """Sets of samples, one after the other."""

    cases: list[Evaluation]
    kind: str
    """Of the device on which a model is that one rank evaluates alone; the samples are on the CPU."""


def _evaluations(request: Request) -> Iterator[Case]:
    for case in request.params["cases"]:
        samples = len(request.tensors[case["logits"]])
        yield {"samples": samples, "ranks": request.ranks, "batch_size": case["batch_size"]}


def _share(case: Case) -> str:
    if case["samples"] < case["ranks"]:
        return "none for some"
    return "uneven" if case["samples"] % case["ranks"] else "even"


def _batches(case: Case) -> str:
    share, size = -(-case["samples"] // case["ranks"]), case["batch_size"]
    if size == 1:
        return "one sample each"
    return "one, not full" if size > share else "short last" if share % size else "full"


_BATCHES = Dimension("batches", ("one sample each", "short last", "full", "one, not full"), _batches)
SPACES = (
    Space(
        probes=(Evaluate.probe,),
        cases=_evaluations,
        dimensions=(
            Dimension("ranks", ("2", "3"), lambda case: str(case["ranks"])),
            Dimension("shares", ("none for some", "uneven", "even"), _share),
            _BATCHES,
        ),
        apart={
            ("shares=none for some", "batches=short last"): "a rank has one sample or none",
            ("shares=none for some", "batches=full"): "a rank has one sample or none",
        },
    ),
)


def evaluations(generator: InputGenerator) -> dict[int, list[Evaluation]]:
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
    for (ranks, samples), kind in zip(draws, generator.shuffled(_BATCHES.values), strict=True):
        share = -(-samples // ranks)
        (short, *_) = generator.shuffled([size for size in range(2, share) if share % size])
        (full, *_) = generator.shuffled([size for size in range(2, share + 1) if share % size == 0])
        sizes.append({"one sample each": 1, "short last": short, "full": full, "one, not full": share + 2}[kind])
    # From 2048 on float16 does not hold every number: who counts in it is wrong.
    many = generator.odd(2081, 2141)
    draws += [(2, 1), (3, generator.integer(1, 2)), (2, many)]
    sizes += [*generator.shuffled([1, 3]), many]
    made: dict[int, list[Evaluation]] = {2: [], 3: []}
    for (ranks, samples), size in zip(draws, sizes, strict=True):
        made[ranks].append(_evaluation(generator, ranks, samples, size))
    return made


def _evaluation(generator: InputGenerator, ranks: int, samples: int, batch_size: int) -> Evaluation:
    """Samples of which no two ranks get the same number right, so that a rank that counts for itself cannot be right;
    if there are very few samples, all ranks get the same ones right."""
    if samples <= _REPEATED:
        return _few(generator, ranks, samples, batch_size)
    classes = generator.odd(5, 9)
    logits = np.array([generator.shuffled(list(range(classes))) for _ in range(samples)], dtype=np.float32) * 4
    targets = logits.argmax(axis=1)
    wrong = [0, 1, *range(_REPEATED, _REPEATED + generator.integer(1, 3))]
    targets[wrong] = (targets[wrong] + 1) % classes
    while True:
        turned = np.zeros((ranks, samples), dtype=np.float32)
        for own in turned:
            own[generator.shuffled(list(range(_REPEATED, samples)))[: generator.integer(1, 5)]] = 1
        case = Evaluation(logits=logits, targets=targets, turned=turned, batch_size=batch_size)
        if len(set((case.answers == targets).sum(axis=1).tolist())) == ranks:
            return case


def _few(generator: InputGenerator, ranks: int, samples: int, batch_size: int) -> Evaluation:
    """Fewer samples than ranks, of which all ranks' models say the same: some rank has nothing to do."""
    classes = generator.odd(5, 9)
    logits = np.array([generator.shuffled(list(range(classes))) for _ in range(samples)], dtype=np.float32)
    right = np.array([generator.integer(0, 1) == 1 for _ in range(samples)])
    right[0] = True  # a rank that has nothing to do says 0
    targets = (logits.argmax(axis=1) + ~right) % classes
    turned = np.zeros((ranks, samples), dtype=np.float32)
    return Evaluation(logits=logits, targets=targets, turned=turned, batch_size=batch_size)
