"""Task 2.1: train in mixed precision: autocast, loss scaling, clipping, accumulation.

Not for what it saves (precision_comparison.py) nor for what can go wrong (stability_tests.py).

Run: python -m labs.lab2_mixed_precision.amp_training
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.ticker import LogLocator
from torch import Tensor, nn
from torch.nn import functional

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
    if dtype not in PRECISIONS.values():
        raise ValueError(f"{dtype} is none of {', '.join(PRECISIONS)}")
    if min(epochs, accumulation_steps) < 1:
        raise ValueError("epochs and accumulation_steps are 1 at least")
    place = next(model.parameters()).device if device is None else torch.device(device)
    model = model.to(place)
    model.train()
    descent = torch.optim.Adam(model.parameters()) if optimizer is None else optimizer
    loss_of = functional.cross_entropy if criterion is None else criterion
    if dtype is not torch.float16:
        scaler = torch.amp.GradScaler(place.type, enabled=False)
    scaler = torch.amp.GradScaler(place.type) if scaler is None else scaler
    low = functools.partial(torch.autocast, place.type, dtype=dtype, enabled=dtype is not torch.float32)

    def follow(window: list[tuple[Tensor, Tensor]]) -> Step:
        """One optimizer step."""
        sizes = np.array([len(targets) for _, targets in window])
        means = []
        for (inputs, targets), share in zip(window, sizes / sizes.sum(), strict=True):
            with contextlib.ExitStack() as stack:
                stack.enter_context(low())
                mean = loss_of(model(inputs.to(place)), targets.to(place))
                part = mean * float(share)
            scaler.scale(part).backward()
            means.append(mean.detach())
        if max_grad_norm is not None:
            scaler.unscale_(descent)
            nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        before = scaler.state_dict().get("scale", 1.0)
        scaler.step(descent)
        scaler.update()
        descent.zero_grad()
        taken = scaler.state_dict().get("scale", 1.0) >= before
        if taken and scheduler is not None:
            scheduler.step()
        return Step(taken, [float(mean) for mean in means], sizes)

    reset_peak(place)
    start = now(place)
    descent.zero_grad()  # of whatever was before
    history = [[follow(window) for window in _windows(_ahead(train_loader), accumulation_steps)] for _ in range(epochs)]
    seconds = now(place) - start
    steps = [step for epoch in history for step in epoch]
    return AmpTraining(
        device=place.type,
        dtype=dtype_name(dtype),
        losses=tuple(_mean_loss([step for step in epoch if step.taken]) for epoch in history),
        optimizer_steps=sum(step.taken for step in steps),
        skipped_steps=sum(not step.taken for step in steps),
        final_scale=float(scaler.get_scale()) if scaler.is_enabled() else None,
        seconds=seconds,
        peak_bytes=peak_bytes(place),
    )


@dataclasses.dataclass(frozen=True)
class Step:
    """What became of a window."""

    taken: bool
    means: list[float]
    sizes: np.ndarray


def _mean_loss(steps: list[Step]) -> float | None:
    """Over all samples of these steps."""
    if not steps:
        return None
    means = np.concatenate([step.means for step in steps])
    return float(np.average(means, weights=np.concatenate([step.sizes for step in steps])))


def _ahead(loader: Batches, depth: int = 2) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches; while one is used, `depth` more have been fetched."""
    waiting: collections.deque[tuple[Tensor, Tensor]] = collections.deque()
    for batch in loader:
        waiting.append(batch)
        if len(waiting) > depth:
            yield waiting.popleft()
    yield from waiting


def _windows(batches: Iterator[tuple[Tensor, Tensor]], length: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    return iter(lambda: list(itertools.islice(batches, length)), [])


@contextlib.contextmanager
def _at_rest(model: nn.Module) -> Iterator[None]:
    """Evaluation mode in the block; afterwards each module is in its own again."""
    with contextlib.ExitStack() as stack:
        for module in model.modules():
            stack.callback(setattr, module, "training", module.training)
        model.eval()
        yield


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
    place = next(model.parameters()).device if device is None else torch.device(device)
    model.to(place)
    hits: list[bool] = []
    with _at_rest(model), torch.no_grad(), torch.autocast(place.type, dtype=dtype, enabled=dtype is not torch.float32):
        for inputs, targets in _ahead(loader):
            hits += (model(inputs.to(place)).max(dim=1).indices.cpu() == targets.cpu()).tolist()
    if not hits:
        raise ValueError("not a single sample to evaluate")
    return float(np.mean(hits))


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
    # --- solution: task 2.1 ---
    figure, (axis,) = plotting.new_figure("Training loss by precision", x_label="epoch", y_label="mean loss")
    for training, color, style in zip(trainings, plotting.COLORS, ("-", "--", ":"), strict=False):
        epochs = range(1, len(training.losses) + 1)
        losses = [float("nan") if loss is None else loss for loss in training.losses]
        axis.plot(epochs, losses, style, color=color, linewidth=2.2, label=training.dtype)
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("")
    axis.set_xticks(range(1, max(len(training.losses) for training in trainings) + 1))
    axis.legend(frameon=False)
    return plotting.save_png(figure, path)
    # --- end ---


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
        # --- solution: task 2.1 ---
        written = save_json(options.out / "training.json", trainings, device.provenance())
        program.print_written(written, plot_losses(trainings, options.out / "training.png"))
        # --- end ---
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
