"""The truth about Lab 3's trainings: which samples ranks should go through, and what SGD makes of those they did.

In NumPy float64. The gradient of each step is taken over the samples that passed the ranks' models in that step, so
that what is wrong with the shares of the data costs nothing where only gradients are judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradebox.run.assertions import Cause, CheckFailed, recognising, require, require_arrays_close
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Seen, Submission

Array = NDArray[np.float64]
RTOL = 1e-9
"""Relative to the largest weight, in float64. Sums in another order differ by 1e-15; every planted mistake by 1e-3 and
more."""
_RTOL = {"float64": RTOL, "float32": 2e-5}
"""In float32 such sums differ by 1e-6."""


_FACTORS = 64
"""Forward passes whose inputs a model multiplies by a number of its own; more than any of these trainings makes."""
_SAME_WAY = 0.5
"""Cosine between two ways that weights moved. Right ones: 1; with a mistake in steps or means still nearly that."""


SUMMED = Cause(
    "summed_over_ranks",
    "the weights are those of a training that adds up the gradients of all ranks, or multiplies the learning rate by "
    "their number: each step follows their mean, with the learning rate given",
    "lab3.setup.gradients_equal_full_batch",
)


@dataclass(frozen=True)
class Case:
    """A linear model (outputs = inputs @ weight.T + shift), trained by ranks that begin with weights of their own."""

    ranks: int
    weights: NDArray[np.float32]
    """[ranks, outputs, features]"""
    shifts: NDArray[np.float32]
    """[ranks, outputs]"""
    inputs: NDArray[np.float32]
    targets: NDArray[np.float32]
    arguments: dict[str, Any]
    factors: list[list[float]]
    """[ranks, forward passes]: what a rank's model multiplies its inputs by. No rank knows another's, so that none can
    compute what another would have told it."""
    classes: bool = False
    """Whether the number of a target's largest value is its class, and the loss is the default one."""
    tests: int = 0
    """The last so many samples are the test set."""
    again: tuple[dict[str, Any], ...] = ()
    """Arguments of further trainings that differ."""
    dtype: str = "float64"
    """Of the model and of its inputs."""

    @property
    def rtol(self) -> float:
        """Of weights, relative to the largest one."""
        return _RTOL[self.dtype]

    @property
    def samples(self) -> int:
        """Those to learn from."""
        return len(self.inputs) - self.tests

    def train(self, submission: Submission, **options: Any) -> list[Seen]:
        """What the probe saw on each rank."""
        return submission.rank_probe(
            "lab3.training.train",
            self.ranks,
            **{
                "device": "cpu",
                "weights": self.weights,
                "shifts": self.shifts,
                "inputs": self.inputs,
                "targets": self.targets,
                "arguments": self.arguments,
                "factors": self.factors,
                "classes": self.classes,
                "tests": self.tests,
                "again": list(self.again),
                "dtype": self.dtype,
                **options,
            },
        )

    def follow(self, seen: Sequence[Seen], *, summed: bool = False) -> tuple[Array, list[float]]:
        """Do the ranks' steps from rank 0's weights; the final weights, and each step's mean loss before it.

        With a mistake: with gradients that are `summed` over ranks.
        """
        weight, shift = (np.asarray(value[0], dtype=np.float64) for value in (self.weights, self.shifts))
        velocity, rate = np.zeros_like(weight), self.arguments["learning_rate"] * (self.ranks if summed else 1)
        losses = []
        for step, samples in enumerate(steps_of(seen)):
            x = np.asarray(self.inputs[list(samples)], dtype=np.float64) * self._factors(seen, step)
            outputs, wanted = x @ weight.T + shift, np.asarray(self.targets[list(samples)], dtype=np.float64)
            loss, difference = (cross_entropy if self.classes else half_squares)(outputs, wanted)
            losses.append(loss)
            velocity = self.arguments.get("momentum", 0.0) * velocity + difference.T @ x / len(x)
            weight = weight - rate * velocity
        return weight, losses

    def recognised(self, seen: Sequence[Seen]) -> AbstractContextManager[None]:
        """Where a comparison in here fails, say which mistake leads to the ranks' weights, if one does."""
        return recognising(lambda: self._mistake(seen))

    def _mistake(self, seen: Sequence[Seen]) -> Cause | None:
        right, summed = self.follow(seen)[0], self.follow(seen, summed=True)[0]
        return SUMMED if self._are(seen, summed) and not self._are(seen, right) else None

    def _are(self, seen: Sequence[Seen], expected: Array) -> bool:
        room = self.rtol * float(np.abs(expected).max())
        return all(
            np.shape(each.weight) == expected.shape and np.allclose(each.weight, expected, rtol=self.rtol, atol=room)
            for each in seen
        )

    def accuracy(self, weight: Array) -> tuple[float, float] | None:
        """The least and the most of the test samples, as a share, that these weights get right; they differ where two
        outputs do not for this dtype."""
        if not self.tests:
            return None
        x, wanted = (np.asarray(all_of[self.samples :], dtype=np.float64) for all_of in (self.inputs, self.targets))
        outputs = x @ weight.T + np.asarray(self.shifts[0], dtype=np.float64)
        own = outputs[np.arange(len(x)), wanted.argmax(axis=1)][:, np.newaxis]
        room = 10 * self.rtol * np.abs(outputs).max()
        ahead = (outputs > own + room).any(axis=1), (outputs > own - room).sum(axis=1) > 1
        return float((~ahead[0] & ~ahead[1]).mean()), float((~ahead[0]).mean())

    def _factors(self, seen: Sequence[Seen], step: int) -> Array:
        """[samples of all ranks, 1]: what the inputs of each were multiplied by."""
        drawn = [own[step] if step < len(own) else 1.0 for own in self.factors]
        return np.repeat(drawn, [len(rank.samples[step]) for rank in seen])[:, np.newaxis]


def half_squares(outputs: Array, wanted: Array) -> tuple[float, Array]:
    """Mean loss, and each sample's derivative by its outputs."""
    difference = outputs - wanted
    return 0.5 * float((difference**2).sum(axis=1).mean()), difference


def cross_entropy(outputs: Array, wanted: Array) -> tuple[float, Array]:
    """The same, where the largest number of `wanted` is a sample's class."""
    return class_loss(outputs, wanted.argmax(axis=1))


def class_loss(outputs: Array, classes: NDArray[np.int64]) -> tuple[float, Array]:
    """Mean cross entropy of classes, and each sample's derivative by its outputs."""
    rows = np.arange(len(outputs))
    powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    shares = powers / powers.sum(axis=1, keepdims=True)
    loss = -float(np.log(shares[rows, classes]).mean())
    shares[rows, classes] -= 1
    return loss, shares


def case(
    generator: InputGenerator,
    *,
    ranks: int,
    samples: int,
    classes: bool = False,
    tests: int = 0,
    again: tuple[dict[str, Any], ...] = (),
    dtype: str = "float64",
    **arguments: Any,
) -> Case:
    """A fresh case of this many samples to learn from, and `tests` more."""
    features, outputs = generator.odd(5, 9), generator.integer(3, 4)
    return Case(
        ranks=ranks,
        weights=generator.normal(ranks, outputs, features),
        shifts=generator.normal(ranks, outputs),
        inputs=generator.normal(samples + tests, features),
        targets=generator.normal(samples + tests, outputs),
        arguments=arguments,
        factors=[[generator.uniform(0.7, 1.3) for _ in range(_FACTORS)] for _ in range(ranks)],
        classes=classes,
        tests=tests,
        again=again,
        dtype=dtype,
    )


_EITHER: dict[str, Sequence[bool]] = dict.fromkeys(
    ("shared evenly", "last batch full", "classes", "momentum", "float32"), (False, True)
)
"""What trainings differ in. Of the two trainings of a grading one is always what the other is not."""


def _drawn(generator: InputGenerator, *, opposite: bool) -> dict[str, bool]:
    (row,) = generator.shared("lab3.trainings").cases(_EITHER, 1)
    return {name: value != opposite for name, value in row.items()}


def _samples(generator: InputGenerator, row: dict[str, bool], ranks: int, batch_size: int) -> int:
    """As many as make a rank's last batch full or not, in shares that are equal or must be filled up."""
    share = batch_size * generator.integer(3, 4) - (
        0 if row["last batch full"] else generator.integer(1, batch_size - 1)
    )
    return ranks * share - (0 if row["shared evenly"] else generator.integer(1, ranks - 1))


def even_case(generator: InputGenerator) -> Case:
    """Samples for two ranks. One training for many checks.

    Then one more epoch with the same seed, and two with the next one.
    """
    row = _drawn(generator, opposite=False)
    generator = generator.shared("lab3.train")
    seed, momentum = generator.integer(1, 1000), generator.uniform(0.5, 0.8)
    return case(
        generator,
        ranks=2,
        samples=_samples(generator, row, 2, 4),
        classes=row["classes"],
        tests=generator.integer(10, 20) if row["classes"] else 0,
        epochs=3,
        batch_size=4,
        learning_rate=generator.uniform(0.03, 0.05),
        momentum=momentum if row["momentum"] else 0.0,
        seed=seed,
        again=({"epochs": 1}, {"by_address": True, "epochs": 2, "seed": seed + 1}),
        dtype="float32" if row["float32"] else "float64",
    )


def uneven_case(generator: InputGenerator, ranks: int = 3) -> Case:
    """Samples for three ranks, or two, and whatever else `even_case` has not in this grading."""
    row = _drawn(generator, opposite=True)
    generator = generator.shared("lab3.uneven")
    momentum = generator.uniform(0.5, 0.8)
    return case(
        generator,
        ranks=ranks,
        samples=_samples(generator, row, ranks, 4),
        classes=row["classes"],
        tests=generator.integer(10, 20) if row["classes"] else 0,
        epochs=2,
        batch_size=4,
        learning_rate=generator.uniform(0.03, 0.05) if row["momentum"] else generator.uniform(0.05, 0.1),
        momentum=momentum if row["momentum"] else 0.0,
        dtype="float32" if row["float32"] else "float64",
    )


def debugging_case(generator: InputGenerator) -> Case:
    """The same for the script of Task 3.5, which the environment tells where to meet; then once more by an address."""
    generator = generator.shared("lab3.debugging")
    share = generator.odd(13, 17)
    sizes = generator.shuffled([4, share])  # in one of the two the last batch is as large as the others
    return case(
        generator,
        ranks=2,
        samples=2 * share - 1,  # which a sampler fills up, or drops
        classes=True,
        epochs=2,
        batch_size=sizes[0],
        learning_rate=generator.uniform(0.05, 0.1),
        again=({"by_address": True, "epochs": 1, "batch_size": sizes[1]},),
    )


def steps_of(seen: Sequence[Seen]) -> list[list[int]]:
    """The samples of each step on all ranks together.

    Raises:
        CheckFailed: the ranks made different numbers of steps, or none.
    """
    counts = [len(rank.samples) for rank in seen]
    require(len(set(counts)) == 1 and counts[0] > 0, f"steps on each rank: saw {counts}, expected the same of all")
    return [[number for rank in seen for number in rank.samples[step]] for step in range(counts[0])]


def epochs_of(seen: Seen, epochs: int) -> list[list[int]]:
    """The samples that one rank went through in each epoch.

    Raises:
        CheckFailed: its steps cannot be divided by the number of epochs.
    """
    steps = len(seen.samples)
    require(steps > 0 and steps % epochs == 0, f"{epochs} epochs made {steps} steps on one rank")
    length = steps // epochs
    return [
        [number for batch in seen.samples[epoch * length : (epoch + 1) * length] for number in batch]
        for epoch in range(epochs)
    ]


def require_trained(seen: Sequence[Seen], expected: Array, *, what: str, hint: str, rtol: float = RTOL) -> None:
    """Fail unless every rank's weights are those expected."""
    for rank, each in enumerate(seen):
        scale = float(np.abs(expected).max())
        require_arrays_close(
            each.weight, expected, rtol=rtol, atol=rtol * scale, what=f"{what}, weights of rank {rank}", hint=hint
        )


def require_exchanged(seen: Sequence[Seen], *, what: str) -> None:
    """Fail unless the ranks' collectives carried as much as the gradients of every step."""
    for rank, each in enumerate(seen):
        least = len(each.samples) * each.gradient_bytes
        require(
            each.carried_bytes >= least,
            f"{what}: collectives on rank {rank} carried {each.carried_bytes} bytes, fewer than the {least} of "
            f"{len(each.samples)} steps' gradients",
            "the ranks tell each other their gradients in every step, through the process group",
        )


def require_equal_replicas(
    seen: Sequence[Seen], *, what: str, hint: str, names: Sequence[str] = ("weight",), rtol: float = RTOL
) -> None:
    """Fail unless the ranks ended with the same values."""
    for name in names:
        first = np.asarray(seen[0][name], dtype=np.float64)
        for rank, each in enumerate(seen[1:], start=1):
            apart = float(np.abs(np.asarray(each[name], dtype=np.float64) - first).max())
            if not apart <= rtol * max(1.0, float(np.abs(first).max())):
                raise CheckFailed(f"{what}: {name} of rank {rank} differs from rank 0's by {apart:.3g}", hint)


def require_moved_alike(seen: Sequence[Seen], start: NDArray[Any], expected: Array, *, what: str) -> None:
    """Fail unless training changed every rank's weights, roughly as it should: weights that are equal because nothing
    was trained, or because they were overwritten, say nothing. How far they moved is judged elsewhere."""
    way = expected - np.asarray(start, dtype=np.float64)
    for rank, each in enumerate(seen):
        moved = np.asarray(each.weight, dtype=np.float64) - start
        length = float(np.linalg.norm(moved))
        alike = float((moved * way).sum() / (length * np.linalg.norm(way))) if length else 0.0
        require(
            alike > _SAME_WAY,
            f"{what}: the weights of rank {rank} moved by {length:.3g}, and not the way that its samples lead",
            "the model that is passed in is trained, in place",
        )


def require_shared(shares: Sequence[Sequence[int]], samples: int, *, what: str, hint: str) -> None:
    """Fail unless the ranks' samples hold every one, none of them twice but for what must be filled up."""
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
