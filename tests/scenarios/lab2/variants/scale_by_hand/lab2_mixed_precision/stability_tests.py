"""A loss scale that counts down to its next growth; a training loop over the gradients as one flat vector."""

import math
from pathlib import Path

import torch
from torch.nn import functional

from labkit import plotting, program
from labkit.device import open_device
from labkit.results import StabilityRun, save_json

from . import workloads
from .numerics import find_nonfinite, trace_nonfinite
from .workloads import LARGE_ACTIVATIONS, LARGE_GRADIENTS, SMALL_GRADIENTS, UnstableModel


class DynamicLossScale:
    def __init__(self, initial_scale=2.0**16, *, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        for value, holds in (
            (initial_scale, initial_scale > 0),
            (growth_factor, growth_factor > 1),
            (backoff_factor, 0 < backoff_factor < 1),
            (growth_interval, growth_interval >= 1),
        ):
            if not holds:
                raise ValueError(f"{value} is out of range")
        self._exponent_free_scale = float(initial_scale)
        self._factors = {True: float(backoff_factor), False: float(growth_factor)}
        self._interval = self._until_growth = growth_interval

    @property
    def scale(self):
        return self._exponent_free_scale

    def update(self, overflow):
        self._until_growth = self._interval if overflow else self._until_growth - 1
        if overflow or self._until_growth == 0:
            self._exponent_free_scale *= self._factors[bool(overflow)]
            self._until_growth = self._interval


def train_unstable(model, train_loader, epochs=5, *, device=None, dtype=torch.float16, loss_scale=None, optimizer=None):
    if epochs < 1:
        raise ValueError("epochs")
    device = torch.device(device or next(model.parameters()).device)
    model.to(device)
    model.train()
    if optimizer is None:
        optimizer = torch.optim.Adam(model.parameters())
    scales, outcomes, losses = [], [], []
    culprits, layer = (), None
    for _ in range(epochs):
        weighed, weight = 0.0, 0
        for images, _labels in train_loader:
            images = images.to(device)
            optimizer.zero_grad()
            scales.append(1.0 if loss_scale is None else loss_scale.scale)
            if dtype is torch.float32:
                loss = functional.mse_loss(model(images), images)
            else:
                with torch.autocast(device.type, dtype):
                    loss = functional.mse_loss(model(images), images)
            loss.mul(scales[-1]).backward()
            flat = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
            bad = not math.isfinite(flat.abs().max().item())
            if bad and all(outcomes):
                culprits = tuple(find_nonfinite(model))
                layer = trace_nonfinite(model, images, dtype=dtype)
            if not bad:
                flat /= scales[-1]
                torch.nn.utils.vector_to_parameters(flat, [p.grad for p in model.parameters()])
                optimizer.step()
                weighed += float(loss) * images.shape[0]
                weight += images.shape[0]
            outcomes.append(not bad)
            if loss_scale is not None:
                loss_scale.update(bad)
        losses.append(weighed / weight if weight else None)
    return StabilityRun(
        device=device.type,
        dtype=str(dtype).split(".")[1],
        gain=float(model.gain),
        losses=tuple(losses),
        scales=tuple(scales),
        optimizer_steps=sum(outcomes),
        skipped_steps=outcomes.count(False),
        nonfinite_parameters=culprits,
        nonfinite_layer=layer,
    )


def plot_runs(runs, path):
    figure, (axis,) = plotting.new_figure("unstable", x_label="epoch", y_label="loss")
    for run in runs:
        axis.plot([math.nan if loss is None else loss for loss in run.losses], label=f"{run.gain:g} {run.dtype}")
    axis.legend()
    return plotting.save_png(figure, path)


def main(argv=None):
    parser = program.make_parser("Train the unstable model.", results=Path(__file__).parent / "results")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args(argv)
    train, _ = workloads.batches()
    with open_device(options.device) as device:
        runs = [
            train_unstable(
                UnstableModel(gain),
                train,
                options.epochs,
                device=device.torch_device,
                dtype=dtype,
                loss_scale=DynamicLossScale() if dtype is torch.float16 else None,
            )
            for gain in (LARGE_GRADIENTS, SMALL_GRADIENTS, LARGE_ACTIVATIONS)
            for dtype in (torch.float16, torch.bfloat16)
        ]
        program.print_written(
            save_json(options.out / "stability.json", runs, device.provenance()),
            plot_runs(runs, options.out / "stability.png"),
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(program.run(main))
