"""Steps are timed by CUDA events, read after the last of them; names in a table, conclusions by sorting."""

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
    accuracies = {}
    for dtype in dtypes:
        model = create_model()
        train_with_amp(model, train_loader, epochs, device=device, dtype=dtype)
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
    if not accuracies.keys() <= PRECISIONS.keys() or steps < 1 or warmup < 0:
        raise ValueError(
            f"precisions are {', '.join(PRECISIONS)}, steps start at 1, warmup at 0; "
            f"got {', '.join(accuracies)}, {steps}, {warmup}"
        )
    results = []
    for name, accuracy in accuracies.items():
        seconds, peak_bytes, samples = _measure_steps(
            create_model(), create_batch(), torch.device(device), PRECISIONS[name], steps, warmup
        )
        results.append(
            PrecisionResult(
                device=torch.device(device).type,
                dtype=name,
                step_seconds=seconds,
                samples_per_second=samples / seconds,
                peak_bytes=peak_bytes,
                accuracy=accuracy,
            )
        )
    return results


def _measure_steps(model, batch, device, dtype, steps, warmup):
    reset_peak(device)
    model = model.to(device)
    model.train()
    adam = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
    x, y = batch[0].to(device), batch[1].to(device)

    def step():
        adam.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not torch.float32):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(adam)
        scaler.update()

    for _ in range(warmup):
        step()
    if device.type == "cpu":
        times = []
        for _ in range(steps):
            times.append(-now(device))
            step()
            times[-1] += now(device)
        return statistics.median(times), None, x.shape[0]
    pairs = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(steps)]
    for start, stop in pairs:
        torch.cuda.synchronize(device)
        start.record()
        step()
        stop.record()
    torch.cuda.synchronize(device)
    seconds = statistics.median(start.elapsed_time(stop) for start, stop in pairs) / 1e3
    return seconds, peak_bytes(device), x.shape[0]


def conclude(results, *, accuracy_loss=0.01):
    names = [result.dtype for result in results]
    if names.count("float32") != 1 or sorted(set(names)) != sorted(names):
        raise ValueError(f"float32 once, and none twice: {names}")
    base = results[names.index("float32")]
    lost = {one.dtype: one.accuracy - base.accuracy for one in results}
    allowed = [one for one in results if lost[one.dtype] >= -accuracy_loss]
    best = sorted(one.step_seconds for one in allowed)[0]
    quick = {one.dtype for one in allowed if one.step_seconds <= 1.05 * best}
    recommended = next(name for name in ("bfloat16", "float16", "float32") if name in quick)
    known = not any(one.peak_bytes is None for one in results)
    return PrecisionConclusions(
        speedups={one.dtype: base.step_seconds / one.step_seconds for one in results},
        memory_ratios={one.dtype: one.peak_bytes / base.peak_bytes for one in results} if known else {},
        accuracy_differences=lost,
        fastest=sorted(results, key=lambda one: one.step_seconds)[0].dtype,
        recommended=recommended,
        needs_loss_scaling=recommended == "float16",
    )


NEARLY_AS_FAST = 1.05
PREFERRED = ("bfloat16", "float16", "float32")


def plot_precisions(results: Sequence[PrecisionResult], path: Path | str) -> Path:
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
        # 1. Save the results with save_json as OUT/precisions.json, with device.provenance().
        # 2. Draw OUT/precisions.png with plot_precisions.
        # 3. Print both paths with program.print_written.
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
