"""Judges Lab 2's training in mixed precision: what runs in which precision, and that nothing is lost by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradebox.course.criterion import builds_on, criterion, requires
from gradebox.run.assertions import (
    Cause,
    CheckFailed,
    mebibytes,
    number,
    recognising,
    require,
    require_between,
    require_close,
    require_equal,
    seconds,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Seen, Submission
from grader.lab2.truth.mistakes import MISTAKES
from grader.lab2.truth.training import Adam, mean_cross_entropy, relative_error, require_accurate, require_ran
from grader.shared.cases import every_value
from grader.shared.results import require_result

PRECISIONS = ("float32", "float16", "bfloat16")
_OTHERS = ("float32", "bfloat16")
"""Precisions that a caller asks for: float16 is the default."""
_EPOCHS = 3
_ONE = 1
"""Epoch, of one batch. One step in float16: what may go wrong between two, the checks of gradient scaling look at."""
_INCOMPLETE = Cause("another_number_of_steps", "`epochs` times through all batches: a step for each, one loss an epoch")
"""What is trained can be judged all the same."""
_ADAM_ERROR = 1e-3
"""Float32 makes 1e-5 of it; weight decay of AdamW's default already moves weights by 3e-3 of the way."""
_REFUSED: dict[str, tuple[str | None, ...]] = {
    "argument": ("epochs", "accumulation_steps"),
    "value": ("0", "negative"),
    "dtype": (None, *PRECISIONS),
}
_EVALUATIONS: dict[str, tuple[str | None, ...]] = {
    "dtype": (None, *PRECISIONS),
    "device": ("of the model", "given"),
    "modes": ("training", "evaluation", "mixed"),
    "sizes": ("one batch", "unequal"),
    "batches": ("a list", "a loader"),
    "right": ("some", "all", "none"),
}
AUTOCAST_HINT = "with torch.autocast(device_type, dtype=...) around the forward pass and the loss, and nothing else"


def trained(
    submission: Submission, generator: InputGenerator, precisions: Sequence[str] = ("float16",), epochs: int = _ONE
) -> tuple[dict[str, Any], dict[str, Any], Seen]:
    """A classifier trained in each precision, the case it was trained on, and all that the probe saw."""
    generator = generator.shared("lab2.precision")
    features, hidden, classes = generator.odd(11, 21), generator.odd(15, 31), generator.odd(5, 9)
    sizes = generator.shuffled([generator.odd(3, 5), generator.odd(7, 9), generator.odd(11, 13)])
    case: dict[str, Any] = {
        "first": generator.normal(hidden, features) / np.float32(features**0.5),
        "second": generator.normal(classes, hidden) / np.float32(2 * hidden**0.5),
        # So small that no gradient overflows at the default scale, also for those who add up losses and divide later.
        "inputs": generator.normal(sum(sizes), features) * np.float32(0.1),
        "targets": np.array([generator.integer(0, classes - 1) for _ in range(sum(sizes))]),
        "sizes": sizes if epochs > _ONE else [sum(sizes)],
    }
    seen = submission.numeric_probe("lab2.training.precision", **case, epochs=dict.fromkeys(precisions, epochs))
    return seen.runs, case, seen


def _require_in_float32(seen: Mapping[str, Any], dtype: str) -> None:
    """Fail unless parameters and Adam's averages are in float32, in a training in `dtype`."""
    during = sorted({name for note in seen["forwards"] for name in note["dtypes"]})
    hint = "autocast casts for each product; model.half() casts the weights themselves, and updates get lost"
    require_equal(during, ["float32"], what=f"dtypes of parameters during training in {dtype}", hint=hint)
    require_equal(seen["parameters"], ["float32"], what=f"dtypes of parameters after training in {dtype}", hint=hint)
    require_equal(
        seen["state"],
        ["float32"],
        what=f"dtypes of Adam's averages after training in {dtype}",
        hint="the optimizer is made for the parameters that are trained, in float32",
    )


def _require_loss_in_float32(seen: Mapping[str, Any], dtype: str) -> None:
    if seen["losses"]:  # else it was put together by hand, and nobody can tell
        require_equal(
            seen["losses"],
            ["float32"],
            what=f"dtype in which the cross entropy was computed, in a training in {dtype}",
            hint="inside autocast it is computed in float32 by itself; outside, in the dtype of the outputs",
        )


def _require_backward_outside(seen: Mapping[str, Any], dtype: str) -> None:
    inside = sum(note["autocast"] for note in seen["backwards"])
    require(
        inside == 0 and bool(seen["backwards"]),
        f"train_with_amp() in {dtype}: {inside} of {len(seen['backwards'])} backward passes ran with autocast "
        "switched on",
        "leave the with-block before backward(): its operations run in the types that forward chose",
    )


@criterion("lab2.amp")
class TestAmp:
    def test_returns_result(self, submission: Submission, generator: InputGenerator) -> None:
        """Trains for all epochs and returns a result."""
        runs, case, _ = trained(submission, generator)
        self._require_complete(runs["float16"], case, _ONE)
        try:
            runs, case, _ = trained(submission, generator, epochs=_EPOCHS)
        except CheckFailed as error:  # one step can be judged all the same
            raise CheckFailed(f"{_EPOCHS} epochs of {len(case['sizes'])} batch: {error.message}", error.hint) from error
        self._require_complete(runs["float16"], case, _EPOCHS)

    @staticmethod
    def _require_complete(seen: Mapping[str, Any], case: Mapping[str, Any], epochs: int) -> None:
        samples = sum(note["samples"] for note in seen["forwards"])
        trained_at_all = samples >= sum(case["sizes"])
        losses = require_result(seen["result"])["losses"]
        with recognising(lambda: _INCOMPLETE if trained_at_all and losses else None):
            require_equal(
                samples, epochs * sum(case["sizes"]), what=f"samples that passed the model in {epochs} epochs"
            )
            require_ran(seen, "float16", taken=epochs * len(case["sizes"]), skipped=0)
            require(isinstance(losses, list), f"AmpTraining.losses: saw {losses!r}, expected a tuple of numbers")
            require_equal(len(losses), epochs, what=f"number of AmpTraining.losses after {epochs} epochs")

    @requires("returns_result")
    def test_loss_time_and_memory_reported(self, submission: Submission, generator: InputGenerator) -> None:
        """Reports loss, time and memory of the training."""
        runs, case, found = trained(submission, generator)
        self._require_reported(runs["float16"], case, found, "float16", _ONE)
        try:
            runs, case, found = trained(submission, generator, epochs=_EPOCHS)
        except CheckFailed:  # which is for the check before to say
            return
        self._require_reported(runs["float16"], case, found, "float16", _EPOCHS)

    @staticmethod
    def _require_reported(
        seen: Mapping[str, Any], case: Mapping[str, Any], found: Seen, dtype: str, epochs: int
    ) -> None:
        what, idle = f"train_with_amp(){'' if dtype == 'float16' else f' in {dtype}'}", found.idle_bytes
        result = require_result(seen["result"])
        require_ran(seen, dtype, taken=epochs * len(case["sizes"]), skipped=0)
        require(
            all(all(note["training"]) for note in seen["forwards"]),
            f"{what}: the model came in evaluation mode and was trained in it, or some of its modules were",
            "model.train() before the first batch",
        )
        require_close(
            number(result["losses"][0], f"{what}: loss of the first epoch"),
            _cross_entropy(case),
            relative=0.02,  # the steps of an epoch move it by 1 %; a sum over batches, or a scaled loss, is far off
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
                expected=f"what this training took, {mebibytes(0.9 * idle)} at most",
                hint="torch.cuda.reset_peak_memory_stats() before the training begins",
            )
            require(
                result["peak_bytes"] >= seen["most_bytes"],
                f"{what}: peak_bytes is {mebibytes(result['peak_bytes'])}, but during a backward pass "
                f"{mebibytes(seen['most_bytes'])} were allocated",
                "the most at any moment of the training, not what is left when it is over",
            )

    @requires("returns_result")
    def test_products_in_low_precision(self, submission: Submission, generator: InputGenerator) -> None:
        """Computes products in the precision asked for."""
        runs, _, _ = trained(submission, generator)
        others, case, found = trained(submission, generator, _OTHERS, _EPOCHS)
        for dtype, seen in {**runs, **others}.items():
            what = f"matrix products of train_with_amp() in {dtype}"
            require_equal(seen["products"], [dtype], what=f"{what}: dtypes", hint=AUTOCAST_HINT)
            least = 2 * (_EPOCHS * len(case["sizes"]) if dtype in others else 1)
            require(seen["product_count"] >= least, f"{what}: only {seen['product_count']} of {least}")
        for dtype, seen in others.items():  # what the checks of the default look at holds here, too
            _require_in_float32(seen, dtype)
            _require_loss_in_float32(seen, dtype)
            _require_backward_outside(seen, dtype)
            self._require_reported(seen, case, found, dtype, _EPOCHS)

    @requires("returns_result")
    def test_loss_in_float32(self, submission: Submission, generator: InputGenerator) -> None:
        """Computes the loss in float32."""
        runs, _, _ = trained(submission, generator)
        _require_loss_in_float32(runs["float16"], "float16")

    @requires("returns_result")
    def test_parameters_and_state_stay_float32(self, submission: Submission, generator: InputGenerator) -> None:
        """Keeps parameters and Adam's state in float32."""
        runs, _, _ = trained(submission, generator)
        _require_in_float32(runs["float16"], "float16")

    @requires("returns_result")
    def test_backward_outside_autocast(self, submission: Submission, generator: InputGenerator) -> None:
        """Runs backward outside autocast."""
        runs, _, _ = trained(submission, generator)
        _require_backward_outside(runs["float16"], "float16")

    @builds_on("products_in_low_precision")
    def test_evaluates_every_sample(self, submission: Submission, generator: InputGenerator) -> None:
        """Counts every sample alike when it evaluates."""
        classes, sizes = generator.odd(5, 9), [generator.odd(31, 41), generator.odd(5, 9), generator.odd(15, 21), 1]
        samples = sum(sizes)
        logits = np.array([generator.shuffled(list(range(classes))) for _ in range(samples)], dtype=np.float32) * 4
        targets = logits.argmax(axis=1)
        # Wrong ones lie in the short batch, where a mean of means would weigh them too much, and in the first.
        wrong = [*range(sizes[0], sizes[0] + sizes[1]), *range(generator.integer(3, 8))]
        right = {"all": targets, "some": targets.copy(), "none": (targets + 1) % classes}
        right["some"][wrong] = (targets[wrong] + 1) % classes
        shares = {"all": 1.0, "some": 1 - len(wrong) / samples, "none": 0.0}
        calls: list[dict[str, Any]] = []
        # One of the batches has one sample; no dtype given means float32.
        for row in every_value(generator, _EVALUATIONS, 4):
            call = {"targets": row["right"], "sizes": sizes if row["sizes"] == "unequal" else [samples]}
            call |= {"modes": row["modes"], "given": row["device"] == "given", "loader": row["batches"] == "a loader"}
            calls.append(call | ({"dtype": row["dtype"]} if row["dtype"] else {}))
        asked = submission.numeric_probe("lab2.training.evaluate", logits=logits, calls=calls, **right)
        for made, call in zip(calls, asked.calls, strict=True):
            dtype = made.get("dtype", "float32")
            what = "evaluate(model, loader" + (f", dtype=torch.{dtype}" if "dtype" in made else "")
            what += ", device=...)" if made["given"] else ")"
            require(
                not any(call["during"]) and bool(call["during"]),
                f"{what} ran the model, or one of its modules, in training mode, with dropout",
                "model.eval() before the first batch",
            )
            require_close(
                call["accuracy"],
                shares[made["targets"]],
                relative=1e-6,
                what=f"{what} with batches of {made['sizes']}",
                hint="right samples / all samples: a mean over batches weighs a short batch too much",
            )
            require(not any(call["gradients"]), f"{what} recorded a graph", "with torch.no_grad():")
            require_equal(
                call["after"],
                call["before"],
                what=f"{what}: `training` of each of the model's modules afterwards",
                hint="model.train(mode) puts every module into that mode; they were not all in the same one",
            )
            require(call["unchanged"], f"{what} changed the model's parameters")
            require_equal(call["products"], [dtype], what=f"{what}: dtypes of products", hint="autocast here too")
        for call in asked.empty:
            what = "evaluate() of a loader without samples"
            require(call["refused"], f"{what} raised no ValueError")
            require_equal(
                call["after"],
                call["before"],
                what=f"{what}: `training` of each of the model's modules afterwards",
                hint="put the modes back before you raise: whoever catches the error goes on with the model",
            )

    @requires("returns_result")
    @builds_on("loss_in_float32", "parameters_and_state_stay_float32")
    def test_bfloat16_as_accurate_as_float32(self, submission: Submission, generator: InputGenerator) -> None:
        """Is as accurate in bfloat16 as in float32."""
        require_accurate(submission, generator, "bfloat16")

    @requires("returns_result")
    @builds_on("loss_time_and_memory_reported", "products_in_low_precision", "loss_in_float32")
    def test_defaults_and_refusals(self, submission: Submission, generator: InputGenerator) -> None:
        """Fills in defaults and refuses what makes no sense."""
        features, classes, samples = generator.odd(5, 9), generator.odd(3, 7), generator.odd(9, 15)
        epochs = generator.integer(3, 6)
        # So small that nothing overflows at the default scale, also for those who add up losses and divide gradients.
        weight, inputs = generator.normal(classes, features), generator.normal(samples, features) * np.float32(0.02)
        labels = np.array([generator.integer(0, classes - 1) for _ in range(samples)])
        calls: list[dict[str, Any]] = [{"dtype": "float64"}]
        for row in every_value(generator, _REFUSED, 4):
            value = 0 if row["value"] == "0" else -generator.integer(1, 3)
            calls.append({row["argument"]: value} | ({"dtype": row["dtype"]} if row["dtype"] else {}))
        others = [
            {name: value for name, value in row.items() if value is not None}
            for row in every_value(generator, {"dtype": (None, *PRECISIONS), "epochs": (None, epochs - 1)}, 2)
        ]
        seen = submission.numeric_probe(
            "lab2.arguments.train",
            weight=weight,
            inputs=inputs,
            labels=labels,
            runs=[{"dtype": "float32", "epochs": epochs}, {}, *others],
            refusals=calls,
        )
        exact, bare, *rest = seen.runs
        start = np.asarray(weight, dtype=np.float64)

        def gradient(now: Any) -> Any:
            scores = np.exp(np.asarray(inputs, dtype=np.float64) @ now.T)
            shares = scores / scores.sum(axis=1, keepdims=True) - np.eye(classes)[labels]
            return shares.T @ np.asarray(inputs, dtype=np.float64) / samples

        def after(held: float) -> Any:
            adam, weight, total = Adam(), start, np.zeros_like(start)
            for _ in range(epochs):
                total = held * total + gradient(weight)
                weight = weight - adam.step(total)
            return weight

        def mistake() -> Cause | None:
            cleared = relative_error(exact["after"], after(held=1.0), start) > _ADAM_ERROR
            return None if cleared else MISTAKES["never_cleared"]

        with recognising(mistake):
            require_between(
                relative_error(exact["after"], after(held=0.0), start),
                0,
                _ADAM_ERROR,
                what=f"relative error of {epochs} steps in float32, with neither optimizer nor criterion given",
                hint="then it is torch.optim.Adam(model.parameters()) with its defaults, on the cross entropy",
            )
        require_ran(bare, "float16", taken=10, skipped=0)
        require_equal(len(bare["result"]["losses"]), 10, what="number of AmpTraining.losses, epochs not being given")
        require_equal(
            bare["result"]["final_scale"],
            2.0**16,
            what="AmpTraining.final_scale after ten good steps, no scaler being given",
            hint="torch.amp.GradScaler with its defaults",
        )
        for given, run in zip(others, rest, strict=True):
            count, dtype = int(given.get("epochs", 10)), str(given.get("dtype", "float16"))
            require_ran(run, dtype, taken=count, skipped=0)
            what = f"AmpTraining of train_with_amp(model, loader{''.join(f', {k}={v}' for k, v in given.items())})"
            require_equal(len(run["result"]["losses"]), count, what=f"{what}: number of losses")
            scale = 2.0**16 if dtype == "float16" else None
            require_equal(run["result"]["final_scale"], scale, what=f"{what}: final_scale")
        for call, told in zip(calls, seen.refused, strict=True):
            shown = ", ".join(f"{name}={value}" for name, value in call.items())
            require(told, f"train_with_amp(model, loader, {shown}) raised no ValueError")


def _cross_entropy(case: Mapping[str, Any]) -> float:
    """Mean cross entropy of the untrained classifier over all samples, in float64."""
    hidden = np.maximum(np.asarray(case["inputs"], dtype=np.float64) @ case["first"].T, 0)
    return mean_cross_entropy(hidden @ case["second"].T, case["targets"])
