"""Passes of `train_with_accumulation` that are asked for, and what each must come to, in NumPy float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradebox.run.assertions import numbers, require, require_arrays_close, require_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Seen, Submission
from grader.lab3.truth import mistakes
from grader.lab3.truth.training import Array, class_loss, half_squares
from grader.shared.results import is_result, require_result

RTOL = {"float64": 1e-6, "float32": 2e-5}
"""Of weights and losses: sums in another order differ by 1e-15 and 1e-6, a window weighed wrongly by 1e-3 and more."""
IGNORED = -100
DEFAULT_RATE = 0.1


@dataclass(frozen=True)
class Pass:
    """One pass of `train_with_accumulation` over each rank's batches, and the truth about it."""

    weight: NDArray[np.float32]
    """[outputs, features + 1]; the last column is the bias."""
    inputs: NDArray[np.float32]
    """[samples, features] or [samples, length, features], rank after rank."""
    targets: NDArray[Any]
    """[samples, outputs], or classes: [samples], with tokens [samples, length]."""
    sizes: list[list[int]]
    """Of the batches of each rank."""
    steps: int
    rate: float
    momentum: float = 0.0
    tokens: bool = False
    default_optimizer: bool = False
    """Whether none is given."""
    default_criterion: bool = False
    stale: float = 0.0
    """What gradients are beforehand; 0: None."""
    kind: str = "cpu"
    """Of the device that the model is on; the batches are on the CPU."""
    grouped: bool = False
    """Whether one process is in a process group and its model in DistributedDataParallel, too."""
    device_given: bool = False
    """Whether the model's device is told."""
    dtype: str = "float64"
    frozen: bool = True
    """Whether the model has a parameter that needs no gradient."""
    as_list: bool = False
    """Whether the batches are a list."""

    def run(self, submission: Submission, **options: Any) -> list[Seen]:
        """What the probe saw on each rank."""
        (seen,) = run([self], submission, **options)
        return seen

    def windows(self) -> list[list[list[int]]]:
        """The samples of each batch, on all ranks, behind each optimizer step."""
        starts = np.cumsum([0, *(sum(rank) for rank in self.sizes)])
        windows = []
        for first in range(0, len(self.sizes[0]), self.steps):
            window: list[list[int]] = []
            for start, rank in zip(starts, self.sizes, strict=False):
                ends = (int(start) + np.cumsum([0, *rank])).tolist()
                last = min(first + self.steps, len(rank))
                window += [list(range(ends[batch], ends[batch + 1])) for batch in range(first, last)]
            windows.append(window)
        return windows

    @property
    def has_tail(self) -> bool:
        """Whether the last window is shorter."""
        return len(self.sizes[0]) % self.steps > 0

    def follow(self, mistake: str = "") -> tuple[Array, list[float], list[int]]:
        """Final weights, loss of each window before its step, and what it counts; with one of `mistakes.CAUSES`."""
        weight = np.asarray(self.weight, dtype=np.float64)
        velocity = np.zeros_like(weight)
        losses: list[float] = []
        counts: list[int] = []
        held = np.full_like(weight, self.stale if mistake in ("never_cleared", "not_cleared_before") else 0.0)
        ranks = len(self.sizes)
        for window in self.windows():
            batches = len(window) // ranks
            if mistake == "last_window_dropped" and batches < self.steps:
                break
            if mistake not in ("never_cleared", "not_cleared_before") or (mistake == "not_cleared_before" and losses):
                held = np.zeros_like(weight)
            parts = [self._part(weight, batch) for batch in window]
            counted = sum(count for _, count, _ in parts)
            losses.append(sum(loss * count for loss, count, _ in parts) / counted)
            counts.append(counted)
            for index, (_, count, gradient) in enumerate(parts):
                if mistake != "cleared_each_batch" or index % batches == batches - 1:
                    held = held + mistakes.share(mistake, count, counted, batches, self.steps, ranks) * gradient
            velocity = self.momentum * velocity + held
            weight = weight - self.rate * velocity
        return weight, losses, counts

    def _part(self, weight: Array, batch: list[int]) -> tuple[float, int, Array]:
        """Mean loss of a batch, what counts in it, and the gradient of that mean."""
        x = np.asarray(self.inputs[batch], dtype=np.float64).reshape(-1, weight.shape[1] - 1)
        x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
        wanted = self.targets[batch]
        if wanted.dtype == np.int64:
            counted = wanted.reshape(-1) != IGNORED
            x, classes = x[counted], wanted.reshape(-1)[counted]
            loss, difference = class_loss(x @ weight.T, classes)
        else:
            loss, difference = half_squares(x @ weight.T, np.asarray(wanted, dtype=np.float64))
        return loss, len(x), difference.T @ x / len(x)

    def recognised(self, seen: list[Seen]) -> AbstractContextManager[None]:
        """Where a comparison in here fails, say which mistake leads to these weights."""
        return mistakes.recognised([(self._weights, RTOL[self.dtype], seen)])

    def _weights(self, mistake: str) -> Array:
        return self.follow(mistake)[0]

    def require_right(self, seen: list[Seen], what: str, hint: str) -> None:
        """Fail unless weights and losses are those of large batches."""
        with self.recognised(seen):
            self._require_right(seen, what, hint)

    def _require_right(self, seen: list[Seen], what: str, hint: str) -> None:
        expected, losses, _ = self.follow()
        scale = float(np.abs(expected).max())
        if any(not np.allclose(seen[0].weight, each.weight, rtol=1e-6, atol=1e-6 * scale) for each in seen):
            hint = (
                "the ranks' weights differ: the last batch of every window exchanges gradients, also that of a shorter "
                "window, whatever its number"
            )
        for rank, each in enumerate(seen):
            rtol = RTOL[self.dtype]
            self._require_steps(each, what, rank)
            require_arrays_close(
                each.weight, expected, rtol=rtol, atol=rtol * scale, what=f"{what}: weights of rank {rank}", hint=hint
            )
            if is_result(each.result):  # if it is none, the check of what is reported says so
                losses_told = numbers(each.result["losses"], len(losses), f"{what}: losses on rank {rank}", hint)
                for step, (told, loss) in enumerate(zip(losses_told, losses, strict=True)):
                    require_close(
                        told, loss, relative=rtol, what=f"{what}: losses[{step}] on rank {rank}", hint=mistakes.LOSSES
                    )
            require_equal(each.modes, [True], what=f"{what}: model.training in each forward pass", hint=mistakes.MODE)
            require(bool((each.frozen == 1).all()), f"{what}: a parameter without a gradient (frozen) was changed")

    def _require_steps(self, seen: Seen, what: str, rank: int) -> None:
        if is_result(seen.result):
            steps, batches = len(self.windows()), len(self.sizes[0])
            require_equal(seen.result["optimizer_steps"], steps, what=f"{what}: optimizer_steps on rank {rank}")
            require_equal(seen.result["micro_batches"], batches, what=f"{what}: micro_batches on rank {rank}")

    def require_counted(self, seen: list[Seen], what: str) -> None:
        """Fail unless each step told what it is the mean over."""
        _, _, counts = self.follow()
        unit = "tokens" if self.tokens else "samples"
        for rank, each in enumerate(seen):
            require_equal(
                require_result(each.result)["effective_batch_sizes"],
                counts,
                what=f"{what}: effective_batch_sizes in {unit} on rank {rank} of {len(seen)}",
                hint="what each optimizer step is the mean over: all batches of its window, on all ranks",
            )


def run(passes: Sequence[Pass], submission: Submission, *, device: str = "cpu") -> list[list[Seen]]:
    """What the probe saw on each rank in each of these passes, which are asked in one request."""
    given = [{field.name: getattr(each, field.name) for field in fields(each)} for each in passes]
    ranks = submission.rank_probe("lab3.accumulation.accumulate", len(passes[0].sizes), device=device, passes=given)
    return [[Seen(rank.whole("passes")[index], {}) for rank in ranks] for index in range(len(passes))]


def regression(generator: InputGenerator, sizes: list[list[int]], steps: int, *, momentum: float = 0.0) -> Pass:
    """Fresh samples for batches of these sizes; gradients are not 0 beforehand."""
    samples, features, outputs = sum(map(sum, sizes)), generator.odd(31, 39), generator.odd(15, 19)
    return Pass(
        weight=generator.normal(outputs, features + 1) / np.float32(features**0.5),
        inputs=generator.normal(samples, features),
        targets=generator.normal(samples, outputs),
        sizes=sizes,
        steps=steps,
        rate=generator.uniform(0.05, 0.1),
        momentum=momentum,
        stale=generator.uniform(0.5, 1.5),
    )


def classification(generator: InputGenerator, sizes: list[list[int]], steps: int, *, ignored: bool = False) -> Pass:
    """Fresh classes for batches of these sizes, some of them `ignored`, with the arguments of the document alone.

    Gradients are not 0 beforehand.
    """
    samples, features, classes = sum(map(sum, sizes)), generator.odd(31, 39), generator.odd(15, 19)
    targets = generator.rng.integers(0, classes, samples)
    if ignored:
        firsts = {int(first) for first in np.cumsum([0, *(size for rank in sizes for size in rank)])}
        for place in range(samples):
            if place not in firsts and (place - 1 in firsts or generator.integer(0, 2) == 0):
                targets[place] = IGNORED
    return Pass(
        weight=generator.normal(classes, features + 1) / np.float32(features**0.5),
        inputs=generator.normal(samples, features),
        targets=targets,
        sizes=sizes,
        steps=steps,
        rate=DEFAULT_RATE,
        default_optimizer=True,
        default_criterion=True,
        stale=generator.uniform(0.5, 1.5),
    )


def whole_windows(generator: InputGenerator) -> Pass:
    """Twelve batches of 8 on each of two ranks, in windows of four: three steps, as batches of 64 would make."""
    return classification(generator.shared("lab3.accumulation"), [[8] * 12, [8] * 12], 4)


def texts(generator: InputGenerator) -> Pass:
    """Tokens on two ranks, of which a different number counts in each batch."""
    generator = generator.shared("lab3.tokens")
    sizes = [[generator.integer(2, 4) for _ in range(5)] for _ in range(2)]
    samples, length, features, classes = (
        sum(map(sum, sizes)),
        generator.odd(7, 11),
        generator.odd(9, 13),
        generator.odd(5, 9),
    )
    targets = np.array(
        [[generator.integer(0, classes - 1) for _ in range(length)] for _ in range(samples)], dtype=np.int64
    )
    for row in targets:
        row[generator.integer(1, length) :] = IGNORED
    return Pass(
        weight=generator.normal(classes, features + 1) / np.float32(features**0.5),
        inputs=generator.normal(samples, length, features),
        targets=targets,
        sizes=sizes,
        steps=2,
        rate=DEFAULT_RATE,
        tokens=True,
        default_optimizer=True,
        default_criterion=True,
        dtype="float32",
        frozen=False,
        as_list=True,
    )


def labels(generator: InputGenerator) -> Pass:
    """Classes of one process alone, some of them ignored; optimizer and criterion are the default ones.

    Windows of one batch, or of two of which the last has one.
    """
    sizes = [[generator.integer(3, 6) for _ in range(3)]]
    samples, features, classes = sum(sizes[0]), generator.odd(9, 13), generator.odd(5, 9)
    targets = np.array([generator.integer(0, classes - 1) for _ in range(samples)], dtype=np.int64)
    targets[np.cumsum([0, *sizes[0][:-1]])] = IGNORED  # the first of each batch
    return Pass(
        weight=generator.normal(classes, features + 1) / np.float32(features**0.5),
        inputs=generator.normal(samples, features),
        targets=targets,
        sizes=sizes,
        steps=generator.integer(1, 2),
        rate=DEFAULT_RATE,
        default_optimizer=True,
        default_criterion=True,
    )


_SHAPES = {"one batch": (2, 1), "divides": (4, 2), "short last": (5, 3), "longer than the epoch": (2, 5)}
"""Batches of each rank, and of a window."""
_SIZES = ("one sample each", "equal", "unequal", "unequal")
_MIXED: dict[str, Sequence[Any]] = {
    "place": ("2 ranks", "alone", "alone on a GPU", "group of one on a GPU"),
    "targets": ("numbers", "classes", "tokens"),
    "ignored": ("none", "some"),
    "momentum": (False, True),
    "default_optimizer": (False, True),
    "default_criterion": (False, True),
    "device_given": (False, True),
    "dtype": ("float64", "float32"),
    "frozen": (False, True),
    "stale": (False, True),
    "as_list": (False, True),
}
"""What the passes of `mixed` differ in, besides windows and sizes of batches."""


def _can_be(row: Mapping[str, Any]) -> bool:
    """Numbers have no classes, and the default is plain SGD."""
    return (row["targets"] != "numbers" or (row["ignored"] == "none" and not row["default_criterion"])) and (
        not (row["default_optimizer"] and row["momentum"])
    )


def mixed(generator: InputGenerator) -> list[tuple[str, Pass]]:
    """A pass for each kind of window, in which all else that passes differ in comes together; and what it is."""
    rows = [
        {"window": window, **generator.shared(f"lab3.mixed.{window}").cases(_MIXED, 1, _can_be)[0]}
        for window in _SHAPES
    ]
    sizes = generator.shuffled(_SIZES)
    # A batch counts at least one target: where some are ignored it cannot have a single sample with one.
    while any(
        size == "one sample each" and row["ignored"] == "some" and row["targets"] == "classes"
        for row, size in zip(rows, sizes, strict=True)
    ):
        if all(row["ignored"] == "some" and row["targets"] == "classes" for row in rows):
            rows[0]["ignored"] = "none"
        sizes = generator.shuffled(_SIZES)
    passes = []
    for row, size in zip(rows, sizes, strict=True):
        what = ", ".join(f"{name}={value}" for name, value in row.items())
        passes.append((what, _mixed(generator, {**row, "sizes": size})))
    return passes


def _mixed(generator: InputGenerator, row: Mapping[str, Any]) -> Pass:
    ranks = 2 if row["place"] == "2 ranks" else 1
    batches, steps = _SHAPES[row["window"]]
    equal = {"one sample each": 1, "equal": 4}.get(row["sizes"])
    sizes = [[equal] * batches if equal else generator.shuffled([2, 3, 4, 6, 7])[:batches] for _ in range(ranks)]
    samples, features, outputs = sum(map(sum, sizes)), generator.odd(5, 9), generator.odd(3, 7)
    length = generator.integer(4, 6)
    shape = (samples, length) if row["targets"] == "tokens" else (samples,)
    targets: NDArray[Any] = generator.normal(samples, outputs)
    if row["targets"] != "numbers":
        targets = generator.rng.integers(0, outputs, shape)
        if row["ignored"] == "some":
            firsts = np.cumsum([0, *(size for rank in sizes for size in rank)])[:-1]
            for place in range(samples):
                if row["targets"] == "tokens":
                    targets[place, generator.integer(1, length - 1) :] = IGNORED
                elif place not in firsts and (place - 1 in firsts or generator.integer(0, 2) == 0):
                    targets[place] = IGNORED
    return Pass(
        weight=generator.normal(outputs, features + 1) / np.float32(features**0.5),
        inputs=generator.normal(*shape, features),
        targets=targets,
        sizes=sizes,
        steps=steps,
        rate=DEFAULT_RATE if row["default_optimizer"] else generator.uniform(0.1, 0.2),
        momentum=generator.uniform(0.5, 0.9) if row["momentum"] else 0.0,
        tokens=row["targets"] == "tokens",
        default_optimizer=row["default_optimizer"],
        default_criterion=row["default_criterion"],
        stale=generator.uniform(0.5, 1.5) if row["stale"] else 0.0,
        kind="cuda" if row["place"].endswith("GPU") else "cpu",
        grouped=row["place"].startswith("group"),
        device_given=row["device_given"],
        dtype=row["dtype"],
        frozen=row["frozen"],
        as_list=row["as_list"],
    )


def short_tail(generator: InputGenerator) -> Pass:
    """A last window of two batches instead of four, the very last of them smaller."""
    return classification(generator.shared("lab3.tail"), [[8] * 9 + [5], [8] * 9 + [5]], 4)
