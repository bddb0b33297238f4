"""Task 4.5: say beforehand what a training step will hold, and compare with what it held.

Not for the peak of a step, which also has what lives for moments only.

Run: python -m labs.lab4_memory.memory_analysis
"""

import gc
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from labkit import plotting, program
from labkit.device import DeviceError, open_device
from labkit.progress import track
from labkit.results import MemoryComparison, MemoryPrediction, TrainingSetup, save_json

from .gradient_checkpointing import CheckpointedTransformer
from .readings import requested_bytes

RESULTS = Path(__file__).parent / "results"
MEBIBYTE = 2**20


def _setup(model: str, optimizer: str, dtype: str = "float32", checkpoint_every: int | None = None) -> TrainingSetup:
    layers, heads = (4, 8) if model == "transformer" else (8, 1)
    return TrainingSetup(
        model=model,
        layers=layers,
        width=512 if model == "transformer" else 1024,
        heads=heads,
        tokens=4096,
        optimizer=optimizer,
        dtype=dtype,
        checkpoint_every=checkpoint_every,
    )


SETUPS = (
    _setup("mlp", "sgd"),
    _setup("mlp", "adam"),
    _setup("mlp", "adam", "float16"),
    _setup("transformer", "momentum"),
    _setup("transformer", "adam"),
    _setup("transformer", "adam", "float16"),
    _setup("transformer", "adam", checkpoint_every=1),
    _setup("transformer", "adam", "float16", checkpoint_every=3),
)
"""What the program predicts and measures."""


def predict_memory(setup: TrainingSetup) -> MemoryPrediction:
    """What a training step will hold on a GPU, worked out from plain numbers, without running anything.

    Right to 5 percent each, for models wide enough (some hundred numbers per token) that small things do not matter.

    What the forward pass leaves for backward follows from what each operation needs there. A linear layer keeps its
    input (its gradient is a product with it); a layer norm its input; ReLU its output; GELU its input; attention its
    queries, keys and values, its output, and 4 bytes per token and head; an addition nothing. A tensor that two
    operations keep is there once, also where one of them sees it in another shape (attention's output is laid out so
    that the projection behind it reads it without a copy). The model's own input lies outside and does not count, its
    output does. The course's `TransformerBlock` is written out in labkit/models.py; its attention never makes the
    scores.

    With autocast to a 16-bit type, parameters, gradients and optimizer state stay float32. Linear layers and attention
    work in 16 bits: what they keep and what they give has 2 bytes per number, and each linear layer keeps a 16-bit copy
    of its weight, too (needed for the gradient of its input, so the first layer of an mlp keeps none). Layer norms give
    float32, which is cast for the linear layer behind and then freed; sums of float32 and 16-bit tensors are float32.
    ReLU and GELU stay in the type they get. The first linear layer of an mlp keeps a 16-bit copy of the model's input,
    which does count.

    With checkpointing only the input of each segment and the model's output are kept; all segments are checkpointed.

    Args:
        setup: the step; see its fields.

    Returns:
        A `MemoryPrediction`; see its fields. The bytes of the tensors: a GPU's allocator rounds each of them up.

    Raises:
        ValueError: an unknown model, optimizer or dtype, or an mlp with checkpointing.

    Source: S. Rajbhandari et al. 2020, "ZeRO" (arXiv:1910.02054), section 3; V. Korthikanti et al. 2022, "Reducing
        Activation Recomputation in Large Transformer Models" (arXiv:2205.05198), section 4, which counts a block with
        dropout and with the scores kept.
    """
    _check(setup)
    width, low = setup.width, setup.dtype != "float32"
    is_mlp = setup.model == "mlp"
    linears = np.array(
        [(width, width)] if is_mlp else [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    )
    weights = int(linears.prod(axis=1).sum())
    parameters = 4 * setup.layers * (weights + int(linears[:, 1].sum()) + (0 if is_mlp else 4 * width))
    low_bytes = 2 if low else 4
    copies = 2 * weights * (setup.layers - is_mlp) if low else 0
    if setup.checkpoint_every is not None:
        kept = math.ceil(setup.layers / setup.checkpoint_every) * 4 * width * setup.tokens
    elif is_mlp:
        kept = (setup.layers + low) * low_bytes * width * setup.tokens + copies
    else:
        sizes, counts = (4, low_bytes), (2 * width + 4 + setup.heads, 14 * width)
        kept = setup.layers * setup.tokens * int(np.dot(sizes, counts)) + copies
    states = {"sgd": 0, "momentum": 1, "adam": 2}
    return MemoryPrediction(
        parameter_bytes=parameters,
        gradient_bytes=parameters,
        optimizer_state_bytes=states[setup.optimizer] * parameters,
        activation_bytes=int(kept),
    )


def _check(setup: TrainingSetup) -> None:
    """Given: refuse a setup that does not exist."""
    known = (
        setup.model in ("mlp", "transformer")
        and setup.optimizer in ("sgd", "momentum", "adam")
        and setup.dtype in ("float32", "float16", "bfloat16")
    )
    if not known or (setup.model == "mlp" and setup.checkpoint_every is not None):
        raise ValueError(f"there is no such training step: {setup}")


def measure_memory(setup: TrainingSetup, *, device: str = "cuda") -> MemoryPrediction:
    """Given: run two steps of `setup` on a GPU and read what its tensors hold (`readings.requested_bytes`).

    Transformers are those of Task 4.1. What libraries take at their first use (workspaces) is there before anything is
    read. Nothing looks at a value.

    Raises:
        ValueError: as `predict_memory`, or `device` is a CPU, whose memory PyTorch does not count.
    """
    _check(setup)
    if torch.device(device).type == "cpu":
        raise ValueError("PyTorch does not count the memory of a CPU")
    gc.collect()
    start = requested_bytes(device)
    with torch.device(device):
        model = _build(setup)
    parameters = requested_bytes(device) - start
    inputs = torch.zeros(1, setup.tokens, setup.width, device=device)
    gradient = torch.zeros_like(inputs, dtype=None if setup.model == "transformer" else getattr(torch, setup.dtype))
    momentum = 0.9 if setup.optimizer == "momentum" else 0.0
    optimizer = (
        torch.optim.Adam(model.parameters())
        if setup.optimizer == "adam"
        else torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    )

    def forward() -> torch.Tensor:
        with torch.autocast("cuda", dtype=getattr(torch, setup.dtype), enabled=setup.dtype != "float32"):
            output: torch.Tensor = model(inputs)
        return output

    forward().backward(gradient)
    optimizer.zero_grad(set_to_none=True)
    before = requested_bytes(device)
    output = forward()
    activations = requested_bytes(device) - before
    output.backward(gradient)
    del output
    gradients = requested_bytes(device) - before
    optimizer.step()
    state = requested_bytes(device) - before - gradients
    return MemoryPrediction(
        parameter_bytes=parameters,
        gradient_bytes=gradients,
        optimizer_state_bytes=state,
        activation_bytes=activations,
    )


def _build(setup: TrainingSetup) -> nn.Module:
    if setup.model == "mlp":
        layers = [layer for _ in range(setup.layers) for layer in (nn.Linear(setup.width, setup.width), nn.ReLU())]
        return nn.Sequential(*layers)
    return CheckpointedTransformer(
        setup.layers, width=setup.width, heads=setup.heads, dropout=0.0, checkpoint_every=setup.checkpoint_every
    )


def describe(setup: TrainingSetup) -> str:
    """Given: a setup in a few words, "transformer, adam, float16, every 3"."""
    every = "" if setup.checkpoint_every is None else f", every {setup.checkpoint_every}"
    return f"{setup.model}, {setup.optimizer}, {setup.dtype}{every}"


def plot_memory(comparisons: Sequence[MemoryComparison], path: Path | str) -> Path:
    """Plot what each setup holds, in MiB: a stacked bar as predicted, and a mark at the total that was measured.

    The four parts of a bar are named, in a legend or beside them.

    Args:
        comparisons: one or more.
        path: the PNG file to write.

    Returns:
        The path written.

    Raises:
        OSError: the file cannot be written.
    """
    # --- solution: task 4.5 ---
    figure, (axis,) = plotting.new_figure("What a training step holds", x_label="MiB")
    names = [describe(comparison.setup) for comparison in comparisons]
    left = [0.0] * len(names)
    parts = ("parameter", "gradient", "optimizer_state", "activation")
    for color, part in zip(plotting.COLORS, parts, strict=True):
        values = [getattr(comparison.predicted, f"{part}_bytes") / MEBIBYTE for comparison in comparisons]
        axis.barh(names, values, left=left, color=color, label=part.replace("_", " "))
        left = [before + value for before, value in zip(left, values, strict=True)]
    totals = [comparison.measured.total_bytes / MEBIBYTE for comparison in comparisons]
    axis.plot(totals, names, "k|", markersize=16, label="measured, all")
    axis.invert_yaxis()
    axis.legend(frameon=False, fontsize=9)
    return plotting.save_png(figure, path)
    # --- end ---


def main(argv: Sequence[str] | None = None) -> int:
    """Predict and measure all setups; print a table; write OUT/memory.json and OUT/memory.png, and print both
    paths.

    Both files say that a virtual GPU was used, where it was: the picture with the word "simulated".

    Returns:
        0.

    Raises:
        DeviceError: the device is a CPU.
    """
    options = program.make_parser(__doc__ or "", results=RESULTS).parse_args(argv)
    with open_device(options.device, values=False) as device:
        if device.torch_device == "cpu":
            raise DeviceError("PyTorch does not count the memory of a CPU: use --device cuda or --device vgpu")
        comparisons = [
            MemoryComparison(setup=setup, predicted=predict_memory(setup), measured=measure_memory(setup))
            for setup in track(SETUPS, "measuring", describe)
        ]
        rows = []
        for comparison in comparisons:
            predicted, real = comparison.predicted, comparison.measured
            rows.append(
                (
                    describe(comparison.setup),
                    *(
                        f"{getattr(predicted, name) / MEBIBYTE:.1f} / {getattr(real, name) / MEBIBYTE:.1f}"
                        for name in ("parameter_bytes", "gradient_bytes", "optimizer_state_bytes", "activation_bytes")
                    ),
                )
            )
        columns = ("setup", "parameters", "gradients", "optimizer", "activations")
        program.print_table("MiB, predicted / measured", columns, rows)
        # --- solution: task 4.5 ---
        written = save_json(options.out / "memory.json", comparisons, device.provenance())
        program.print_written(written, plot_memory(comparisons, options.out / "memory.png"))
        # --- end ---
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
