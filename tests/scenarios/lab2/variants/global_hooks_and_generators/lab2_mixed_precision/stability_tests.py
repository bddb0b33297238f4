"""Task 2.2: a model that 16 bits break, and a loss scale that adapts, written by hand.

By hand once, to see how it works; for real training there is `torch.amp.GradScaler` (amp_training.py).

Run: python -m labs.lab2_mixed_precision.stability_tests
"""

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
from .amp_training import Batches
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
    """A loss scale that shrinks when gradients overflow and grows when they have not for a while.

    Source: Micikevicius et al. 2018 (arXiv:1710.03740), section 3.2; the rule is that of `torch.amp.GradScaler`.

    Args:
        initial_scale: to begin with; above 0.
        growth_factor: above 1.
        backoff_factor: between 0 and 1.
        growth_interval: good steps in a row before it grows; at least 1.

    Attributes:
        scale: the current scale, a float. The loss is multiplied by it before backward.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        initial_scale: float = 2.0**16,
        *,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        """Begin with `initial_scale` and no good step."""
        for name, value, lowest, highest in (
            ("initial_scale", initial_scale, 0.0, math.inf),
            ("growth_factor", growth_factor, 1.0, math.inf),
            ("backoff_factor", backoff_factor, 0.0, 1.0),
            ("growth_interval", growth_interval, 0, math.inf),
        ):
            if not lowest < value < highest:
                raise ValueError(f"{name} = {value} is not between {lowest} and {highest}")
        self.factors = {True: backoff_factor, False: growth_factor}
        self.interval, self.left = growth_interval, growth_interval
        self.scale = 1.0 * initial_scale

    def update(self, overflow: bool) -> None:
        """Adapt the scale; call it once per step, taken or skipped.

        After an overflow the scale is multiplied by backoff_factor at once, and the count of good steps starts again.
        Else, when `growth_interval` good steps have followed each other, it is multiplied by growth_factor, and the
        count starts again.

        Args:
            overflow: whether gradients were not finite, so that the step was skipped.
        """
        self.left -= 1
        if overflow or self.left == 0:
            self.scale, self.left = self.scale * self.factors[overflow], self.interval


def train_unstable(
    model: UnstableModel,
    train_loader: Batches,
    epochs: int = 5,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float16,
    loss_scale: DynamicLossScale | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> StabilityRun:
    """Train the unstable model to reconstruct images, and write down what goes wrong; loss scaling by hand.

    For each batch: gradients to None; forward and loss, the mean squared difference between output and images
    (`torch.nn.functional.mse_loss`), in autocast; backward of loss * scale, outside of it; look for
    gradients that are not finite. If there are any, the step is skipped, and no parameter changes. Else gradients are
    divided by the scale and the optimizer makes its step. Then the scale is updated.

    Args:
        model: moved to the device, put into training mode and trained in place.
        train_loader: batches (images [N, 1, 8, 8], labels [N]); N may differ. Labels are not used.
        epochs: how often to go through it.
        device: where to train; None: where the model's parameters are.
        dtype: of autocast; torch.float32: no autocast.
        loss_scale: asked for the scale of each batch and updated once per batch; None: the scale is always 1. Also
            then steps with gradients that are not finite are skipped.
        optimizer: None: `torch.optim.Adam(model.parameters())`.

    Returns:
        A `StabilityRun`. `losses` are unscaled, the mean over the samples of the steps that were taken in each epoch
        (None if there were none). On the first skipped step `nonfinite_parameters` is what `find_nonfinite` says, and
        `nonfinite_layer` what `trace_nonfinite` says of that batch: a layer if forward failed already, None if only
        backward did.

    Raises:
        ValueError: `epochs` is below 1.
    """
    if epochs <= 0:
        raise ValueError(f"at least one epoch, not {epochs}")
    if device is None:
        device = next(model.parameters()).device
    device = torch.device(device)
    model.train().to(device)
    if optimizer is None:
        optimizer = torch.optim.Adam(model.parameters())
    scales: list[float] = []
    per_epoch: list[list[tuple[float, int]]] = []
    diagnosis: tuple[list[str], str | None] | None = None
    for _ in range(epochs):
        per_epoch.append([])
        for images in (batch[0].to(device) for batch in train_loader):
            scales.append(1.0 if loss_scale is None else loss_scale.scale)
            model.zero_grad(set_to_none=True)
            optimizer.zero_grad(set_to_none=True)
            if dtype is torch.float32:
                loss = nn.MSELoss()(model(images), images)
            else:
                with torch.autocast(device.type, dtype):
                    loss = nn.MSELoss()(model(images), images)
            loss.mul(scales[-1]).backward()
            bad = find_nonfinite(model)
            if not bad:
                gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
                torch._foreach_div_(gradients, scales[-1])
                optimizer.step()
                per_epoch[-1].append((loss.item(), images.shape[0]))
            elif diagnosis is None:
                diagnosis = bad, trace_nonfinite(model, images, dtype=dtype)
            if loss_scale is not None:
                loss_scale.update(overflow=len(bad) > 0)
    taken = sum(map(len, per_epoch))
    names, layer = diagnosis or ([], None)
    return StabilityRun(
        device=device.type,
        dtype=dtype_name(dtype),
        gain=model.gain,
        losses=tuple(
            sum(mean * count for mean, count in steps) / sum(count for _, count in steps) if steps else None
            for steps in per_epoch
        ),
        scales=tuple(scales),
        optimizer_steps=taken,
        skipped_steps=len(scales) - taken,
        nonfinite_parameters=tuple(names),
        nonfinite_layer=layer,
    )


def plot_runs(runs: Sequence[StabilityRun], path: Path | str) -> Path:
    """Plot the loss over the epochs, one line per run; a run without any step has no line, but is in the legend.

    An epoch without a loss keeps its place, empty.

    Args:
        runs: one or more.
        path: the PNG file to write.

    Returns:
        The path written.

    Raises:
        OSError: the file cannot be written.
    """
    figure, (axis,) = plotting.new_figure("The unstable model", x_label="epoch", y_label="mean loss")
    for index, run in enumerate(runs):
        scaled = "scaled" if _is_scaled(run) else "not scaled"
        losses = [float("nan") if loss is None else loss for loss in run.losses]
        axis.plot(
            range(1, len(losses) + 1),
            losses,
            ("-", "--", ":")[index % 3],
            color=plotting.COLORS[index % len(plotting.COLORS)],
            linewidth=1 + 0.6 * (len(runs) - index),  # equal runs coincide: the first ones are wider
            label=f"gain {_gain(run)}, {run.dtype}, {scaled}: {run.skipped_steps} of {len(run.scales)} skipped",
        )
    axis.set_xticks(range(1, max(len(run.losses) for run in runs) + 1))
    axis.legend(frameon=False, fontsize=8)
    return plotting.save_png(figure, path)


def main(argv: Sequence[str] | None = None) -> int:
    """Train the unstable model in several ways; print a table; write OUT/stability.json and OUT/stability.png.

    Returns:
        0.
    """
    parser = program.make_parser(__doc__ or "", results=RESULTS)
    parser.add_argument("--epochs", type=program.positive_int, default=5, metavar="N", help="of each training")
    options = parser.parse_args(argv)
    batches, _ = workloads.batches()
    images, _ = batches[0]
    runs, diagnoses = [], []
    with open_device(options.device) as device:
        place = torch.device(device.torch_device)
        for gain, dtype, scaled in track(CASES, "training", _case):
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
    """What `dtype` and this loss scale do to the gradients of the first batch."""
    return classify_gradients(_gradients(model, images, dtype, scale), _gradients(model, images, torch.float32, 1.0))


def _gradients(model: UnstableModel, images: Tensor, dtype: torch.dtype, scale: float) -> dict[str, Tensor]:
    with torch.autocast(images.device.type, dtype=dtype, enabled=dtype != torch.float32):
        loss = nn.functional.mse_loss(model(images), images)
    gradients = torch.autograd.grad(loss * scale, list(model.parameters()))
    return dict(zip((name for name, _ in model.named_parameters()), gradients, strict=True))


def _gain(run: StabilityRun) -> str:
    return f"2^{math.log2(run.gain):.0f}"


def _case(case: tuple[float, torch.dtype, bool]) -> str:
    gain, dtype, scaled = case
    return f"gain 2^{math.log2(gain):.0f}, {str(dtype).removeprefix('torch.')}, {'' if scaled else 'not '}scaled"


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
