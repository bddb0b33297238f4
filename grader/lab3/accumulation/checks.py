"""Judges Lab 3's gradient accumulation: small batches on several ranks act like one large batch, at its price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

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
    IGNORED,
    Accumulate,
    AccumulateReply,
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
from grader.lab3.accumulation.reference import APART, follow, losses_after, losses_with, windows
from grader.lab3.shared.checks.replicas import require_equal_replicas, require_moved_alike
from grader.lab3.shared.reference import are_close
from grader.shared.results import is_result, require_result

EXTRA_BYTES_SHARE, EXTRA_BYTES = 0.1, 1024
"""What may be exchanged besides gradients. Right solutions: 16 bytes a step, and 1 % where frozen parameters take part;
one exchange too many: the model again, 47,000 bytes and more."""
NETWORK_SHARE, NETWORK_BYTES = 0.5, 48 * 2**10
"""What may go over the network besides gradients. Right solutions: 17,000 bytes, by which ranks find each other and
which stand around messages; a busy machine now and then sends half a model again. Gradients after every batch: four
times as many bytes."""
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
_LOSS_HINT = (
    "Sum up each batch's mean loss times its count over the window and over all ranks, then divide by the sum of the "
    "counts."
)
WRONG_LOSSES_CAUSES: Mapping[str, Cause] = {
    name: Cause(f"losses_{name}", _LOSS_HINT, _LARGE_BATCH, mistake=mistake)
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
_BATCHES_OF_ALL_RANKS = Cause(
    "micro_batches_of_all_ranks",
    "Count the batches of one rank.",
    _SIZES,
    mistake="micro_batches counts the batches of all ranks",
)
_STEPS_ARE_BATCHES = Cause(
    "steps_are_batches",
    "Count a step when you call optimizer.step(), once per window.",
    _LARGE_BATCH,
    mistake="optimizer_steps counts batches, not windows",
)
_FULL_WINDOWS_COUNTED = Cause(
    "full_windows_counted",
    "Count the batches that a window has, not `accumulation_steps`.",
    _TAIL,
    mistake="micro_batches counts accumulation_steps for each window, although the last one has fewer batches",
)
_TAIL_NOT_COUNTED = Cause(
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
_JUDGED_BESIDE = ("never_cleared", "not_cleared_before", "never_exchanged", "not_in_training_mode")
"""Mistakes beside which everything else can be judged: they are not about how batches are weighed, so the other checks
compare with a reference run that makes them as well. They are charged once, in `equals_one_large_batch`."""


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
    with recognising(lambda: _cause_of_losses(case, replies)):
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
        hint = _STEPS_ARE_BATCHES
    elif case.has_tail and reply.result["optimizer_steps"] == batches // case.steps:
        hint = _TAIL_NOT_COUNTED
    require_equal(reply.result["optimizer_steps"], steps, what=f"{what}: optimizer_steps on rank {rank}", hint=hint)
    hint = "Count the batches of this rank, those of the shorter last window included."
    if ranks > 1 and reply.result["micro_batches"] == batches * ranks:
        hint = _BATCHES_OF_ALL_RANKS
    elif case.has_tail and reply.result["micro_batches"] == steps * case.steps:
        hint = _FULL_WINDOWS_COUNTED
    require_equal(reply.result["micro_batches"], batches, what=f"{what}: micro_batches on rank {rank}", hint=hint)


def _require_losses(reply: PassReply, expected: list[float], rtol: float, what: str, rank: int) -> None:
    losses = numbers(reply.result["losses"], len(expected), f"{what} on rank {rank}", _LOSS_HINT)
    for step, (actual, loss) in enumerate(zip(losses, expected, strict=True)):
        require_close(actual, loss, relative=rtol, what=f"{what}[{step}] on rank {rank}", hint=_LOSS_HINT)


def _cause_of_losses(case: Pass, replies: Sequence[PassReply]) -> Cause | None:
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
    return [
        *_runs(submission, [(uneven, f"classes{some} in batches of {sizes} on 2 ranks, windows of 3")]),
        *_runs(submission, [(words, "texts of different length on 2 ranks")]),
        *_runs(submission, [(few, f"classes in batches of {few.sizes[0]}, some ignored, windows of {few.steps}")]),
    ]


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
        for case, what, replies in uneven_runs(submission, generator):
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
