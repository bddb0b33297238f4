"""Judges the steps of Lab 5's trainer against a simulation: weights, learning rates, losses, and their log."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gradebox.run.assertions import (
    Cause,
    number,
    recognising,
    require,
    require_arrays_close,
    require_between,
    require_close,
    require_equal,
)
from grader.lab5.pipeline.cases import (
    GROWTH,
    EpochsReply,
    LoggedStep,
    MixedReply,
    TrainedEpochs,
    Training,
)
from grader.lab5.pipeline.checks.mistakes import (
    LOW_RTOL,
    RTOL,
    Run,
    cause_of_epochs,
    cause_of_loss,
    cause_of_mixed,
    cause_of_rates,
    clipping,
)
from grader.lab5.pipeline.reference import Outcome, mean_loss, rate, scale_after, simulate

_EACH_BATCH_EXCHANGED = Cause(
    "each_batch_exchanged",
    "Use `no_sync()` around forward and backward of all batches of a window except the last.",
    mistake="Every batch of a window is exchanged among the ranks, not only the last",
)
_EVEN_RTOL = 1e-5
"""Of a loss that no rounding of products changes: float32 is right to 1e-7 of it. In 16 bits the logarithm of 5 is
wrong by 4e-5 of it, and those of 3 and 4 by more."""
_LARGE = 4096
"""Numbers of a gradient beside which sums of losses and samples weigh nothing."""
_DEFAULT_SCALE = 2.0**16
"""With which PyTorch's GradScaler begins."""


def on_ranks(function: str, ranks: int) -> str:
    """A call in a message, and on how many ranks it was made."""
    return f"{function} on {ranks} rank{'s' * (ranks > 1)}"


def judge_epochs(all_runs: Sequence[Run]) -> None:
    """What `train_epoch` made of trainings, on each rank."""
    with recognising(lambda: cause_of_epochs(all_runs)):
        for training, runs in all_runs:
            what = f"{on_ranks('train_epoch()', len(runs))}, {training.described()}"
            _judge_training(training, runs, what)


def _judge_training(training: Training, runs: Sequence[TrainedEpochs], what: str) -> None:
    ranks = len(runs)
    for rank, run in enumerate(runs):
        require_equal(
            [run.validated, run.modes], [0, [True] * training.config["epochs"]],
            what=f"{what}: samples that passed the model in evaluation mode, and whether each epoch ends in training "
            "mode; the model was in evaluation mode before",
            hint=Cause(
                "trained_in_the_mode_it_had",
                "Call `model.train()` at the beginning of `train_epoch`, whatever the mode was.",
                mistake="An epoch is trained in evaluation mode, if the model was in it",
            )
            if run.validated
            else "Put the model into training mode in train_epoch(), whatever its mode was.",
        )  # fmt: skip
        batches = training.batches(ranks) * training.config["epochs"]
        require_equal(len(run.batches), batches, what=f"{what}: batches of rank {rank}")
    numbers = [run.batches for run in runs]
    windows, expected = training.windows(numbers), simulate(training, numbers)
    each_epoch, total = training.steps_per_epoch(ranks), len(windows)
    for rank, run in enumerate(runs):
        require_equal(run.steps, total, what=f"{what}: ProductionTrainer.steps of rank {rank}")
        require_arrays_close(
            run.weight, expected.weight, rtol=RTOL, atol=RTOL + clipping(training, numbers),
            what=f"{what}: weights of rank {rank}",
            hint="Take the mean over all samples of the window on all ranks; the last window is smaller. "
            "Clip it once, as a whole, then make one step at the scheduled rate.",
        )  # fmt: skip
        own = [sum(map(len, window[rank])) for window in training.windows_by_rank(numbers)]
        if run.logged_samples:  # else the steps are logged in another way
            require_equal(
                run.logged_samples, own, what=f"{what}: samples that rank {rank} passes to log_step",
                hint="Pass the samples of the whole window, on this rank.",
            )  # fmt: skip
        require(bool(run.frozen), f"{what}: a parameter that needs no gradient was moved")
        for epoch, result in enumerate(run.results):
            steps = slice(epoch * each_epoch, (epoch + 1) * each_epoch)
            samples = sum(map(len, windows[steps]))
            require_equal(
                [result[name] for name in ("epoch", "complete", "samples", "optimizer_steps", "skipped_steps")],
                [epoch, True, samples, each_epoch, 0],
                what=f"{what}: epoch, complete, samples, optimizer_steps and skipped_steps of rank {rank}",
            )
            require_close(
                number(result["loss"], f"{what}: loss"), sum(expected.losses[steps]) / samples, relative=1e-6,
                what=f"{what}: loss of epoch {epoch} on rank {rank}",
                hint=(
                    "Report the mean over all samples of all ranks, each loss as it was before its "
                    "window's step."
                ),
            )  # fmt: skip
        if ranks > 1:
            require_between(
                # Gradients may be exchanged without a reduction: right weights say that they were.
                run.reduced_gradients / total, 0.0, 1.1 if training.weight.size > _LARGE else 1.99,
                what=f"{what}: bytes reduced, in gradients per optimizer step", expected="1, and a little for sums",
                hint=_EACH_BATCH_EXCHANGED
                if abs(run.reduced_gradients / len(run.batches) - 1) < 0.2
                else "Use no_sync() around forward and backward of all batches of a window except the last.",
            )  # fmt: skip
            if training.weight.size > _LARGE:
                require_between(
                    run.early_gradients / total, 0.0, 0.1,
                    what=f"{what}: bytes exchanged before the last batches of windows, in gradients per optimizer step",
                    expected="next to none", hint=_EACH_BATCH_EXCHANGED,
                )  # fmt: skip


def judge_orders(training: Training, replies: Sequence[EpochsReply]) -> None:
    """Which batches an epoch has, wherever the loader is when it is asked for."""
    ranks = len(replies)
    whole = training.batches(ranks)
    for rank, reply in enumerate(replies):
        zeroth, first = reply.runs[0].batches[:whole], reply.runs[0].batches[whole:]
        orders = {
            "epoch 1, and again": first + first,
            "the rest of epoch 0": zeroth[1:],
            "epoch 1 in the middle of epoch 0": first,
        }
        for name, order in orders.items():
            require_equal(
                reply.orders[name].batches, order,
                what=f"samples of each batch, train_epoch() called for {name}, on rank {rank} of {ranks}",
                hint=(
                    "Call begin_epoch first. It goes to the beginning of the epoch, or stays where the "
                    "loader is in it."
                ),
            )  # fmt: skip
            batches = [each.orders[name].batches for each in replies]
            require_arrays_close(
                reply.orders[name].weight, simulate(training, batches).weight, rtol=RTOL,
                atol=RTOL + clipping(training, batches),
                what=f"weights, train_epoch() called for {name}, on rank {rank} of {ranks}",
            )  # fmt: skip


def judge_exchanges(training: Training, replies: Sequence[EpochsReply]) -> None:
    """How often the ranks exchanged the gradient of a training that is much larger than all else that they exchange."""
    steps, batches, ranks = training.total_steps(2), training.batches(2) * training.config["epochs"], 2
    exchange = ranks * training.weight.size * np.dtype(np.float64).itemsize
    reply, written = replies[0], sum(reply.runs[-1].written_bytes or 0 for reply in replies)
    # Who exchanges by files writes there what no network sees.
    require_between(
        written / exchange, 0.0, (steps + batches) / 2,
        what=f"bytes that 2 ranks wrote, to files or to each other, in gradients of {on_ranks('train_epoch()', 2)}, "
        f"{training.described()}",
        expected=f"{steps}, and a little for sums and logs",
        hint=_EACH_BATCH_EXCHANGED if written > 0.8 * batches * exchange else "Exchange through the process group.",
    )  # fmt: skip
    if reply.loopback_bytes is None:  # then only the probe has counted
        return
    exchanges = reply.loopback_bytes / exchange
    require_between(
        # At the beginning the ranks may send each other the weights, and the other trainings' gradients count as well.
        exchanges, 0.0, (steps + batches) / 2,
        what=f"bytes that 2 ranks exchanged, in gradients of {on_ranks('train_epoch()', 2)}, "
        f"{training.described()}",
        expected=f"{steps}, and a little for weights and sums",
        hint=_EACH_BATCH_EXCHANGED if exchanges > 0.8 * batches else "Exchange in a window's last batch only.",
    )  # fmt: skip


def judge_rates_of(all_runs: Sequence[Run]) -> None:
    """The learning rate of each step."""
    with recognising(lambda: cause_of_rates(all_runs)):
        for training, runs in all_runs:
            ranks = len(runs)
            what, total = f"{on_ranks('train_epoch()', ranks)}, {training.described()}", training.total_steps(ranks)
            require_equal(len(runs[0].rates), total, what=f"{what}: optimizer steps")
            judge_rates(training, runs[0].rates, total, what)


def judge_rates(training: Training, rates: Sequence[float], total: int, what: str) -> None:
    for index, observed in enumerate(rates):
        require_close(
            observed, rate(training.config, index, total), relative=1e-6,
            what=f"{what}: learning rate of optimizer step {index} of {total}",
        )  # fmt: skip


def judge_mixed(runs: Sequence[tuple[Training, MixedReply]]) -> None:
    """Epochs in float16 or bfloat16."""
    for training, reply in runs:
        dtype = training.config["dtype"]
        what = f"train_epoch() in {dtype}, {training.described()}"
        what += ", whose first steps overflow" * (dtype == "float16")
        _judge_counts_in_16_bits(training, reply, what, runs)
        with recognising(lambda: cause_of_mixed(runs)):
            _judge_steps_in_16_bits(training, reply, what)


def _judge_counts_in_16_bits(
    training: Training, reply: MixedReply, what: str, runs: Sequence[tuple[Training, MixedReply]]
) -> None:
    dtype, total = training.config["dtype"], training.total_steps(1)
    size, batches = training.config["accumulation_steps"], training.batches(1)
    each_epoch = training.steps_per_epoch(1)
    taken = [batch // batches * each_epoch + batch % batches // size for batch in reply.taken]
    products = f"{what}: dtypes of the products, in training and validation"
    in_float32 = {
        "[['float32'], ['float32']]": "Autocast is not used: forward passes run in float32",
        f"[['{dtype}'], ['float32']]": "Validation runs in float32, whatever training does",
    }.get(str(reply.products))
    require_equal(
        reply.products, [[dtype], [dtype]], what=products,
        hint=Cause(
            "without_autocast",
            "Put model and loss into autocast to `self.dtype` in `forward`. Training and validation both use it.",
            mistake=in_float32,
        )
        if in_float32
        else "",
    )  # fmt: skip
    require_equal(reply.parameters, "float32", what=f"{what}: dtype of the parameters")
    made, left_out = (
        sum(int(number(each[name], name)) for each in reply.results) for name in ("optimizer_steps", "skipped_steps")
    )
    require_equal(
        [made, reply.steps, made + left_out], [len(taken), len(taken), total],
        what=f"{what}: optimizer_steps, ProductionTrainer.steps, and optimizer_steps + skipped_steps",
        hint=_cause_of_counts(training, taken, made, left_out) or "a step that the scaler skipped is no optimizer step",
    )  # fmt: skip
    if reply.windows:  # else an epoch does without it
        require_equal(
            reply.windows, [window in taken for window in range(total)], what=f"{what}: what train_window() returned",
            hint="Return whether the step was taken. A step that the scaler skipped was not.",
        )  # fmt: skip
    require_equal(
        reply.saved, [], what=f"{what}, save_every_steps={training.config['save_every_steps']}: checkpoints",
        hint=Cause(
            "saved_after_a_skipped_step",
            "Save only if `train_window` took the step. After a skipped one `steps` is still what it was, so 0 is a "
            "multiple of `save_every_steps` before the first step.",
            mistake="train_epoch() saves a checkpoint after a window whose step was skipped",
        )
        if reply.saved == ["step-00000000.pt"]
        else "Save after every save_every_steps steps of the run, and not at the end of an epoch.",
    )  # fmt: skip
    usual = Cause(
        "initial_scale_ignored",
        "Pass `config.initial_scale` to GradScaler as `init_scale`.",
        mistake="The loss scale begins at PyTorch's default, not at config.initial_scale",
    )
    begun_at_default = reply.scale == scale_after(_DEFAULT_SCALE, taken, total, GROWTH)
    if dtype == "float16":
        require(
            left_out >= 1, f"{what}: no step was skipped, at a loss scale of 2^20", usual if begun_at_default else ""
        )
        with recognising(lambda: cause_of_mixed(runs)):
            require(made >= 1, f"{what}: every step was skipped")
        scale = scale_after(training.config["initial_scale"], taken, total, GROWTH)
        growing = f"{what}: loss scale, which grows after {GROWTH} good steps in a row"
        require_equal(reply.scale, scale, what=growing, hint=usual if begun_at_default else "")
    else:
        require(
            reply.scale in (None, 1.0), f"{what}: the loss is scaled by {reply.scale}; bfloat16 needs no scale",
            Cause(
                "bfloat16_is_scaled",
                "Enable the GradScaler for float16 only.",
                mistake="The loss is scaled in bfloat16, too",
            ),
        )  # fmt: skip


def _cause_of_counts(training: Training, taken: Sequence[int], made: int, left_out: int) -> Cause | None:
    """The mistake that leads to so many steps, made and left out."""
    windows = training.total_steps(1)
    if training.config["dtype"] != "float16":
        return None
    scales = [scale_after(training.config["initial_scale"], taken, window, GROWTH) for window in range(windows + 1)]
    grown = sum(scales[window + 1] > scales[window] for window in taken)
    if (made, left_out) == (windows, 0):
        return Cause(
            "skipped_steps_counted",
            "Count a step only if it was taken. It was skipped only if `update()` lowered the scale.",
            mistake="A skipped step counts as one that was taken",
        )
    if grown and (made, left_out) == (len(taken) - grown, windows - len(taken) + grown):
        return Cause(
            "growing_scale_counts_as_overflow",
            "A step was skipped only if `update()` lowered the scale. A scale that grows is no overflow.",
            mistake="A step after which the loss scale grows counts as skipped",
        )
    return None


def _judge_steps_in_16_bits(training: Training, reply: MixedReply, what: str) -> None:
    dtype = training.config["dtype"]
    taken = training.taken(reply.taken)
    total, windows, each_epoch = training.total_steps(1), training.windows([reply.batches]), training.steps_per_epoch(1)
    expected = simulate(training, [reply.batches], taken)
    moved = np.linalg.norm(expected.weight - np.asarray(training.weight, np.float64))
    apart = float(np.linalg.norm(reply.weight - expected.weight) / moved)
    require(
        apart < LOW_RTOL,
        f"{what}: the weights end {apart:.3g} times the way that they should have moved away from where they should "
        f"be, expected less than {LOW_RTOL} (rounding)",
        "Scale, go backward, unscale, clip, step, update, in this order.",
    )
    for epoch, result in enumerate(reply.results):
        steps = slice(epoch * each_epoch, (epoch + 1) * each_epoch)
        samples = sum(map(len, windows[steps]))
        of_taken = sum(len(windows[window]) for window in taken if window // each_epoch == epoch)
        hint = "Add the samples and the loss of a skipped window to the epoch's progress, too."
        if result["samples"] == of_taken:
            hint = Cause(
                "skipped_windows_not_counted",
                "Add samples and loss of every window to `progress`, also of one whose step was skipped.",
                mistake="Samples and loss of a skipped window are left out of the epoch",
            )
        require_equal(result["samples"], samples, what=f"{what}: samples of epoch {epoch}", hint=hint)
        require_close(
            number(result["loss"], f"{what}: loss"), sum(expected.losses[steps]) / samples, relative=LOW_RTOL,
            what=f"{what}: loss of epoch {epoch}", hint=hint,
        )  # fmt: skip
    _judge_even_loss(len(training.weight), number(reply.even["loss"], f"{what}: loss"), dtype)
    loss = number(reply.validation["loss"], f"{what}: loss of validate()")
    right = mean_loss(training, reply.weight)
    require_close(
        loss, right, relative=LOW_RTOL, what=f"{what}: loss of validate()",
        hint=cause_of_loss(training, reply.weight, loss) or "",
    )  # fmt: skip
    judge_rates(training, reply.rates, total, what)
    judge_logged_steps(expected, reply.logged, training.config["log_every_steps"], LOW_RTOL, what)


def _judge_even_loss(classes: int, loss: float, dtype: str) -> None:
    """The loss of an epoch with a model for which all classes are equally likely: the logarithm of their number."""
    right = math.log(classes)
    rounded = float(np.float16(right)) if dtype == "float16" else _in_bfloat16(right)
    outside = abs(loss - rounded) < 0.1 * abs(rounded - right)
    require_close(
        loss, right, relative=_EVEN_RTOL,
        what=f"train_epoch() in {dtype} with a model for which all {classes} classes are equally likely: loss",
        hint=Cause(
            "loss_outside_autocast",
            "Compute the cross entropy inside the autocast block, which chooses float32 for it.",
            mistake=f"The loss is computed outside of autocast, in {dtype}",
        )
        if outside
        else Cause(
            "losses_summed_in_16_bits",
            "Sum up losses in float32 or float64, whatever `self.dtype` is.",
            mistake="The losses of an epoch are summed up in 16 bits",
        ),
    )  # fmt: skip


def _in_bfloat16(value: float) -> float:
    """The nearest number that bfloat16 holds."""
    bits = int(np.float32(value).view(np.uint32))
    kept = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(np.uint32(kept).view(np.float32))


def judge_logged_steps(expected: Outcome, logged: Sequence[LoggedStep], every: int, relative: float, what: str) -> None:
    """What the monitor received of the steps that were taken."""
    steps = [(each.step, each.metrics) for each in logged if "loss" in each.metrics]
    require_equal(
        [step for step, _ in steps], list(range(every, len(expected.steps) + 1, every)),
        what=f"{what}: steps that the monitor received",
        hint="Pass each step that was taken to log_step, once `steps` counts it.",
    )  # fmt: skip
    for step, values in steps:
        taken = expected.steps[step - 1]
        for name, value, hint in (
            ("loss", taken.loss, "the mean over the samples of the window, before the step"),
            ("learning_rate", taken.rate, "the rate of the step that was taken, not of the next one"),
            ("gradient_norm", taken.norm, "of the unscaled gradient, before clipping; also if nothing is clipped"),
        ):
            actual = number(values.get(name), f"{what}: {name} of step {step}")
            require_close(actual, value, relative=relative, what=f"{what}: {name} of step {step} (logged)", hint=hint)
