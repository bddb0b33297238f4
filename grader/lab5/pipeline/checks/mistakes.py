"""Recognises the mistake behind what Lab 5's trainer did, by a reference that makes the same mistake.

A mistake of a window's step is seen in the weights, in the losses that are logged, and in 16 bits: it is charged once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from gradebox.run.assertions import Cause
from grader.lab5.pipeline.cases import (
    Batches,
    LoggedReply,
    LoggedStep,
    MixedReply,
    TrainedEpochs,
    Training,
    Validate,
    ValidateReply,
)
from grader.lab5.pipeline.reference import (
    LOG_MISTAKES,
    RATE_MISTAKES,
    STEP_MISTAKES,
    Outcome,
    Step,
    cross_entropy,
    mean_loss,
    rates,
    simulate,
)

RTOL = 1e-9
"""Of weights in float64: right ones agree to 1e-14, the smallest planted mistake is 1e-3."""
LOW_RTOL = 0.05
"""Of the way the weights move in float16 and bfloat16: right ones are off by 0.0002 to 0.005, those of a gradient that
was clipped before it was unscaled by 1."""
ROUNDING = 1e-6
"""Of weights in float32, in which the smallest steps are lost."""
SINGLE = 1e-5
"""TensorBoard keeps float32."""
Run = tuple[Training, Sequence[TrainedEpochs]]
"""A training, and what each rank made of it."""

_STEPS = "lab5.pipeline.steps_follow_the_mean_gradient"
_RATES = "lab5.pipeline.learning_rate_per_optimizer_step"
_OVERFLOW = "lab5.pipeline.overflow_leaves_everything_alone"
_RESUMED = "lab5.pipeline.resumed_run_has_the_same_bits"
_ON_RANKS = "lab5.pipeline.resumed_on_every_rank"
_SIGTERM = "lab5.pipeline.goes_on_after_sigterm"
_LOGS = "lab5.pipeline.rank_zero_logs"

_FULL_WINDOWS = Cause(
    "by_full_windows",
    "Weigh each batch by its share of the samples of its own window. The last window of an epoch may be shorter.",
    _STEPS,
    mistake="The last, shorter window of an epoch is divided by the full number of batches",
)
_PER_BATCH = Cause(
    "schedule_moves_per_batch",
    "Call `scheduler.step()` once per optimizer step, after the window, not after each of its batches.",
    _RATES,
    mistake="The learning rate moves with every batch, not with every optimizer step",
)
_CLIPPED_WHILE_SCALED = Cause(
    "clipped_while_scaled",
    "Call `scaler.unscale_(optimizer)` before you clip. `max_grad_norm` is meant for the gradient itself.",
    _OVERFLOW,
    mistake="The gradient is clipped before it is unscaled",
)
CAUSES: Mapping[str, Cause] = {
    "never_cleared": Cause(
        "never_cleared",
        "Call `optimizer.zero_grad()` once per window, before its first batch.",
        _STEPS,
        mistake="Gradients are never cleared",
    ),
    "cleared_each_batch": Cause(
        "cleared_each_batch",
        "Clear the gradients once per window, not before each batch. The batches of a window add up.",
        _STEPS,
        mistake="Gradients are cleared before each batch, so that only the last batch of a window counts",
    ),
    "batches_alike": Cause(
        "batches_alike",
        "Weigh each batch by its share of the window's samples. The last batch of an epoch is smaller.",
        _STEPS,
        mistake="Each batch of a window weighs the same, however few samples it has",
    ),
    "by_full_windows": _FULL_WINDOWS,
    "by_full_windows_of_samples": _FULL_WINDOWS,
    "losses_summed": Cause(
        "losses_summed",
        "Weigh each batch by its share of the window's samples. Their shares add up to 1.",
        _STEPS,
        mistake="The losses of a window's batches are added up, not averaged",
    ),
    "clipped_each_batch": Cause(
        "clipped_each_batch",
        "Clip once per window, after the last backward pass: the gradient of the whole window.",
        _STEPS,
        mistake="Each batch is clipped, not the gradient of the window",
    ),
    "clipped_each_parameter": Cause(
        "clipped_each_parameter",
        "Pass all parameters to one call of `clip_grad_norm_`. The norm is that of all gradients together.",
        _STEPS,
        mistake="Each parameter's gradient is clipped by itself, not all of them together",
    ),
    "never_clipped": Cause(
        "never_clipped",
        "Clip the gradient of each window to `config.max_grad_norm`, before the step.",
        _STEPS,
        mistake="The gradient is never clipped",
    ),
    "clipped_to_1_if_unlimited": Cause(
        "clipped_although_unlimited",
        "Clip to `math.inf` if `max_grad_norm` is None. That gives the norm, and leaves the gradient as it is.",
        _STEPS,
        mistake="With max_grad_norm=None the gradient is clipped to 1",
    ),
    "clipped_while_scaled": _CLIPPED_WHILE_SCALED,
    "always_adamw": Cause(
        "always_adamw",
        "Make the optimizer that `config.optimizer` names.",
        _STEPS,
        mistake="The optimizer is AdamW, whatever the configuration says",
    ),
    "always_sgd": Cause(
        "always_sgd",
        "Make the optimizer that `config.optimizer` names.",
        _STEPS,
        mistake="The optimizer is SGD, whatever the configuration says",
    ),
    "no_weight_decay": Cause(
        "no_weight_decay",
        "Pass `config.weight_decay` to the optimizer, whichever it is.",
        _STEPS,
        mistake="The optimizer is made without weight decay",
    ),
    "no_momentum": Cause(
        "no_momentum",
        "Pass `config.momentum` to SGD.",
        _STEPS,
        mistake="SGD is made without momentum",
    ),
    "ranks_apart": Cause(
        "ranks_apart",
        "Train `self.replica`, a DistributedDataParallel if there are several ranks, and let the last batch of each "
        "window exchange its gradients.",
        _STEPS,
        mistake="Every rank trains a model of its own: gradients are never exchanged",
    ),
    "moves_per_batch": _PER_BATCH,
    "moved_per_batch_before": _PER_BATCH,
    "moves_on_overflow": Cause(
        "schedule_moves_on_overflow",
        "Call `scheduler.step()` only if the step was taken. A step was skipped only if `update()` lowered the scale.",
        _OVERFLOW,
        mistake="The learning rate moves although the step was skipped",
    ),
    "moved_before_the_step": Cause(
        "schedule_moves_before_the_step",
        "Call `scheduler.step()` after the optimizer's step. The first step has the first rate.",
        _RATES,
        mistake="The schedule moves before the optimizer's step",
    ),
    "never_moves": Cause(
        "schedule_never_moves",
        "Call `scheduler.step()` once after each optimizer step that was taken.",
        _RATES,
        mistake="The learning rate never moves",
    ),
    "as_long_as_the_batches": Cause(
        "schedule_counts_batches",
        "Divide the batches of an epoch by `accumulation_steps`, rounded up, and multiply by the epochs.",
        _RATES,
        mistake="The schedule is as long as the run has batches, not optimizer steps",
    ),
    "as_long_as_full_windows": Cause(
        "schedule_forgets_the_last_window",
        "Round up when you divide the batches of an epoch by `accumulation_steps`. The rest makes a step as well.",
        _RATES,
        mistake="The shorter last window of each epoch has no place in the schedule",
    ),
    "as_long_as_an_epoch": Cause(
        "schedule_of_one_epoch",
        "Multiply the optimizer steps of an epoch by `config.epochs`. The schedule is that of the whole run.",
        _RATES,
        mistake="The schedule ends with the first epoch",
    ),
    "next_rate_logged": Cause(
        "next_rate_logged",
        "Read the learning rate before the scheduler moves, and pass that to `log_step`.",
        _LOGS,
        mistake="The log has the learning rate of the next step",
    ),
    "clipped_norm_logged": Cause(
        "clipped_norm_logged",
        "Log what `clip_grad_norm_` returns: the norm before clipping.",
        _LOGS,
        mistake="The logged gradient norm is measured after clipping",
    ),
    "norm_only_if_clipped": Cause(
        "norm_only_if_clipped",
        "Measure the norm also if `max_grad_norm` is None: clipping to `math.inf` only measures.",
        _LOGS,
        mistake="The log has no gradient norm if nothing is clipped",
    ),
}
"""What to say of each of the reference's mistakes."""
NO_MONITOR = Cause(
    "monitor_not_passed_on",
    "Pass the monitor to the `Log` that the trainer makes. It gets everything that TensorBoard gets.",
    _LOGS,
    mistake="The monitor receives nothing of the training, TensorBoard does",
)
NO_LOG = Cause(
    "steps_not_logged",
    "Call `log_step` on every rank for each step that was taken, once `steps` counts it.",
    _LOGS,
    mistake="No step of the training is logged",
)
OTHER_RATES = Cause(
    "rates_of_the_steps",
    "The schedule counts the optimizer steps that were taken. Its `total_steps` are those of all epochs.",
    _RATES,
    mistake="The steps are not taken at the scheduled learning rates",
)
"""If the rates that were seen lead to the weights, whatever made them."""
_PARTS: Mapping[str, tuple[str, str, str]] = {
    "weights": (_RESUMED, "The model's weights do not come back", "Load `model` from the checkpoint."),
    "optimizer": (
        _RESUMED,
        "The optimizer's state is not resumed",
        "Save the optimizer's `state_dict` and load it. It holds momentum and moments.",
    ),
    "scheduler": (
        _RESUMED,
        "The schedule begins again after a resume",
        "Save the scheduler's `state_dict` and load it.",
    ),
    "scaler": (_RESUMED, "The loss scale begins again after a resume", "Save the scaler's `state_dict` and load it."),
    "steps": (_RESUMED, "The number of steps is not resumed", "Save `steps`, and set it when you load."),
    "random": (
        _RESUMED,
        "The random numbers are not put back",
        "Save `capture_random_state()` of every rank, and call `restore_random_state` last when you load.",
    ),
    "position": (
        _SIGTERM,
        "The loader's position in the epoch does not come back",
        "Load the loader's state, and do not send the loader to the beginning of the epoch.",
    ),
    "progress": (
        _SIGTERM,
        "What the epoch had done before the resume is forgotten: `progress`",
        "Save `progress` of each rank, and put it back when you load.",
    ),
    "validations": (
        _SIGTERM,
        "The validations before the resume are forgotten",
        "Save `validations`, and put them back when you load. Early stopping goes by them.",
    ),
    "epochs": (
        _SIGTERM,
        "The epochs before the resume are forgotten",
        "Save `epochs`, and put them back when you load.",
    ),
    "next epoch": (
        _SIGTERM,
        "load_checkpoint goes on with the wrong epoch",
        "Return the saved epoch if batches of it are left, else the one after it.",
    ),
}
"""Of each part of a checkpoint: where it is charged, what is wrong if it does not come back, and what to do."""
_OF_RANK_0 = Cause(
    "state_of_rank_0",
    "Gather from every rank what is its own. When you load, each rank takes its own part.",
    _ON_RANKS,
    mistake="Every rank takes the random numbers of rank 0",
)


_VALIDATION = "lab5.pipeline.validation_weighs_samples"
_IN_TRAINING_MODE = Cause(
    "validation_in_training_mode",
    "Call `model.eval()` before the validation. Otherwise dropout is on.",
    _VALIDATION,
    mistake="Validation runs in training mode, with dropout",
)
_BATCHES_AVERAGED = Cause(
    "validation_averages_batches",
    "Add up each batch's mean loss times its samples, over all ranks, and divide once by all samples.",
    _VALIDATION,
    mistake="The validation loss is the mean of the batches' means",
)
_ONE_RANK = Cause(
    "validation_of_one_rank",
    "Add up losses, correct predictions and samples over the ranks with `sum_over_ranks`, then divide.",
    _VALIDATION,
    mistake="Each rank reports its own share of the validation",
)


def cause_of_epochs(runs: Sequence[Run]) -> Cause | None:
    """The mistake that leads to the weights of all ranks in all trainings; None if they are right."""
    observed = [[run.rates for run in of_ranks] for _, of_ranks in runs]
    scheduled = [[rates(training, len(of_ranks))[:-1] for _ in of_ranks] for training, of_ranks in runs]

    def explains(mistake: str, rates_of_runs: Sequence[Sequence[Sequence[float]]]) -> bool:
        return all(
            _has_weights(training, of_ranks, rank, mistake, rates_of_runs[place][rank])
            for place, (training, of_ranks) in enumerate(runs)
            for rank in range(len(of_ranks))
        )

    if explains("", scheduled):
        return None
    for mistake in STEP_MISTAKES:
        if explains(mistake, scheduled):
            return CAUSES[mistake]
    if explains("", observed):
        return cause_of_rates(runs)
    return next((CAUSES[mistake] for mistake in STEP_MISTAKES if explains(mistake, observed)), None)


def _has_weights(
    training: Training, of_ranks: Sequence[TrainedEpochs], rank: int, mistake: str, at_rates: Sequence[float]
) -> bool:
    batches = [run.batches for run in of_ranks]
    if (
        len({len(each) for each in batches}) != 1
        or len(batches[0]) != training.batches(len(batches)) * training.config["epochs"]
    ):
        return False
    expected = simulate(training, batches, mistake=mistake, observed_rates=at_rates, rank=rank).weight
    actual = np.asarray(of_ranks[rank].weight)
    within = RTOL + clipping(training, batches)
    return actual.shape == expected.shape and bool(np.allclose(actual, expected, rtol=RTOL, atol=within))


def clipping(training: Training, batches_by_rank: Sequence[Batches]) -> float:
    """How far weights may be off where gradients were clipped exactly, unlike PyTorch's: both are right."""
    limit = training.config["max_grad_norm"]
    return 0.0 if limit is None else 1e-5 * len(training.windows(batches_by_rank)) * training.config["learning_rate"]


def cause_of_rates(runs: Sequence[Run]) -> Cause:
    """The mistake that leads to the learning rates of the steps in all trainings."""

    def explains(mistake: str) -> bool:
        return all(
            _equal(run.rates, rates(training, len(of_ranks), mistake=mistake)[:-1], 1e-6)
            for training, of_ranks in runs
            for run in of_ranks
        )

    return next((CAUSES[mistake] for mistake in RATE_MISTAKES if explains(mistake)), OTHER_RATES)


def cause_of_mixed(runs: Sequence[tuple[Training, MixedReply]]) -> Cause | None:
    """The mistake that leads to weights, rates and logs in 16 bits; None if they are right, or if no single one does.

    With windows of one batch, some mistakes cannot be told apart: all trainings count.
    """

    if not any(reply.logged for _, reply in runs) and all(
        _leads_to("", training, reply, with_log=False) for training, reply in runs
    ):
        return NO_MONITOR if all(reply.event_files for _, reply in runs) else NO_LOG

    def explains(mistake: str) -> bool:
        return all(_leads_to(mistake, training, reply) for training, reply in runs)

    return _only_cause(explains, (*STEP_MISTAKES, *RATE_MISTAKES, *LOG_MISTAKES))


def _leads_to(mistake: str, training: Training, reply: MixedReply, *, with_log: bool = True) -> bool:
    taken, every = training.taken(reply.taken), training.config["log_every_steps"]
    outcome = simulate(training, [reply.batches], taken, mistake)
    start = np.asarray(training.weight, np.float64)
    within = LOW_RTOL * float(np.linalg.norm(outcome.weight - start)) + ROUNDING * float(np.linalg.norm(start))
    scheduled = rates(training, 1, taken, mistake if mistake in RATE_MISTAKES else "")
    return (
        float(np.linalg.norm(reply.weight - outcome.weight)) < within
        and _equal(reply.rates, scheduled, 1e-6)
        and (not with_log or _has_log(outcome, reply.logged, every, LOW_RTOL))
    )


def _only_cause(explains: Callable[[str], bool], mistakes: Sequence[str]) -> Cause | None:
    """The cause of those mistakes that explain what was seen, if it is one and the same."""
    if explains(""):
        return None
    causes = {CAUSES[mistake].name: CAUSES[mistake] for mistake in mistakes if explains(mistake)}
    return next(iter(causes.values())) if len(causes) == 1 else None


def cause_of_logs(runs: Sequence[tuple[Training, Sequence[LoggedReply]]]) -> Cause | None:
    """The mistake that leads to what was logged of each step; None if it is right, or if no single one does."""
    for training, replies in runs:
        batches = training.batches(len(replies)) * training.config["epochs"]
        if any(len(reply.batches) != batches for reply in replies):
            return None
    first = [replies[0] for _, replies in runs]
    shown = [any(tag.startswith("train/") for tag in reply.entries) for reply in first]
    if all(shown) and not any(reply.logged for reply in first):
        return NO_MONITOR
    if not any(shown) and not any("loss" in each.metrics for reply in first for each in reply.logged):
        return NO_LOG

    def explains(mistake: str) -> bool:
        return all(
            _has_log(
                _of_all_ranks(training, [reply.batches for reply in replies], mistake),
                replies[0].logged,
                training.config["log_every_steps"],
                SINGLE,
            )
            for training, replies in runs
        )

    return _only_cause(explains, (*STEP_MISTAKES, *RATE_MISTAKES, *LOG_MISTAKES))


def _of_all_ranks(training: Training, batches_by_rank: Sequence[Batches], mistake: str) -> Outcome:
    """What rank 0 logs: the mean of the ranks' losses, and the rest of its own."""
    outcome = simulate(training, batches_by_rank, mistake=mistake)
    if mistake == "ranks_apart":
        others = [
            simulate(training, batches_by_rank, mistake=mistake, rank=rank) for rank in range(len(batches_by_rank))
        ]
        for index, step in enumerate(outcome.steps):
            loss = float(np.mean([other.steps[index].loss for other in others]))
            outcome.steps[index] = Step(loss, step.rate, step.norm)
    return outcome


def _has_log(outcome: Outcome, logged: Sequence[LoggedStep], every: int, relative: float) -> bool:
    steps = [each for each in logged if "loss" in each.metrics]
    if [each.step for each in steps] != list(range(every, len(outcome.steps) + 1, every)):
        return False
    for each in steps:
        taken = outcome.steps[each.step - 1]
        actual = [each.metrics.get(name, math.nan) for name in ("loss", "learning_rate", "gradient_norm")]
        if not _equal(actual, [taken.loss, taken.rate, taken.norm], relative):
            return False
    return True


def _equal(actual: Sequence[float], expected: Sequence[float], relative: float) -> bool:
    if len(actual) != len(expected):
        return False
    return bool(np.allclose(actual, expected, rtol=relative, atol=1e-12, equal_nan=True))


def cause_of_loss(training: Training, weight: ArrayLike, loss: float) -> Cause | None:
    """The mistake that leads to this loss of a validation with these weights."""
    samples, size = range(len(training.classes)), training.batch_size
    losses = [mean_loss(training, weight, samples[start : start + size]) for start in samples[::size]]
    return _BATCHES_AVERAGED if abs(loss / float(np.mean(losses)) - 1) < LOW_RTOL / 5 else None


def cause_of_validation(inputs: Validate, rank: int, reply: ValidateReply) -> Cause | None:
    """The mistake that leads to these validations, with the model in training and in evaluation mode before."""
    ends = np.cumsum([size for sizes in inputs.sizes for size in sizes])
    losses = cross_entropy(inputs.logits.astype(np.float64), inputs.classes)[0]
    means = [float(part.mean()) for part in np.split(losses, ends[:-1])]
    counts, places = [sum(sizes) for sizes in inputs.sizes], np.cumsum([0, *map(len, inputs.sizes)])
    of_ranks = [means[start:end] for start, end in pairwise(places)]
    averaged = [
        float(np.mean(means)),
        sum(float(np.mean(own)) * count for own, count in zip(of_ranks, counts, strict=True) if own) / sum(counts),
        float(np.mean([np.mean(own) for own in of_ranks if own])),
    ]
    right = float(losses.mean())
    trained, evaluated = ([run.result["samples"], run.result["loss"]] for run in (reply.training, reply.evaluation))

    def is_near(result: list[object], loss: float) -> bool:
        return isinstance(result[1], (int, float)) and abs(result[1] / loss - 1) < 1e-6

    if is_near(evaluated, right) and not is_near(trained, right):
        return _IN_TRAINING_MODE
    if any(is_near(trained, loss) and is_near(evaluated, loss) and abs(loss / right - 1) > 1e-6 for loss in averaged):
        return _BATCHES_AVERAGED
    if len(counts) > 1 and trained[0] == evaluated[0] == counts[rank] != sum(counts):
        return _ONE_RANK
    return None


def cause_of_resume(loaded_of_ranks: Sequence[Sequence[Mapping[str, str]]]) -> Cause | None:
    """The parts that a trainer saved and another one did not have once it had loaded them; None if it has all.

    Args:
        loaded_of_ranks: of each rank what was saved, and what was there after it had been loaded; empty if unknown.
    """
    pairs = [(pair[0], pair[1]) for pair in loaded_of_ranks if len(pair) == 2]
    lost = {
        rank: [name for name in _PARTS if saved.get(name) != loaded.get(name)]
        for rank, (saved, loaded) in enumerate(pairs)
    }
    if len({saved["weights"] for saved, _ in pairs}) > 1:
        return CAUSES["ranks_apart"]
    if len({saved.get("validations") for saved, _ in pairs}) > 1:  # each must have those of all ranks
        return _ONE_RANK
    names = [name for name in _PARTS if any(name in of_rank for of_rank in lost.values())]
    if not names:
        return None
    if names == ["random"] and not lost[0] and all(loaded["random"] == pairs[0][0]["random"] for _, loaded in pairs):
        return _OF_RANK_0
    parts = [_PARTS[name] for name in names]
    return Cause(
        f"not_resumed: {', '.join(names)}",
        " ".join(hint for _, _, hint in parts[:2]),
        parts[0][0],
        mistake="; ".join(mistake for _, mistake, _ in parts[:3]),
    )
