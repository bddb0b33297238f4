"""Task 2.1: train in mixed precision: autocast, loss scaling, clipping, accumulation.

Not for what it saves (precision_comparison.py) nor for what can go wrong (stability_tests.py).

Run: python -m labs.lab2_mixed_precision.amp_training
"""

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from matplotlib.ticker import LogLocator
from torch import Tensor, nn
from torch.utils.data import BatchSampler

from labkit import plotting, program
from labkit.device import open_device
from labkit.progress import track
from labkit.results import AmpTraining, save_json

from . import pure, workloads
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
      finite (the loss may be, all the same), the scale was too large: the step is skipped and the scale multiplied by
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
        none); steps taken and skipped over all epochs; the final scale, None unless dtype is float16; seconds, from an
        idle device to an idle device; peak_bytes, of this training alone, None on a CPU.

    Raises:
        ValueError: `dtype` is none of the three, or `epochs` or `accumulation_steps` is below 1.

    Source: Micikevicius et al. 2018, "Mixed Precision Training" (arXiv:1710.03740); the order of the calls:
        https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    """
    if dtype not in PRECISIONS.values():
        raise ValueError(f"dtype is {', '.join(PRECISIONS)}, not {dtype}")
    if min(epochs, accumulation_steps) < 1:
        raise ValueError(f"epochs and accumulation_steps are at least 1, not {epochs} and {accumulation_steps}")
    place = pure.home_of(model, device)
    model.to(place).train()
    model.zero_grad(set_to_none=True)
    optimizer = optimizer or torch.optim.Adam(model.parameters())
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    criterion = criterion or nn.functional.cross_entropy
    loss_scaling = _Scaling(scaler or torch.amp.GradScaler(place.type)) if dtype == torch.float16 else None

    def compute_loss(inputs: Tensor, targets: Tensor) -> Tensor:
        return criterion(model(inputs), targets)

    loss_of = pure.casting(compute_loss, place, dtype)

    def gradients_of(window: Sequence[tuple[Tensor, Tensor]], total: int) -> tuple[list[Tensor | None], list[Tensor]]:
        """Scaled gradients of the mean loss over the window, in the order of `trained`, and the loss of each batch."""
        scale = loss_scaling.scale if loss_scaling else 1.0
        losses: list[Tensor] = []
        sums: list[Tensor | None] = [None] * len(trained)
        for inputs, targets in pure.moved(window, place):
            loss = loss_of(inputs, targets)
            losses.append(loss.detach())
            weighed = (loss.float() if loss.dtype.itemsize == 2 else loss) * (len(inputs) / total) * scale
            sums = _added(sums, torch.autograd.grad(weighed, trained, allow_unused=True))
        return sums, losses

    reset_peak(place)
    started = now(place)
    means: list[float | None] = []
    taken = skipped = 0
    for _ in range(epochs):
        epoch_losses: list[Tensor] = []
        weights: list[int] = []
        for window in BatchSampler(train_loader, accumulation_steps, drop_last=False):
            sizes = [len(inputs) for inputs, _ in window]
            sums, losses = gradients_of(window, sum(sizes))
            used = [(parameter, sum_) for parameter, sum_ in zip(trained, sums, strict=True) if sum_ is not None]
            parameters, gradients = zip(*used, strict=True)
            good = True
            if loss_scaling:
                gradients = torch._foreach_div(gradients, loss_scaling.scale)
                good = pure.all_finite(gradients)
            if good:
                if max_grad_norm is not None:
                    gradients = pure.clipped(gradients, max_grad_norm)
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                if scheduler is not None:
                    scheduler.step()
                taken += 1
                epoch_losses += losses
                weights += sizes
            else:
                skipped += 1
            if loss_scaling:
                loss_scaling.update(overflow=not good)
        means.append(pure.weighted_mean([loss.item() for loss in epoch_losses], weights))
    seconds = now(place) - started
    return AmpTraining(
        device=place.type,
        dtype=dtype_name(dtype),
        losses=tuple(means),
        optimizer_steps=taken,
        skipped_steps=skipped,
        final_scale=loss_scaling.scale if loss_scaling else None,
        seconds=seconds,
        peak_bytes=peak_bytes(place),
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
    place = pure.home_of(model, device)
    model.to(place)

    @torch.inference_mode()
    def count_right(inputs: Tensor, targets: Tensor) -> tuple[int, int]:
        best = logits_of(inputs).argmax(dim=1)
        return int(torch.count_nonzero(best == targets)), len(targets)

    logits_of = pure.casting(model, place, dtype)
    with _evaluating(model):
        counts = [count_right(*pair) for pair in pure.moved(loader, place)]
    right, samples = (sum(column) for column in zip((0, 0), *counts, strict=True))
    if samples == 0:
        raise ValueError("the loader has no samples")
    return right / samples


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
    figure, (axis,) = plotting.new_figure(
        "Training loss by precision", x_label="epoch", y_label="loss (mean of the epoch)"
    )
    looks = itertools.cycle(zip(plotting.COLORS, ("o-", "s--", "^:", "d-."), strict=True))
    for training, (color, look) in zip(trainings, looks, strict=False):
        losses = pure.holes(training.losses)
        axis.semilogy(np.arange(1, len(losses) + 1), losses, look, color=color, label=training.dtype)
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(frameon=False)
    return plotting.save_png(figure, path)


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
        program.print_written(
            save_json(options.out / "training.json", trainings, device.provenance()),
            plot_losses(trainings, options.out / "training.png"),
        )
    return 0


class _Scaling:
    """The loss scale of a GradScaler, adapted by `pure.adapt` and written back into it."""

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        self._scaler = scaler
        state = scaler.state_dict()  # empty where the scaler is disabled
        self._rule = pure.ScaleRule(
            state.get("growth_factor", 1.0), state.get("backoff_factor", 1.0), state.get("growth_interval", 1)
        )
        self._state = pure.ScaleState(state.get("scale", 1.0), state.get("_growth_tracker", 0))

    @property
    def scale(self) -> float:
        return self._state.scale

    def update(self, *, overflow: bool) -> None:
        self._state = pure.adapt(self._state, self._rule, overflow=overflow)
        changed = {"scale": self._state.scale, "_growth_tracker": self._state.good_steps}
        self._scaler.load_state_dict(self._scaler.state_dict() | changed)


def _added(sums: Sequence[Tensor | None], more: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Element by element; out of place, because gradients may share memory. None counts as zero."""
    both = [(one, other) for one, other in zip(sums, more, strict=True) if one is not None and other is not None]
    added = iter(torch._foreach_add(*map(list, zip(*both, strict=True))) if both else ())
    return [
        next(added) if one is not None and other is not None else other if one is None else one
        for one, other in zip(sums, more, strict=True)
    ]


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


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
