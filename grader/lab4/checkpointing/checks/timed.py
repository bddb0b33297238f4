"""What the table of measured steps must agree with."""

from __future__ import annotations

from gradebox.run.assertions import Cause, require, require_close
from gradebox.run.submission import Submission
from grader.lab4.checkpointing.cases.types import ForwardStart, Measured, MeasuredReply, Sizes
from grader.lab4.checkpointing.checks.kept import SOME_AGAIN
from grader.lab4.checkpointing.checks.trained import holds
from grader.lab4.checkpointing.reference import kept_bytes
from grader.shared.cards import Card

MEASURED = 0.03
_DROPOUT = 0.1
REAL_TOLERANCE = 0.25
"""Beyond what the course's own steps took before and after: forward alone is a third of a step."""
REAL_STEP_SECONDS = 0.1
"""Of a step on a real card, where a batch of one sample allows it: a probe makes 50, and has a minute."""
REAL_MEMORY, SAMPLE_TENSORS = 0.4, 40
"""Of what is free of a real card's memory, and how many tensors like its input a block keeps of a sample at most."""
_FLOPS_OF_A_BLOCK = 24.0
"""For each token and the square of the width: twelve squares of weights. Backward takes twice as many."""
_SOME_PRODUCTS = 0.95
_NO_BACKWARD = Cause(
    "step_without_backward",
    "Time whole steps: gradients to None, forward, the mean of the squares, backward.",
    mistake="The measured step has no backward pass",
)
_NOT_THE_MEDIAN = Cause(
    "not_the_median",
    "Take the median of the single steps. One disturbed step must not decide the result.",
    mistake="step_seconds is not the median of the steps: one slow step decides it",
)


def peak_hint(peak: object, expected: float) -> str:
    if isinstance(peak, (int, float)) and peak < expected:
        return "Report the most that was allocated during the steps (the peak), not what is left at their end."
    return "Reset the peak after the warm-up, and let go of the interval before: its model, its input, its gradients."


def seconds_of(submission: Submission, inputs: Measured, reply: MeasuredReply) -> Cause | None:
    """The mistake that explains the seconds of a step, if they are those of a simulated device."""
    if not submission.device.simulated:
        return None
    # Without checkpointing, backward takes twice as many products as forward.
    plain = next((step.flops for step, every in zip(reply.steps, inputs.intervals, strict=True) if every is None), 0.0)
    forwards = reply.flops / (plain / 3 * len(inputs.intervals)) if plain else 0.0
    steps = inputs.steps + inputs.warmup
    if steps - 0.1 < forwards < steps + 1.1:
        return _NO_BACKWARD
    steady = submission.probe(inputs, values=False)
    right = all(
        holds(lambda: require_close(row["step_seconds"], step.seconds[0], relative=MEASURED, what=""))  # noqa: B023
        for row, step in zip(steady.rows, steady.steps, strict=True)
    )
    return _NOT_THE_MEDIAN if right else None


def batch_for(card: Card, sizes: Sizes) -> int:
    """At most so many samples as are drawn: fewer on a slow card, and on one with little memory."""
    tokens, blocks = sizes["length"], sizes["num_layers"]
    work = 4 * 24 * blocks * tokens * sizes["width"] ** 2  # per sample: forward, forward again, twice as much backward
    held = 4 * SAMPLE_TENSORS * blocks * tokens * sizes["width"]
    most = min(REAL_STEP_SECONDS * card.flops["float32"] / work, REAL_MEMORY * card.free_bytes / held)
    return max(1, min(sizes["batch"], int(most)))


def require_whole_steps(inputs: Measured, reply: MeasuredReply) -> None:
    """Fail unless the steps that `measure_checkpointing` is compared with are whole ones: they are the model's own."""
    sizes = inputs.sizes
    forward = _FLOPS_OF_A_BLOCK * sizes["num_layers"] * sizes["batch"] * sizes["length"] * sizes["width"] ** 2
    for interval, step in zip(inputs.intervals, reply.steps, strict=True):
        again = 0.0 if interval is None else kept_bytes(sizes["num_layers"], interval, 0.0, 0.0).computed_again
        least = (3 + SOME_AGAIN * again) * forward
        require(
            step.flops >= _SOME_PRODUCTS * least,
            f"a step of CheckpointedTransformer with checkpoint_every={interval} computes products of {step.flops:.4g} "
            f"FLOPs after measure_checkpointing(), expected {least:.4g} at least",
            "Let forward and backward of the model be the same whenever somebody calls it.",
        )


def require_steps(forwards: list[list[ForwardStart]], steps: int) -> None:
    """Fail unless the forward passes of each model begin as a step does.

    Neither shows in the peak for sure: a variable that holds the output weighs as much as the input's gradient, and
    where activations are many those of a block outweigh what is cleared between forward and backward.
    """
    for passes in forwards:
        # A forward pass may itself ask its input for a gradient, so the first one counts as well.
        require(
            not all(start.input_requires_gradient for start in passes),
            "measure_checkpointing(): the model's input requires a gradient, which every step then computes and keeps",
            "Make the input as data: torch.randn(..., device=device), without requires_grad.",
        )
        dropouts = {dropout for start in passes for dropout in start.dropouts}
        require(
            dropouts <= {_DROPOUT},
            f"measure_checkpointing(): the blocks have a dropout of {', '.join(map(str, sorted(dropouts)))}, expected "
            f"the default of CheckpointedTransformer, {_DROPOUT}",
            "Make the model with its default dropout: without it a step has fewer operations.",
        )
        most = max(start.gradients for start in passes[-steps:])
        require(
            most == 0,
            f"measure_checkpointing(): when the forward pass of a timed step begins, {most} parameters have the "
            "gradients of the step before, expected None",
            "Call model.zero_grad(set_to_none=True) before the forward pass: else they are next to the activations.",
        )
