"""Judges Lab 3's gradient accumulation: small batches on several ranks act like one large batch, at its price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradebox.assertions import (
    CheckFailed,
    numbers,
    require,
    require_arrays_close,
    require_between,
    require_close,
    require_equal,
)
from gradebox.criterion import criterion, requires
from gradebox.fresh import Fresh
from gradebox.submission import Seen, Submission
from grader.lab3.truth.training import Array, class_loss, half_squares, require_equal_replicas, require_moved_alike

RTOL = {"float64": 1e-6, "float32": 2e-5}
"""Of weights and losses: sums in another order differ by 1e-15 and 1e-6, a window weighed wrongly by 1e-3 and more."""
EXTRA_BYTES_SHARE, EXTRA_BYTES = 0.1, 1024
"""What may be exchanged beside gradients. Right solutions: 16 bytes a step, and 8 % where frozen parameters take part;
one exchange too many: the model again, 3,800 bytes and more."""
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

    def windows(self) -> list[list[int]]:
        """The samples behind each optimizer step."""
        starts = np.cumsum([0, *(sum(rank) for rank in self.sizes)])
        windows = []
        for first in range(0, len(self.sizes[0]), self.steps):
            window: list[int] = []
            for start, rank in zip(starts, self.sizes, strict=False):
                begin = int(start) + sum(rank[:first])
                window += range(begin, begin + sum(rank[first : first + self.steps]))
            windows.append(window)
        return windows

    @property
    def has_tail(self) -> bool:
        """Whether the last window is shorter."""
        return len(self.sizes[0]) % self.steps > 0

    def follow(self) -> tuple[Array, list[float], list[int]]:
        """Final weights, loss of each window before its step, and what it counts."""
        weight = np.asarray(self.weight, dtype=np.float64)
        velocity, losses, counts = np.zeros_like(weight), [], []
        for window in self.windows():
            x = np.asarray(self.inputs[window], dtype=np.float64).reshape(-1, weight.shape[1] - 1)
            x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
            wanted = self.targets[window]
            if wanted.dtype == np.int64:
                counted = wanted.reshape(-1) != IGNORED
                x, classes = x[counted], wanted.reshape(-1)[counted]
                loss, difference = class_loss(x @ weight.T, classes)
            else:
                loss, difference = half_squares(x @ weight.T, np.asarray(wanted, dtype=np.float64))
            losses.append(loss)
            counts.append(len(x))
            velocity = self.momentum * velocity + difference.T @ x / len(x)
            weight = weight - self.rate * velocity
        return weight, losses, counts

    def require_right(self, seen: list[Seen], what: str, hint: str) -> None:
        """Fail unless weights and losses are those of large batches."""
        expected, losses, _ = self.follow()
        scale = float(np.abs(expected).max())
        for rank, each in enumerate(seen):
            require_equal(each.result["optimizer_steps"], len(losses), what=f"{what}: optimizer_steps on rank {rank}")
            require_equal(
                each.result["micro_batches"], len(self.sizes[0]), what=f"{what}: micro_batches on rank {rank}"
            )
            rtol = RTOL[self.dtype]
            require_arrays_close(
                each.weight, expected, rtol=rtol, atol=rtol * scale, what=f"{what}: weights of rank {rank}", hint=hint
            )
            losses_told = numbers(each.result["losses"], len(losses), f"{what}: losses on rank {rank}", hint)
            for step, (told, loss) in enumerate(zip(losses_told, losses, strict=True)):
                require_close(told, loss, relative=rtol, what=f"{what}: losses[{step}] on rank {rank}", hint=hint)
            require_equal(each.modes, [True], what=f"{what}: model.training in each forward pass", hint="model.train()")
            require(bool((each.frozen == 1).all()), f"{what}: a parameter without a gradient (frozen) was changed")

    def require_counted(self, seen: list[Seen], what: str) -> None:
        """Fail unless each step told what it is the mean over."""
        _, _, counts = self.follow()
        unit = "tokens" if self.tokens else "samples"
        for rank, each in enumerate(seen):
            require_equal(
                each.result["effective_batch_sizes"],
                counts,
                what=f"{what}: effective_batch_sizes in {unit} on rank {rank} of {len(seen)}",
                hint="what each optimizer step is the mean over: all batches of its window, on all ranks",
            )


def run(passes: Sequence[Pass], submission: Submission, *, device: str = "cpu") -> list[list[Seen]]:
    """What the probe saw on each rank in each of these passes, which are asked in one request."""
    given = [{field.name: getattr(each, field.name) for field in fields(each)} for each in passes]
    ranks = submission.rank_probe("lab3.accumulation.accumulate", len(passes[0].sizes), device=device, passes=given)
    return [[Seen(rank.whole("passes")[index], {}) for rank in ranks] for index in range(len(passes))]


def regression(fresh: Fresh, sizes: list[list[int]], steps: int, *, momentum: float = 0.0) -> Pass:
    """Fresh samples for batches of these sizes; gradients are not 0 beforehand."""
    samples, features, outputs = sum(map(sum, sizes)), fresh.odd(31, 39), fresh.odd(15, 19)
    return Pass(
        weight=fresh.normal(outputs, features + 1) / np.float32(features**0.5),
        inputs=fresh.normal(samples, features),
        targets=fresh.normal(samples, outputs),
        sizes=sizes,
        steps=steps,
        rate=fresh.uniform(0.05, 0.1),
        momentum=momentum,
        stale=fresh.uniform(0.5, 1.5),
    )


def whole_windows(fresh: Fresh) -> Pass:
    """Twelve batches of 8 on each of two ranks, in windows of four: three steps, as batches of 64 would make."""
    return regression(fresh.shared("lab3.accumulation"), [[8] * 12, [8] * 12], 4)


def texts(fresh: Fresh) -> Pass:
    """Tokens on two ranks, of which a different number counts in each batch."""
    fresh = fresh.shared("lab3.tokens")
    sizes = [[fresh.integer(2, 4) for _ in range(5)] for _ in range(2)]
    samples, length, features, classes = sum(map(sum, sizes)), fresh.odd(7, 11), fresh.odd(9, 13), fresh.odd(5, 9)
    targets = np.array([[fresh.integer(0, classes - 1) for _ in range(length)] for _ in range(samples)], dtype=np.int64)
    for row in targets:
        row[fresh.integer(1, length) :] = IGNORED
    return Pass(
        weight=fresh.normal(classes, features + 1) / np.float32(features**0.5),
        inputs=fresh.normal(samples, length, features),
        targets=targets,
        sizes=sizes,
        steps=2,
        rate=fresh.uniform(0.2, 0.4),
        tokens=True,
        dtype="float32",
        frozen=False,
        as_list=True,
    )


def labels(fresh: Fresh) -> Pass:
    """Classes of one process alone, some of them ignored; optimizer and criterion are the default ones.

    Windows of one batch, or of two of which the last has one.
    """
    sizes = [[fresh.integer(3, 6) for _ in range(3)]]
    samples, features, classes = sum(sizes[0]), fresh.odd(9, 13), fresh.odd(5, 9)
    targets = np.array([fresh.integer(0, classes - 1) for _ in range(samples)], dtype=np.int64)
    targets[np.cumsum([0, *sizes[0][:-1]])] = IGNORED  # the first of each batch
    return Pass(
        weight=fresh.normal(classes, features + 1) / np.float32(features**0.5),
        inputs=fresh.normal(samples, features),
        targets=targets,
        sizes=sizes,
        steps=fresh.integer(1, 2),
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
    """Numbers have no classes, cross entropy wants them in the second dimension, and the default is plain SGD."""
    return (
        (row["targets"] != "numbers" or (row["ignored"] == "none" and not row["default_criterion"]))
        and (row["targets"] != "tokens" or not row["default_criterion"])
        and not (row["default_optimizer"] and row["momentum"])
    )


def mixed(fresh: Fresh) -> list[tuple[str, Pass]]:
    """A pass for each kind of window, in which all else that passes differ in comes together; and what it is."""
    rows = [
        {"window": window, **fresh.shared(f"lab3.mixed.{window}").cases(_MIXED, 1, _can_be)[0]} for window in _SHAPES
    ]
    sizes = fresh.shuffled(_SIZES)
    # A batch counts at least one target: where some are ignored it cannot have a single sample with one.
    while any(
        size == "one sample each" and row["ignored"] == "some" and row["targets"] == "classes"
        for row, size in zip(rows, sizes, strict=True)
    ):
        if all(row["ignored"] == "some" and row["targets"] == "classes" for row in rows):
            rows[0]["ignored"] = "none"
        sizes = fresh.shuffled(_SIZES)
    passes = []
    for row, size in zip(rows, sizes, strict=True):
        what = ", ".join(f"{name}={value}" for name, value in row.items())
        passes.append((what, _mixed(fresh, {**row, "sizes": size})))
    return passes


def _mixed(fresh: Fresh, row: Mapping[str, Any]) -> Pass:
    ranks = 2 if row["place"] == "2 ranks" else 1
    batches, steps = _SHAPES[row["window"]]
    equal = {"one sample each": 1, "equal": 4}.get(row["sizes"])
    sizes = [[equal] * batches if equal else fresh.shuffled([2, 3, 4, 6, 7])[:batches] for _ in range(ranks)]
    samples, features, outputs = sum(map(sum, sizes)), fresh.odd(5, 9), fresh.odd(3, 7)
    length = fresh.integer(4, 6)
    shape = (samples, length) if row["targets"] == "tokens" else (samples,)
    targets: NDArray[Any] = fresh.normal(samples, outputs)
    if row["targets"] != "numbers":
        targets = fresh.rng.integers(0, outputs, shape)
        if row["ignored"] == "some":
            firsts = np.cumsum([0, *(size for rank in sizes for size in rank)])[:-1]
            for place in range(samples):
                if row["targets"] == "tokens":
                    targets[place, fresh.integer(1, length - 1) :] = IGNORED
                elif place not in firsts and (place - 1 in firsts or fresh.integer(0, 2) == 0):
                    targets[place] = IGNORED
    return Pass(
        weight=fresh.normal(outputs, features + 1) / np.float32(features**0.5),
        inputs=fresh.normal(*shape, features),
        targets=targets,
        sizes=sizes,
        steps=steps,
        rate=DEFAULT_RATE if row["default_optimizer"] else fresh.uniform(0.1, 0.2),
        momentum=fresh.uniform(0.5, 0.9) if row["momentum"] else 0.0,
        tokens=row["targets"] == "tokens",
        default_optimizer=row["default_optimizer"],
        default_criterion=row["default_criterion"],
        stale=fresh.uniform(0.5, 1.5) if row["stale"] else 0.0,
        kind="cuda" if row["place"].endswith("GPU") else "cpu",
        grouped=row["place"].startswith("group"),
        device_given=row["device_given"],
        dtype=row["dtype"],
        frozen=row["frozen"],
        as_list=row["as_list"],
    )


def short_tail(fresh: Fresh) -> Pass:
    """A last window of two batches instead of four, the very last of them smaller; with momentum."""
    fresh = fresh.shared("lab3.tail")
    return regression(fresh, [[8] * 9 + [5], [8] * 9 + [5]], 4, momentum=fresh.uniform(0.5, 0.9))


def uneven(submission: Submission, fresh: Fresh) -> list[tuple[Pass, str, list[Seen]]]:
    """Passes over batches that count differently, what they are, and what was seen: two requests in a grading."""
    fresh = fresh.shared("lab3.uneven counts")
    sizes = [[fresh.integer(1, 9) for _ in range(6)] for _ in range(2)]
    few = labels(fresh)
    asked = [
        (regression(fresh, sizes, 3), f"batches of {sizes} on 2 ranks, windows of 3"),
        (few, f"classes in batches of {few.sizes[0]}, some ignored, windows of {few.steps}, nothing else given"),
    ]
    gpu = submission.device.name != "cpu"
    for what, given in mixed(fresh):
        one = given if gpu else replace(given, kind="cpu")
        asked.append((one, f"batches of {one.sizes}, windows of {one.steps} ({what})"))
    found = []
    for ranks, device in ((2, "cpu"), (1, submission.device.name)):
        passes = [(given, what) for given, what in asked if len(given.sizes) == ranks]
        told = run([given for given, _ in passes], submission, device=device)
        found += [(given, what, seen) for (given, what), seen in zip(passes, told, strict=True)]
    return found


def require_tail(submission: Submission, fresh: Fresh) -> None:
    """Fail unless a shorter last window is trained on like the others."""
    given = short_tail(fresh)
    hint = "a shorter window is a window: it makes a step, with the mean over its own samples"
    given.require_right(given.run(submission), "10 batches in windows of 4 on 2 ranks", hint)


def may_judge_tails(submission: Submission, fresh: Fresh) -> bool:
    """Whether a shorter last window is right. Where it is not, one check says so, and the others leave it out."""
    try:
        require_tail(submission, fresh)
    except CheckFailed:
        return False
    return True


@criterion("lab3.accumulation")
class TestAccumulation:
    def test_equals_one_large_batch(self, submission: Submission, fresh: Fresh) -> None:
        """Trains as one large batch would."""
        hint = "each batch weighs as much as its share of the window; zero_grad() and step() once per window"
        # One process may have a GPU; the batches are not there. NCCL reduces nothing that is not there, either.
        gpu = submission.device.name != "cpu"
        alone = replace(regression(fresh, [[8] * 8], 4), kind="cuda" if gpu else "cpu", grouped=True)
        seen = alone.run(submission, device=submission.device.name)
        alone.require_right(seen, "4 batches of 8 against one of 32, a process group of one process", hint)
        for count, refused in seen[0].refused.items():
            require(refused, f"train_with_accumulation(model, train_loader, {count}) raised no ValueError")
        given = whole_windows(fresh)
        what = "4 batches of 8 on 2 ranks against one of 64"
        given.require_right(given.run(submission), what, hint + "; DistributedDataParallel takes the mean over ranks")

    @requires("equals_one_large_batch")
    def test_short_last_window(self, submission: Submission, fresh: Fresh) -> None:
        """Makes a step on a shorter last window, too."""
        require_tail(submission, fresh)

    @requires("equals_one_large_batch")
    def test_uneven_counts(self, submission: Submission, fresh: Fresh) -> None:
        """Weighs batches of different sizes right."""
        hint = "a mean of means weighs a small batch too much: weigh by the counts of the whole window, on all ranks"
        tails = may_judge_tails(submission, fresh)
        for given, what, seen in uneven(submission, fresh):
            if given.has_tail and not tails:
                continue
            defaults = "; SGD(lr=0.1) and cross entropy are the defaults" if given.default_optimizer else ""
            given.require_right(seen, what, hint + defaults)
        words = texts(fresh)
        if not tails:
            words = replace(words, sizes=[rank[: 2 * words.steps] for rank in words.sizes])
        words.require_right(words.run(submission), "texts of different length on 2 ranks", hint + " (count_targets)")

    def test_gradients_reduced_once_per_step(self, submission: Submission, fresh: Fresh) -> None:
        """Reduces gradients once per step."""
        for given in (whole_windows(fresh), *[short_tail(fresh)] * may_judge_tails(submission, fresh)):
            steps = len(given.windows())
            for rank, each in enumerate(given.run(submission)):
                wanted = steps * each.gradient_bytes
                require_between(
                    each.reduced_bytes,
                    wanted,
                    wanted * (1 + EXTRA_BYTES_SHARE) + EXTRA_BYTES,
                    what=f"bytes that rank {rank} reduced in {steps} optimizer steps of 4 batches each or fewer",
                    show=lambda value: f"{value:,.0f}",
                    expected=f"{wanted:,} ({steps} times the gradients), and little more",
                    hint="all but the last batch of a window: forward and backward inside no_sync(); the last one "
                    "outside",
                )

    def test_replicas_identical(self, submission: Submission, fresh: Fresh) -> None:
        """Keeps the replicas identical."""
        hint = "the batch that exchanges gradients goes through the wrapper, in forward and backward, outside no_sync()"
        for given in (whole_windows(fresh), *[short_tail(fresh)] * may_judge_tails(submission, fresh)):
            seen, what = given.run(submission), "after train_with_accumulation() on 2 ranks"
            require_equal_replicas(seen, what=what, hint=hint)
            expected, _, _ = given.follow()
            require_moved_alike(seen, given.weight, expected, what=what)

    def test_effective_batch_size_reported(self, submission: Submission, fresh: Fresh) -> None:
        """Reports the effective batch sizes."""
        tails = may_judge_tails(submission, fresh)
        for given in (whole_windows(fresh), short_tail(fresh), texts(fresh)):
            if tails or not given.has_tail:
                given.require_counted(given.run(submission), "on 2 ranks")
        for given, what, seen in uneven(submission, fresh):
            if given.has_tail and not tails:
                continue
            given.require_counted(seen, what)
