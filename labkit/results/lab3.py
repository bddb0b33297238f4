"""What Lab 3 measures: data-parallel training, gradient accumulation, and how both grow with the number of processes.

A *rank* is one process of a job, numbered from 0; the *world size* is how many there are. Not for measuring, and no
PyTorch here.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DdpTraining:
    """How one data-parallel training went; the same on every rank except for `seconds`."""

    device: str
    """Where it ran: "cpu" or "cuda"."""
    backend: str
    """What carried the gradients: "nccl" or "gloo"."""
    world_size: int
    batch_size: int
    """Samples per optimizer step on one rank."""
    effective_batch_size: int
    """Samples per optimizer step on all ranks together; the last step of an epoch may have fewer."""
    epochs: int
    """Epochs that the model has seen in all, those before a checkpoint included."""
    losses: tuple[float, ...]
    """Mean loss of each epoch of this run over all samples on all ranks, as it was before each step."""
    optimizer_steps: int
    """Of this run; every rank makes the same ones."""
    accuracy: float | None
    """Share of the test samples that the trained model gets right, 0 to 1; None where there was no test set."""
    seconds: float
    """All epochs of this run, the device idle at both ends; checkpoints and test included."""


@dataclass(frozen=True, kw_only=True)
class AccumulationResult:
    """What one pass over the data with gradient accumulation did; the same on every rank."""

    optimizer_steps: int
    micro_batches: int
    """Backward passes on one rank."""
    effective_batch_sizes: tuple[int, ...]
    """Samples (or tokens) behind each optimizer step, on all ranks together."""
    losses: tuple[float, ...]
    """Mean loss over these samples (or tokens), one for each optimizer step."""


@dataclass(frozen=True, kw_only=True)
class StepProfile:
    """Where the seconds of one training step go, one figure per rank, in the order of ranks.

    All ranks begin a step together and end it together: a rank that has done its work waits for the others.
    """

    data_seconds: tuple[float, ...]
    """Waiting for the next batch, its way to the device included."""
    compute_seconds: tuple[float, ...]
    """Forward, backward and the optimizer's step, without any exchange of gradients."""
    communication_seconds: tuple[float, ...]
    """The rest of the step: exchange of gradients that computation does not hide, and waiting for other ranks."""


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """The training step of one world size."""

    device: str
    backend: str
    kind: str
    """"strong": the batch of all ranks together is the same for every world size. "weak": the batch of each rank is."""
    world_size: int
    batch_size: int
    """Samples per step on all ranks together."""
    step_seconds: float
    """Median seconds of a step, of the slowest rank."""
    samples_per_second: float
    """batch_size / step_seconds."""
    profile: StepProfile
