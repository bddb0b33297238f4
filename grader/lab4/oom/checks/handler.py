"""Judges Lab 4's handler: it tries again with less, frees what failed, and hides no other error."""

from __future__ import annotations

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import (
    mebibytes,
    require,
    require_equal,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab4.oom import cases
from grader.lab4.oom.cases import Attempts, Retry, RetryRun
from grader.lab4.oom.reference import sizes_tried


@criterion("lab4.oom")
class TestHandler:
    def test_retry_halves_the_micro_batch(self, submission: Submission, generator: InputGenerator) -> None:
        for case, run in _retried(submission, generator):
            if case.raises:
                continue
            expected = sizes_tried(case)
            what = f"run_with_oom_retry() from {case.start}, where {case.fits} fit"
            halved = run.attempts[: len(expected)] == expected
            further = run.attempts[len(expected) :] if case.returns_nothing and halved else []
            require(
                not further,
                f"{what} tried {further[:1]} after {expected[-1]}, with which the attempt had ended and returned None",
                "Take whatever an attempt returns for its result, None as well: it failed only if it raised.",
            )
            require_equal(
                run.attempts[: len(expected) + 1],
                expected,
                what=f"micro-batches tried by {what}",
                hint="Halve the micro-batch after each failure, rounded down, and end at 1.",
            )
            if case.fits == 0:
                require_equal(
                    run.raised,
                    "OutOfMemoryError",
                    what=f"error of {what}",
                    hint="Let the error through if a micro-batch of 1 fails: there is nothing left to halve.",
                )
                continue
            require_equal(run.raised, None, what=f"error of {what}")
            done = None if case.returns_nothing else f"done with {expected[-1]} and {64 * 2**20} bytes"
            require_equal(run.returned, [done, expected[-1]], what=f"what {what} returned")

    @requires("retry_halves_the_micro_batch")
    def test_retry_frees_the_failed_attempt(self, submission: Submission, generator: InputGenerator) -> None:
        # Without a cycle first: what is held then is held by the traceback, and no garbage.
        for case, run in sorted(_retried(submission, generator), key=lambda pair: pair[0].cycle):
            what = f"run_with_oom_retry() from {case.start}"
            require(
                bool(run.held_bytes),
                f"{what} made no attempt",
                "Call `attempt` with the micro-batch, and again with half of it after running out of memory.",
            )
            require(
                len(run.held_bytes) > 1 or len(sizes_tried(case)) == 1,
                f"{what} made no second attempt",
                "Call `attempt` again with half of the micro-batch after running out of memory.",
            )
            left, alive = max(run.held_bytes), max(run.tensors_alive)
            require(
                left < 2**20 and not alive,
                f"{what}: {mebibytes(left)} of a failed attempt are still allocated when the next one begins"
                if left >= 2**20
                else f"{what}: {alive} tensors of failed attempts are still there when the next one begins",
                "Go on after the except block, and keep no error: its traceback holds the failed attempt's tensors."
                if not case.cycle
                else "Call gc.collect(): objects that refer to each other hold their tensors until then.",
            )
            kept = max(run.reserved_bytes)
            require(
                kept < 2**21,
                f"{what}: the allocator still reserves {mebibytes(kept)} more when the next attempt begins",
                "Call torch.cuda.empty_cache() when nothing of the failed attempt is left.",
            )

    def test_other_errors_pass_through(self, submission: Submission, generator: InputGenerator) -> None:
        runs = _retried(submission, generator)
        require(
            any(len(run.attempts) > 1 for case, run in runs if not case.raises),
            "run_with_oom_retry() lets every error through, and so tries nothing again",
            "Catch torch.OutOfMemoryError, and nothing else.",
        )
        for case, run in runs:
            if not case.raises:
                continue
            what = f"run_with_oom_retry(), whose attempt raises a {case.raises}: {case.message}"
            # By which sizes it came there is another check's question.
            ended = [size for size in run.attempts if size <= case.fits]
            require(
                len(ended) <= 1,
                f"{what}: after that error it tried again, with {ended[1:2]}",
                "Catch torch.OutOfMemoryError alone: any other error is the caller's, whatever its message says.",
            )
            require_equal(run.raised, case.raises, what=f"error of {what}", hint="Catch torch.OutOfMemoryError only.")
            require_equal(run.message, case.message, what=f"message of {what}", hint="Let the error itself through.")


def _retried(submission: Submission, generator: InputGenerator) -> list[tuple[Attempts, RetryRun]]:
    """Attempts, and what the handler did with each; the same for all checks of a grading."""
    attempts = cases.attempts(generator)
    reply = submission.probe(Retry(cases=attempts), values=not submission.device.simulated)
    return list(zip(attempts, reply.cases, strict=True))
