"""Short."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from labkit import plotting, program
from labkit.device import open_device
from labkit.progress import track
from labkit.results import StabilityRun, save_json

from . import workloads
from .numerics import classify_gradients, find_nonfinite, trace_nonfinite
from .readings import dtype_name
from .workloads import HARMLESS, LARGE_ACTIVATIONS, LARGE_GRADIENTS, SMALL_GRADIENTS, UnstableModel

RESULTS = Path(__file__).parent / "results"
CASES = (
    (HARMLESS, torch.float32, False),
    (HARMLESS, torch.float16, True),
    (LARGE_GRADIENTS, torch.float16, True),
    (SMALL_GRADIENTS, torch.float16, False),
    (SMALL_GRADIENTS, torch.float16, True),
    (LARGE_ACTIVATIONS, torch.float16, True),
    (LARGE_ACTIVATIONS, torch.bfloat16, False),
)
"""What the program trains: gain, precision, and whether the loss is scaled."""


class DynamicLossScale:
    __slots__ = ("down", "every", "row", "scale", "up")

    def __init__(self, initial_scale=2.0**16, *, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        if not (initial_scale > 0 and growth_factor > 1 > backoff_factor > 0 and growth_interval >= 1):
            raise ValueError
        self.scale, self.up, self.down = float(initial_scale), growth_factor, backoff_factor
        self.every, self.row = growth_interval, 0

    def update(self, overflow):
        self.row = 0 if overflow else (self.row + 1) % self.every
        self.scale *= self.down if overflow else self.up if self.row == 0 else 1


def train_unstable(model, train_loader, epochs=5, *, device=None, dtype=torch.float16, loss_scale=None, optimizer=None):
    if epochs < 1:
        raise ValueError
    d = torch.device(device or next(model.parameters()).device)
    model.to(d).train()
    o = optimizer or torch.optim.Adam(model.parameters())
    log, bad = [], None
    for e in range(epochs):
        for x, _ in train_loader:
            x, s = x.to(d), loss_scale.scale if loss_scale else 1.0
            o.zero_grad()
            with torch.autocast(d.type, dtype, dtype != torch.float32):
                loss = nn.functional.mse_loss(model(x), x)
            (s * loss).backward()
            names = find_nonfinite(model)
            if names:
                bad = bad or (tuple(names), trace_nonfinite(model, x, dtype=dtype))
            else:
                [p.grad.div_(s) for p in model.parameters()]
                o.step()
            if loss_scale:
                loss_scale.update(bool(names))
            log.append((e, s, not names, loss.item(), len(x)))
    losses = []
    for e in range(epochs):
        good = [(v, n) for i, _, ok, v, n in log if ok and i == e]
        losses.append(sum(v * n for v, n in good) / sum(n for _, n in good) if good else None)
    steps = sum(ok for _, _, ok, _, _ in log)
    return StabilityRun(
        device=d.type,
        dtype=dtype_name(dtype),
        gain=model.gain,
        losses=tuple(losses),
        scales=tuple(s for _, s, _, _, _ in log),
        optimizer_steps=steps,
        skipped_steps=len(log) - steps,
        nonfinite_parameters=bad[0] if bad else (),
        nonfinite_layer=bad[1] if bad else None,
    )


def plot_runs(runs: Sequence[StabilityRun], path: Path | str) -> Path:
    figure, (axis,) = plotting.new_figure("The unstable model", x_label="epoch", y_label="mean loss")
    for index, run in enumerate(runs):
        scaled = "scaled" if _is_scaled(run) else "not scaled"
        losses = [float("nan") if loss is None else loss for loss in run.losses]
        axis.plot(
            range(1, len(losses) + 1),
            losses,
            ("-", "--", ":")[index % 3],
            color=plotting.COLORS[index % len(plotting.COLORS)],
            linewidth=1 + 0.6 * (len(runs) - index),  # runs that agree lie on each other: the first ones are wider
            label=f"gain {_gain(run)}, {run.dtype}, {scaled}: {run.skipped_steps} of {len(run.scales)} skipped",
        )
    axis.set_xticks(range(1, max(len(run.losses) for run in runs) + 1))
    axis.legend(frameon=False, fontsize=8)
    return plotting.save_png(figure, path)


def main(argv: Sequence[str] | None = None) -> int:
    parser = program.make_parser(__doc__ or "", results=RESULTS)
    parser.add_argument("--epochs", type=program.positive_int, default=5, metavar="N", help="of each training")
    options = parser.parse_args(argv)
    batches, _ = workloads.batches()
    images, _ = batches[0]
    runs, diagnoses = [], []
    with open_device(options.device) as device:
        place = torch.device(device.torch_device)
        for gain, dtype, scaled in track(CASES, "training"):
            loss_scale = DynamicLossScale() if scaled else None
            torch.manual_seed(workloads.SEED)
            model = UnstableModel(gain).to(place)
            diagnoses.append(_diagnose(model, images.to(place), dtype, loss_scale.scale if loss_scale else 1.0))
            runs.append(train_unstable(model, batches, options.epochs, dtype=dtype, loss_scale=loss_scale))
        _print(runs, diagnoses)
        program.print_written(
            save_json(options.out / "stability.json", runs, device.provenance()),
            plot_runs(runs, options.out / "stability.png"),
        )
    return 0


def _diagnose(model: UnstableModel, images: Tensor, dtype: torch.dtype, scale: float) -> str:
    return classify_gradients(_gradients(model, images, dtype, scale), _gradients(model, images, torch.float32, 1.0))


def _gradients(model: UnstableModel, images: Tensor, dtype: torch.dtype, scale: float) -> dict[str, Tensor]:
    with torch.autocast(images.device.type, dtype=dtype, enabled=dtype != torch.float32):
        loss = nn.functional.mse_loss(model(images), images)
    gradients = torch.autograd.grad(loss * scale, list(model.parameters()))
    return dict(zip((name for name, _ in model.named_parameters()), gradients, strict=True))


def _gain(run: StabilityRun) -> str:
    return f"2^{math.log2(run.gain):.0f}"


def _is_scaled(run: StabilityRun) -> bool:
    return any(scale != 1 for scale in run.scales)


def _print(runs: Sequence[StabilityRun], diagnoses: Sequence[str]) -> None:
    rows = []
    for run, diagnosis in zip(runs, diagnoses, strict=True):
        loss = run.losses[-1]
        rows.append(
            (
                _gain(run),
                run.dtype,
                diagnosis,
                run.skipped_steps,
                f"{run.scales[-1]:g}" if _is_scaled(run) else "-",
                run.nonfinite_layer or "-",
                "-" if loss is None else f"{loss:.3f}",
            )
        )
    columns = ("gain", "precision", "gradients", "skipped", "last scale", "bad layer", "loss")
    program.print_table("Training the unstable model", columns, rows)


if __name__ == "__main__":
    sys.exit(program.run(main))
