"""Judges Lab 4's fixed script: it fits, computes the same and stays flat."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import (
    CheckFailed,
    mebibytes,
    number,
    picturing,
    recognising,
    require,
    require_arrays_close,
    require_close,
    require_equal,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab4.oom import cases
from grader.lab4.oom.cases import (
    LENGTH,
    Fits,
    ForwardPass,
    OomProgram,
    OtherReply,
    OtherTraining,
    SmallModel,
    Steady,
    SteadyReply,
    TrainingsReply,
)
from grader.lab4.oom.checks.products import LAYERS, require_computed, require_small_products
from grader.lab4.oom.mistakes import ONLY_THE_FIRST_PART, cause_of
from grader.lab4.oom.reference import Batch, Losses, Training, split, trained
from grader.lab4.shared.checks import judge_refusals, memory_bars
from grader.shared.programs import rows_of

_GPU_24_GB = "vgpu:RTX4090"
PARAMETERS = LAYERS * (4096**2 + 4096)
_LEAST_BYTES = 12 * PARAMETERS
"""Parameters and Adam's averages: below that nobody trained the model."""
SAME = 1e-8
"""In float64, after two epochs; measured: 1e-14. Without Adam's bias correction, or a sum for a mean: 1e-2 and more."""
_LOW, _APART = 0.05, 0.7
"""Room for bfloat16: Adam's steps of single weights may then turn around. Without any movement it is 1."""
_SHARE_HINT = "Weigh each micro-batch by its share of the batch's samples, in the loss and in the gradient."
_STEP_HINT = "Clear the gradients before the first micro-batch of a batch, and take one step after the last one."
_FLAT_SHARE = 0.5
"""Of the smallest thing that a kept graph holds. Losses kept as tensors of their own take 512 bytes each."""
_FIRST_STEP = 1
"""Adam makes its averages in the first step, so what is held is compared from the end of that one on."""


@criterion("lab4.oom")
class TestScript:
    def test_fits_in_24_gb(self, submission: Submission, generator: InputGenerator) -> None:
        inputs = Fits(batches=[64, 64], validation=[64], length=LENGTH, micro_batch=16)
        reply = submission.probe(inputs, device=_GPU_24_GB, values=False)
        require_equal(
            reply.parameters,
            PARAMETERS,
            what="parameters of VeryLargeModel()",
            hint="Leave the model whole: cut the batches, not the layers.",
        )
        # A script that nobody has fixed, and that puts whole batches through the model, is an open task.
        largest = max(reply.forwards, default=0)
        require(
            reply.died is None,
            f"{'' if 0 < largest <= 16 else 'Task 4.3, oom_fixes.py: '}train_large_model() dies on a virtual GPU of 24 "
            f"GB, with batches of 64 x {LENGTH} x 4096 and micro_batch=16: {reply.died}",
            "Look for what holds activations longer than its micro-batch: retain_graph=True, losses kept as tensors, "
            "whole batches on the device.",
        )
        require(
            0 < largest <= 16,
            f"with micro_batch=16, {largest} samples went through the model at once",
            "Cut each batch into micro-batches, in training and in validation.",
        )
        _require_samples("train_large_model(), one epoch", sum(reply.forwards), inputs.batches, inputs.validation, 16)
        require_computed(reply.products, inputs)
        require(
            reply.peak_bytes >= _LEAST_BYTES,
            f"train_large_model() held {mebibytes(reply.peak_bytes)} at most, less than the model and Adam's averages",
            "Train the whole model, with Adam.",
        )
        # Data and target of 16 samples; of a whole batch it would be four times as much.
        micro_bytes = 2 * 16 * LENGTH * 4096 * 4
        for loader, moved in reply.moved_bytes.items():
            require(
                moved < 2 * micro_bytes,
                f"more than a micro-batch of {loader}_loader is moved to the device: {mebibytes(moved)} when the first "
                f"one reaches the model; data and target of 16 samples are {mebibytes(micro_bytes)}",
                "Cut first, then move: a micro-batch is on the device, and not its whole batch.",
            )
        for loader, grown in reply.grown_bytes.items():
            gradients = 4 * reply.parameters  # of validation as well: its batch may be fetched before training ends
            require(
                grown < gradients + 2 * micro_bytes,
                f"{mebibytes(grown - gradients)} more than the gradients come to the device between the first two "
                f"micro-batches of {loader}_loader; data and target of 16 samples are {mebibytes(micro_bytes)}",
                "Move each micro-batch when its turn comes, and let go of it afterwards.",
            )
        require(
            reply.largest_copy < 2 * micro_bytes,
            f"a copy of {mebibytes(reply.largest_copy)} goes to the device at once; data and target of 16 samples are "
            f"{mebibytes(micro_bytes)}",
            "Cut first, then move: a micro-batch is on the device, and not its whole batch.",
        )
        result = reply.result
        if result is None:
            raise CheckFailed(
                "train_large_model() returned None, expected a LargeTraining",
                "Return what the docstring names under Returns.",
            )
        require_equal(result["optimizer_steps"], 2, what="optimizer_steps for two batches")
        require_equal([result["device"], result["micro_batch"]], ["cuda", 16], what="device and micro_batch reported")
        require(
            reply.peak_bytes < reply.before_bytes,
            f"peak_bytes: saw {mebibytes(number(result['peak_bytes'], 'peak_bytes'))}, but "
            f"{mebibytes(reply.before_bytes)} were allocated before train_large_model() was called, and let go",
            "Reset the peak when the training begins: it is that of the training alone.",
        )
        require_close(
            result["peak_bytes"],
            reply.peak_bytes,
            relative=0.01,
            what="peak_bytes",
            show=mebibytes,
            hint="Read torch.cuda.max_memory_allocated() at the end.",
        )

    def test_same_losses(self, submission: Submission, generator: InputGenerator) -> None:
        model, inputs = cases.trainings(generator)
        reply = submission.numeric_probe(inputs)
        pairs = split(model.data, model.targets, [*inputs.batches, *inputs.validation])
        batches, validation = pairs[: len(inputs.batches)], pairs[len(inputs.batches) :]
        training = Training(model.weights, model.biases, inputs.learning_rate)
        expected = trained(training, batches, validation, inputs.epochs)
        what = f"of train_large_model(), batches of {inputs.batches} in micro-batches of {inputs.micro_batch}"
        with recognising(lambda: cause_of(model, inputs, batches, validation, reply, SAME)):
            require_arrays_close(
                reply.result["losses"], expected.training, rtol=SAME, what=f"losses {what}", hint=_SHARE_HINT
            )
            require_arrays_close(
                reply.weights, expected.weights, rtol=SAME, atol=SAME, what=f"weights {what}", hint=_STEP_HINT
            )
            require_arrays_close(
                reply.result["validation_losses"],
                expected.validation,
                rtol=SAME,
                what=f"validation losses {what}, validation batches of {inputs.validation}",
                hint="Take the mean over all samples: batches differ in size.",
            )
            for other, ended in zip(inputs.others, reply.others, strict=True):
                _require_same(model, inputs.learning_rate, batches, validation, other, ended)
        require_small_products(inputs, reply, lambda: _steady(submission, generator))
        for name, passes, least in zip(("train_loader", "val_loader"), reply.passes, [inputs.epochs] * 2, strict=True):
            require(
                passes >= least,
                f"train_large_model(), {least} epochs: {name} was iterated {passes} of {least} times, and its batches "
                "were kept",
                f"Iterate over {name} again in every epoch: a loader that shuffles gives other batches each time.",
            )
        require_equal(reply.result["optimizer_steps"], len(expected.training), what=f"optimizer_steps {what}")
        require(
            reply.are_numbers, f"losses {what} are no Python numbers", "Report the loss as a number, by loss.item()."
        )
        require_equal(reply.result["device"], reply.device, what=f"device {what}")
        has_no_peak = reply.result["peak_bytes"] is None
        require_equal(has_no_peak, reply.device == "cpu", what=f"whether there is no peak {what}")
        small = Training(model.weights, model.biases, inputs.learning_rate, scale=inputs.scale)
        _require_small(model, trained(small, batches, validation, 1), reply)

    def test_memory_flat_over_steps(self, submission: Submission, generator: InputGenerator) -> None:
        inputs, reply = _steady(submission, generator)
        _require_small_parts(inputs, reply)
        steps = _starts_of_batches(reply.forwards, "training", inputs.batches)
        first, second = ([call.held_bytes for call in epoch] or [0] for epoch in steps)
        allowed = _FLAT_SHARE * reply.ballast_bytes
        held = [(str(index), size, (first + second)[_FIRST_STEP]) for index, size in enumerate(first + second)]
        # Like is compared with like: a local variable may hold the last loss, or none, when an epoch begins.
        for growth, where in (
            (_growth(first), "from the second step to the last of the first epoch"),
            (_growth(second), "from the second step to the last of the second epoch"),
            (
                second[-1] - first[-1] if len(first) > 1 else 0,
                "from the last step of the first epoch to that of the second",
            ),
        ):
            with picturing(lambda: memory_bars("what is allocated when each step of the two epochs begins", held)):
                require(
                    growth <= allowed,
                    f"train_large_model(): what is allocated grows by {mebibytes(growth)} {where}, expected no growth",
                    "Keep losses as numbers (loss.item()): as a tensor a loss keeps its graph and its activations.",
                )
        # Local variables come and go, and some fetch a batch ahead: what leaks grows with most steps of an epoch.
        # A loss or two per micro-batch, each a number, are allowed: less than half a sample.
        # Also later in a step: what was only moved away for the forward passes is back by then.
        rows = [_requested_in(reply, epoch, moment) for epoch in steps for moment in ("forward", "criterion", "step")]
        leak = max(map(_usual_growth, rows))
        require(
            leak < reply.sample_bytes,
            f"train_large_model(): tensors on the device take {leak:,} bytes more after every step, expected none, "
            "or a number per loss",
            (
                "Find the tensor of an earlier step that is still referenced. An output or a batch "
                "that is kept stays on the device, even without its graph."
            ),
        )

    def test_validation_without_graph(self, submission: Submission, generator: InputGenerator) -> None:
        inputs, reply = _steady(submission, generator)
        validated = [call for call in reply.forwards if call.phase == "validation"]
        require(bool(validated), "the model was never called with batches of val_loader")
        require(
            not any(call.graph for call in validated),
            "train_large_model(): validation records a graph, which nobody needs and which takes memory",
            "Validate inside torch.no_grad() or torch.inference_mode().",
        )
        _require_no_other_passes(inputs, reply)
        require(
            not any(call.training for call in validated),
            "train_large_model(): validation runs in training mode, with dropout",
            "Call model.eval() before the validation.",
        )
        in_training = [call for call in reply.forwards if call.phase == "training"]
        require(
            all(call.training for call in in_training) and reply.training_afterwards,
            "train_large_model(): after the first validation the model is no longer in training mode",
            "Call model.train() before each epoch, and once more at the end.",
        )
        passes = _starts_of_batches(reply.forwards, "validation", inputs.validation)
        growth = max(_growth([call.held_bytes for call in calls]) for calls in passes)
        require(
            growth <= _FLAT_SHARE * reply.ballast_bytes,
            f"what is allocated grows by {mebibytes(growth)} during validation",
            "Keep numbers, not tensors with a graph.",
        )

    def test_nonsense_refused(self, submission: Submission, generator: InputGenerator) -> None:
        judge_refusals(submission, generator, "oom")

    @requires("fits_in_24_gb", "retry_halves_the_micro_batch")
    def test_results_saved(self, submission: Submission) -> None:
        reply = submission.probe(OomProgram(), device="cpu")
        require(reply.exit_code in (0, None), f"python -m labs.lab4_memory.oom_fixes ended with {reply.exit_code!r}")
        require("oom.json" in reply.json, "python -m labs.lab4_memory.oom_fixes wrote no oom.json")
        rows = rows_of(reply.json["oom.json"], "oom.json of python -m labs.lab4_memory.oom_fixes")
        require(
            any(isinstance(row, dict) and row.get("optimizer_steps") for row in rows),
            "oom.json has no training of a step or more",
            "Train two steps with the micro-batch that fits, and save the result with labkit.results.save_json.",
        )


def _growth(held: list[int]) -> int:
    """What is held more when the last batch of a pass begins than after its first batch."""
    return held[-1] - held[_FIRST_STEP] if len(held) > _FIRST_STEP else 0


def _usual_growth(held: list[int]) -> int:
    """What most steps of one pass over the batches add at least, after its first one."""
    return int(np.median([after - before for before, after in pairwise(held[_FIRST_STEP:])] or [0]))


def _requested_in(reply: SteadyReply, starts: Sequence[ForwardPass], moment: str) -> list[int]:
    """What live tensors had asked for when batches began, or when it came to this moment for the first time after."""
    if moment == "forward":
        return [call.requested_bytes for call in starts]
    numbers = [number for number, call in enumerate(reply.forwards) if any(call is each for each in starts)]
    looks = [look for look in reply.looks if look.moment == moment]
    found = (next((look for look in looks if look.forwards > number), None) for number in numbers)
    return [look.requested_bytes for look in found if look is not None]


def _starts_of_batches(forwards: Sequence[ForwardPass], phase: str, sizes: Sequence[int]) -> list[list[ForwardPass]]:
    """For each of two epochs the forward passes with which batches begin, by the samples that went through before."""
    starts: list[ForwardPass] = []
    begins, samples = [0, *accumulate([*sizes, *sizes])][:-1], 0
    for call in forwards:
        if call.phase == phase:
            if len(starts) < len(begins) and samples >= begins[len(starts)]:
                starts.append(call)
            samples += call.samples
    return [starts[: len(sizes)], starts[len(sizes) :]]


def _require_samples(
    what: str, samples: int, training: Sequence[int], validation: Sequence[int], micro_batch: int
) -> None:
    """Fail unless so many samples went through the model as the batches of both loaders have."""
    expected = sum(training) + sum(validation)
    firsts = [[min(size, micro_batch) for size in sizes] for sizes in (training, validation)]
    only_first = samples in (sum(firsts[0]) + sum(validation), sum(firsts[0]) + sum(firsts[1]))
    require(
        samples >= expected,
        f"{what}: {samples} samples went through the model, expected the {expected} of all batches of both loaders",
        ONLY_THE_FIRST_PART
        if only_first
        else "Train on every batch of train_loader and validate on every batch of val_loader, in every epoch.",
    )


def _require_small_parts(inputs: Steady, reply: SteadyReply) -> None:
    """Fail if a part of a batch is larger than a micro-batch; fits_in_24_gb sees a batch that was not cut."""
    batches = {*inputs.batches, *inputs.validation}
    largest = max((call.samples for call in reply.forwards if call.samples not in batches), default=0)
    require(
        largest <= inputs.micro_batch,
        f"train_large_model(micro_batch={inputs.micro_batch}): {largest} samples went through the model at once",
        "Cut a batch into parts of `micro_batch` samples, with `split(micro_batch)`. `chunk(micro_batch)` cuts it into "
        "that many parts.",
    )


def _steady(submission: Submission, generator: InputGenerator) -> tuple[Steady, SteadyReply]:
    """A training in which what is held must not grow; fails unless all samples went through the model."""
    inputs = cases.steady(generator)
    reply = submission.probe(inputs, values=not submission.device.simulated)
    _require_samples(
        "train_large_model(), two epochs",
        sum(call.samples for call in reply.forwards),
        [*inputs.batches, *inputs.batches],
        [*inputs.validation, *inputs.validation],
        inputs.micro_batch,
    )
    return inputs, reply


def _require_no_other_passes(inputs: Steady, reply: SteadyReply) -> None:
    """Fail if the device computed more than the passes of the model that were noted, and backward of the training."""
    if reply.flops is None:
        return
    layer = 2 * inputs.width**2
    noted = [(call.flops or 0.0, 2 * layer * call.samples * call.tokens) for call in reply.forwards]
    again = sum(reply.flops_again)
    # Of two layers: the gradients of both weights, and that of what is between them.
    backward = sum(3 * layer * call.samples * call.tokens for call in reply.forwards if call.phase == "training")
    others = reply.flops - sum(flops for flops, _ in noted) - again
    require(
        all(flops == expected for flops, expected in noted) and 0.99 * backward <= others <= 1.01 * backward,
        f"train_large_model(): next to the passes of the model the device computed products of {others:.4g} FLOPs, "
        f"expected the {backward:.4g} of backward after each pass of the training",
        "Compute outputs with the model that is given, by calling it, and each once.",
    )


def _require_same(
    model: SmallModel,
    rate: float,
    batches: list[Batch],
    validation: list[Batch],
    other: OtherTraining,
    reply: OtherReply,
) -> None:
    """Fail unless a training that differs from the first one gives what it must."""
    training = Training(model.weights, model.biases, rate, absolute=other.criterion_given)
    expected = trained(training, batches, validation, other.epochs)
    samples = "sequences of two tokens" if other.sequence else "rows"
    what = (
        f"of train_large_model(), {other.epochs} epochs, {samples} in micro-batches of {other.micro_batch}"
        + ", criterion=l1_loss" * other.criterion_given
        + ", loaders that have no length" * other.streamed
    )
    require_equal(
        reply.result["micro_batch"],
        other.micro_batch,
        what=f"micro_batch {what}",
        hint="Report `micro_batch` as it was passed, even if every batch is smaller.",
    )
    for name, losses in (("losses", expected.training), ("validation_losses", expected.validation)):
        require_arrays_close(reply.result[name], losses, rtol=SAME, what=f"{name} {what}", hint=_SHARE_HINT)
    require_arrays_close(
        reply.weights, expected.weights, rtol=SAME, atol=SAME, what=f"weights {what}", hint=_SHARE_HINT
    )


def _require_small(model: SmallModel, expected: Losses, reply: TrainingsReply) -> None:
    """Fail unless a training in float32 follows gradients that float16 turns into zeros."""
    losses = expected.training[:1]
    what = f"of train_large_model() in float32, with a criterion of about {losses[0]:.0e}"
    actual = reply.small_result["losses"]
    require_arrays_close(
        actual[:1] if isinstance(actual, list) else actual,
        losses,
        rtol=_LOW,
        what=f"first loss {what}",
        hint="Train on the given criterion.",
    )
    moved, expected_moves = (
        np.asarray(weights, dtype=np.float64) - model.weights for weights in (reply.small_weights, expected.weights)
    )
    share = float(np.sqrt((moved**2).sum() / (expected_moves**2).sum()))
    apart = float(np.sqrt(((moved - expected_moves) ** 2).sum() / (expected_moves**2).sum()))
    require(
        apart < _APART,
        f"small gradients are lost: the weights {what} moved {share:.2f} times as far as they should, and end "
        f"{apart:.2f} of the way off",
        "Use bfloat16 or float32, or scale the loss: float16 turns small gradients into zeros.",
    )
