"""Gradients stay where they are: filled with zeros, divided and clipped in place; a batch is fetched ahead."""

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


def ahead(loader, device):
    queue = []
    for x, y in loader:
        queue.append((x.to(device, non_blocking=True), y.to(device, non_blocking=True)))
        if len(queue) == 2:
            yield (*queue.pop(0), False)
    if queue:
        yield (*queue.pop(0), True)


def clip_in_place(gradients, limit):
    norm = sum(gradient.float().square().sum() for gradient in gradients).sqrt()
    for gradient in gradients:
        gradient.mul_(torch.clamp(limit / (norm + 1e-6), max=1.0))


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
    if dtype not in list(PRECISIONS.values()):
        raise ValueError(f"dtype {dtype}")
    if epochs < 1 or accumulation_steps < 1:
        raise ValueError(f"epochs {epochs}, accumulation_steps {accumulation_steps}")
    if device is None:
        device = next(model.parameters()).device
    device = torch.device(device)
    for module in model.modules():
        module.train()
    model.to(device)
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = optimizer or torch.optim.Adam(trained, foreach=False, fused=False)
    criterion = criterion or nn.CrossEntropyLoss()
    scaled = dtype == torch.float16
    if scaled:
        scaler = scaler or torch.amp.GradScaler(device.type)
    result = {"losses": [], "optimizer_steps": 0, "skipped_steps": 0}
    reset_peak(device)
    start = now(device)
    for one in trained:
        one.grad = torch.zeros_like(one)
    for _ in range(epochs):
        epoch_loss = torch.zeros((), device=device)
        epoch_samples = 0
        window_loss, sizes = torch.zeros_like(epoch_loss), []
        for x, y, last in ahead(train_loader, device):
            with _autocast(device, dtype):
                loss = criterion(model(x), y)
            whole = loss * y.shape[0]  # of all samples; divided when their number is known
            (scaler.scale(whole) if scaled else whole).backward()
            window_loss += whole.detach()
            sizes.append(y.shape[0])
            if len(sizes) < accumulation_steps and not last:
                continue
            for one in trained:
                one.grad.div_(sum(sizes))
            taken = True
            if scaled:
                scaler.unscale_(optimizer)
            if max_grad_norm is not None:
                clip_in_place([one.grad for one in trained], max_grad_norm)
            if scaled:
                before = scaler.get_scale()
                scaler.step(optimizer)
                scaler.update()
                taken = not scaler.get_scale() < before
            else:
                optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            result["optimizer_steps" if taken else "skipped_steps"] += 1
            if taken:
                epoch_loss += window_loss
                epoch_samples += sum(sizes)
                if scheduler is not None:
                    scheduler.step()
            window_loss, sizes = torch.zeros_like(epoch_loss), []
        result["losses"].append(epoch_loss.item() / epoch_samples if epoch_samples else None)
    result["losses"] = tuple(result["losses"])
    return AmpTraining(
        **result,
        device=device.type,
        dtype=dtype_name(dtype),
        final_scale=scaler.get_scale() if scaled else None,
        seconds=now(device) - start,
        peak_bytes=peak_bytes(device),
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
