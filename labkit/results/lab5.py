"""What Lab 5 measures: a run of the trainer, where a step goes, and what the monitor saw.

Not for measuring, and no PyTorch here.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EpochResult:
    """One epoch of training; the same on every rank."""

    epoch: int
    """Counted from 0."""
    complete: bool
    """False if a signal stopped the training in the middle of it."""
    loss: float
    """Mean over the samples of all ranks, as it was before each step."""
    samples: int
    """Samples on all ranks that the epoch has gone through, those before a resume included."""
    optimizer_steps: int
    """Steps that the optimizer really took in this epoch, those before a resume included."""
    skipped_steps: int
    """Steps left out because of an overflow, those before a resume included."""


@dataclass(frozen=True, kw_only=True)
class ValidationResult:
    """One pass over the validation data; the same on every rank."""

    loss: float
    """Mean over the samples of all ranks."""
    accuracy: float
    """Share of them that were classified correctly, 0 to 1."""
    samples: int
    """Samples on all ranks."""


@dataclass(frozen=True, kw_only=True)
class TrainerRun:
    """How a training went, from its first epoch on, however often it was resumed."""

    device: str
    """Where it ran: "cpu" or "cuda"."""
    dtype: str
    """The precision of the products."""
    world_size: int
    ended: str
    """"finished", "early" (validation no longer improved) or "signal" (stopped by SIGTERM)."""
    epochs: tuple[EpochResult, ...]
    validations: tuple[ValidationResult, ...]
    """One for each complete epoch."""
    best_epoch: int | None
    """The complete epoch with the lowest validation loss, the first of equal ones; None where none has a number."""
    optimizer_steps: int
    """Steps that the optimizer really took in all."""
    learning_rate: float
    """Of the next step."""
    final_scale: float | None
    """The loss scale at the end; None where the loss is not scaled."""
    seconds: float
    """Of this process alone, validation and checkpoints included."""
