"""Task 3.2: how much faster does training become with more processes, and what keeps it from being faster still?

Not for measuring a step: measuring.py does, and what it offers can be had from here, too.

Run: python -m labs.lab3_distributed.scaling_analysis
"""

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from labkit import plotting, program
from labkit.device import open_device
from labkit.progress import track
from labkit.results import ScalingPoint, StepProfile, save_json

from .measuring import WORLD_SIZES, Kind, measure_rank, measure_scaling

__all__ = [
    "communication_share",
    "efficiency",
    "measure_rank",
    "measure_scaling",
    "name_bottleneck",
    "plot_scaling",
    "speedup",
    "split_step",
]

RESULTS = Path(__file__).parent / "results"
Bottleneck = Literal["communication", "data", "imbalance", "compute"]


def speedup(points: Sequence[ScalingPoint], kind: Kind = "strong") -> dict[int, float]:
    """How many times faster the work is done than on one process.

    With T(n) the seconds of a step on n processes: under strong scaling the work is always the same, so the speedup is
    T(1) / T(n). Under weak scaling a step on n processes does n times the work: it is n T(1) / T(n). In both cases
    that is the ratio of samples per second.

    Args:
        points: measurements in any order; those of the other kind are left out.
        kind: "strong" or "weak".

    Returns:
        The speedup of each world size, 1.0 for one process; n is the best that can be expected of n.

    Raises:
        ValueError: there is no measurement of this kind on one process.

    Source: Amdahl 1967 (strong), Gustafson 1988 (weak).
    """
    # TODO(task 3.2):
    # 1. Keep the points of this kind; refuse to go on without one process.
    # 2. Compare the others with it.
    # --- solution: task 3.2 ---
    rates = {point.world_size: point.samples_per_second for point in points if point.kind == kind}
    if 1 not in rates:
        raise ValueError(f"there is no measurement of {kind} scaling on one process to compare with")
    return {size: rate / rates[1] for size, rate in sorted(rates.items())}
    # --- end ---


def efficiency(points: Sequence[ScalingPoint], kind: Kind = "strong") -> dict[int, float]:
    """What share of the processes' work is not lost: speedup / world size.

    Args:
        points: as in `speedup`.
        kind: "strong" or "weak".

    Returns:
        The efficiency of each world size, 1.0 for one process and for perfect scaling (not percent).

    Raises:
        ValueError: as in `speedup`.
    """
    # TODO(task 3.2): divide the speedup by the world size.
    # --- solution: task 3.2 ---
    return {size: ratio / size for size, ratio in speedup(points, kind).items()}
    # --- end ---


def split_step(profile: StepProfile) -> dict[Bottleneck, float]:
    """Take a step of several ranks apart: four figures in seconds that add up to the step.

    A rank that has done its work (data and compute) waits for the slowest one, and that waiting looks like
    communication. The slowest itself waits for nobody. So the least that any rank spends on communication, whichever
    rank it is, is communication proper.

    - communication: the least communication_seconds of any rank;
    - data: mean data_seconds over ranks;
    - imbalance: the largest data_seconds + compute_seconds of any rank, less their mean over ranks;
    - compute: mean compute_seconds over ranks.

    Returns:
        The seconds by name, in this order.
    """
    # TODO(task 3.2): compute the four figures.
    # --- solution: task 3.2 ---
    data, compute = statistics.fmean(profile.data_seconds), statistics.fmean(profile.compute_seconds)
    slowest = max(map(sum, zip(profile.data_seconds, profile.compute_seconds, strict=True)))
    return {
        "communication": min(profile.communication_seconds),
        "data": data,
        "imbalance": slowest - data - compute,
        "compute": compute,
    }
    # --- end ---


def communication_share(profile: StepProfile) -> float:
    """Communication proper as a share of the step, from 0 to 1; waiting for slower ranks does not count as such.

    Args:
        profile: of one step.

    Returns:
        Communication by `split_step` / the sum of its four figures.
    """
    # TODO(task 3.2): divide.
    # --- solution: task 3.2 ---
    parts = split_step(profile)
    return parts["communication"] / sum(parts.values())
    # --- end ---


def name_bottleneck(profile: StepProfile, *, threshold: float = 0.2) -> Bottleneck:
    """Say what to work on first.

    The largest of communication, data and imbalance (by `split_step`) if it takes at least `threshold` of the step;
    else "compute": the step is as good as its model and its GPUs. Of equal ones, the first in this order.

    Args:
        profile: of one step.
        threshold: share of the step below which a loss is not worth the trouble, from 0 to 1.
    """
    # TODO(task 3.2): find the largest of the three, and compare it with the whole step.
    # --- solution: task 3.2 ---
    parts = split_step(profile)
    losses: tuple[Bottleneck, ...] = ("communication", "data", "imbalance")
    largest = max(losses, key=lambda name: parts[name])  # max keeps the first of equal ones
    return largest if parts[largest] >= threshold * sum(parts.values()) else "compute"
    # --- end ---


def plot_scaling(points: Sequence[ScalingPoint], path: Path | str) -> Path:
    """Plot the speedup over the number of processes, one line (or group of bars) per kind, and what would be perfect.

    Args:
        points: of one or both kinds, in any order.
        path: the PNG file to write.

    Returns:
        The path written.

    Raises:
        OSError: the file cannot be written.
    """
    # TODO(task 3.2):
    # 1. Take a figure from labkit.plotting.new_figure.
    # 2. Draw the speedup of each kind, with the efficiency next to each point, and a line for the perfect speedup.
    # 3. Write it with labkit.plotting.save_png.
    # --- solution: task 3.2 ---
    title, y_label = "Scaling of a training step", "speedup (next to it: efficiency)"
    figure, (axis,) = plotting.new_figure(title, x_label="processes", y_label=y_label)
    kinds: tuple[Kind, ...] = ("strong", "weak")
    for kind, color in zip(kinds, plotting.COLORS, strict=False):
        if not any(point.kind == kind for point in points):
            continue
        ratios, shares = speedup(points, kind), efficiency(points, kind)
        axis.plot(list(ratios), list(ratios.values()), "o-", color=color, label=f"{kind} scaling")
        for size, ratio in ratios.items():
            if size == 1:
                continue  # 100 % by definition
            offset = (6, -14 if kind == "strong" else 6)
            axis.annotate(f"{shares[size]:.0%}", (size, ratio), xytext=offset, textcoords="offset points", color=color)
    sizes = sorted({point.world_size for point in points})
    axis.plot(sizes, sizes, "--", color=plotting.INK, label="perfect")
    axis.set_xticks(sizes)
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False)
    return plotting.save_png(figure, path)
    # --- end ---


def main(argv: Sequence[str] | None = None) -> int:
    """Measure strong and weak scaling; print a table; write OUT/scaling.json and OUT/scaling.png.

    Both files say that virtual GPUs were used, where they were: the picture with the word "simulated".

    Returns:
        0.
    """
    parser = program.make_parser(__doc__ or "", results=RESULTS)
    parser.add_argument(
        "--world-sizes", type=program.positive_ints, default=WORLD_SIZES, metavar="N,N", help="ranks of each run"
    )
    parser.add_argument("--batch-size", type=program.positive_int, default=256, metavar="N", help="of one process")
    parser.add_argument("--steps", type=program.positive_int, default=5, metavar="N", help="timed steps")
    options = parser.parse_args(argv)
    if 1 not in options.world_sizes:
        parser.error("argument --world-sizes: one process is what the others are compared with")
    for size in options.world_sizes:
        if options.batch_size % size:
            parser.error(f"argument --batch-size: {options.batch_size} samples cannot be shared evenly by {size} ranks")
    points: list[ScalingPoint] = []
    # Only times matter here, so virtual GPUs need not compute anything.
    with open_device(options.device, values=False, gpus=max(options.world_sizes)) as device:
        # A copy of this process is ready at once, but could not use a real GPU, and is safe on Linux only.
        quick = sys.platform == "linux" and (device.simulated or device.torch_device == "cpu")
        method: Literal["spawn", "fork"] = "fork" if quick else "spawn"
        kinds: tuple[Kind, ...] = ("strong", "weak")
        for kind, size in track([(kind, size) for kind in kinds for size in options.world_sizes], "measuring"):
            points += measure_scaling(
                [size],
                kind=kind,
                batch_size=options.batch_size,
                device=device.torch_device,
                steps=options.steps,
                start_method=method,
            )
        _print(points)
        # TODO(task 3.2):
        # 1. Save the points with save_json as OUT/scaling.json, with device.provenance().
        # 2. Draw OUT/scaling.png with plot_scaling.
        # 3. Print both paths with program.print_written.
        # --- solution: task 3.2 ---
        written = save_json(options.out / "scaling.json", points, device.provenance())
        program.print_written(written, plot_scaling(points, options.out / "scaling.png"))
        # --- end ---
    return 0


def _print(points: Sequence[ScalingPoint]) -> None:
    rows = []
    for point in points:
        kind: Kind = "weak" if point.kind == "weak" else "strong"
        ratio, share = speedup(points, kind)[point.world_size], efficiency(points, kind)[point.world_size]
        cost = f"{communication_share(point.profile):.3g}"
        times = (f"{point.step_seconds * 1e3:.4g}", f"{point.samples_per_second:,.0f}", f"{ratio:.3g}", f"{share:.3g}")
        rows.append((kind, point.world_size, *times, cost, name_bottleneck(point.profile)))
    columns = ("kind", "ranks", "ms", "samples/s", "speedup", "eff.", "comm.", "bottleneck")  # fits in 80 characters
    program.print_table("A training step on several processes", columns, rows)


if __name__ == "__main__":
    sys.exit(program.run(main))
