"""Task 2.2: a model that 16 bits break, and a loss scale that adapts, written by hand.

By hand once, to see how it works; for real training there is `torch.amp.GradScaler` (amp_training.py).

Run: python -m labs.lab2_mixed_precision.stability_tests
"""

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.patches import Patch
from torch import Tensor, nn

from labkit import plotting, program
from labkit.device import open_device
from labkit.progress import track
from labkit.results import StabilityRun, save_json

from . import pure, workloads
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
        for name, value, fine in (
            ("initial_scale", initial_scale, initial_scale > 0),
            ("growth_factor", growth_factor, growth_factor > 1),
            ("backoff_factor", backoff_factor, 0 < backoff_factor < 1),
            ("growth_interval", growth_interval, growth_interval >= 1),
        ):
            if not fine:
                raise ValueError(f"{name} is out of its range: {value}")
        self._rule = pure.ScaleRule(growth_factor, backoff_factor, growth_interval)
        self._state = pure.ScaleState(float(initial_scale))

    @property
    def scale(self) -> float:
        """The current scale."""
        return self._state.scale

    def update(self, overflow: bool) -> None:
        """Adapt the scale; call it once per step, taken or skipped.

        After an overflow the scale is multiplied by backoff_factor at once, and the count of good steps starts again.
        Else, when `growth_interval` good steps have followed each other, it is multiplied by growth_factor, and the
        count starts again.

        Args:
            overflow: whether gradients were not finite, so that the step was skipped.
        """
        self._state = pure.adapt(self._state, self._rule, overflow=overflow)


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
    if epochs < 1:
        raise ValueError(f"epochs is at least 1, not {epochs}")
    place = pure.home_of(model, device)
    model.to(place).train()
    optimizer = optimizer or torch.optim.Adam(model.parameters())

    def reconstruct(images: Tensor) -> Tensor:
        return nn.functional.mse_loss(model(images), images)

    loss_of = pure.casting(reconstruct, place, dtype)
    means: list[float | None] = []
    scales: list[float] = []
    taken = 0
    parameters: tuple[str, ...] = ()
    layer: str | None = None
    for _ in range(epochs):
        losses: list[float] = []
        weights: list[int] = []
        for images, _ in pure.moved(train_loader, place):
            optimizer.zero_grad(set_to_none=True)
            scale = 1.0 if loss_scale is None else loss_scale.scale
            scales.append(scale)
            loss = loss_of(images)
            seed = torch.full_like(loss, scale)  # backward of loss * scale begins with this number
            _set_gradients(model, lambda wanted: torch.autograd.grad(loss, wanted, seed, allow_unused=True))  # noqa: B023
            bad = find_nonfinite(model)
            if not bad:
                _set_gradients(model, lambda wanted: torch._foreach_div([one.grad for one in wanted], scale))  # noqa: B023
                optimizer.step()
                losses.append(loss.item())
                weights.append(len(images))
            elif len(scales) - taken == 1:
                parameters, layer = tuple(bad), trace_nonfinite(model, images, dtype=dtype)
            taken += not bad
            if loss_scale is not None:
                loss_scale.update(overflow=bool(bad))
        means.append(pure.weighted_mean(losses, weights))
    return StabilityRun(
        device=place.type,
        dtype=dtype_name(dtype),
        gain=model.gain,
        losses=tuple(means),
        scales=tuple(scales),
        optimizer_steps=taken,
        skipped_steps=len(scales) - taken,
        nonfinite_parameters=parameters,
        nonfinite_layer=layer,
    )


def _set_gradients(model: nn.Module, compute: Callable[[list[nn.Parameter]], Sequence[Tensor]]) -> None:
    """Give each trained parameter the gradient that `compute` returns for it."""
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter, gradient in zip(wanted, compute(wanted), strict=True):
        parameter.grad = gradient


def plot_runs(runs: Sequence[StabilityRun], path: Path | str) -> Path:
    """Plot the loss over the epochs, one line per run; a run without any step has no line, but stands in the legend.

    An epoch without a loss keeps its place, empty.

    Args:
        runs: one or more.
        path: the PNG file to write.

    Returns:
        The path written.

    Raises:
        OSError: the file cannot be written.
    """
    figure, (axis,) = plotting.new_figure("Training the unstable model", x_label="epoch", y_label="mean squared error")
    looks = itertools.product(("-", "--", ":", "-."), plotting.COLORS)
    handles = []
    for run, (style, color) in zip(runs, itertools.cycle(looks), strict=False):
        losses = pure.holes(run.losses)
        label = f"gain {_gain(run)}, {run.dtype}, {'scaled' if _is_scaled(run) else 'not scaled'}"
        if losses.count():
            handles += axis.plot(np.arange(1, len(losses) + 1), losses, style, marker="o", color=color, label=label)
        else:
            handles.append(Patch(facecolor="none", edgecolor=color, label=f"{label}: no step"))
    axis.legend(handles=handles, frameon=False, fontsize=8)
    axis.xaxis.get_major_locator().set_params(integer=True)
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
    """What `dtype` and this loss scale do to the gradients of the first batch."""
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
