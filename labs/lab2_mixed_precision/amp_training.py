"""Task 2.1: train in mixed precision: autocast, loss scaling, clipping, accumulation.

Not for what it saves (precision_comparison.py) nor for what can go wrong (stability_tests.py).

Run: python -m labs.lab2_mixed_precision.amp_training
"""

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from matplotlib.ticker import LogLocator
from torch import Tensor, nn

from labkit import plotting, program
from labkit.device import open_device
from labkit.progress import track
from labkit.results import AmpTraining, save_json

from . import workloads
from .readings import PRECISIONS, dtype_name, now, peak_bytes, reset_peak

RESULTS = Path(__file__).parent / "results"
Batches = Iterable[tuple[Tensor, Tensor]]
"""Pairs (inputs, targets) on the CPU that can be gone through again and again: a DataLoader, a list of batches."""


def train_with_amp(
    model: nn.Module,
    train_loader: Batches,
    epochs: int = 10,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float16,
    optimizer: torch.optim.Optimizer | None = None,
    criterion: Callable[[Tensor, Tensor], Tensor] | None = None,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
    scaler: torch.amp.GradScaler | None = None,
    max_grad_norm: float | None = None,
    accumulation_steps: int = 1,
) -> AmpTraining:
    """Train a model in automatic mixed precision.

    Parameters, gradients and the optimizer's state stay in float32: small updates would vanish in 16 bits. Autocast
    casts for each operation: products run in `dtype`, the loss in float32. It belongs around forward and loss only;
    backward runs, outside of it, in the types that forward chose.

    - float32: no autocast, no scaling; model and inputs keep the dtype they have (float64, too).
    - float16: autocast, and the loss is multiplied by a scale before backward, because small gradients would become 0
      in float16. Gradients are divided by it again ("unscaled") before anything looks at them. If one of them is not
      finite (though the loss may be finite), the scale was too large: the step is skipped and the scale multiplied by
      the backoff factor (0.5), once per skipped step. After as many good steps in a row as the growth interval says, it
      is multiplied by the growth factor (2).
    - bfloat16: autocast without scaling: it has the range of float32.

    An optimizer step is made once per window of `accumulation_steps` batches, from the gradient of the mean loss over
    *all samples of the window*, however many each batch has. At the end of an epoch a shorter window is a window, too:
    its mean is over its own samples. Each batch has its own forward and backward pass, since a whole window might not
    fit into memory; unscale, check, clip, step and update happen once per window.

    Args:
        model: float32; moved to the device, put into training mode (all of its modules) and trained in place. A
            parameter that requires no gradient (it is frozen) stays as it is.
        train_loader: batches (inputs [N, ...], targets [N, ...]); N may differ between batches.
        epochs: how often to go through it.
        device: where to train; None: where the model's parameters are.
        dtype: torch.float16, torch.bfloat16 or torch.float32.
        optimizer: of the model's parameters; None: `torch.optim.Adam(model.parameters())`.
        criterion: maps (outputs, targets) to the mean loss over the samples of a batch, a tensor without dimensions;
            None: cross entropy.
        scheduler: of the learning rate; goes one step on after every optimizer step that was *taken*, so not on a
            skipped one, and not once per batch.
        scaler: float16 takes its loss scaling from it: initial scale, growth and backoff factor and growth interval
            count. None: `torch.amp.GradScaler` with its defaults. The other precisions do without, given or not.
        max_grad_norm: where given, the total norm of the (unscaled) gradients of a step, one norm over all parameters,
            is clipped to it, in every precision; see `torch.nn.utils.clip_grad_norm_`.
        accumulation_steps: batches per window.

    Returns:
        An `AmpTraining`: unscaled losses per epoch, over the samples of the steps that were taken (None if there were
        none); steps taken and skipped over all epochs; the final scale, None unless dtype is float16; seconds of all
        epochs, from an idle device with the model on it to an idle device; peak_bytes, of this training alone, None on
        a CPU.

    Raises:
        ValueError: `dtype` is none of the three, or `epochs` or `accumulation_steps` is below 1.

    Source: Micikevicius et al. 2018, "Mixed Precision Training" (arXiv:1710.03740); the order of the calls:
        https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    """
    # TODO(task 2.1):
    # 1. Refuse arguments that make no sense; fill in what was not given. Float16 alone gets a scaler that is enabled.
    # 2. Model to the device, training mode, peak reset, device idle, clock started.
    # 3. Go through each epoch in windows of accumulation_steps batches; the last window may be shorter.
    # 4. Per batch: forward and loss in autocast, weighed by the batch's share of the window; backward of the scaled
    #    loss outside of it.
    # 5. Per window: unscale and clip if asked to, step, update. Find out whether the step was taken before you count
    #    it, count its loss and let the scheduler go on.
    # 6. Wait for the device, stop the clock, read the peak.
    raise NotImplementedError(
        "Task 2.1 is open: write train_with_amp "
        "in labs/lab2_mixed_precision/amp_training.py (about 61 lines)"
    )


def evaluate(
    model: nn.Module,
    loader: Batches,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> float:
    """Share of the samples that a classifier gets right.

    Args:
        model: maps inputs [N, ...] to logits [N, classes]; moved to the device. It is evaluated in evaluation mode
            (dropout off, batch norm by its averages); afterwards, also where the loader had no samples, each of its
            modules is in the mode it was in before, and they need not all have been in the same one.
        loader: batches (inputs [N, ...], targets [N] int64); N may differ between batches.
        device: where to compute; None: where the model's parameters are.
        dtype: precision of the products, as in training; torch.float32: no autocast.

    Returns:
        Right samples / all samples, from 0 to 1. No graph is recorded.

    Raises:
        ValueError: the loader has no samples.
    """
    # TODO(task 2.1):
    # 1. Model to the device, evaluation mode; remember the mode of each module.
    # 2. Without gradients, in autocast: count right samples and all samples over the batches.
    # 3. Back to the old modes; divide.
    raise NotImplementedError(
        "Task 2.1 is open: write evaluate "
        "in labs/lab2_mixed_precision/amp_training.py (about 14 lines)"
    )


def plot_losses(trainings: Sequence[AmpTraining], path: Path | str) -> Path:
    """Plot the loss over the epochs, one line per precision; an epoch without a loss keeps its place, empty.

    Args:
        trainings: one per precision.
        path: the PNG file to write.

    Returns:
        The path written.

    Raises:
        OSError: the file cannot be written.
    """
    # TODO(task 2.1):
    # 1. Take a figure from labkit.plotting.new_figure; a logarithmic y axis shows small differences.
    #    LogLocator(subs=(1, 2, 5)) puts enough ticks on it, and a formatter such as "{x:g}" a number at each.
    # 2. Draw one line per training, and distinguish them by more than colour: they may coincide.
    # 3. Write it with labkit.plotting.save_png.
    raise NotImplementedError(
        "Task 2.1 is open: write plot_losses "
        "in labs/lab2_mixed_precision/amp_training.py (about 12 lines)"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Train the classifier in each precision; print a table; write OUT/training.json and OUT/training.png.

    Returns:
        0.
    """
    parser = program.make_parser(__doc__ or "", results=RESULTS)
    workloads.add_training_options(parser)
    options = parser.parse_args(argv)
    train_batches, test_batches = workloads.batches(options.data, data_dir=options.data_dir)
    trainings, accuracies = [], []
    with open_device(options.device) as device:
        for name in track(options.precisions, "training"):
            model = workloads.classifier(workloads.pixels(train_batches))
            place, dtype = device.torch_device, PRECISIONS[name]
            trainings.append(train_with_amp(model, train_batches, options.epochs, device=place, dtype=dtype))
            accuracies.append(evaluate(model, test_batches, device=place, dtype=dtype))
        _print(trainings, accuracies)
        # TODO(task 2.1):
        # 1. Save the trainings with save_json as OUT/training.json, with device.provenance().
        # 2. Draw OUT/training.png with plot_losses.
        # 3. Print both paths with program.print_written.
        raise NotImplementedError(
            "Task 2.1 is open: write main "
            "in labs/lab2_mixed_precision/amp_training.py (about 2 lines)"
        )
    return 0


def _print(trainings: Sequence[AmpTraining], accuracies: Sequence[float]) -> None:
    rows = []
    for training, accuracy in zip(trainings, accuracies, strict=True):
        scale = "-" if training.final_scale is None else f"{training.final_scale:g}"
        steps = (training.optimizer_steps, training.skipped_steps, scale)
        loss = training.losses[-1]
        rows.append((training.dtype, "-" if loss is None else f"{loss:.4g}", f"{accuracy:.2%}", *steps))
    columns = ("precision", "last loss", "accuracy", "steps", "skipped", "loss scale")
    program.print_table("Training by precision", columns, rows)


if __name__ == "__main__":
    sys.exit(program.run(main))
