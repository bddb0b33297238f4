"""What Lab 4 measures and predicts: memory and time of checkpointing and attention, trainings, what a step holds.

Not for measuring, and no PyTorch here.
"""

from dataclasses import dataclass

ATTENTION_METHODS = ("standard", "flash", "tiled")
"""The implementations of attention that Lab 4 compares."""


@dataclass(frozen=True, kw_only=True)
class CheckpointingResult:
    """What one training step costs with one checkpoint interval."""

    device: str
    """Where it ran: "cpu" or "cuda"."""
    checkpoint_every: int | None
    """Blocks per checkpointed segment; None without checkpointing."""
    step_seconds: float
    """Median seconds of one step: forward and backward."""
    peak_bytes: int | None
    """Most memory allocated on the device at any moment of the timed steps; None on a CPU."""


@dataclass(frozen=True, kw_only=True)
class AttentionResult:
    """What forward and backward of one attention cost at one length."""

    device: str
    method: str
    """One of ATTENTION_METHODS."""
    backend: str
    """What computed it: "torch" for operations of one's own, else "flash_attn.cute", "flash_attn" or "sdpa"."""
    dtype: str
    """As "float16"."""
    length: int
    """Tokens: queries, and as many keys."""
    seconds: float | None
    """Median seconds of forward and backward together; None where memory ran out."""
    peak_bytes: int | None
    """Most memory allocated during them, less what was allocated before; None on a CPU, or where memory ran out."""
    left_out: str | None = None
    """Why the program did not measure this length: then the two above are None as well. None where it did."""


@dataclass(frozen=True, kw_only=True)
class LargeTraining:
    """How a training of the large model went."""

    device: str
    micro_batch: int
    """Most samples that may go through the model at once, as passed to the function."""
    optimizer_steps: int
    losses: tuple[float, ...]
    """One per batch of the training loader: mean loss over all its samples, before the step that it led to."""
    validation_losses: tuple[float, ...]
    """One per epoch: mean loss over all samples of the validation loader."""
    peak_bytes: int | None
    """Most memory allocated on the device at any moment of the training; None on a CPU."""


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """A training step, described by plain numbers."""

    model: str
    """"mlp": `layers` times a linear layer `width` x `width` with bias, and ReLU. "transformer": `layers` blocks
    `labkit.models.TransformerBlock` of that width, without dropout."""
    layers: int
    width: int
    heads: int
    """Attention heads of a transformer; 1 for an mlp."""
    tokens: int
    """Samples times their length: rows of `width` numbers that go through the model at once."""
    optimizer: str
    """"sgd" (without momentum), "momentum" (SGD with it) or "adam"."""
    dtype: str
    """"float32", or "float16" or "bfloat16" for autocast to it; parameters and inputs are float32 in any case."""
    checkpoint_every: int | None
    """Blocks of a transformer per checkpointed segment; None, and always for an mlp, without checkpointing."""


@dataclass(frozen=True, kw_only=True)
class MemoryPrediction:
    """The bytes of a training step by what they are for."""

    parameter_bytes: int
    gradient_bytes: int
    """Of all parameters, after backward."""
    optimizer_state_bytes: int
    """After the first step."""
    activation_bytes: int
    """Bytes that the forward pass keeps for backward, from after the model's input to its output, which is included."""

    @property
    def total_bytes(self) -> int:
        """All four: not a peak, which also has what lives for moments only, but what a step cannot do without."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_state_bytes + self.activation_bytes


@dataclass(frozen=True, kw_only=True)
class MemoryComparison:
    """A prediction next to what was measured."""

    setup: TrainingSetup
    predicted: MemoryPrediction
    measured: MemoryPrediction
