"""Short."""

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
    if dtype not in PRECISIONS.values() or min(epochs, accumulation_steps) < 1:
        raise ValueError
    d = torch.device(device or next(model.parameters()).device)
    model.to(d).train()
    o = optimizer or torch.optim.Adam(model.parameters())
    f = criterion or nn.functional.cross_entropy
    on = dtype == torch.float16
    g = (scaler if on else None) or torch.amp.GradScaler(d.type, enabled=on)
    losses, n, k = [], 0, 0
    reset_peak(d)
    t = now(d)
    for _ in range(epochs):
        a = []
        b = [*train_loader]
        for i in range(0, len(b), accumulation_steps):
            w = b[i : i + accumulation_steps]
            m = sum(len(y) for _, y in w)
            o.zero_grad()
            v = 0
            for x, y in w:
                with torch.autocast(d.type, dtype, dtype != torch.float32):
                    z = f(model(x.to(d)), y.to(d))
                g.scale(z * (len(y) / m)).backward()
                v = v + z.detach() * len(y)
            g.unscale_(o)
            if max_grad_norm is not None:
                nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], max_grad_norm)
            s = g.get_scale()
            g.step(o)
            g.update()
            ok = g.get_scale() >= s
            n, k = n + ok, k + (not ok)
            if ok:
                a.append((v, m))
                scheduler and scheduler.step()
        losses.append(float(sum(v for v, _ in a)) / sum(m for _, m in a) if a else None)
    t = now(d) - t
    return AmpTraining(
        device=d.type,
        dtype=dtype_name(dtype),
        losses=tuple(losses),
        optimizer_steps=n,
        skipped_steps=k,
        final_scale=g.get_scale() if on else None,
        seconds=t,
        peak_bytes=peak_bytes(d),
    )


def evaluate(model, loader, *, device=None, dtype=torch.float32):
    d = torch.device(device or next(model.parameters()).device)
    on = [m for m in model.to(d).modules() if m.training]
    model.eval()
    with torch.inference_mode(), torch.autocast(d.type, dtype, dtype != torch.float32):
        hits = [model(x.to(d)).argmax(1).eq(y.to(d)) for x, y in loader]
    for m in on:
        m.training = True
    if not hits:
        raise ValueError
    return torch.cat(hits).float().mean().item()


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
