"""The scale goes into backward as its first gradient; losses stay on the device until the epoch ends; a DataLoader."""

import functools
import math
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader

from labkit import plotting, program
from labkit.device import open_device
from labkit.results import AmpTraining, save_json

from . import workloads
from .readings import PRECISIONS, dtype_name, now, peak_bytes, reset_peak

Batches = DataLoader


def under(dtype, device):
    """Decorator: the function runs in autocast, if dtype asks for it."""
    if dtype == torch.float32:
        return lambda function: function
    return torch.autocast(device.type, dtype=dtype, cache_enabled=False)


def skipped_by(scaler, step):
    """Make the step and the update; whether it was left out."""
    old = scaler.get_scale()
    step()
    scaler.update()
    return scaler.get_scale() < old


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
    if not (epochs >= 1 and accumulation_steps >= 1 and dtype in list(PRECISIONS.values())):
        raise ValueError((epochs, accumulation_steps, dtype))
    model.train()
    device = torch.device(device or next(p.device for p in model.parameters()))
    model.to(device, non_blocking=True)
    optimizer = optimizer if optimizer is not None else torch.optim.Adam(model.parameters())
    criterion = criterion if criterion is not None else nn.CrossEntropyLoss(reduction="mean")
    half = dtype is torch.float16
    if half and scaler is None:
        scaler = torch.amp.GradScaler(device.type)

    @under(dtype, device)
    def loss_of(inputs, targets):
        return criterion(model(inputs), targets)

    tally = SimpleNamespace(taken=0, skipped=0, losses=[])
    reset_peak(device)
    began = now(device)
    for _ in range(epochs):
        # Everything of the epoch is known before it begins, so each window knows its length.
        everything = [(x.to(device, non_blocking=True), y.to(device, non_blocking=True)) for x, y in train_loader]
        total = torch.zeros((), dtype=torch.float64, device=device)
        samples = 0
        for first in range(0, len(everything), accumulation_steps):
            window = everything[first : first + accumulation_steps]
            sizes = [x.shape[0] for x, _ in window]
            window_total = torch.zeros_like(total)
            for (x, y), size in zip(window, sizes, strict=False):
                loss = loss_of(x, y)
                seed = torch.full_like(loss, size / sum(sizes))
                loss.backward(gradient=scaler.scale(seed) if half else seed)
                window_total += loss.detach() * size
            if max_grad_norm is not None:
                if half:
                    scaler.unscale_(optimizer)
                gradients = [p.grad for p in model.parameters() if p.grad is not None]
                norm = nn.utils.get_total_norm(gradients)
                nn.utils.clip_grads_with_norm_(model.parameters(), max_grad_norm, norm)
            if half and skipped_by(scaler, functools.partial(scaler.step, optimizer)):
                tally.skipped += 1
            else:
                if not half:
                    optimizer.step()
                tally.taken += 1
                total += window_total
                samples += sum(sizes)
                if scheduler is not None:
                    scheduler.step()
            optimizer.zero_grad(set_to_none=False)
        tally.losses.append(total.item() / samples if samples > 0 else None)
    ended = now(device)
    return AmpTraining(
        device=str(device.type),
        dtype=dtype_name(dtype),
        losses=tuple(tally.losses),
        optimizer_steps=tally.taken,
        skipped_steps=tally.skipped,
        final_scale=scaler.get_scale() if half else None,
        seconds=ended - began,
        peak_bytes=peak_bytes(device),
    )


def evaluate(model, loader, *, device=None, dtype=torch.float32):
    device = torch.device(device or next(model.parameters()).device)
    model.to(device)
    with ExitStack() as stack:
        for module in model.modules():
            stack.callback(setattr, module, "training", module.training)
        model.eval()
        stack.enter_context(torch.inference_mode())
        predict = under(dtype, device)(model.forward)
        hits, count = torch.zeros((), dtype=torch.long, device=device), 0
        for x, y in loader:
            hits += (predict(x.to(device)).softmax(-1).argmax(-1) == y.to(device)).sum()
            count += y.numel()
        if count == 0:
            raise ValueError("no samples to evaluate on")
        return int(hits) / count


def plot_losses(trainings, path):
    figure, (axis,) = plotting.new_figure("Losses", x_label="epoch")
    for training in trainings:
        axis.plot([math.nan if loss is None else loss for loss in training.losses], marker=".", label=training.dtype)
    axis.legend(loc="upper right")
    return plotting.save_png(figure, path)


class Pairs(torch.utils.data.Dataset):
    def __init__(self, batches):
        self.images, self.labels = (torch.cat(parts) for parts in zip(*batches, strict=False))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def main(argv=None):
    parser = program.make_parser("Training in each precision", results=Path(__file__).parent / "results")
    workloads.add_training_options(parser)
    options = parser.parse_args(argv)
    train, test = workloads.batches(options.data, data_dir=options.data_dir)
    loader = DataLoader(Pairs(train), batch_size=workloads.BATCH_SIZE, shuffle=True)
    trainings = []
    with open_device(options.device) as device:
        for name in options.precisions:
            torch.manual_seed(0)
            model = workloads.classifier(workloads.pixels(train))
            trainings.append(
                train_with_amp(model, loader, options.epochs, device=device.torch_device, dtype=PRECISIONS[name])
            )
            print(f"{name}: {evaluate(model, DataLoader(Pairs(test), batch_size=64), dtype=PRECISIONS[name]):.2%}")
        paths = (
            save_json(options.out / "training.json", trainings, device.provenance()),
            plot_losses(trainings, options.out / "training.png"),
        )
        program.print_written(*paths)
    return 0


if __name__ == "__main__":
    raise SystemExit(program.run(main))
