"""Task 2.3: what float16 and bfloat16 save, what they cost, and which one to train in.

Not for how they are trained in (amp_training.py).

Run: python -m labs.lab2_mixed_precision.precision_comparison
"""

import functools
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labkit import plotting, program
from labkit.device import open_device
from labkit.progress import track
from labkit.results import PrecisionConclusions, PrecisionResult, save_json

from . import workloads
from .amp_training import Batches, evaluate, train_with_amp
from .engine import Precision
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
    accuracies: dict[str, float] = {}
    for dtype in dtypes:
        model = create_model()
        train_with_amp(model, train_loader, epochs=epochs, device=device, dtype=dtype)
        accuracies[dtype_name(dtype)] = evaluate(model, test_loader, device=device, dtype=dtype)
    return accuracies


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
    for name in accuracies:
        if name not in PRECISIONS:
            raise ValueError(f"{name!r} is not a precision of this lab")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}")
    if warmup < 0:
        raise ValueError(f"warmup must not be negative, as {warmup} is")
    place = torch.device(device)
    results = []
    for name, accuracy in accuracies.items():
        with _Bench(create_model, create_batch, Precision(PRECISIONS[name], place)) as bench:
            for _ in range(warmup):
                bench.step()
            median = statistics.median([bench.timed_step() for _ in range(steps)])
            results.append(
                PrecisionResult(
                    device=place.type,
                    dtype=name,
                    step_seconds=median,
                    samples_per_second=bench.samples / median,
                    peak_bytes=bench.peak,
                    accuracy=accuracy,
                )
            )
    return results


class _Bench:
    """Context: a model, its optimizer and a batch on a device; gone afterwards."""

    def __init__(
        self,
        create_model: Callable[[], nn.Module],
        create_batch: Callable[[], tuple[Tensor, Tensor]],
        precision: Precision,
    ) -> None:
        self.precision = precision
        self.create_model, self.create_batch = create_model, create_batch

    def __enter__(self) -> "_Bench":
        place = self.precision.device
        self.model = self.create_model().to(place)
        self.inputs, self.targets = self.precision.place(self.create_batch())
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.scaler = torch.amp.GradScaler(place.type) if self.precision.is_scaled else None
        self.criterion = nn.CrossEntropyLoss()
        reset_peak(place)
        return self

    def __exit__(self, *_: object) -> None:
        del self.model, self.inputs, self.targets, self.optimizer, self.scaler

    @property
    def samples(self) -> int:
        return self.inputs.size(0)

    @property
    def peak(self) -> int | None:
        return peak_bytes(self.precision.device)

    def timed_step(self) -> float:
        begin = now(self.precision.device)
        self.step()
        return now(self.precision.device) - begin

    def step(self) -> None:
        self.optimizer.zero_grad()
        with self.precision.casts:
            logits = self.model(self.inputs)
            loss = self.criterion(logits, self.targets)
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()


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
    names = [result.dtype for result in results]
    if sorted(set(names)) != sorted(names):
        raise ValueError(f"a precision occurs twice in {names}")
    if names.count("float32") != 1:
        raise ValueError("there is no result of float32")
    reference = results[names.index("float32")]
    differences = {one.dtype: one.accuracy - reference.accuracy for one in results}
    ratios: dict[str, float] = {}
    if reference.peak_bytes is not None:
        for one in results:
            if one.peak_bytes is None:
                ratios.clear()
                break
            ratios[one.dtype] = one.peak_bytes / reference.peak_bytes
    eligible = [one for one in results if differences[one.dtype] >= -accuracy_loss]
    shortest = min(one.step_seconds for one in eligible)
    preference = ("bfloat16", "float16", "float32")
    best = min(
        (one for one in eligible if one.step_seconds <= 1.05 * shortest), key=lambda one: preference.index(one.dtype)
    )
    return PrecisionConclusions(
        speedups={one.dtype: reference.step_seconds / one.step_seconds for one in results},
        memory_ratios=ratios,
        accuracy_differences=differences,
        fastest=min(results, key=lambda one: one.step_seconds).dtype,
        recommended=best.dtype,
        needs_loss_scaling=best.dtype == "float16",
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
    (reference,) = (one for one in results if one.dtype == "float32")
    accuracy = {one.dtype: one.accuracy / reference.accuracy for one in results} if reference.accuracy else {}
    panels = [
        ("speed", conclusions.speedups),
        ("peak memory", conclusions.memory_ratios),
        ("accuracy", accuracy),
    ]
    figure, axes = plotting.new_figure("Compared with float32", columns=3, y_label="ratio to float32")
    for axis, (title, ratios) in zip(axes, panels, strict=True):
        axis.set_title(title if ratios else f"{title}: not known")
        bars = axis.bar(list(ratios), list(ratios.values()), color=plotting.COLORS[: len(ratios)])
        for bar in bars:
            axis.annotate(
                f"{bar.get_height():.3g}",
                (bar.get_x() + bar.get_width() / 2, bar.get_height()),
                ha="center",
                va="bottom",
            )
        axis.axhline(1.0, color=plotting.INK, linewidth=0.8)
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
        picture = plot_precisions(results, options.out / "precisions.png")
        program.print_written(save_json(options.out / "precisions.json", results, device.provenance()), picture)
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
