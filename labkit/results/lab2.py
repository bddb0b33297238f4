"""What Lab 2 measures: training in mixed precision, its cost and accuracy by precision, and numerical stability.

Precisions are named as PyTorch names the dtype of autocast: "float32" (no autocast), "float16", "bfloat16". Not for
measuring, and no PyTorch here.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class AmpTraining:
    """How one training in one precision went."""

    device: str
    """Where it ran: "cpu" or "cuda"."""
    dtype: str
    """The precision of the products."""
    losses: tuple[float | None, ...]
    """Mean loss of each epoch, unscaled, over the samples of the steps that were taken; None where there were none."""
    optimizer_steps: int
    """Steps that the optimizer really took."""
    skipped_steps: int
    """Steps that were left out because of an overflow."""
    final_scale: float | None
    """The loss scale after the last update; None where the loss is not scaled."""
    seconds: float
    """All epochs together, the device idle at both ends."""
    peak_bytes: int | None
    """Most memory allocated on the device at any moment of the training; None on a CPU."""


@dataclass(frozen=True, kw_only=True)
class PrecisionResult:
    """What one precision costs and gives."""

    device: str
    dtype: str
    step_seconds: float
    """Median seconds of one training step."""
    samples_per_second: float
    """Samples in a batch / step_seconds."""
    peak_bytes: int | None
    """Most memory allocated on the device during the steps; None on a CPU."""
    accuracy: float
    """Share of the test images that a model trained in this precision gets right, 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class PrecisionConclusions:
    """Conclusions from one `PrecisionResult` per precision; dictionaries have one entry for each of them."""

    speedups: dict[str, float]
    """Ratio of float32's step_seconds to this precision's: above 1 it is faster. 1.0 for float32 itself."""
    memory_ratios: dict[str, float]
    """Ratio of this precision's peak_bytes to float32's: below 1 it needs less. Empty where no peak is known."""
    accuracy_differences: dict[str, float]
    """This precision's accuracy less float32's: negative where it is worse."""
    fastest: str
    """The precision with the shortest step."""
    recommended: str
    """The precision to train in."""
    needs_loss_scaling: bool
    """Whether the recommended one needs its loss scaled."""


@dataclass(frozen=True, kw_only=True)
class NumberFormat:
    """Range and precision of one floating-point format."""

    dtype: str
    bits: int
    largest: float
    """Largest finite number; what is larger becomes infinite (overflow)."""
    smallest_normal: float
    """Smallest positive number with full precision."""
    smallest: float
    """Smallest positive number at all, a subnormal one; what is nearer to 0 becomes 0 (underflow)."""
    epsilon: float
    """Distance from 1 to the next larger number."""


@dataclass(frozen=True, kw_only=True)
class StabilityRun:
    """How a training of the unstable model went."""

    device: str
    dtype: str
    gain: float
    """Of the model: how far its activations are from where the format is comfortable."""
    losses: tuple[float | None, ...]
    """Mean loss of each epoch, unscaled, over the samples of the steps that were taken; None where there were none."""
    scales: tuple[float, ...]
    """The loss scale that each batch was computed with, in order; all 1.0 where the loss is not scaled."""
    optimizer_steps: int
    skipped_steps: int
    nonfinite_parameters: tuple[str, ...]
    """Parameters whose gradients were not finite on the first skipped step; empty where none was skipped."""
    nonfinite_layer: str | None
    """First layer whose output was not finite on that step; None where all outputs were, or no step was skipped."""
