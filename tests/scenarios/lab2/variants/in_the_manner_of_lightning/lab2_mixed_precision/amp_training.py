"""A module that knows its steps, plugins for precision, callbacks that count: the trainer only calls hooks."""

import itertools
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
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


class Precision:
    def __init__(self, kind, dtype):
        self.kind, self.dtype = kind, dtype

    def forward_context(self):
        return nullcontext() if self.dtype == torch.float32 else torch.autocast(self.kind, dtype=self.dtype)

    def backward(self, loss):
        loss.backward()

    def before_clipping(self, optimizer):
        pass

    def optimizer_step(self, optimizer):
        optimizer.step()
        return True

    @property
    def scale(self):
        return None


class HalfPrecision(Precision):
    def __init__(self, kind, scaler):
        super().__init__(kind, torch.float16)
        self.scaler = scaler if scaler is not None else torch.amp.GradScaler(kind)

    def backward(self, loss):
        self.scaler.scale(loss).backward()

    def before_clipping(self, optimizer):
        self.scaler.unscale_(optimizer)

    def optimizer_step(self, optimizer):
        before = self.scaler.get_scale()
        self.scaler.step(optimizer)
        self.scaler.update()
        return before <= self.scaler.get_scale()

    @property
    def scale(self):
        return self.scaler.get_scale()


class LossMeter:
    def __init__(self):
        self.epochs, self.taken, self.skipped = [], 0, 0

    def on_epoch_start(self):
        self.total = self.count = 0

    def on_step(self, taken, outputs):
        self.taken += taken
        self.skipped += not taken
        if taken:
            self.total += sum(float(loss) * size for loss, size in outputs)
            self.count += sum(size for _, size in outputs)

    def on_epoch_end(self):
        self.epochs.append(self.total / self.count if self.count else None)


class Fit:
    def __init__(self, model, device, precision, optimizer, criterion, scheduler, clip, every):
        self.model, self.device, self.precision, self.optimizer = model, device, precision, optimizer
        self.criterion, self.scheduler, self.clip, self.every = criterion, scheduler, clip, every

    def training_step(self, batch):
        x, y = (part.to(self.device) for part in batch)
        with self.precision.forward_context():
            return self.criterion(self.model(x), y)

    def run_window(self, window):
        self.optimizer.zero_grad()
        size = sum(y.shape[0] for _, y in window)
        outputs = []
        for batch in window:
            loss = self.training_step(batch)
            self.precision.backward(loss * batch[1].shape[0] / size)
            outputs.append((loss.detach(), batch[1].shape[0]))
        self.precision.before_clipping(self.optimizer)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        taken = self.precision.optimizer_step(self.optimizer)
        if taken and self.scheduler is not None:
            self.scheduler.step()
        return taken, outputs

    def run(self, loader, epochs, meter):
        for _ in range(epochs):
            meter.on_epoch_start()
            iterator = iter(loader)
            while window := list(itertools.islice(iterator, self.every)):
                meter.on_step(*self.run_window(window))
            meter.on_epoch_end()


def train_with_amp(
    model,
    train_loader,
    epochs=10,
    *,
    device=None,
    dtype=torch.float16,
    optimizer=None,
    criterion=None,
    scheduler=None,
    scaler=None,
    max_grad_norm=None,
    accumulation_steps=1,
):
    if dtype not in PRECISIONS.values() or epochs < 1 or accumulation_steps < 1:
        raise ValueError("dtype, epochs or accumulation_steps")
    device = torch.device(device) if device is not None else next(model.parameters()).device
    model.to(device).train()
    half = dtype == torch.float16
    precision = HalfPrecision(device.type, scaler) if half else Precision(device.type, dtype)
    fit = Fit(
        model,
        device,
        precision,
        optimizer or torch.optim.Adam(model.parameters()),
        criterion or nn.CrossEntropyLoss(),
        scheduler,
        max_grad_norm,
        accumulation_steps,
    )
    meter = LossMeter()
    reset_peak(device)
    began = now(device)
    fit.run(train_loader, epochs, meter)
    return AmpTraining(
        device=device.type,
        dtype=dtype_name(dtype),
        losses=tuple(meter.epochs),
        optimizer_steps=meter.taken,
        skipped_steps=meter.skipped,
        final_scale=precision.scale,
        seconds=now(device) - began,
        peak_bytes=peak_bytes(device),
    )


class Evaluating:
    def __init__(self, model):
        self.model = model

    def __enter__(self):
        self.modes = {name: part.training for name, part in self.model.named_modules()}
        self.model.eval()

    def __exit__(self, *_):
        for name, mode in self.modes.items():
            self.model.get_submodule(name).training = mode


def evaluate(model, loader, *, device=None, dtype=torch.float32):
    device = torch.device(device) if device is not None else next(model.parameters()).device
    model.to(device)
    right = count = 0
    with Evaluating(model), torch.no_grad(), Precision(device.type, dtype).forward_context():
        for x, y in loader:
            right += (model(x.to(device)).argmax(dim=1).cpu() == y).sum().item()
            count += y.shape[0]
    if not count:
        raise ValueError("no samples")
    return right / count


def plot_losses(trainings: Sequence[AmpTraining], path: Path | str) -> Path:
    #    LogLocator(subs=(1, 2, 5)) puts enough numbers on it.
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


def main(argv: Sequence[str] | None = None) -> int:
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
        # 1. Save the trainings with save_json as OUT/training.json, with device.provenance().
        # 2. Draw OUT/training.png with plot_losses.
        # 3. Print both paths with program.print_written.
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
