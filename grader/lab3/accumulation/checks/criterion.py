"""Judges Lab 3's gradient accumulation: small batches on several ranks act like one large batch, at its price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from gradebox.course.criterion import builds_on, criterion
from gradebox.run.assertions import Cause, recognising, require, require_between
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab3.accumulation.cases import (
    Accumulate,
    AccumulateReply,
    Pass,
    PassReply,
    Refusals,
    classification,
    short_tail,
    whole_windows,
)
from grader.lab3.accumulation.checks.mistakes import CAUSES, EVERY_BATCH, cause_of, mistake_of
from grader.lab3.accumulation.checks.passes import (
    may_judge_tails,
    require_counted,
    require_right,
    require_tail,
    run,
    runs_if_possible,
    runs_with_arguments,
    shown_beside,
    uneven_runs,
)
from grader.lab3.accumulation.reference import follow, windows
from grader.lab3.shared.checks.replicas import require_equal_replicas, require_moved_alike

EXTRA_BYTES_SHARE, EXTRA_BYTES = 0.1, 1024
"""What may be exchanged besides gradients. Right solutions: 16 bytes a step, and 1 % where frozen parameters take part;
one exchange too many: the model again, 47,000 bytes and more."""
_LOG_BYTES = 64 * 2**10
"""Room for what a training prints and logs."""
NETWORK_SHARE, NETWORK_BYTES = 0.5, 48 * 2**10
"""What may go over the network besides gradients. Right solutions: 17,000 bytes, by which ranks find each other and
which stand around messages; a busy machine now and then sends half a model again. Gradients after every batch: four
times as many bytes."""


@criterion("lab3.accumulation")
class TestAccumulation:
    def test_equals_one_large_batch(self, submission: Submission, generator: InputGenerator) -> None:
        hint = "Weigh each batch by its share of the window. Call zero_grad() and step() once per window."
        # One process may have a GPU; the batches are not there. NCCL reduces nothing that is not there, either.
        gpu = submission.device.name != "cpu"
        alone = replace(classification(generator, [[8] * 8], 4), kind="cuda" if gpu else "cpu", grouped=True)
        (replies,) = run(submission, [alone], device=submission.device.name)
        require_right(alone, replies, "4 batches of 8 against one of 32, a process group of one process", hint)
        case = whole_windows(generator)
        (replies,) = run(submission, [case])
        what = "4 batches of 8 on 2 ranks against one of 64"
        hint += " DistributedDataParallel takes the mean over ranks."
        require_right(case, replies, what, hint)

    def test_short_last_window(self, submission: Submission, generator: InputGenerator) -> None:
        require_tail(submission, generator)

    def test_uneven_counts(self, submission: Submission, generator: InputGenerator) -> None:
        hint = "Weigh each batch by what counts in it, against what counts in the whole window on all ranks."
        tails, beside = may_judge_tails(submission, generator), shown_beside(submission, generator)
        for case, what, replies in uneven_runs(submission, generator):
            if tails or not case.has_tail:
                require_right(case, replies, what, hint, beside)

    @builds_on("equals_one_large_batch", "uneven_counts")
    def test_given_arguments_used(
        self, submission: Submission, generator: InputGenerator, without: frozenset[str]
    ) -> None:
        hint = "Use what is given (optimizer, criterion, device) instead of the default."
        tails, beside = may_judge_tails(submission, generator), shown_beside(submission, generator)
        for case, what, replies in runs_with_arguments(submission, generator, without):
            if tails or not case.has_tail:
                require_right(case, replies, what, hint, beside)
        for count, refused in submission.probe(Refusals(counts=[0, -2]), device="cpu").refused.items():
            require(refused, f"train_with_accumulation(model, train_loader, {count}) raised no ValueError")

    def test_gradients_reduced_once_per_step(self, submission: Submission, generator: InputGenerator) -> None:
        for case in _with_tail_if_right(submission, generator):
            steps = len(windows(case))
            replies = submission.rank_probe(Accumulate(passes=[case]), len(case.sizes), device="cpu")
            with recognising(partial(_cause_of_bytes, case, replies)):
                for count in _counts(case, replies):
                    least, most = count.bounds(steps)
                    require_between(
                        count.bytes,
                        least,
                        most,
                        what=f"bytes that {count.who} in {steps} optimizer steps of 4 batches each or fewer",
                        show=lambda value: f"{value:,.0f}",
                        expected=f"{least:,} ({steps} times the gradients{count.ways}), and little more",
                        hint="Run forward and backward of all batches of a window but the last one inside no_sync().",
                    )
            for rank, reply in enumerate(replies):
                _require_exchanged_last(case, steps, reply.passes[0], rank)
                done, least = reply.passes[0].product_flops, case.product_flops(rank)
                require(
                    done >= least,
                    f"rank {rank} ran matrix products of {done:,} FLOPs, fewer than the {least:,} of a forward and a "
                    "backward pass of each batch: what it reduced cannot be their gradients",
                    "Send every batch through the model, and go back from its loss.",
                )
            # What the ranks send each other is written, too: files in which they exchange more come on top of it.
            written, others = sum(reply.passes[0].written_bytes or 0 for reply in replies), len(replies) - 1
            most = 2 * others * case.gradient_bytes * (steps * (1 + NETWORK_SHARE) + 1) + NETWORK_BYTES + _LOG_BYTES
            require(
                written <= most,
                f"the ranks wrote {written:,} bytes in {steps} optimizer steps of 4 batches each or fewer, to files or "
                f"to each other, expected {most:,.0f} at most",
                "Exchange gradients through the process group, once in each optimizer step.",
            )

    def test_replicas_identical(self, submission: Submission, generator: InputGenerator) -> None:
        hint = "Call the wrapper, outside of no_sync(), in forward and backward of each window's last batch."
        beside = shown_beside(submission, generator)
        for case in _with_tail_if_right(submission, generator):
            (replies,) = run(submission, [case])
            weights, what = [reply.weight for reply in replies], "after train_with_accumulation() on 2 ranks"
            with recognising(partial(cause_of, case, replies)):
                require_equal_replicas({"weight": weights}, what=what, hint=hint)
                require_moved_alike(weights, case.weight, follow(case, beside).weight, what=what)

    def test_effective_batch_size_reported(self, submission: Submission, generator: InputGenerator) -> None:
        tails = may_judge_tails(submission, generator)
        for case in (whole_windows(generator), short_tail(generator)):
            if tails or not case.has_tail:
                (replies,) = run(submission, [case])
                require_counted(case, replies, "on 2 ranks")
        numbers = [run for run in runs_if_possible(submission, generator) if run[0].targets.dtype.kind == "f"]
        for case, what, replies in [*uneven_runs(submission, generator), *numbers]:
            if tails or not case.has_tail:
                require_counted(case, replies, what)


@dataclass(frozen=True)
class _Count:
    """How many bytes were exchanged in a pass, and how many may be."""

    who: str
    """Whose bytes they are, and what is done with them."""
    bytes: int
    gradients: int
    """Bytes of one exchange of gradients."""
    share: float
    """Of these, which may be exchanged besides."""
    extra: int
    """Bytes that may be exchanged besides."""
    ways: str = ""

    def bounds(self, exchanges: int) -> tuple[int, float]:
        """The least and the most bytes of so many exchanges."""
        return exchanges * self.gradients, exchanges * self.gradients * (1 + self.share) + self.extra


def _counts(case: Pass, replies: Sequence[AccumulateReply]) -> list[_Count]:
    """What each rank reduced, as PyTorch saw it; and what the network counted, if anybody did, which nobody can change.

    Over the network each rank sends and gets all but its own part, twice; and there go the weights that
    DistributedDataParallel hands out when it is made.
    """
    size, network = case.gradient_bytes, replies[0].loopback_bytes
    counts = [
        _Count(f"rank {rank} reduced", reply.passes[0].reduced_bytes, size, EXTRA_BYTES_SHARE, EXTRA_BYTES)
        for rank, reply in enumerate(replies)
    ]
    if network is not None:
        others = len(replies) - 1
        who, extra = f"{len(replies)} ranks exchanged", others * size + NETWORK_BYTES
        counts.append(_Count(who, network, 2 * others * size, NETWORK_SHARE, extra, ways=", there and back"))
    return counts


def _require_exchanged_last(case: Pass, steps: int, reply: PassReply, rank: int) -> None:
    """Fail if gradients go around before a window's last batch, or twice after it, in whatever type."""
    size = np.asarray(case.weight).size
    hint = "Run forward and backward of all batches of a window but the last one inside no_sync()."
    early = reply.early_bytes or 0
    require(
        early <= steps * EXTRA_BYTES_SHARE * case.gradient_bytes + EXTRA_BYTES,
        f"rank {rank} exchanged {early:,} bytes before the last batches of {steps} windows; gradients have "
        f"{case.gradient_bytes:,} bytes",
        hint,
    )
    most = steps * size * (1 + EXTRA_BYTES_SHARE) + EXTRA_BYTES
    require(
        reply.reduced_numbers <= most,
        f"rank {rank} reduced {reply.reduced_numbers:,} numbers in {steps} optimizer steps, expected {steps * size:,}, "
        "and little more",
        hint,
    )


def _cause_of_bytes(case: Pass, replies: Sequence[AccumulateReply]) -> Cause | None:
    """Recognises ranks that never exchanged gradients, and those that did after every batch."""
    counts = _counts(case, replies)
    if mistake_of(case, [reply.passes[0] for reply in replies]) == "never_exchanged":
        return CAUSES["never_exchanged"] if all(count.bytes < count.gradients for count in counts) else None
    bounds = [(count.bytes, *count.bounds(len(case.sizes[0]))) for count in counts]
    return EVERY_BATCH if all(least <= exchanged <= most for exchanged, least, most in bounds) else None


def _with_tail_if_right(submission: Submission, generator: InputGenerator) -> list[Pass]:
    """Whole windows, and a shorter last window if that is right."""
    return [whole_windows(generator), *[short_tail(generator)] * may_judge_tails(submission, generator)]
