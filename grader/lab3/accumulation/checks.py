"""Judges Lab 3's gradient accumulation: small batches on several ranks act like one large batch, at its price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from gradebox.course.criterion import builds_on, criterion
from gradebox.run.assertions import (
    Cause,
    CheckFailed,
    numbers,
    recognising,
    require,
    require_arrays_close,
    require_between,
    require_close,
    require_equal,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab3.accumulation.cases import (
    Accumulate,
    Pass,
    PassReply,
    Refusals,
    classification,
    labels,
    mixed,
    regression,
    short_tail,
    texts,
    whole_windows,
)
from grader.lab3.accumulation.reference import follow, windows
from grader.lab3.shared.checks.replicas import require_equal_replicas, require_moved_alike
from grader.lab3.shared.reference import are_close
from grader.shared.results import is_result, require_result

EXTRA_BYTES_SHARE, EXTRA_BYTES = 0.1, 1024
"""What may be exchanged besides gradients. Right solutions: 16 bytes a step, and 8 % where frozen parameters take part;
one exchange too many: the model again, 3,800 bytes and more."""
RTOL = {"float64": 1e-6, "float32": 2e-5}
"""Of weights and losses: sums in another order differ by 1e-15 and 1e-6, a window weighed wrongly by 1e-3 and more."""

_LARGE_BATCH = "lab3.accumulation.equals_one_large_batch"
_TAIL = "lab3.accumulation.short_last_window"
_COUNTS = "lab3.accumulation.uneven_counts"
_SEEN = "the weights are those of a training"
CAUSES: Mapping[str, Cause] = {
    cause.name: cause
    for cause in (
        Cause("never_cleared", f"{_SEEN} that never clears its gradients: once per window, zero_grad()", _LARGE_BATCH),
        Cause(
            "cleared_each_batch",
            f"{_SEEN} in which a window consists of its last batch: clear the gradients once per window, not before "
            "each batch",
            _LARGE_BATCH,
        ),
        Cause(
            "not_cleared_before",
            f"{_SEEN} whose first window has in it what the gradients were before: clear them before the first batch",
            _LARGE_BATCH,
        ),
        Cause(
            "summed", f"{_SEEN} that adds up the losses of a window: weigh each batch by its share of it", _LARGE_BATCH
        ),
        Cause(
            "all_alike",
            f"{_SEEN} in which each batch of a window weighs the same, a mean of means: weigh it by what counts in it",
            _COUNTS,
        ),
        Cause(
            "by_full_windows",
            f"{_SEEN} that divides each loss by accumulation_steps: a last, shorter window has fewer batches",
            _TAIL,
        ),
        Cause(
            "last_window_dropped",
            f"{_SEEN} that makes no step after a last, shorter window: a window is a window",
            _TAIL,
        ),
    )
}
"""What to say of each of `reference.MISTAKES`. A student who weighs the batches of a window alike fails several checks
by it, and is right in everything else."""
LOSSES = Cause(
    "losses_of_a_step",
    "the weights are right: the loss of a step is the mean over all samples of its window, on all ranks, each batch "
    "with its share",
    _LARGE_BATCH,
)
MODE = Cause("not_in_training_mode", "model.train(), whatever mode the model comes in", _LARGE_BATCH)


def cause_of(case: Pass, replies: Sequence[PassReply]) -> Cause | None:
    """The mistake that leads to the weights of all ranks; None if there is none, or if the weights are right."""

    def explains(mistake: str) -> bool:
        expected = follow(case, mistake).weight
        return all(are_close(reply.weight, expected, RTOL[case.dtype]) for reply in replies)

    if explains(""):
        return None
    return next((cause for name, cause in CAUSES.items() if explains(name)), None)


def require_right(case: Pass, replies: Sequence[PassReply], what: str, hint: str) -> None:
    """Fail unless weights and losses are those of large batches; say which mistake leads to them, if one does."""
    with recognising(lambda: cause_of(case, replies)):
        _require_right(case, replies, what, hint)


def _require_right(case: Pass, replies: Sequence[PassReply], what: str, hint: str) -> None:
    expected = follow(case)
    scale = float(np.abs(expected.weight).max())
    if any(not np.allclose(replies[0].weight, reply.weight, rtol=1e-6, atol=1e-6 * scale) for reply in replies):
        hint = (
            "the ranks' weights differ: the last batch of every window exchanges gradients, also that of a shorter "
            "window, whatever its number"
        )
    rtol = RTOL[case.dtype]
    for rank, reply in enumerate(replies):
        if is_result(reply.result):
            steps, batches = len(expected.losses), len(case.sizes[0])
            require_equal(reply.result["optimizer_steps"], steps, what=f"{what}: optimizer_steps on rank {rank}")
            require_equal(reply.result["micro_batches"], batches, what=f"{what}: micro_batches on rank {rank}")
        require_arrays_close(
            reply.weight,
            expected.weight,
            rtol=rtol,
            atol=rtol * scale,
            what=f"{what}: weights of rank {rank}",
            hint=hint,
        )
        if is_result(reply.result):  # if it is none, the check of what is reported says so
            _require_losses(reply, expected.losses, rtol, f"on rank {rank}", what, hint)
        require_equal(reply.modes, [True], what=f"{what}: model.training in each forward pass", hint=MODE)
        require(bool((reply.frozen == 1).all()), f"{what}: a parameter without a gradient (frozen) was changed")


def _require_losses(reply: PassReply, expected: list[float], rtol: float, where: str, what: str, hint: str) -> None:
    losses = numbers(reply.result["losses"], len(expected), f"{what}: losses {where}", hint)
    for step, (actual, loss) in enumerate(zip(losses, expected, strict=True)):
        require_close(actual, loss, relative=rtol, what=f"{what}: losses[{step}] {where}", hint=LOSSES)


def require_counted(case: Pass, replies: Sequence[PassReply], what: str) -> None:
    """Fail unless each step reports what it is the mean over."""
    counts = follow(case).counts
    unit = "tokens" if case.tokens else "samples"
    for rank, reply in enumerate(replies):
        require_equal(
            require_result(reply.result)["effective_batch_sizes"],
            counts,
            what=f"{what}: effective_batch_sizes in {unit} on rank {rank} of {len(replies)}",
            hint="what each optimizer step is the mean over: all batches of its window, on all ranks",
        )


def run(submission: Submission, cases: Sequence[Pass], *, device: str = "cpu") -> list[list[PassReply]]:
    """What each rank observed in each of these passes, which one request holds."""
    ranks = submission.rank_probe(Accumulate(passes=list(cases)), len(cases[0].sizes), device=device)
    return [[rank.passes[index] for rank in ranks] for index in range(len(cases))]


Run = tuple[Pass, str, list[PassReply]]
"""A pass, what it is in words, and what each rank observed."""


def uneven_runs(submission: Submission, generator: InputGenerator) -> list[Run]:
    """Passes over batches that count differently, by nothing but the document's arguments."""
    generator = generator.shared("lab3.uneven counts")
    sizes = [[generator.integer(2, 9) for _ in range(6)] for _ in range(2)]
    few, ignored, words = labels(generator), generator.shuffled([True, False])[0], texts(generator)
    uneven = classification(generator, sizes, 3, ignored=ignored)
    some = ", some ignored" if ignored else ""
    return [
        *_runs(submission, [(uneven, f"classes{some} in batches of {sizes} on 2 ranks, windows of 3")]),
        *_runs(submission, [(words, "texts of different length on 2 ranks")]),
        *_runs(submission, [(few, f"classes in batches of {few.sizes[0]}, some ignored, windows of {few.steps}")]),
    ]


def runs_with_arguments(submission: Submission, generator: InputGenerator) -> list[Run]:
    """Passes with an optimizer, a criterion or a device of their own: two requests in a grading."""
    generator = generator.shared("lab3.arguments")
    sizes = [[generator.integer(1, 9) for _ in range(6)] for _ in range(2)]
    cases = [
        (
            regression(generator, sizes, 3, momentum=generator.uniform(0.5, 0.9)),
            f"an optimizer and a criterion given, batches of {sizes} on 2 ranks, windows of 3",
        )
    ]
    gpu = submission.device.name != "cpu"
    for what, drawn in mixed(generator):
        case = drawn if gpu else replace(drawn, kind="cpu")
        cases.append((case, f"batches of {case.sizes}, windows of {case.steps} ({what})"))
    return _runs(submission, cases)


def _runs(submission: Submission, cases: Sequence[tuple[Pass, str]]) -> list[Run]:
    """Passes on two ranks in one request, and those of one process in another."""
    runs: list[Run] = []
    for ranks, device in ((2, "cpu"), (1, submission.device.name)):
        chosen = [(case, what) for case, what in cases if len(case.sizes) == ranks]
        if chosen:
            replies = run(submission, [case for case, _ in chosen], device=device)
            runs += [(case, what, reply) for (case, what), reply in zip(chosen, replies, strict=True)]
    return runs


def require_tail(submission: Submission, generator: InputGenerator) -> None:
    """Fail unless a shorter last window is trained on like the others."""
    tail = short_tail(generator)
    (replies,) = run(submission, [tail])
    hint = "a shorter window is a window: it makes a step, with the mean over its own samples"
    require_right(tail, replies, "10 batches in windows of 4 on 2 ranks", hint)


def may_judge_tails(submission: Submission, generator: InputGenerator) -> bool:
    """Whether a shorter last window is right. If it is not, one check says so, and the others leave it out."""
    try:
        require_tail(submission, generator)
    except CheckFailed:
        return False
    return True


@criterion("lab3.accumulation")
class TestAccumulation:
    def test_equals_one_large_batch(self, submission: Submission, generator: InputGenerator) -> None:
        hint = "each batch weighs as much as its share of the window; zero_grad() and step() once per window"
        # One process may have a GPU; the batches are not there. NCCL reduces nothing that is not there, either.
        gpu = submission.device.name != "cpu"
        alone = replace(classification(generator, [[8] * 8], 4), kind="cuda" if gpu else "cpu", grouped=True)
        (replies,) = run(submission, [alone], device=submission.device.name)
        require_right(alone, replies, "4 batches of 8 against one of 32, a process group of one process", hint)
        case = whole_windows(generator)
        (replies,) = run(submission, [case])
        what = "4 batches of 8 on 2 ranks against one of 64"
        require_right(case, replies, what, hint + "; DistributedDataParallel takes the mean over ranks")

    def test_short_last_window(self, submission: Submission, generator: InputGenerator) -> None:
        require_tail(submission, generator)

    def test_uneven_counts(self, submission: Submission, generator: InputGenerator) -> None:
        hint = "a mean of means weighs a small batch too much: weigh by the counts of the whole window, on all ranks"
        tails = may_judge_tails(submission, generator)
        for case, what, replies in uneven_runs(submission, generator):
            if tails or not case.has_tail:
                require_right(case, replies, what, f"{hint}; SGD(lr=0.1) and cross entropy are the defaults")

    @builds_on("equals_one_large_batch", "uneven_counts")
    def test_given_arguments_used(self, submission: Submission, generator: InputGenerator) -> None:
        hint = "what is given takes the place of the default: optimizer, criterion, device"
        tails = may_judge_tails(submission, generator)
        for case, what, replies in runs_with_arguments(submission, generator):
            if tails or not case.has_tail:
                require_right(case, replies, what, hint)
        for count, refused in submission.probe(Refusals(counts=[0, -2]), device="cpu").refused.items():
            require(refused, f"train_with_accumulation(model, train_loader, {count}) raised no ValueError")

    def test_gradients_reduced_once_per_step(self, submission: Submission, generator: InputGenerator) -> None:
        for case in _with_tail_if_right(submission, generator):
            steps = len(windows(case))
            (replies,) = run(submission, [case])
            for rank, reply in enumerate(replies):
                expected = steps * reply.gradient_bytes
                require_between(
                    reply.reduced_bytes,
                    expected,
                    expected * (1 + EXTRA_BYTES_SHARE) + EXTRA_BYTES,
                    what=f"bytes that rank {rank} reduced in {steps} optimizer steps of 4 batches each or fewer",
                    show=lambda value: f"{value:,.0f}",
                    expected=f"{expected:,} ({steps} times the gradients), and little more",
                    hint="all but the last batch of a window: forward and backward inside no_sync(); the last one "
                    "outside",
                )

    def test_replicas_identical(self, submission: Submission, generator: InputGenerator) -> None:
        hint = "the batch that exchanges gradients goes through the wrapper, in forward and backward, outside no_sync()"
        for case in _with_tail_if_right(submission, generator):
            (replies,) = run(submission, [case])
            weights, what = [reply.weight for reply in replies], "after train_with_accumulation() on 2 ranks"
            require_equal_replicas({"weight": weights}, what=what, hint=hint)
            require_moved_alike(weights, case.weight, follow(case).weight, what=what)

    def test_effective_batch_size_reported(self, submission: Submission, generator: InputGenerator) -> None:
        tails = may_judge_tails(submission, generator)
        for case in (whole_windows(generator), short_tail(generator)):
            if tails or not case.has_tail:
                (replies,) = run(submission, [case])
                require_counted(case, replies, "on 2 ranks")
        for case, what, replies in uneven_runs(submission, generator):
            if tails or not case.has_tail:
                require_counted(case, replies, what)


def _with_tail_if_right(submission: Submission, generator: InputGenerator) -> list[Pass]:
    """Whole windows, and a shorter last window if that is right."""
    return [whole_windows(generator), *[short_tail(generator)] * may_judge_tails(submission, generator)]
