"""Judges Lab 3's gradient accumulation: small batches on several ranks act like one large batch, at its price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradebox.course.criterion import builds_on, criterion
from gradebox.run.assertions import CheckFailed, require, require_between
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Seen, Submission
from grader.lab3.truth.accumulated import (
    Pass,
    classification,
    labels,
    mixed,
    regression,
    run,
    short_tail,
    texts,
    whole_windows,
)
from grader.lab3.truth.training import require_equal_replicas, require_moved_alike

EXTRA_BYTES_SHARE, EXTRA_BYTES = 0.1, 1024
"""What may be exchanged beside gradients. Right solutions: 16 bytes a step, and 8 % where frozen parameters take part;
one exchange too many: the model again, 3,800 bytes and more."""


def uneven(submission: Submission, generator: InputGenerator) -> list[tuple[Pass, str, list[Seen]]]:
    """Passes over batches that count differently, what they are, and what was seen, by nothing but the document's
    arguments."""
    generator = generator.shared("lab3.uneven counts")
    sizes = [[generator.integer(2, 9) for _ in range(6)] for _ in range(2)]
    few, ignored, words = labels(generator), generator.shuffled([True, False])[0], texts(generator)
    uneven = classification(generator, sizes, 3, ignored=ignored)
    some = ", some ignored" if ignored else ""
    return [
        *_asked(submission, [(uneven, f"classes{some} in batches of {sizes} on 2 ranks, windows of 3")]),
        *_asked(submission, [(words, "texts of different length on 2 ranks")]),
        *_asked(submission, [(few, f"classes in batches of {few.sizes[0]}, some ignored, windows of {few.steps}")]),
    ]


def given(submission: Submission, generator: InputGenerator) -> list[tuple[Pass, str, list[Seen]]]:
    """Passes with an optimizer, a criterion or a device of their own: two requests in a grading."""
    generator = generator.shared("lab3.arguments")
    sizes = [[generator.integer(1, 9) for _ in range(6)] for _ in range(2)]
    asked = [
        (
            regression(generator, sizes, 3, momentum=generator.uniform(0.5, 0.9)),
            f"an optimizer and a criterion given, batches of {sizes} on 2 ranks, windows of 3",
        )
    ]
    gpu = submission.device.name != "cpu"
    for what, each in mixed(generator):
        one = each if gpu else replace(each, kind="cpu")
        asked.append((one, f"batches of {one.sizes}, windows of {one.steps} ({what})"))
    return _asked(submission, asked)


def _asked(submission: Submission, asked: Sequence[tuple[Pass, str]]) -> list[tuple[Pass, str, list[Seen]]]:
    """What was seen in these passes: those of two ranks in one request, and those of one process in another."""
    found = []
    for ranks, device in ((2, "cpu"), (1, submission.device.name)):
        passes = [(one, what) for one, what in asked if len(one.sizes) == ranks]
        if passes:
            told = run([one for one, _ in passes], submission, device=device)
            found += [(one, what, seen) for (one, what), seen in zip(passes, told, strict=True)]
    return found


def require_tail(submission: Submission, generator: InputGenerator) -> None:
    """Fail unless a shorter last window is trained on like the others."""
    tail = short_tail(generator)
    hint = "a shorter window is a window: it makes a step, with the mean over its own samples"
    tail.require_right(tail.run(submission), "10 batches in windows of 4 on 2 ranks", hint)


def may_judge_tails(submission: Submission, generator: InputGenerator) -> bool:
    """Whether a shorter last window is right. Where it is not, one check says so, and the others leave it out."""
    try:
        require_tail(submission, generator)
    except CheckFailed:
        return False
    return True


@criterion("lab3.accumulation")
class TestAccumulation:
    def test_equals_one_large_batch(self, submission: Submission, generator: InputGenerator) -> None:
        """Trains as one large batch would."""
        hint = "each batch weighs as much as its share of the window; zero_grad() and step() once per window"
        # One process may have a GPU; the batches are not there. NCCL reduces nothing that is not there, either.
        gpu = submission.device.name != "cpu"
        alone = replace(classification(generator, [[8] * 8], 4), kind="cuda" if gpu else "cpu", grouped=True)
        seen = alone.run(submission, device=submission.device.name)
        alone.require_right(seen, "4 batches of 8 against one of 32, a process group of one process", hint)
        windows = whole_windows(generator)
        what = "4 batches of 8 on 2 ranks against one of 64"
        windows.require_right(
            windows.run(submission), what, hint + "; DistributedDataParallel takes the mean over ranks"
        )

    def test_short_last_window(self, submission: Submission, generator: InputGenerator) -> None:
        """Makes a step on a shorter last window, too."""
        require_tail(submission, generator)

    def test_uneven_counts(self, submission: Submission, generator: InputGenerator) -> None:
        """Weighs batches of different sizes right."""
        hint = "a mean of means weighs a small batch too much: weigh by the counts of the whole window, on all ranks"
        tails = may_judge_tails(submission, generator)
        for one, what, seen in uneven(submission, generator):
            if tails or not one.has_tail:
                one.require_right(seen, what, f"{hint}; SGD(lr=0.1) and cross entropy are the defaults")

    @builds_on("equals_one_large_batch", "uneven_counts")
    def test_given_arguments_used(self, submission: Submission, generator: InputGenerator) -> None:
        """Uses what is given, and refuses a window of none."""
        hint = "what is given takes the place of the default: optimizer, criterion, device"
        tails = may_judge_tails(submission, generator)
        for one, what, seen in given(submission, generator):
            if tails or not one.has_tail:
                one.require_right(seen, what, hint)
        refused = submission.probe("lab3.accumulation.refusals", device="cpu").refused
        for count, was_refused in refused.items():
            require(was_refused, f"train_with_accumulation(model, train_loader, {count}) raised no ValueError")

    def test_gradients_reduced_once_per_step(self, submission: Submission, generator: InputGenerator) -> None:
        """Reduces gradients once per step."""
        for one in (whole_windows(generator), *[short_tail(generator)] * may_judge_tails(submission, generator)):
            steps = len(one.windows())
            for rank, each in enumerate(one.run(submission)):
                wanted = steps * each.gradient_bytes
                require_between(
                    each.reduced_bytes,
                    wanted,
                    wanted * (1 + EXTRA_BYTES_SHARE) + EXTRA_BYTES,
                    what=f"bytes that rank {rank} reduced in {steps} optimizer steps of 4 batches each or fewer",
                    show=lambda value: f"{value:,.0f}",
                    expected=f"{wanted:,} ({steps} times the gradients), and little more",
                    hint="all but the last batch of a window: forward and backward inside no_sync(); the last one "
                    "outside",
                )

    def test_replicas_identical(self, submission: Submission, generator: InputGenerator) -> None:
        """Keeps the replicas identical."""
        hint = "the batch that exchanges gradients goes through the wrapper, in forward and backward, outside no_sync()"
        for one in (whole_windows(generator), *[short_tail(generator)] * may_judge_tails(submission, generator)):
            seen, what = one.run(submission), "after train_with_accumulation() on 2 ranks"
            require_equal_replicas(seen, what=what, hint=hint)
            expected, _, _ = one.follow()
            require_moved_alike(seen, one.weight, expected, what=what)

    def test_effective_batch_size_reported(self, submission: Submission, generator: InputGenerator) -> None:
        """Reports the effective batch sizes."""
        tails = may_judge_tails(submission, generator)
        for one in (whole_windows(generator), short_tail(generator)):
            if tails or not one.has_tail:
                one.require_counted(one.run(submission), "on 2 ranks")
        for one, what, seen in uneven(submission, generator):
            if tails or not one.has_tail:
                one.require_counted(seen, what)
