"""Judges Lab 4's mended script and its handler: it fits, computes the same, stays flat, and hides no other error."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from gradebox.course.criterion import builds_on, criterion, requires
from gradebox.run.assertions import (
    mebibytes,
    number,
    picturing,
    require,
    require_arrays_close,
    require_close,
    require_equal,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab4.checks.attempts import retried, sizes_tried
from grader.lab4.checks.common import judge_refusals, memory_bars
from grader.lab4.truth.reference import Training, runs, split
from grader.shared.cases import full_rows

LENGTH = 512
PARAMETERS = 48 * (4096**2 + 4096)
_LEAST_BYTES = 12 * PARAMETERS
"""Parameters and Adam's averages: below that nobody trained the model."""
SAME = 1e-8
"""In float64, after two epochs; measured: 1e-14. Without Adam's bias correction, or a sum for a mean: 1e-2 and more."""
_SMALL = 2.0**-23
"""What the criterion is multiplied by: gradients of outputs get below half of float16's smallest number."""
_LOW, _APART = 0.05, 0.7
"""Room for bfloat16: Adam's steps of single weights may then turn around. Without any movement it is 1."""
_TRAININGS: dict[str, Sequence[Any]] = {
    "epochs": (1, 3),
    "sequence": (False, True),
    "given": (False, True),
    "streamed": (False, True),
}
"""What the further trainings of `same_losses` differ in, besides their micro-batches."""
_FLAT_SHARE = 0.5
"""Of the smallest thing that a kept graph holds. Losses kept as tensors of their own take 512 bytes each."""
_FIRST_STEP = 1
"""Adam makes its averages in the first step, so what is held is compared from the end of that one on."""


@criterion("lab4.oom")
class TestOom:
    def test_fits_in_24_gb(self, submission: Submission, generator: InputGenerator) -> None:
        """Trains the large model within 24 GB."""
        seen = submission.probe(
            "lab4.oom.fits", device="cpu", batches=[64, 64], validation=[64], length=LENGTH, micro_batch=16
        )
        require_equal(seen.parameters, PARAMETERS, what="parameters of VeryLargeModel()", hint="the model stays whole")
        # A script that nobody has mended, and that puts whole batches through the model, is an open task.
        begun = 0 < max(seen.forwards, default=0) <= 16
        require(
            seen.died is None,
            f"{'' if begun else 'Task 4.3, oom_fixes.py: '}train_large_model() dies on a virtual GPU of 24 GB, with "
            f"batches of 64 x {LENGTH} x 4096 and micro_batch=16: {seen.died}",
            "what does a forward pass keep of so many samples, and what is never let go?",
        )
        largest = max(seen.forwards, default=0)
        require(
            0 < largest <= 16,
            f"with micro_batch=16, {largest} samples went through the model at once",
            "in training and in validation: cut each batch into micro-batches",
        )
        require(
            sum(seen.forwards) >= 3 * 64,
            f"of three batches of 64 samples, {sum(seen.forwards)} samples went through the model",
            "train on both batches of train_loader, and validate on that of val_loader",
        )
        require(
            seen.peak_bytes >= _LEAST_BYTES,
            f"train_large_model() held {mebibytes(seen.peak_bytes)} at most, less than the model and Adam's averages",
            "the whole model is trained, with Adam",
        )
        # Data and target of 16 samples; of a whole batch it would be four times as much.
        micro_bytes = 2 * 16 * LENGTH * 4096 * 4
        for loader, moved in seen.moved_bytes.items():
            require(
                moved < 2 * micro_bytes,
                f"when the first micro-batch of {loader}_loader reaches the model, {mebibytes(moved)} have come to the "
                f"device since the batch was fetched; data and target of 16 samples are {mebibytes(micro_bytes)}",
                "cut first, then move: a micro-batch is on the device, and not its whole batch",
            )
        require_equal(seen.result["optimizer_steps"], 2, what="optimizer_steps for two batches")
        require_equal(
            [seen.result["device"], seen.result["micro_batch"]], ["cuda", 16], what="device and micro_batch told"
        )
        require(
            seen.peak_bytes < seen.before_bytes,
            f"peak_bytes: saw {mebibytes(number(seen.result['peak_bytes'], 'peak_bytes'))}, but "
            f"{mebibytes(seen.before_bytes)} were allocated before train_large_model() was called, and let go",
            "the peak of the training alone: reset it when the training begins",
        )
        require_close(
            seen.result["peak_bytes"],
            seen.peak_bytes,
            relative=0.01,
            what="peak_bytes",
            show=mebibytes,
            hint="torch.cuda.max_memory_allocated() at the end",
        )

    def test_same_losses(self, submission: Submission, generator: InputGenerator) -> None:
        """Trains as it would on whole batches."""
        width, layers = generator.odd(7, 13), generator.integer(3, 4)
        micro_batch = 2 * generator.integer(1, 2) + 1
        # Of even numbers, so that two samples can be one of two tokens.
        batches = [micro_batch * 3 + 1, micro_batch * 2, micro_batch + 1, 2]
        validation = [micro_batch * 2 + 2, 2]
        samples = sum(batches) + sum(validation)
        case: dict[str, Any] = {
            "weights": generator.normal(layers, width, width) * np.float32(1.5 / width**0.5),
            "biases": generator.normal(layers, width) * np.float32(0.3),
            # float64, so that the model's own type is kept all the way
            "data": generator.normal(samples, width).astype(np.float64),
            "targets": generator.normal(samples, width).astype(np.float64),
        }
        rate = generator.uniform(0.01, 0.02)
        others = self._others(generator, micro_batch)
        seen = submission.numeric_probe(
            "lab4.oom.twin",
            layers=layers,
            epochs=2,
            micro_batch=micro_batch,
            learning_rate=rate,
            batches=batches,
            validation=validation,
            scale=_SMALL,
            others=others,
            **case,
        )
        truth = Training(case["weights"], case["biases"], rate)
        sizes = [*batches, *validation]
        pairs = list(zip(split(case["data"], sizes), split(case["targets"], sizes), strict=True))
        losses, validated = [], []
        for _ in range(2):
            losses += [truth.step(*pair) for pair in pairs[: len(batches)]]
            weighted = [truth.loss(*pair) * len(pair[0]) for pair in pairs[len(batches) :]]
            validated.append(sum(weighted) / sum(validation))
        what = f"of train_large_model(), batches of {batches} in micro-batches of {micro_batch}"
        require_arrays_close(
            seen.result["losses"],
            losses,
            rtol=SAME,
            what=f"losses {what}",
            hint="each micro-batch counts by its share of the batch's samples, in the loss and in the gradient",
        )
        require_arrays_close(
            seen.weights, truth.parameters[0], rtol=SAME, atol=SAME, what=f"weights {what}", hint="one step per batch"
        )
        require_arrays_close(
            seen.result["validation_losses"],
            validated,
            rtol=SAME,
            what=f"validation losses {what}, validation batches of {validation}",
            hint="the mean over samples: batches differ in size",
        )
        for other, ended in zip(others, runs(seen, "others"), strict=True):
            self._require_same(case, rate, pairs, len(batches), other, ended)
        require_equal(seen.result["optimizer_steps"], len(losses), what=f"optimizer_steps {what}")
        require(seen.are_numbers, f"losses {what} are no Python numbers", "loss.item()")
        require_equal(seen.result["device"], seen.device, what=f"device {what}")
        require_equal(seen.result["peak_bytes"] is None, seen.device == "cpu", what=f"whether there is no peak {what}")
        small = Training(case["weights"], case["biases"], rate, scale=_SMALL)
        losses = [small.step(*pair) for pair in pairs[: len(batches)]]
        what = f"of train_large_model() in float32, with a criterion of about {losses[0]:.0e}"
        require_arrays_close(
            seen.small_result["losses"][:1],
            losses[:1],
            rtol=_LOW,
            what=f"first loss {what}",
            hint="the given criterion",
        )
        moved, wanted = (
            np.asarray(weights, dtype=np.float64) - case["weights"]
            for weights in (seen.small_weights, small.parameters[0])
        )
        share = float(np.sqrt((moved**2).sum() / (wanted**2).sum()))
        apart = float(np.sqrt(((moved - wanted) ** 2).sum() / (wanted**2).sum()))
        require(
            apart < _APART,
            f"the weights {what} moved {share:.2f} times as far as they should, and end {apart:.2f} of the way off",
            "small gradients: float16 turns them into zeros unless the loss is scaled; bfloat16 or float32 do not",
        )

    @staticmethod
    def _others(generator: InputGenerator, micro_batch: int) -> list[dict[str, Any]]:
        """Two trainings more: one sample at a time, and each batch as a whole."""
        rows = full_rows(generator, _TRAININGS, 2)
        sizes = generator.shuffled([1, 4 * micro_batch])
        return [{"micro_batch": size, **row} for size, row in zip(sizes, rows, strict=True)]

    @staticmethod
    def _require_same(
        case: dict[str, Any],
        rate: float,
        pairs: list[tuple[Any, ...]],
        steps: int,
        other: dict[str, Any],
        ended: dict[str, Any],
    ) -> None:
        truth = Training(case["weights"], case["biases"], rate, absolute=other["given"])
        losses, validated = [], []
        for _ in range(other["epochs"]):
            losses += [truth.step(*pair) for pair in pairs[:steps]]
            counts = [len(pair[0]) for pair in pairs[steps:]]
            validated.append(float(np.average([truth.loss(*pair) for pair in pairs[steps:]], weights=counts)))
        samples = "sequences of two tokens" if other["sequence"] else "rows"
        what = (
            f"of train_large_model(), {other['epochs']} epochs, {samples} in micro-batches of {other['micro_batch']}"
            + ", criterion=l1_loss" * other["given"]
            + ", loaders that have no length" * other["streamed"]
        )
        hint = "each micro-batch counts by its share of the batch's samples, in the loss and in the gradient"
        for name, expected in (("losses", losses), ("validation_losses", validated)):
            require_arrays_close(ended["result"][name], expected, rtol=SAME, what=f"{name} {what}", hint=hint)
        weights = truth.parameters[0]
        require_arrays_close(ended["weights"], weights, rtol=SAME, atol=SAME, what=f"weights {what}", hint=hint)

    def test_memory_flat_over_steps(self, submission: Submission, generator: InputGenerator) -> None:
        """Needs no more memory from step to step."""
        seen = _steady(submission, generator)
        passes: list[list[int]] = [[0], [0], *seen.training_bytes]
        first, second = passes[-2:]
        allowed = _FLAT_SHARE * seen.ballast_bytes
        held = [(str(index), now, (first + second)[_FIRST_STEP]) for index, now in enumerate(first + second)]
        # Like is compared with like: a local variable may hold the last loss, or none, when an epoch begins.
        for growth, where in (
            (_growth(first), "from the first step to the last of the first epoch"),
            (_growth(second), "from the first step to the last of the second epoch"),
            (second[-1] - first[-1] if len(first) > 1 else 0, "from the end of the first epoch to that of the second"),
        ):
            with picturing(lambda: memory_bars("what is allocated after each batch of the last two epochs", held)):
                require(
                    growth <= allowed,
                    f"train_large_model(): what is allocated grows by {mebibytes(growth)} {where}, expected no growth",
                    "which tensor of an earlier step is still referenced? A loss that is kept keeps its graph",
                )
        # Local variables come and go, and some fetch a batch ahead: what leaks grows with every step of every epoch.
        # A loss or two per micro-batch, each a number, are allowed: less than half a sample.
        steps = [_least_growth(notes) for notes in seen.requested_bytes[-2:]]
        leak = min(steps, default=0)
        require(
            leak < seen.sample_bytes,
            f"train_large_model(): tensors on the device take {leak:,} bytes more after every step, expected none, "
            "or a number per loss",
            "which tensor of an earlier step is still referenced? An output or a batch that is kept, even without its "
            "graph, stays on the device",
        )

    def test_validation_without_graph(self, submission: Submission, generator: InputGenerator) -> None:
        """Validates without recording a graph."""
        seen = _steady(submission, generator)
        validated = [note for note in seen.forwards if note["phase"] == "validation"]
        require(bool(validated), "the model was never called with batches of val_loader")
        require(
            not any(note["graph"] for note in validated),
            "train_large_model(): validation records a graph, which nobody needs and which takes memory",
            "with torch.no_grad() around it, or torch.inference_mode()",
        )
        require(
            not any(note["training"] for note in validated),
            "train_large_model(): validation runs in training mode, with dropout",
            "model.eval()",
        )
        trained = [note for note in seen.forwards if note["phase"] == "training"]
        require(
            all(note["training"] for note in trained) and seen.training_afterwards,
            "train_large_model(): after the first validation the model is no longer in training mode",
            "model.train() before each epoch and in the end",
        )
        growth = max(_growth(notes) for notes in seen.validation_bytes)
        require(
            growth <= _FLAT_SHARE * seen.ballast_bytes,
            f"what is allocated grows by {mebibytes(growth)} during validation",
            "keep numbers, not tensors with a graph",
        )

    def test_retry_halves_the_micro_batch(self, submission: Submission, generator: InputGenerator) -> None:
        """Tries again with half the micro-batch."""
        for case, seen in retried(submission, generator):
            if case.get("raises"):
                continue
            wanted = sizes_tried(case)
            what = f"run_with_oom_retry() from {case['start']}, where {case['fits']} fit"
            tried = seen["attempts"]
            further = tried[len(wanted) :] if case.get("returns_nothing") and tried[: len(wanted)] == wanted else []
            require(
                not further,
                f"{what} tried {further[:1]} after {wanted[-1]}, with which the attempt had ended and returned None",
                "what an attempt returns is its own affair, None as well: it failed only where it raised",
            )
            require_equal(
                tried[: len(wanted) + 1], wanted, what=f"micro-batches tried by {what}", hint="halve, down to 1"
            )
            if case["fits"] == 0:
                require_equal(
                    seen["raised"],
                    "OutOfMemoryError",
                    what=f"error of {what}",
                    hint="with a micro-batch of 1 there is nothing left to halve: let the error through",
                )
                continue
            require_equal(seen["raised"], None, what=f"error of {what}")
            done = None if case.get("returns_nothing") else f"done with {wanted[-1]} and {64 * 2**20} bytes"
            returned = [done, wanted[-1]]
            require_equal(seen["returned"], returned, what=f"what {what} returned")

    @requires("retry_halves_the_micro_batch")
    def test_retry_frees_the_failed_attempt(self, submission: Submission, generator: InputGenerator) -> None:
        """Frees a failed attempt before the next one."""
        # Without a cycle first: what is held then is held by the traceback, and no garbage.
        for case, seen in sorted(retried(submission, generator), key=lambda pair: bool(pair[0].get("cycle"))):
            held = seen["held_bytes"]
            require(
                bool(held),
                f"run_with_oom_retry() from {case['start']} made no attempt",
                "call `attempt` with the micro-batch, and again with half of it after running out of memory",
            )
            left = max(held) - held[0]
            require(
                left < 2**20,
                f"run_with_oom_retry() from {case['start']}: {mebibytes(left)} of a failed attempt are still allocated "
                "when the next one begins",
                "inside the except block the exception's traceback holds the attempt's tensors: go on after the block"
                if not case.get("cycle")
                else "objects that refer to each other hold their tensors until garbage is collected: gc.collect()",
            )
            kept = max(seen["reserved_bytes"]) - seen["reserved_bytes"][0]
            require(
                kept < 2**21,
                f"run_with_oom_retry() from {case['start']}: the allocator still reserves {mebibytes(kept)} more when "
                "the next attempt begins",
                "torch.cuda.empty_cache(), when nothing of the failed attempt is left",
            )

    def test_other_errors_pass_through(self, submission: Submission, generator: InputGenerator) -> None:
        """Lets other errors pass through."""
        asked = retried(submission, generator)
        require(
            any(len(seen["attempts"]) > 1 for case, seen in asked if not case.get("raises")),
            "run_with_oom_retry() lets every error through, and so tries nothing again",
            "catch torch.OutOfMemoryError, and nothing else",
        )
        for case, seen in asked:
            if not case.get("raises"):
                continue
            what = f"run_with_oom_retry(), whose attempt raises a {case['raises']}: {case['message']}"
            wanted = sizes_tried(case)
            require_equal(
                seen["attempts"], wanted, what=f"attempts of {what}", hint="a wrong shape stays wrong at any size"
            )
            require_equal(seen["raised"], case["raises"], what=f"error of {what}", hint="torch.OutOfMemoryError only")
            require_equal(
                seen["message"], case["message"], what=f"message of {what}", hint="let the error itself through"
            )

    def test_nonsense_refused(self, submission: Submission) -> None:
        """Refuses arguments that make no sense."""
        judge_refusals(submission, "oom")

    @requires("fits_in_24_gb", "retry_halves_the_micro_batch")
    @builds_on("memory_flat_over_steps")
    def test_results_saved(self, submission: Submission) -> None:
        """Saves the results."""
        seen = submission.probe("lab4.oom.program", device="cpu")
        require(seen.exit_code in (0, None), f"python -m labs.lab4_memory.oom_fixes ended with {seen.exit_code!r}")
        require("oom.json" in seen.json, "python -m labs.lab4_memory.oom_fixes wrote no oom.json")


def _growth(notes: list[int]) -> int:
    """What is held more at the end of one pass over the batches than after its first batch."""
    return notes[-1] - notes[_FIRST_STEP] if len(notes) > _FIRST_STEP else 0


def _least_growth(notes: list[int]) -> int:
    """What every step of one pass over the batches adds, after its first one."""
    return min((after - before for before, after in pairwise(notes[_FIRST_STEP:])), default=0)


def _steady(submission: Submission, generator: InputGenerator) -> Any:
    generator = generator.shared("lab4.steady")
    # All equally large: what a local variable still holds of the last one is then the same after each step.
    batches = [generator.integer(9, 14)] * 4
    width, validation = generator.odd(63, 95), [generator.integer(5, 9) for _ in range(3)]
    seen = submission.probe(
        "lab4.oom.steady",
        values=not submission.device.simulated,
        width=width,
        batches=batches,
        validation=validation,
        micro_batch=generator.integer(3, 4),
    )
    passed, wanted = sum(note["samples"] for note in seen.forwards), 2 * (sum(batches) + sum(validation))
    require(
        passed >= wanted,
        f"train_large_model(), two epochs: {passed} samples went through the model, expected {wanted}",
        "nothing grows where nothing is trained: every batch of both loaders, in every epoch",
    )
    return seen
