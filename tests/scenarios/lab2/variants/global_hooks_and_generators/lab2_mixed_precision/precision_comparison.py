"""Task 2.3: what float16 and bfloat16 save, what they cost, and which one to train in.

Not for how they are trained in (amp_training.py).

Run: python -m labs.lab2_mixed_precision.precision_comparison
"""

import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from .readings import PRECISIONS, dtype_name

RESULTS = Path(__file__).parent / "results"


def _wait(device: torch.device) -> int:
    """Nanoseconds, read once nothing is left on the current stream."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return time.perf_counter_ns()


def _steps(
    model: nn.Module, inputs: Tensor, targets: Tensor, dtype: torch.dtype, device: torch.device
) -> Iterator[float]:
    """A training without end; gives the seconds of each step."""
    optimizer = torch.optim.Adam(model.parameters())
    criterion = nn.CrossEntropyLoss()
    scaler = torch.amp.GradScaler(device.type) if dtype is torch.float16 else None
    while True:
        began = _wait(device)
        model.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype, enabled=dtype is not torch.float32):
            loss = criterion(model(inputs), targets)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        yield (_wait(device) - began) / 1e9


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

    def accuracy(dtype: torch.dtype) -> float:
        model = create_model()
        train_with_amp(model, train_loader, epochs=epochs, device=device, dtype=dtype)
        return evaluate(model, test_loader, device=device, dtype=dtype)

    return {dtype_name(dtype): accuracy(dtype) for dtype in dtypes}


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

    A step, on one batch that is on the device: gradients to None, forward and cross entropy in autocast, backward,
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
    if unknown := set(accuracies) - set(PRECISIONS):
        raise ValueError(f"unknown precisions: {unknown}")
    if steps < 1 or warmup < 0:
        raise ValueError("steps start at 1, warmup at 0")
    place = torch.device(device)

    def measured(name: str) -> PrecisionResult:
        if place.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        model = create_model().to(place).train()
        inputs, targets = (part.to(place) for part in create_batch())
        times = _steps(model, inputs, targets, PRECISIONS[name], place)
        seconds = sorted(time for number, time in zip(range(warmup + steps), times, strict=False) if number >= warmup)
        times.close()
        median = (seconds[(steps - 1) // 2] + seconds[steps // 2]) / 2
        return PrecisionResult(
            device=place.type,
            dtype=name,
            step_seconds=median,
            samples_per_second=inputs.shape[0] / median,
            peak_bytes=torch.cuda.memory_stats()["allocated_bytes.all.peak"] if place.type == "cuda" else None,
            accuracy=accuracies[name],
        )

    return [measured(name) for name in accuracies]


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
    if names.count("float32") != 1 or len(set(names)) < len(names):
        raise ValueError(f"each precision once, and float32 among them: {names}")
    wide = results[names.index("float32")]
    difference = {result.dtype: result.accuracy - wide.accuracy for result in results}
    candidates = [result for result in results if difference[result.dtype] >= -accuracy_loss]
    quickest = sorted(candidates, key=lambda result: result.step_seconds)[0].step_seconds
    rank = {"bfloat16": 0, "float16": 1, "float32": 2}
    near = [result.dtype for result in candidates if result.step_seconds <= 1.05 * quickest]
    recommended = sorted(near, key=rank.__getitem__)[0]
    peaks = {result.dtype: result.peak_bytes for result in results}
    return PrecisionConclusions(
        speedups={result.dtype: wide.step_seconds / result.step_seconds for result in results},
        memory_ratios={} if None in peaks.values() else {name: peak / peaks["float32"] for name, peak in peaks.items()},
        accuracy_differences=difference,
        fastest=sorted(results, key=lambda result: result.step_seconds)[0].dtype,
        recommended=recommended,
        needs_loss_scaling={"float16": True}.get(recommended, False),
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
    base = next(result for result in results if result.dtype == "float32")
    figure, (axis,) = plotting.new_figure("Training step by precision", y_label="ratio to float32")
    names = [result.dtype for result in results]
    shares = {
        "speed (more is better)": conclusions.speedups,
        "peak memory (less is better)": conclusions.memory_ratios,
        "accuracy": {result.dtype: result.accuracy / base.accuracy for result in results if base.accuracy},
    }
    for index, (label, values) in enumerate(shares.items()):
        positions = [place + 0.27 * (index - 1) for place, name in enumerate(names) if name in values]
        bars = axis.bar(positions, list(values.values()), width=0.25, color=plotting.COLORS[index], label=label)
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # the line at 1 must not cross a number
        axis.bar_label(bars, fmt="{:.3g}", padding=3, fontsize=9, bbox=behind)
    axis.set_xticks(range(len(names)), labels=names)
    axis.axhline(1, color=plotting.INK, linewidth=0.8, zorder=0.5)
    axis.margins(y=0.15)
    axis.legend(frameon=False)
    return plotting.save_png(figure, path)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the precisions; print a table and what follows; write OUT/precisions.json and OUT/precisions.png.

    Both files say that a virtual GPU was used, where it was: the plot with the word "simulated".

    Accuracy comes from training on real images, time and memory from a larger one. On a virtual GPU it runs
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
