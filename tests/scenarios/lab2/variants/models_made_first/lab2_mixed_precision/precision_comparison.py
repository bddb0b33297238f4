"""Task 2.3: what float16 and bfloat16 save, what they cost, and which one to train in.

Run: python -m labs.lab2_mixed_precision.precision_comparison
"""

import functools
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
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
ORDER = ["bfloat16", "float16", "float32"]


def measure_accuracies(
    create_model: Callable[[], nn.Module],
    train_loader: Batches,
    test_loader: Batches,
    *,
    device: str = "cuda",
    dtypes: Sequence[torch.dtype] = tuple(PRECISIONS.values()),
    epochs: int = 10,
) -> dict[str, float]:
    """Train a new model in each precision with `train_with_amp`, and evaluate it in that precision."""
    models = {dtype: create_model() for dtype in dtypes}
    for dtype, model in models.items():
        train_with_amp(model, train_loader, epochs, device=device, dtype=dtype)
    return {
        dtype_name(dtype): evaluate(model, test_loader, device=device, dtype=dtype) for dtype, model in models.items()
    }


def _make_step(model: nn.Module, inputs: Tensor, targets: Tensor, dtype: torch.dtype) -> Callable[[], None]:
    """One training step, to be called again and again."""
    optimizer = torch.optim.Adam(model.parameters())
    criterion = nn.CrossEntropyLoss()
    kind = inputs.device.type
    autocast = functools.partial(torch.autocast, kind, dtype=dtype, enabled=dtype is not torch.float32)
    scaler = torch.amp.GradScaler(kind, enabled=dtype is torch.float16)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        with autocast():
            loss = criterion(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def compare_precisions(
    accuracies: Mapping[str, float],
    create_model: Callable[[], nn.Module] = workloads.large_model,
    create_batch: Callable[[], tuple[Tensor, Tensor]] = workloads.large_batch,
    *,
    device: str = "cuda",
    steps: int = 10,
    warmup: int = 3,
) -> list[PrecisionResult]:
    """Measure time and memory of a training step in each precision."""
    if not set(accuracies) <= set(PRECISIONS):
        raise ValueError(f"{sorted(set(accuracies) - set(PRECISIONS))} are no precisions")
    if steps < 1:
        raise ValueError("steps must be 1 or more")
    if warmup < 0:
        raise ValueError("warmup must be 0 or more")
    place = torch.device(device)
    on_gpu = place.type == "cuda"
    waiting = {name: create_model() for name in accuracies}

    def wait() -> None:
        if on_gpu:
            torch.cuda.synchronize(place)

    def measure(name: str) -> tuple[float, int | None, int]:
        """Median seconds, peak bytes, samples; the tensors are local to this call."""
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(place)
        inputs, targets = create_batch()
        samples = inputs.shape[0]
        step = _make_step(waiting.pop(name).to(place).train(), inputs.to(place), targets.to(place), PRECISIONS[name])
        seconds = np.empty(warmup + steps)
        for index in range(warmup + steps):
            wait()
            start = perf_counter()
            step()
            wait()
            seconds[index] = perf_counter() - start
        peak = torch.cuda.max_memory_allocated(place) if on_gpu else None
        return float(np.median(seconds[warmup:])), peak, samples

    results = []
    for name, accuracy in accuracies.items():
        seconds, peak, samples = measure(name)
        results.append(
            PrecisionResult(
                accuracy=accuracy,
                device=place.type,
                dtype=name,
                peak_bytes=peak,
                samples_per_second=samples / seconds,
                step_seconds=seconds,
            )
        )
    return results


def conclude(results: Sequence[PrecisionResult], *, accuracy_loss: float = 0.01) -> PrecisionConclusions:
    """Say what follows from measurements, and from nothing else."""
    counts = Counter(result.dtype for result in results)
    if counts["float32"] != 1 or max(counts.values()) > 1:
        raise ValueError(f"each precision once, and float32 among them, please: {dict(counts)}")
    table = {result.dtype: result for result in results}
    base = table["float32"]

    def duration(name: str) -> float:
        return table[name].step_seconds

    differences = {name: row.accuracy - base.accuracy for name, row in table.items()}
    peaks = [row.peak_bytes for row in table.values() if row.peak_bytes is not None]
    complete = len(peaks) == len(table)
    shortest = min(duration(name) for name in table if differences[name] >= -accuracy_loss)
    recommended = "float32"
    for name in ORDER:
        if name in table and differences[name] >= -accuracy_loss and duration(name) <= shortest * 1.05:
            recommended = name
            break
    return PrecisionConclusions(
        speedups={name: base.step_seconds / row.step_seconds for name, row in table.items()},
        memory_ratios=dict(zip(table, (peak / base.peak_bytes for peak in peaks), strict=True)) if complete else {},
        accuracy_differences=differences,
        fastest=sorted(table, key=duration)[0],  # sorting is stable
        recommended=recommended,
        needs_loss_scaling=recommended == "float16",
    )


def plot_precisions(results: Sequence[PrecisionResult], path: Path | str) -> Path:
    """Plot speed, peak memory and accuracy of each precision, as shares of float32's."""
    found = conclude(results)
    base = next(filter(lambda result: result.dtype == "float32", results))
    names = [result.dtype for result in results]
    rows = {
        "speed": [found.speedups[name] for name in names],
        "peak memory": [found.memory_ratios.get(name, np.nan) for name in names],
        "accuracy": [result.accuracy / base.accuracy if base.accuracy else np.nan for result in results],
    }
    figure, (axis,) = plotting.new_figure("Float32 and less", y_label="share of float32")
    places = np.arange(len(names))
    for shift, ((label, heights), color) in zip(
        (-0.25, 0, 0.25), zip(rows.items(), plotting.COLORS, strict=False), strict=False
    ):
        axis.bar(places + shift, np.nan_to_num(heights), width=0.25, label=label, color=color)
        for place, height in zip(places, heights, strict=True):
            if not np.isnan(height):
                axis.text(place + shift, height, f"{height:.3g}", ha="center", va="bottom", fontsize=8)
    axis.set_xticks(places, labels=names)
    axis.legend()
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
