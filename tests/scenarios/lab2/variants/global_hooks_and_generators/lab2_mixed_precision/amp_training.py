"""Task 2.1: train in mixed precision: autocast, loss scaling, clipping, accumulation.

Not for what it saves (precision_comparison.py) nor for what can go wrong (stability_tests.py).

Run: python -m labs.lab2_mixed_precision.amp_training
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from timeit import default_timer

import torch
from matplotlib.ticker import LogLocator
from torch import Tensor, nn

from labkit import plotting, program
from labkit.device import open_device
from labkit.progress import track
from labkit.results import AmpTraining, save_json

from . import workloads
from .readings import PRECISIONS, dtype_name

RESULTS = Path(__file__).parent / "results"
Batches = Iterable[tuple[Tensor, Tensor]]
"""Pairs (inputs, targets) on the CPU that can be gone through again and again: a DataLoader, a list of batches."""


class _Epoch:
    """Adds up, on the device, what counts in an epoch; nothing is read before its end."""

    def __init__(self, device: torch.device) -> None:
        self.weighted = torch.zeros((), dtype=torch.float64, device=device)
        self.samples = 0

    def add(self, window: Tensor, samples: int) -> None:
        self.weighted += window
        self.samples += samples

    @property
    def mean(self) -> float | None:
        return self.weighted.item() / self.samples if self.samples else None


class _Loop:
    """One training: its parts, and a window at a time."""

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        dtype: torch.dtype,
        optimizer: torch.optim.Optimizer,
        criterion: Callable[[Tensor, Tensor], Tensor],
        scaler: torch.amp.GradScaler | None,
        max_grad_norm: float | None,
    ) -> None:
        self.parameters = list(model.parameters())
        self.device, self.optimizer, self.scaler, self.max_grad_norm = device, optimizer, scaler, max_grad_norm
        self.taken = self.skipped = 0

        def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
            return criterion(model(inputs), targets)

        cast = dtype is not torch.float32
        self.loss_of = torch.amp.autocast(device.type, dtype=dtype)(loss_of) if cast else loss_of

    def window(self, batches: list[tuple[Tensor, Tensor]], epoch: _Epoch) -> bool:
        samples = sum(inputs.size(0) for inputs, _ in batches)
        for parameter in self.parameters:
            parameter.grad = None
        self.optimizer.zero_grad(set_to_none=True)
        weighted = torch.zeros((), dtype=torch.float64, device=self.device)
        while batches:
            inputs, targets = (part.to(self.device) for part in batches.pop(0))
            loss = self.loss_of(inputs, targets)
            weighted += loss.detach() * inputs.size(0)
            share = loss * inputs.size(0) / samples
            (share if self.scaler is None else self.scaler.scale(share)).backward()
        taken = self._step()
        self.taken += taken
        self.skipped += not taken
        if taken:
            epoch.add(weighted, samples)
        return taken

    def _step(self) -> bool:
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        finite = self.scaler is None or all(bool(gradient.isfinite().all()) for gradient in gradients)
        if self.max_grad_norm is not None:
            norm = nn.utils.get_total_norm(gradients)
            nn.utils.clip_grads_with_norm_(self.parameters, self.max_grad_norm, norm)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return finite


def _idle(device: torch.device) -> float:
    if device.type == "cuda":
        event = torch.cuda.Event()
        event.record()
        event.synchronize()
    return default_timer()


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
        raise ValueError(f"there is no training in {dtype} here")
    if min(epochs, accumulation_steps) < 1:
        raise ValueError(f"epochs and accumulation_steps start at 1, not at {epochs} and {accumulation_steps}")
    place = torch.device(device) if device is not None else next(model.parameters()).device
    model = model.train().to(place)
    scaled = dtype is torch.float16
    loop = _Loop(
        model,
        place,
        dtype,
        torch.optim.Adam(model.parameters()) if optimizer is None else optimizer,
        nn.functional.cross_entropy if criterion is None else criterion,
        (scaler or torch.amp.GradScaler(place.type)) if scaled else None,
        max_grad_norm,
    )
    on_gpu = place.type == "cuda"
    if on_gpu:
        torch.cuda.memory.reset_peak_memory_stats(place)
    began = _idle(place)
    losses = []
    for _ in range(epochs):
        epoch, window = _Epoch(place), []
        # All of an epoch's batches first: they are on the host, and small.
        every = list(train_loader)
        for number, batch in enumerate(every, start=1):
            window.append(batch)
            if number % accumulation_steps and number < len(every):
                continue
            if loop.window(window, epoch) and scheduler:
                scheduler.step()
            window = []
        losses.append(epoch.mean)
    ended = _idle(place)
    return AmpTraining(
        device=place.type,
        dtype=dtype_name(dtype),
        losses=tuple(losses),
        optimizer_steps=loop.taken,
        skipped_steps=loop.skipped,
        final_scale=float(loop.scaler.state_dict()["scale"]) if loop.scaler is not None else None,
        seconds=ended - began,
        peak_bytes=torch.cuda.memory_stats(place)["allocated_bytes.all.peak"] if on_gpu else None,
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
    place = torch.device(device) if device is not None else next(model.parameters()).device
    modes = {module: module.training for module in model.to(place).modules()}
    hits = [torch.zeros(0, dtype=torch.bool)]
    try:
        model.eval()
        for inputs, targets in loader:
            with torch.inference_mode(), torch.autocast(place.type, dtype, enabled=dtype is not torch.float32):
                logits = model(inputs.to(place))
            hits.append(logits.topk(1).indices.squeeze(-1).cpu() == targets.cpu())
    finally:
        for module, mode in modes.items():
            module.training = mode
    right = torch.cat(hits)
    if not len(right):
        raise ValueError("no sample to evaluate")
    return right.double().mean().item()


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
    figure, axes = plotting.new_figure("Loss of each precision", x_label="epoch", y_label="loss")
    axis = axes[0]
    longest = 0
    for number, training in enumerate(trainings):
        points = dict(enumerate(training.losses, start=1))
        longest = max(longest, *points)
        axis.semilogy(
            list(points),
            [float("nan") if loss is None else loss for loss in points.values()],
            linestyle=("solid", "dashed", "dotted")[number % 3],
            marker="os^"[number % 3],
            color=f"C{number}",
            label=training.dtype,
        )
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("")
    axis.set_xticks(range(1, longest + 1))
    axis.legend()
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
        written = save_json(options.out / "training.json", trainings, device.provenance())
        program.print_written(written, plot_losses(trainings, options.out / "training.png"))
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
