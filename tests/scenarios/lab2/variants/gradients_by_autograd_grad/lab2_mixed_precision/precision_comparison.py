"""Task 2.3: what float16 and bfloat16 save, what they cost, and which one to train in.

Not for how they are trained in (amp_training.py).

Run: python -m labs.lab2_mixed_precision.precision_comparison
"""

import functools
import gc
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labkit import plotting, program
from labkit.device import open_device
from labkit.progress import track
from labkit.results import PrecisionConclusions, PrecisionResult, save_json

from . import pure, workloads
from .amp_training import Batches, evaluate, train_with_amp
from .readings import PRECISIONS, dtype_name, now, peak_bytes, reset_peak

RESULTS = Path(__file__).parent / "results"


def measure_accuracies(
    create_model: Callable[[], nn.Module],
    train_loader: Batches,
    test_loader: Batches,
    *,
    device: str = "cuda",
    dtypes: Sequence[torch.dtype] = tuple(PRECISIONS.values()),
    epochs: int = 10,
) -> dict[str, float]:
    """Train a new model in each precision with `train_with_amp` and its defaults, and evaluate it in that precision.

    Args:
        create_model: returns an untrained classifier on the CPU, with the same weights on every call.
        train_loader, test_loader: batches, as in `train_with_amp` and `evaluate`.
        device: where to train and evaluate.
        dtypes: the precisions.
        epochs: of each training.

    Returns:
        Accuracy on the test batches, from 0 to 1, by the precision's name ("float16"), in the order of `dtypes`.
    """

    def train_and_evaluate(dtype: torch.dtype) -> float:
        model = create_model()
        train_with_amp(model, train_loader, epochs, device=device, dtype=dtype)
        return evaluate(model, test_loader, device=device, dtype=dtype)

    return {dtype_name(dtype): train_and_evaluate(dtype) for dtype in dtypes}


def compare_precisions(
    accuracies: Mapping[str, float],
    create_model: Callable[[], nn.Module] = workloads.large_model,
    create_batch: Callable[[], tuple[Tensor, Tensor]] = workloads.large_batch,
    *,
    device: str = "cuda",
    steps: int = 10,
    warmup: int = 3,
) -> list[PrecisionResult]:
    """Measure time and memory of a training step in each precision.

    A step, on one batch that lies on the device: gradients to None, forward and cross entropy in autocast, backward,
    Adam with its defaults. In float16 the loss is scaled by a `torch.amp.GradScaler`, which makes the step and is
    updated as well; no clipping, no scheduler. Float32 means float32: TF32 stays off, as it is in PyTorch unless you
    ask for it. Nothing but the scaler may look at a value: a virtual GPU that computes shapes only, which is enough
    here and fast, has no values to look at.

    Each precision starts from nothing: model, optimizer and batch of the one before are gone, the peak is reset.

    Args:
        accuracies: accuracy by precision, from `measure_accuracies`: training needs values. Its keys ("float32",
            "float16", "bfloat16") say what to measure, in this order.
        create_model: returns a model on the CPU in float32 that maps the inputs to logits.
        create_batch: returns inputs [N, ...] and targets [N] on the CPU.
        device: "cuda" or "cpu".
        steps: timed steps per precision.
        warmup: steps before them, the same but untimed.

    Returns:
        One `PrecisionResult` per precision, in order: step_seconds is the *median* over the timed steps, each timed
        from an idle device to an idle device; samples_per_second = N / step_seconds; peak_bytes is the most that was
        allocated on the device, everything included, during the steps of this precision (None on a CPU).

    Raises:
        ValueError: an unknown precision, or `steps` below 1, or `warmup` below 0.
    """
    if unknown := accuracies.keys() - PRECISIONS.keys():
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(PRECISIONS)}")
    if steps < 1 or warmup < 0:
        raise ValueError(f"steps is at least 1 and warmup at least 0, not {steps} and {warmup}")
    place = torch.device(device)

    def measure(name: str) -> tuple[list[float], int, int | None]:
        """Seconds of each timed step, samples and peak; what it allocates is gone when it returns."""
        gc.collect()
        reset_peak(place)
        step, samples = _make_step(create_model, create_batch, place, PRECISIONS[name])
        for _ in range(warmup):
            step()
        ends = [now(place), *(_ended(step, place) for _ in range(steps))]
        return np.diff(ends).tolist(), samples, peak_bytes(place)

    results = []
    for name, accuracy in accuracies.items():
        seconds, samples, peak = measure(name)
        median = float(np.median(seconds))
        results.append(
            PrecisionResult(
                device=place.type,
                dtype=name,
                step_seconds=median,
                samples_per_second=samples / median,
                peak_bytes=peak,
                accuracy=accuracy,
            )
        )
    return results


def _make_step(
    create_model: Callable[[], nn.Module],
    create_batch: Callable[[], tuple[Tensor, Tensor]],
    place: torch.device,
    dtype: torch.dtype,
) -> tuple[Callable[[], None], int]:
    """A function that makes one training step each time, and the samples it looks at."""
    model = create_model().to(place).train()
    inputs, targets = (tensor.to(place) for tensor in create_batch())
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler(place.type, enabled=dtype == torch.float16)
    loss_of = pure.casting(lambda: nn.functional.cross_entropy(model(inputs), targets), place, dtype)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        torch.autograd.backward(scaler.scale(loss_of()))
        scaler.step(optimizer)
        scaler.update()

    return step, len(inputs)


def _ended(step: Callable[[], None], place: torch.device) -> float:
    """The time when a step and all that it put into the queue has ended."""
    step()
    return now(place)


def conclude(results: Sequence[PrecisionResult], *, accuracy_loss: float = 0.01) -> PrecisionConclusions:
    """Say what follows from measurements, and from nothing else: another GPU or model may give other answers.

    - speedups: float32's step_seconds / this precision's; memory_ratios: this precision's peak_bytes / float32's (empty
      if one of the peaks is None); accuracy_differences: this precision's accuracy - float32's. All three by name, for
      every precision in `results`, float32 included.
    - fastest: the precision with the shortest step; of equal ones the first in `results`.
    - recommended: a precision is *eligible* if it loses no more than `accuracy_loss` of accuracy against float32
      (accuracy difference >= -accuracy_loss). Of the eligible ones, those count whose step takes at most 1.05 times as
      long as the shortest eligible step. Of these the first in the order bfloat16, float16, float32: at the same speed
      bfloat16 needs no loss scaling, and both need less memory than float32.
    - needs_loss_scaling: whether the recommended one is float16.

    Args:
        results: one per precision, in any order; float32 must be among them.
        accuracy_loss: accuracy that may be lost, as a ratio: 0.01 is one image in a hundred.

    Raises:
        ValueError: float32 is missing, or a precision occurs twice.
    """
    by_name = {result.dtype: result for result in results}
    if len(by_name) < len(results):
        raise ValueError("a precision occurs twice")
    if "float32" not in by_name:
        raise ValueError("float32 is missing, which the others are compared with")
    base = by_name["float32"]
    differences = {name: result.accuracy - base.accuracy for name, result in by_name.items()}
    peaks = {name: result.peak_bytes for name, result in by_name.items()}
    seconds = {name: result.step_seconds for name, result in by_name.items()}
    eligible = {name: seconds[name] for name, difference in differences.items() if difference >= -accuracy_loss}
    limit = 1.05 * min(eligible.values())
    recommended = next(name for name in ("bfloat16", "float16", "float32") if eligible.get(name, math.inf) <= limit)
    return PrecisionConclusions(
        speedups={name: base.step_seconds / own for name, own in seconds.items()},
        memory_ratios={} if None in peaks.values() else {name: peak / base.peak_bytes for name, peak in peaks.items()},
        accuracy_differences=differences,
        fastest=min(seconds, key=seconds.__getitem__),
        recommended=recommended,
        needs_loss_scaling=recommended == "float16",
    )


def plot_precisions(results: Sequence[PrecisionResult], path: Path | str) -> Path:
    """Plot speed, peak memory and accuracy of each precision, as shares of float32's.

    Args:
        results: one per precision, in any order; float32 is among them.
        path: the PNG file to write.

    Returns:
        The path written.

    Raises:
        OSError: the file cannot be written.
    """
    conclusions = conclude(results)
    base = next(result.accuracy for result in results if result.dtype == "float32")
    accuracies = {result.dtype: result.accuracy / base if base else math.nan for result in results}
    groups = {"speed": conclusions.speedups, "peak memory": conclusions.memory_ratios, "accuracy": accuracies}
    groups = {label: shares for label, shares in groups.items() if shares}
    figure, (axis,) = plotting.new_figure("Precisions compared", y_label="share of float32's")
    places, width = np.arange(len(results)), 0.8 / len(groups)
    for index, ((label, shares), color) in enumerate(zip(groups.items(), plotting.COLORS, strict=False)):
        heights = [shares[result.dtype] for result in results]
        bars = axis.bar(places + (index - (len(groups) - 1) / 2) * width, heights, width, color=color, label=label)
        axis.bar_label(bars, fmt="%.2f", fontsize=8)
    axis.set_xticks(places, [result.dtype for result in results])
    axis.legend(frameon=False, loc="upper center", ncols=len(groups), bbox_to_anchor=(0.5, -0.1))
    return plotting.save_png(figure, path)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the precisions; print a table and what follows; write OUT/precisions.json and OUT/precisions.png.

    Both files say that a virtual GPU was used, where it was: the plot with the word "simulated".

    Accuracy comes from training on real images, time and memory from a larger model. On a virtual GPU the latter is run
    with shapes only: its numbers would take a CPU minutes and change nothing. On a CPU both use the small classifier.

    Returns:
        0.
    """
    parser = program.make_parser(__doc__ or "", results=RESULTS)
    workloads.add_training_options(parser)
    parser.add_argument("--layers", type=program.positive_int, default=workloads.LAYERS, metavar="N", help="to time")
    parser.add_argument(
        "--width", type=program.positive_int, default=workloads.WIDTH, metavar="N", help="of each layer"
    )
    parser.add_argument("--batch", type=program.positive_int, default=32, metavar="N", help="samples per timed step")
    parser.add_argument("--steps", type=program.positive_int, default=10, metavar="N", help="timed steps")
    options = parser.parse_args(argv)
    if "float32" not in options.precisions:
        parser.error("--precisions lacks float32, which the others are compared with")

    train_batches, test_batches = workloads.batches(options.data, data_dir=options.data_dir)
    create_classifier = functools.partial(workloads.classifier, workloads.pixels(train_batches))
    accuracies: dict[str, float] = {}
    with open_device(options.device) as device:
        for name in track(options.precisions, "training"):
            accuracies |= measure_accuracies(
                create_classifier,
                train_batches,
                test_batches,
                device=device.torch_device,
                dtypes=[PRECISIONS[name]],
                epochs=options.epochs,
            )
    with open_device(options.device, values=False) as device:
        measured: dict[str, Any] = {"device": device.torch_device, "steps": options.steps}
        if device.torch_device == "cpu":
            measured |= {"create_model": create_classifier, "create_batch": lambda: train_batches[0]}
        else:
            measured |= {
                "create_model": functools.partial(workloads.large_model, layers=options.layers, width=options.width),
                "create_batch": functools.partial(workloads.large_batch, options.batch, width=options.width),
            }
        results: list[PrecisionResult] = []
        for name, accuracy in track(list(accuracies.items()), "timing"):
            results += compare_precisions({name: accuracy}, **measured)
        conclusions = conclude(results)
        _print(results, conclusions)
        written = save_json(options.out / "precisions.json", results, device.provenance())
        program.print_written(written, plot_precisions(results, options.out / "precisions.png"))
    return 0


def _print(results: Sequence[PrecisionResult], conclusions: PrecisionConclusions) -> None:
    rows = []
    for result in results:
        name = result.dtype
        rows.append(
            (
                name,
                f"{result.step_seconds * 1e3:.4g}",
                f"{result.samples_per_second:.4g}",
                f"{conclusions.speedups[name]:.3g}",
                "-" if result.peak_bytes is None else f"{result.peak_bytes / 2**20:.0f}",
                f"{conclusions.memory_ratios[name]:.3g}" if name in conclusions.memory_ratios else "-",
                f"{result.accuracy:.2%}",
            )
        )
    columns = ("precision", "ms per step", "samples/s", "speedup", "peak MiB", "ratio", "accuracy")
    program.print_table("Training by precision", columns, rows)
    scaling = "with loss scaling" if conclusions.needs_loss_scaling else "without loss scaling"
    print(f"fastest: {conclusions.fastest}; recommended: {conclusions.recommended}, {scaling}")


if __name__ == "__main__":
    sys.exit(program.run(main))
