"""Closures and a generator of outcomes; contexts are entered and left by hand, and there is no class."""

import sys
from collections.abc import Iterable, Sequence
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
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"no precision of this lab: {dtype}")
    if epochs < 1 or accumulation_steps < 1:
        raise ValueError("counts start at 1")
    place = next(model.parameters()).device if device is None else torch.device(device)
    model.train()
    model.to(place)
    if optimizer is None:
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    if criterion is None:
        criterion = nn.functional.cross_entropy
    if dtype == torch.float16 and scaler is None:
        scaler = torch.amp.GradScaler(place.type)

    def parameters():
        return (one for group in optimizer.param_groups for one in group["params"] if one.grad is not None)

    def loss_of(x, y):
        if dtype == torch.float32:
            return criterion(model(x), y)
        context = torch.autocast(place.type, dtype=dtype)
        context.__enter__()
        try:
            return criterion(model(x), y)
        finally:
            context.__exit__(None, None, None)

    def plain_step():
        if max_grad_norm is not None:
            nn.utils.clip_grad_norm_(list(parameters()), max_grad_norm)
        optimizer.step()
        return True

    def scaled_step():
        scaler.unscale_(optimizer)
        fine = all(map(bool, (one.grad.isfinite().all() for one in parameters())))
        if fine:
            if max_grad_norm is not None:
                nn.utils.clip_grad_norm_(list(parameters()), max_grad_norm)
            scaler.step(optimizer)
        scaler.update()
        return fine

    step, enlarge = (scaled_step, scaler.scale) if dtype == torch.float16 else (plain_step, lambda loss: loss)

    def outcomes():
        window = []

        def close():
            samples = sum(len(y) for _, y in window)
            optimizer.zero_grad(set_to_none=True)
            total = 0.0
            for x, y in window:
                loss = loss_of(x.to(place), y.to(place))
                enlarge(loss * len(y) / samples).backward()
                total += loss.item() * len(y)
            window.clear()
            return step(), total, samples

        for batch in train_loader:
            window.append(batch)
            if len(window) == accumulation_steps:
                yield close()
        if window:
            yield close()

    reset_peak(place)
    start = now(place)
    curve, taken, skipped = [], 0, 0
    for _ in range(epochs):
        total = samples = 0
        for made, loss, size in outcomes():
            if made:
                taken, total, samples = taken + 1, total + loss, samples + size
                if scheduler is not None:
                    scheduler.step()
            else:
                skipped += 1
        curve.append(total / samples if samples else None)
    return AmpTraining(
        device=place.type,
        dtype=dtype_name(dtype),
        losses=tuple(curve),
        optimizer_steps=taken,
        skipped_steps=skipped,
        final_scale=scaler.get_scale() if dtype == torch.float16 else None,
        seconds=now(place) - start,
        peak_bytes=peak_bytes(place),
    )


def _autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)


def evaluate(
    model: nn.Module,
    loader: Batches,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> float:
    device = next(model.parameters()).device if device is None else torch.device(device)
    was_training = [(module, module.training) for module in model.modules()]
    model.to(device).eval()
    right, samples = 0, 0
    with torch.no_grad(), _autocast(device, dtype):
        for inputs, targets in loader:
            predicted = model(inputs.to(device)).argmax(dim=-1)
            right += int((predicted == targets.to(device)).sum().item())
            samples += len(targets)
    for module, training in was_training:
        module.training = training
    if samples == 0:
        raise ValueError("the loader has no samples")
    return right / samples


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
