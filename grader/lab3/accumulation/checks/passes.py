"""What a pass of accumulation must show, and the passes that several checks ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradebox.run.assertions import (
    CheckFailed,
    numbers,
    recognising,
    require,
    require_arrays_close,
    require_close,
    require_equal,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab3.accumulation.cases import (
    IGNORED,
    Accumulate,
    Pass,
    PassReply,
    classification,
    labels,
    mixed,
    regression,
    short_tail,
    texts,
    whole_windows,
)
from grader.lab3.accumulation.checks.mistakes import (
    BATCHES_OF_ALL_RANKS,
    FULL_WINDOWS_COUNTED,
    LOSS_HINT,
    RTOL,
    STEPS_ARE_BATCHES,
    TAIL_NOT_COUNTED,
    cause_of,
    cause_of_losses,
    mistake_of,
)
from grader.lab3.accumulation.reference import APART, follow, losses_after
from grader.shared.results import is_result, require_result

_JUDGED_BESIDE = ("never_cleared", "not_cleared_before", "never_exchanged", "not_in_training_mode")
"""Mistakes beside which everything else can be judged: they are not about how batches are weighed, so the other checks
compare with a reference run that makes them as well. They are charged once, in `equals_one_large_batch`."""


def shown_beside(submission: Submission, generator: InputGenerator) -> str:
    """The mistake that `equals_one_large_batch` shows, if everything else can be judged beside it."""
    case = whole_windows(generator)
    (replies,) = run(submission, [case])
    mistake = mistake_of(case, replies)
    return mistake if mistake in _JUDGED_BESIDE else ""


def require_right(case: Pass, replies: Sequence[PassReply], what: str, hint: str, beside: str = "") -> None:
    """Fail unless weights and losses are those of large batches; say which mistake leads to them, if one does.

    Args:
        case: the pass.
        replies: of each rank.
        what: the pass in words.
        hint: what to do if no mistake is recognised.
        beside: a mistake that was shown elsewhere, and that the reference therefore makes, too.
    """
    _require_weights(case, replies, what, hint, beside)
    losses = losses_after(case, beside)
    for rank, reply in enumerate(replies):
        require(bool((reply.frozen == 1).all()), f"{what}: a parameter without a gradient (frozen) was changed")
        if is_result(reply.result):  # if it is none, the check of what is reported says so
            _require_numbers(case, reply, len(losses), what, rank)
    with recognising(lambda: cause_of_losses(case, replies)):
        for rank, reply in enumerate(replies):
            if is_result(reply.result):
                _require_losses(reply, losses, RTOL[case.dtype], f"{what}: losses", rank)


def _require_weights(case: Pass, replies: Sequence[PassReply], what: str, hint: str, beside: str) -> None:
    scale = float(np.abs(follow(case).weight).max())
    if beside not in APART and any(
        not np.allclose(replies[0].weight, reply.weight, rtol=1e-6, atol=1e-6 * scale) for reply in replies
    ):
        hint = (
            "The ranks' weights differ. Exchange gradients in the last batch of every window, also of a shorter "
            "window, whatever its number."
        )
    rtol = RTOL[case.dtype]
    with recognising(lambda: cause_of(case, replies)):
        for rank, reply in enumerate(replies):
            require_arrays_close(
                reply.weight,
                follow(case, beside, rank).weight,
                rtol=rtol,
                atol=rtol * scale,
                what=f"{what}: weights of rank {rank}",
                hint=hint,
            )


def _require_numbers(case: Pass, reply: PassReply, steps: int, what: str, rank: int) -> None:
    """Fail unless a rank reports as many optimizer steps and batches as there were."""
    ranks, batches = len(case.sizes), len(case.sizes[0])
    hint: str = ""
    if reply.result["optimizer_steps"] == batches:
        hint = STEPS_ARE_BATCHES
    elif case.has_tail and reply.result["optimizer_steps"] == batches // case.steps:
        hint = TAIL_NOT_COUNTED
    require_equal(reply.result["optimizer_steps"], steps, what=f"{what}: optimizer_steps on rank {rank}", hint=hint)
    hint = "Count the batches of this rank, those of the shorter last window included."
    if ranks > 1 and reply.result["micro_batches"] == batches * ranks:
        hint = BATCHES_OF_ALL_RANKS
    elif case.has_tail and reply.result["micro_batches"] == steps * case.steps:
        hint = FULL_WINDOWS_COUNTED
    require_equal(reply.result["micro_batches"], batches, what=f"{what}: micro_batches on rank {rank}", hint=hint)


def _require_losses(reply: PassReply, expected: list[float], rtol: float, what: str, rank: int) -> None:
    losses = numbers(reply.result["losses"], len(expected), f"{what} on rank {rank}", LOSS_HINT)
    for step, (actual, loss) in enumerate(zip(losses, expected, strict=True)):
        require_close(actual, loss, relative=rtol, what=f"{what}[{step}] on rank {rank}", hint=LOSS_HINT)


def require_counted(case: Pass, replies: Sequence[PassReply], what: str) -> None:
    """Fail unless each step reports what it is the mean over."""
    counts = follow(case).counts
    unit = "tokens" if case.tokens else "samples"
    for rank, reply in enumerate(replies):
        require_equal(
            require_result(reply.result)["effective_batch_sizes"],
            counts,
            what=f"{what}: effective_batch_sizes in {unit} on rank {rank} of {len(replies)}",
            hint="Report what each optimizer step is the mean over: all batches of its window, on all ranks.",
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
    cases = [
        (uneven, f"classes{some} in batches of {sizes} on 2 ranks, windows of 3"),
        (words, "texts of different length on 2 ranks"),
        (few, f"classes in batches of {few.sizes[0]}, some ignored, windows of {few.steps}"),
    ]
    return _runs(submission, cases)


def runs_with_arguments(
    submission: Submission, generator: InputGenerator, without: frozenset[str] = frozenset()
) -> list[Run]:
    """Passes with an optimizer, a criterion or a device of their own: two requests in a grading.

    `without` the check of large batches a window is one batch, and without that of counts all batches are alike.
    """
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
    if "uneven_counts" in without:
        cases = [(_alike(case), f"{what}, batches made alike") for case, what in cases]
    if "equals_one_large_batch" in without:
        cases = [(replace(case, steps=1, stale=0.0), f"{what}, windows of one batch") for case, what in cases]
    return _runs(submission, cases)


def runs_if_possible(submission: Submission, generator: InputGenerator) -> list[Run]:
    """`runs_with_arguments`; none where they end with an error, of which the check of arguments says so."""
    try:
        return runs_with_arguments(submission, generator)
    except CheckFailed:
        return []


def _alike(case: Pass) -> Pass:
    """The same pass with batches of one size, in which everything counts."""
    size = min(size for rank in case.sizes for size in rank)
    sizes = [[size] * len(rank) for rank in case.sizes]
    samples = sum(map(sum, sizes))
    targets = np.where(case.targets == IGNORED, 0, case.targets) if case.targets.dtype == np.int64 else case.targets
    return replace(case, sizes=sizes, inputs=case.inputs[:samples], targets=targets[:samples])


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
    hint = "Make a step after a shorter window, too, with the mean over its own samples."
    beside = shown_beside(submission, generator)
    require_right(tail, replies, "10 batches in windows of 4 on 2 ranks", hint, beside)


def may_judge_tails(submission: Submission, generator: InputGenerator) -> bool:
    """Whether a shorter last window is right. If it is not, one check says so, and the others leave it out."""
    try:
        require_tail(submission, generator)
    except CheckFailed:
        return False
    return True
