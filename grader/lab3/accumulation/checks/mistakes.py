"""Mistakes that the checks of accumulation recognise, by reference runs that make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gradebox.run.assertions import Cause
from grader.lab3.accumulation.cases import Pass, PassReply
from grader.lab3.accumulation.reference import follow, losses_with
from grader.lab3.shared.reference import are_close

RTOL = {"float64": 1e-6, "float32": 2e-5}
"""Of weights and losses: sums in another order differ by 1e-15 and 1e-6, a window weighed wrongly by 1e-3 and more."""

_LARGE_BATCH = "lab3.accumulation.equals_one_large_batch"
_TAIL = "lab3.accumulation.short_last_window"
_COUNTS = "lab3.accumulation.uneven_counts"
_REDUCED = "lab3.accumulation.gradients_reduced_once_per_step"
_SIZES = "lab3.accumulation.effective_batch_size_reported"
_DEFAULT = "Without an optimizer, train with torch.optim.SGD(model.parameters(), lr=0.1), which has no momentum."
_TAIL_HINT = "Divide by what is in the window: a last, shorter window has fewer batches."
_TAIL_MISTAKE = "The shorter last window is divided by accumulation_steps, as if it were a full one"
CAUSES: Mapping[str, Cause] = {
    cause.name: cause
    for cause in (
        Cause(
            "never_cleared",
            "Call optimizer.zero_grad() once per window, before its first batch.",
            _LARGE_BATCH,
            mistake="Gradients are never cleared",
        ),
        Cause(
            "cleared_each_batch",
            "Call optimizer.zero_grad() once per window, before its first batch, and not before each batch.",
            _LARGE_BATCH,
            mistake="Gradients are cleared before each batch, so that a window consists of its last batch",
        ),
        Cause(
            "not_cleared_before",
            "Call optimizer.zero_grad() before the first batch, too: the model may come with gradients.",
            _LARGE_BATCH,
            mistake="Gradients from before the call count in the first window",
        ),
        Cause(
            "summed",
            "Weigh each batch's loss by its share of the window before backward().",
            _LARGE_BATCH,
            mistake="The losses of a window are added up and not divided by the window",
        ),
        Cause(
            "all_alike",
            "Weigh each batch by the samples or tokens that count in it, against those of the whole window on all "
            "ranks.",
            _COUNTS,
            mistake="Each batch of a window weighs the same, however many samples count in it (a mean of means)",
        ),
        Cause("by_full_windows", _TAIL_HINT, _TAIL, mistake=_TAIL_MISTAKE),
        Cause("weighed_by_full_windows", _TAIL_HINT, _TAIL, mistake=_TAIL_MISTAKE),
        Cause(
            "last_window_dropped",
            "Make an optimizer step after the last batch, too, however many batches the window has.",
            _TAIL,
            mistake="The batches of the shorter last window are thrown away: no step follows them",
        ),
        Cause(
            "never_exchanged",
            "Call the wrapper (model(inputs), not model.module) for the last batch of each window, with forward and "
            "backward outside of no_sync().",
            _LARGE_BATCH,
            mistake="Gradients are never exchanged: each rank trains on its own batches alone",
        ),
        Cause(
            "tail_not_exchanged",
            "Leave no_sync() for the last batch of a shorter window, too, whatever its number is.",
            _TAIL,
            mistake="Gradients of the shorter last window are not exchanged",
        ),
        Cause("another_default_momentum", _DEFAULT, _LARGE_BATCH, mistake="The default optimizer has momentum"),
        Cause("another_default_rate", _DEFAULT, _LARGE_BATCH, mistake="The default optimizer has another lr than 0.1"),
        Cause(
            "not_in_training_mode",
            "Call model.train() before the first batch, whatever mode the model comes in.",
            _LARGE_BATCH,
            mistake="The model is not put into training mode",
        ),
    )
}
"""What to say of each of `reference.MISTAKES`. A student who weighs the batches of a window alike fails several checks
by it, and is right in everything else."""
LOSS_HINT = (
    "Sum up each batch's mean loss times its count over the window and over all ranks, then divide by the sum of the "
    "counts."
)
WRONG_LOSSES_CAUSES: Mapping[str, Cause] = {
    name: Cause(f"losses_{name}", LOSS_HINT, _LARGE_BATCH, mistake=mistake)
    for name, mistake in (
        ("of_one_rank", "Each rank reports the losses of its own samples, not those of all ranks"),
        ("mean_of_means", "The loss of a window is a mean of means: each batch weighs the same in it"),
        (
            "of_one_rank_mean_of_means",
            "The loss of a window is the mean over the batches of one rank, each weighing the same",
        ),
        ("summed", "The losses of a window's batches are added up and not divided"),
        ("of_the_last_batch", "The loss of a window is that of its last batch on one rank"),
    )
}
"""What to say of each of `reference.WRONG_LOSSES`."""
BATCHES_OF_ALL_RANKS = Cause(
    "micro_batches_of_all_ranks",
    "Count the batches of one rank.",
    _SIZES,
    mistake="micro_batches counts the batches of all ranks",
)
STEPS_ARE_BATCHES = Cause(
    "steps_are_batches",
    "Count a step when you call optimizer.step(), once per window.",
    _LARGE_BATCH,
    mistake="optimizer_steps counts batches, not windows",
)
FULL_WINDOWS_COUNTED = Cause(
    "full_windows_counted",
    "Count the batches that a window has, not `accumulation_steps`.",
    _TAIL,
    mistake="micro_batches counts accumulation_steps for each window, although the last one has fewer batches",
)
TAIL_NOT_COUNTED = Cause(
    "tail_not_counted",
    "Count the step of the shorter last window, too.",
    _TAIL,
    mistake="optimizer_steps leaves out the step of the shorter last window",
)
EVERY_BATCH = Cause(
    "exchanged_after_every_batch",
    "Run forward and backward of all batches of a window but the last one inside model.no_sync(). The wrapper decides "
    "in forward whether backward will exchange.",
    _REDUCED,
    mistake="Gradients are exchanged after every batch, not once per optimizer step",
)


def mistake_of(case: Pass, replies: Sequence[PassReply]) -> str:
    """By which of `MISTAKES` all ranks' weights are explained; empty if by none, or if the weights are right."""

    def explains(mistake: str) -> bool:
        return all(
            are_close(reply.weight, follow(case, mistake, rank).weight, RTOL[case.dtype])
            for rank, reply in enumerate(replies)
        )

    return "" if explains("") else next((name for name in CAUSES if explains(name)), "")


def cause_of(case: Pass, replies: Sequence[PassReply]) -> Cause | None:
    """The mistake that leads to the weights of all ranks; None if there is none, or if the weights are right."""
    return CAUSES.get(mistake_of(case, replies))


def cause_of_losses(case: Pass, replies: Sequence[PassReply]) -> Cause | None:
    """The mistake that leads to the losses of all ranks, where the weights are right."""
    reported = [reply.result.get("losses") for reply in replies]

    def explains(mistake: str) -> bool:
        return all(
            are_close(np.asarray(losses, dtype=np.float64), np.asarray(losses_with(case, mistake, rank)), 1e-5)
            for rank, losses in enumerate(reported)
        )

    if not all(isinstance(losses, list) and all(type(loss) in (int, float) for loss in losses) for losses in reported):
        return None
    return next((cause for name, cause in WRONG_LOSSES_CAUSES.items() if explains(name)), None)
