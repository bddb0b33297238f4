"""A loss scale made of properties; the unstable model trained by torch.autograd.grad, one record per batch."""

import math
from collections import namedtuple
from pathlib import Path

import torch
from torch.nn import functional

from labkit import plotting, program
from labkit.device import open_device
from labkit.results import StabilityRun, save_json

from . import workloads
from .numerics import find_nonfinite, trace_nonfinite
from .workloads import HARMLESS, LARGE_ACTIVATIONS, LARGE_GRADIENTS, SMALL_GRADIENTS, UnstableModel

CASES = [
    (HARMLESS, "float32", False),
    (HARMLESS, "float16", True),
    (LARGE_GRADIENTS, "float16", True),
    (SMALL_GRADIENTS, "float16", False),
    (SMALL_GRADIENTS, "float16", True),
    (LARGE_ACTIVATIONS, "float16", True),
    (LARGE_ACTIVATIONS, "bfloat16", False),
]
Record = namedtuple("Record", "scale taken loss samples")


class DynamicLossScale:
    def __init__(self, initial_scale=65536.0, *, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        for fine, what in (
            (initial_scale > 0, "initial_scale"),
            (growth_factor > 1, "growth_factor"),
            (0 < backoff_factor < 1, "backoff_factor"),
            (growth_interval >= 1, "growth_interval"),
        ):
            if not fine:
                raise ValueError(f"{what} is out of range")
        self._initial, self._factors, self._interval = initial_scale, (growth_factor, backoff_factor), growth_interval
        self._history = []  # (growths, backoffs)
        self._since = 0

    @property
    def scale(self):
        growth, backoff = self._factors
        return float(self._initial * math.prod(growth if up else backoff for up in self._history))

    def update(self, overflow):
        self._since = 0 if overflow else self._since + 1
        if overflow:
            self._history.append(False)
        elif self._since % self._interval == 0:
            self._history.append(True)


def train_unstable(model, train_loader, epochs=5, *, device=None, dtype=torch.float16, loss_scale=None, optimizer=None):
    if epochs < 1:
        raise ValueError("at least one epoch, please")
    model = model.to(device if device is not None else next(model.parameters()).device).train()
    place = next(model.parameters()).device
    if optimizer is None:
        optimizer = torch.optim.Adam(model.parameters())
    epochs_of_records, bad, layer = [], None, None
    for _ in range(epochs):
        records = []
        for images, _ in train_loader:
            images = images.to(place)
            scale = 1.0 if loss_scale is None else loss_scale.scale
            with torch.autocast(
                place.type, torch.bfloat16 if dtype == torch.float32 else dtype, dtype != torch.float32
            ):
                loss = functional.mse_loss(model(images), images)
            parameters = list(model.parameters())
            for parameter, gradient in zip(
                parameters, torch.autograd.grad(loss, parameters, torch.full_like(loss, scale)), strict=False
            ):
                parameter.grad = gradient
            names = find_nonfinite(model)
            if names and bad is None:
                bad, layer = names, trace_nonfinite(model, images, dtype=dtype)
            if not names:
                torch._foreach_mul_([p.grad for p in parameters], 1 / scale)
                optimizer.step()
            if loss_scale is not None:
                loss_scale.update(overflow=len(names) > 0)
            records.append(Record(scale, not names, loss.detach(), images.shape[0]))
        epochs_of_records.append(records)
    losses = []
    for records in epochs_of_records:
        good = [record for record in records if record.taken]
        count = sum(record.samples for record in good)
        losses.append(sum(float(record.loss) * record.samples for record in good) / count if good else None)
    flat = [record for records in epochs_of_records for record in records]
    return StabilityRun(
        device=place.type,
        dtype=str(dtype).replace("torch.", ""),
        gain=model.gain,
        losses=tuple(losses),
        scales=tuple(record.scale for record in flat),
        optimizer_steps=sum(record.taken for record in flat),
        skipped_steps=sum(not record.taken for record in flat),
        nonfinite_parameters=tuple(bad or ()),
        nonfinite_layer=layer,
    )


def plot_runs(runs, path):
    figure, (axis,) = plotting.new_figure("Unstable")
    for run in runs:
        axis.plot([math.nan if loss is None else loss for loss in run.losses], label=f"{run.gain:g} {run.dtype}")
    axis.legend()
    return plotting.save_png(figure, path)


def main(argv=None):
    parser = program.make_parser("Unstable model", results=Path(__file__).parent / "results")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args(argv)
    train, _ = workloads.batches()
    with open_device(options.device) as device:
        runs = []
        for gain, name, scaled in CASES:
            torch.manual_seed(2)
            runs.append(
                train_unstable(
                    UnstableModel(gain),
                    train,
                    options.epochs,
                    device=device.torch_device,
                    dtype=getattr(torch, name),
                    loss_scale=DynamicLossScale() if scaled else None,
                )
            )
        program.print_written(
            save_json(options.out / "stability.json", runs, device.provenance()),
            plot_runs(runs, options.out / "stability.png"),
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(program.run(main))
