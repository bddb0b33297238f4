"""Gradients as values: torch.autograd.grad instead of backward(), sums in lists, handed to the scaler at the end."""

import math
import time
from collections import deque
from pathlib import Path

import torch
from torch.nn import functional

from labkit import plotting, program
from labkit.device import open_device
from labkit.progress import track
from labkit.results import AmpTraining, save_json

from . import workloads
from .readings import PRECISIONS

Batches = list


def windows_of(loader, length):
    waiting = deque()
    for pair in loader:
        waiting.append(pair)
        if len(waiting) == length:
            yield tuple(waiting)
            waiting.clear()
    if waiting:
        yield tuple(waiting)


def window_gradient(forward, criterion, parameters, window, device, cast, factor):
    """Mean loss of the window, and the gradient of `factor` times that mean, parameter by parameter."""
    samples = sum(targets.size(0) for _, targets in window)
    sums, mean = [torch.zeros_like(p) for p in parameters], 0.0
    for inputs, targets in window:
        with cast():
            part = criterion(forward(inputs.to(device)), targets.to(device))
        share = targets.size(0) / samples
        parts = torch.autograd.grad(part * factor * share, parameters, allow_unused=True)
        for total, gradient in zip(sums, parts, strict=True):
            if gradient is not None:
                total += gradient
        mean += part.item() * share
    return mean, sums, samples


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
    match dtype:
        case torch.float16:
            mixed, scaled = True, True
        case torch.bfloat16:
            mixed, scaled = True, False
        case torch.float32:
            mixed, scaled = False, False
        case _:
            raise ValueError(f"{dtype} is no precision of this lab")
    if epochs < 1:
        raise ValueError("epochs must be at least 1")
    if accumulation_steps < 1:
        raise ValueError("accumulation_steps must be at least 1")

    if device is None:
        device = next(iter(model.parameters())).device
    device = torch.device(device)
    model.to(device)
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    if optimizer is None:
        optimizer = torch.optim.Adam(model.parameters())
    if criterion is None:
        criterion = functional.cross_entropy
    if scaled and scaler is None:
        scaler = torch.amp.GradScaler(device=device.type)

    def cast():
        return torch.autocast(device.type, dtype=dtype if mixed else torch.bfloat16, enabled=mixed)

    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.synchronize(device)
    clock = time.perf_counter()
    epoch_losses, steps, overflows = [], 0, 0
    for _ in range(epochs):
        numerator = denominator = 0
        for window in windows_of(train_loader, accumulation_steps):
            factor = scaler.get_scale() if scaled else 1.0
            loss, gradients, samples = window_gradient(model, criterion, parameters, window, device, cast, factor)
            for parameter, gradient in zip(parameters, gradients, strict=False):
                parameter.grad = gradient
            finite = True
            if scaled:
                scaler.scale(torch.ones((), device=device))  # the scaler refuses to work before its first scale()
                scaler.unscale_(optimizer)
                finite = all(math.isfinite(p.grad.abs().max().item()) for p in parameters)
            if max_grad_norm is not None and finite:
                torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
            if scaled:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            for parameter in parameters:
                parameter.grad = None
            if not finite:
                overflows += 1
                continue
            steps += 1
            numerator += loss * samples
            denominator += samples
            if scheduler:
                scheduler.step()
        epoch_losses.append(numerator / denominator if denominator else None)
    if on_gpu:
        torch.cuda.synchronize(device)
    clock = time.perf_counter() - clock

    return AmpTraining(
        device=device.type,
        dtype=f"{dtype}".split(".")[-1],
        losses=tuple(epoch_losses),
        optimizer_steps=steps,
        skipped_steps=overflows,
        final_scale=scaler.get_scale() if scaled else None,
        seconds=clock,
        peak_bytes=torch.cuda.max_memory_allocated(device) if on_gpu else None,
    )


def evaluate(model, loader, *, device=None, dtype=torch.float32):
    place = next(model.parameters()).device if device is None else device
    model = model.to(place)
    training = {name for name, module in model.named_modules() if module.training}
    predictions, labels = [], []
    try:
        model.eval()
        with torch.no_grad():
            for inputs, targets in loader:
                if dtype is torch.float32:
                    logits = model(inputs.to(place))
                else:
                    with torch.autocast(torch.device(place).type, dtype):
                        logits = model(inputs.to(place))
                predictions.append(logits.max(dim=1).indices.cpu())
                labels.append(targets)
    finally:
        for name, module in model.named_modules():
            module.training = name in training
    if not labels or not sum(map(len, labels)):
        raise ValueError("nothing to evaluate on")
    return torch.cat(predictions).eq(torch.cat(labels)).double().mean().item()


def plot_losses(trainings, path):
    figure, axes = plotting.new_figure("Loss")
    for training in trainings:
        values = [math.nan if loss is None else loss for loss in training.losses]
        axes[0].semilogy(values, "o-", label=training.dtype)
    axes[0].legend()
    return plotting.save_png(figure, path)


def main(argv=None):
    parser = program.make_parser("AMP training", results=Path(__file__).parent / "results")
    workloads.add_training_options(parser)
    args = parser.parse_args(argv)
    train, test = workloads.batches(args.data, data_dir=args.data_dir)
    trainings = []
    with open_device(args.device) as device:
        for name in track(args.precisions, "training"):
            model = workloads.classifier(workloads.pixels(train))
            trainings.append(
                train_with_amp(model, train, args.epochs, device=device.torch_device, dtype=PRECISIONS[name])
            )
            print(name, evaluate(model, test, dtype=PRECISIONS[name]))
        a = save_json(args.out / "training.json", trainings, device.provenance())
    program.print_written(a, plot_losses(trainings, args.out / "training.png"))
    return 0


if __name__ == "__main__":
    raise SystemExit(program.run(main))
