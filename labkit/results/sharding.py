"""What the exercise "sharding" computes and measures: bytes that a rank holds, bytes that it sends.

Not for measuring, and no PyTorch here.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ShardedMemory:
    """What a rank holds of a model that is being trained, without activations."""

    parameter_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    total_bytes: float


@dataclass(frozen=True, kw_only=True)
class ShardingResult:
    """A training step on several ranks, measured and predicted."""

    method: str
    """"DDP", "ZeRO-1" or "FSDP2"."""
    stage: int
    """Of ZeRO: 0, 1 or 3."""
    ranks: int
    parameters: int
    """Of the model, float32, trained with AdamW."""
    held_bytes: int
    """Parameters, gradients and optimizer states of the rank that holds most, after backward."""
    predicted_held_bytes: float
    peak_bytes: int
    """The most that a rank had allocated in a step, activations included."""
    sent_bytes: float | None
    """By each rank in a step, on a ring; None where nobody counts (a real GPU)."""
    predicted_sent_bytes: float
    hidden_share: float | None
    """Share of the communication's seconds in which the GPU computes as well; None as above, and on one rank."""
    step_seconds: float
    """Median."""
