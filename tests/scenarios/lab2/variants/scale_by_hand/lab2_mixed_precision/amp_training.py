"""Bfloat16 first: no GradScaler anywhere. Float16 gets a scale that is a plain number, looked after by hand."""

import contextlib
import time
from pathlib import Path

import torch
from torch import nn

from labkit import plotting, program
from labkit.device import open_device
from labkit.results import AmpTraining, save_json

from . import workloads
from .readings import now, peak_bytes, reset_peak

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
Batches = object
RESULTS = Path(__file__).parent / "results"


def low_precision(device, dtype):
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device_type=device.type, dtype=dtype)


class HandScale:
    """What GradScaler does, on the host. The settings come from the scaler that was given, if any."""

    def __init__(self, dtype, scaler):
        self.active = dtype == torch.float16
        self.value = 1.0
        self.good = 0
        if self.active:
            self.value = scaler.get_scale() if scaler is not None else 65536.0
            self.up = scaler.get_growth_factor() if scaler is not None else 2.0
            self.down = scaler.get_backoff_factor() if scaler is not None else 0.5
            self.every = scaler.get_growth_interval() if scaler is not None else 2000

    def feedback(self, overflowed):
        if not self.active:
            return
        if overflowed:
            self.value, self.good = self.value * self.down, 0
        else:
            self.good += 1
            if self.good >= self.every:
                self.value, self.good = self.value * self.up, 0


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
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise ValueError("dtype")
    if min(epochs, accumulation_steps) < 1:
        raise ValueError("epochs, accumulation_steps")
    parameters = list(model.parameters())
    device = torch.device(device) if device else parameters[0].device
    model.to(device)
    model.train(True)
    optimizer = optimizer or torch.optim.Adam(parameters)
    criterion = criterion or nn.functional.cross_entropy
    scale = HandScale(dtype, scaler)
    losses, counts = [], {"taken": 0, "skipped": 0}

    def window_step(window):
        """Gradients of the whole window, one step; returns the sum of its losses and its samples, if taken."""
        total = sum(len(inputs) for inputs, _ in window)
        optimizer.zero_grad(set_to_none=True)
        value = 0.0
        for inputs, targets in window:
            with low_precision(device, dtype):
                loss = criterion(model(inputs.to(device)), targets.to(device))
            torch.autograd.backward(loss * (scale.value * len(inputs) / total))
            value += loss.item() * len(inputs)
        gradients = [p.grad for p in parameters if p.grad is not None]
        for gradient in gradients:
            gradient.div_(scale.value)
        overflowed = scale.active and not all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        if not overflowed:
            if max_grad_norm is not None:
                nn.utils.clip_grad_norm_(parameters, max_grad_norm)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
        scale.feedback(overflowed)
        counts["skipped" if overflowed else "taken"] += 1
        return (0.0, 0) if overflowed else (value, total)

    reset_peak(device)
    begin = now(device)
    for _ in range(epochs):
        done, window = [], []
        for batch in train_loader:
            window.append(batch)
            if len(window) == accumulation_steps:
                done.append(window_step(window))
                window = []
        if window:
            done.append(window_step(window))
        samples = sum(count for _, count in done)
        losses.append(sum(value for value, _ in done) / samples if samples else None)
    end = now(device)
    return AmpTraining(
        device=device.type,
        dtype=str(dtype).removeprefix("torch."),
        losses=tuple(losses),
        optimizer_steps=counts["taken"],
        skipped_steps=counts["skipped"],
        final_scale=scale.value if scale.active else None,
        seconds=end - begin,
        peak_bytes=peak_bytes(device),
    )


def evaluate(model, loader, *, device=None, dtype=torch.float32):
    device = torch.device(device) if device else next(model.parameters()).device
    before = [(part, part.training) for part in model.modules()]
    model.to(device).train(False)
    right = seen = 0
    with torch.inference_mode(), low_precision(device, dtype):
        for inputs, targets in loader:
            right += (model(inputs.to(device)).argmax(-1) == targets.to(device)).sum()
            seen += targets.numel()
    for part, training in before:
        part.training = training
    if not seen:
        raise ValueError("empty loader")
    return float(right) / seen


def plot_losses(trainings, path):
    figure, (axis,) = plotting.new_figure("losses", x_label="epoch", y_label="loss")
    for training in trainings:
        axis.plot(training.losses, label=training.dtype)
    axis.legend()
    return plotting.save_png(figure, path)


def main(argv=None):
    parser = program.make_parser("Train in each precision.", results=RESULTS)
    workloads.add_training_options(parser)
    options = parser.parse_args(argv)
    train, test = workloads.batches(options.data, data_dir=options.data_dir)
    with open_device(options.device) as device:
        trainings = []
        for dtype in map(PRECISIONS.get, options.precisions):
            model = workloads.classifier(workloads.pixels(train))
            start = time.time()
            trainings.append(train_with_amp(model, train, options.epochs, device=device.torch_device, dtype=dtype))
            print(dtype, evaluate(model, test, dtype=dtype), time.time() - start)
        save_json(options.out / "training.json", trainings, device.provenance())
        plot_losses(trainings, options.out / "training.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(program.run(main))
