"""Judges Lab 2's training in mixed precision: what runs in which precision, and that nothing is lost by it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradebox.assertions import mebibytes, require, require_between, require_close, require_equal, seconds
from gradebox.criterion import criterion, requires
from gradebox.fresh import Fresh
from gradebox.submission import Seen, Submission
from grader.lab2.truth.training import require_accurate, require_ran

PRECISIONS = ("float32", "float16", "bfloat16")
STEPS = {"float32": 3, "float16": 1, "bfloat16": 3}
"""One step in float16: what may go wrong between two, the checks of gradient scaling look at."""
AUTOCAST_HINT = "with torch.autocast(device_type, dtype=...) around the forward pass and the loss, and nothing else"


def trained(submission: Submission, fresh: Fresh, steps: dict[str, int]) -> tuple[dict[str, Any], dict[str, Any], Seen]:
    """A classifier trained in each precision, the case it was trained on, and all that the probe saw."""
    fresh = fresh.shared("lab2.precision")
    features, hidden, classes = fresh.odd(11, 21), fresh.odd(15, 31), fresh.odd(5, 9)
    sizes = [fresh.odd(3, 5), fresh.odd(7, 9), fresh.odd(11, 13)]
    case: dict[str, Any] = {
        "first": fresh.normal(hidden, features) / np.float32(features**0.5),
        "second": fresh.normal(classes, hidden) / np.float32(hidden**0.5),
        "inputs": fresh.normal(sum(sizes), features),
        "targets": np.array([fresh.integer(0, classes - 1) for _ in range(sum(sizes))]),
        "sizes": sizes,
    }
    seen = submission.numeric_probe("lab2.training.precision", **case, epochs=steps)
    return seen.runs, case, seen


@criterion("lab2.amp")
class TestAmp:
    def test_returns_result(self, submission: Submission, fresh: Fresh) -> None:
        """Trains for all epochs and returns a result."""
        epochs = fresh.integer(3, 12)
        runs, case, _ = trained(submission, fresh, {"float32": epochs})
        seen = runs["float32"]
        passes = epochs * len(case["sizes"])
        require_equal(len(seen["forwards"]), passes, what=f"batches that passed the model in {epochs} epochs")
        require_ran(seen, "float32", taken=epochs, skipped=0)
        require_equal(len(seen["result"]["losses"]), epochs, what=f"number of AmpTraining.losses after {epochs} epochs")

    @requires("returns_result")
    def test_loss_time_and_memory_reported(self, submission: Submission, fresh: Fresh) -> None:
        """Reports loss, time and memory of the training."""
        runs, case, found = trained(submission, fresh, STEPS)
        idle = found.idle_bytes
        for dtype in PRECISIONS:
            seen, what = runs[dtype], f"train_with_amp(..., dtype=torch.{dtype})"
            result = seen["result"]
            require_ran(seen, dtype, taken=STEPS[dtype], skipped=0)
            require(
                all(note["training"] for note in seen["forwards"]),
                f"{what}: the model came in evaluation mode and was trained in it",
                "model.train() before the first batch",
            )
            require_close(
                result["losses"][0],
                _cross_entropy(case),
                relative=0.02,  # bfloat16 moves it by 0.3 %; a sum over batches, or a scaled loss, is far off
                what=f"{what}: loss of the first epoch, the mean over all samples",
                hint="batches differ in size; report the loss without its scale",
            )
            took = seen["elapsed_seconds"]
            require_between(result["seconds"], 0.2 * took, 1.02 * took, what=f"{what}: seconds", show=seconds)
            require_equal(result["device"], found.device, what=f"{what}: AmpTraining.device")
            if found.device == "cuda":
                require_between(
                    result["peak_bytes"],
                    1,
                    0.9 * idle,
                    what=f"{what}: peak_bytes of a small model, after {mebibytes(idle)} of earlier work were freed",
                    show=mebibytes,
                    hint="torch.cuda.reset_peak_memory_stats() before the training begins",
                )

    @requires("returns_result")
    def test_products_in_low_precision(self, submission: Submission, fresh: Fresh) -> None:
        """Computes products in the precision asked for."""
        runs, case, _ = trained(submission, fresh, STEPS)
        for dtype in PRECISIONS:
            what = f"matrix products of train_with_amp(..., dtype=torch.{dtype})"
            require_equal(runs[dtype]["products"], [dtype], what=f"{what}: dtypes", hint=AUTOCAST_HINT)
            least = 2 * len(case["sizes"]) * STEPS[dtype]
            require(runs[dtype]["product_count"] >= least, f"{what}: only {runs[dtype]['product_count']} of {least}")

    @requires("returns_result")
    def test_loss_in_float32(self, submission: Submission, fresh: Fresh) -> None:
        """Computes the loss in float32."""
        runs, _, _ = trained(submission, fresh, STEPS)
        for dtype in PRECISIONS:
            require_equal(
                sorted(set(runs[dtype]["losses"])),
                ["float32"],
                what=f"dtype in which the cross entropy was computed, with dtype=torch.{dtype}",
                hint="inside autocast it is computed in float32 by itself; outside, in the dtype of the outputs",
            )

    @requires("returns_result")
    def test_parameters_and_state_stay_float32(self, submission: Submission, fresh: Fresh) -> None:
        """Keeps parameters and Adam's state in float32."""
        runs, _, _ = trained(submission, fresh, STEPS)
        for dtype in PRECISIONS:
            seen = runs[dtype]
            during = sorted({name for note in seen["forwards"] for name in note["dtypes"]})
            hint = "autocast casts for each product; model.half() casts the weights themselves, and updates get lost"
            require_equal(during, ["float32"], what=f"dtypes of parameters during training in {dtype}", hint=hint)
            require_equal(
                seen["parameters"], ["float32"], what=f"dtypes of parameters after training in {dtype}", hint=hint
            )
            require_equal(
                seen["state"],
                ["float32"],
                what=f"dtypes of Adam's averages after training in {dtype}",
                hint="the optimizer that is passed in makes the steps, on the parameters it was made for",
            )

    @requires("returns_result")
    def test_backward_outside_autocast(self, submission: Submission, fresh: Fresh) -> None:
        """Runs backward outside autocast."""
        runs, _, _ = trained(submission, fresh, STEPS)
        for dtype in PRECISIONS:
            inside = sum(note["autocast"] for note in runs[dtype]["backwards"])
            require(
                inside == 0 and bool(runs[dtype]["backwards"]),
                f"train_with_amp(..., dtype=torch.{dtype}): {inside} of {len(runs[dtype]['backwards'])} backward "
                "passes ran with autocast switched on",
                "leave the with-block before backward(): its operations run in the types that forward chose",
            )

    def test_evaluates_every_sample(self, submission: Submission, fresh: Fresh) -> None:
        """Counts every sample alike when it evaluates."""
        classes, sizes = fresh.odd(5, 9), [fresh.odd(31, 41), fresh.odd(5, 9), fresh.odd(15, 21)]
        samples = sum(sizes)
        logits = np.array([fresh.shuffled(list(range(classes))) for _ in range(samples)], dtype=np.float32) * 4
        targets = logits.argmax(axis=1)
        # Wrong ones lie in the short batch, where a mean of means would weigh them too much, and in the first.
        wrong = [*range(sizes[0], sizes[0] + sizes[1]), *range(fresh.integer(3, 8))]
        targets[wrong] = (targets[wrong] + 1) % classes
        for dtype in ("float32", "bfloat16"):
            seen = submission.numeric_probe(
                "lab2.training.evaluate", logits=logits, targets=targets, sizes=sizes, dtype=dtype
            )
            for call in seen.calls:
                what = f"evaluate(model, loader, dtype=torch.{dtype})"
                require(
                    not any(call["during"]) and bool(call["during"]),
                    f"{what} ran the model in training mode, with dropout",
                    "model.eval() before the first batch",
                )
                require_close(
                    call["accuracy"],
                    1 - len(wrong) / samples,
                    relative=1e-6,
                    what=f"{what} with batches of {sizes}",
                    hint="right samples / all samples: a mean over batches weighs a short batch too much",
                )
                require(not any(call["gradients"]), f"{what} recorded a graph", "with torch.no_grad():")
                require_equal(call["after"], call["before"], what=f"{what}: model.training afterwards")
                require_equal(call["products"], [dtype], what=f"{what}: dtypes of products", hint="autocast here too")

    @requires("returns_result")
    def test_bfloat16_as_accurate_as_float32(self, submission: Submission, fresh: Fresh) -> None:
        """Is as accurate in bfloat16 as in float32."""
        require_accurate(submission, fresh, "bfloat16")


def _cross_entropy(case: dict[str, Any]) -> float:
    """Mean cross entropy of the untrained classifier over all samples, in float64."""
    hidden = np.maximum(np.asarray(case["inputs"], dtype=np.float64) @ case["first"].T, 0)
    logits = hidden @ case["second"].T
    largest = logits.max(axis=1, keepdims=True)
    normaliser = largest[:, 0] + np.log(np.exp(logits - largest).sum(axis=1))
    return float((normaliser - logits[np.arange(len(logits)), case["targets"]]).mean())
