"""Task 7.4: what a rank holds and sends, predicted and measured.

Run: python -m labs.sharding_exercise.analysis
"""

import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from labkit import plotting, program
from labkit.device import open_device
from labkit.progress import track
from labkit.ranks import run_ranks
from labkit.results import ShardedMemory, ShardingResult, save_json

RESULTS = Path(__file__).parent / "results"


def memory_per_rank(
    parameters: int,
    ranks: int,
    stage: int,
    *,
    parameter_bytes: int = 2,
    gradient_bytes: int = 2,
    optimizer_bytes: int = 12,
) -> ShardedMemory:
    """What a rank holds of a model in training with ZeRO, without activations.

    Args:
        parameters: of the whole model.
        ranks: that share it.
        stage: what is shared out: 0 nothing, 1 optimizer states, 2 gradients as well, 3 parameters as well.
        parameter_bytes: of one parameter, as it computes; the defaults are those of Adam in mixed precision.
        gradient_bytes: of one parameter's gradient.
        optimizer_bytes: of one parameter's states: weight and two moments in float32.

    Returns:
        Bytes; shares are equal, and need not be whole.

    Raises:
        ValueError: there are no parameters or ranks, or the stage is none of the four.

    Source: arXiv:1910.02054, section 5 and table 1.
    """
    # TODO(task 7.4): the paper's table 1 says that 7.5 billion parameters on 64 ranks take 120, 31.4, 16.6 and 1.9 GB.
    # --- solution: task 7.4 ---
    if parameters < 1 or ranks < 1 or stage not in (0, 1, 2, 3):
        raise ValueError(f"stage {stage} of {parameters} parameters on {ranks} ranks makes no sense")
    held = [
        parameters * size / (ranks if stage >= first else 1)
        for size, first in ((parameter_bytes, 3), (gradient_bytes, 2), (optimizer_bytes, 1))
    ]
    return ShardedMemory(
        parameter_bytes=held[0], gradient_bytes=held[1], optimizer_bytes=held[2], total_bytes=sum(held)
    )
    # --- end ---


def largest_model(memory_bytes: float, ranks: int, stage: int) -> int:
    """The largest number of parameters whose `memory_per_rank` (with its defaults) fits into so much memory.

    Args:
        memory_bytes: of each rank.
        ranks: as in `memory_per_rank`, like `stage`.

    Raises:
        ValueError: as in `memory_per_rank`, or not even one parameter fits.

    Source: arXiv:1910.02054, table 2 (32 GB, 64 ranks: 2, 7.6, 14.4 and 128 billion).
    """
    # TODO(task 7.4): what does one parameter take on a rank?
    # --- solution: task 7.4 ---
    count = int(memory_bytes // memory_per_rank(1, ranks, stage).total_bytes)
    if count < 1:
        raise ValueError(f"no model fits into {memory_bytes} bytes")
    return count
    # --- end ---


def sent_per_rank(parameters: int, ranks: int, stage: int, *, element_bytes: int = 2) -> float:
    """Bytes that each rank sends in a training step, with collectives on a ring.

    A reduce-scatter and an all-gather of b bytes each have every rank send b (ranks - 1) / ranks; an all-reduce is one
    of each. Stage 0 has its gradients all-reduced. Stages 1 and 2 reduce-scatter gradients and all-gather the new
    parameters. Stage 3 all-gathers parameters for forward and once more for backward, and reduce-scatters gradients.

    Args:
        parameters: of the whole model.
        ranks: that share it; one rank sends nothing.
        stage: as in `memory_per_rank`.
        element_bytes: of a parameter or a gradient on its way.

    Raises:
        ValueError: as in `memory_per_rank`.

    Source: arXiv:1910.02054, section 7.
    """
    # TODO(task 7.4): how many times do all parameters, or all gradients, go around the ring?
    # --- solution: task 7.4 ---
    memory_per_rank(parameters, ranks, stage)
    rounds = 3 if stage == 3 else 2
    return rounds * parameters * element_bytes * (ranks - 1) / ranks
    # --- end ---


def hidden_share(
    communication: Sequence[tuple[float, float]], computation: Sequence[tuple[float, float]]
) -> float | None:
    """The share of the communication's seconds in which something is computed as well.

    Args:
        communication: when messages were under way, (start, end) in seconds, in any order; several may overlap, and a
            moment counts once all the same.
        computation: when the GPU computed, likewise.

    Returns:
        0 to 1; None if nothing was communicated for any time.

    Raises:
        ValueError: something ends before it starts.
    """
    # TODO(task 7.4):
    # 1. Refuse what ends before it starts.
    # 2. Make of each list intervals that do not overlap.
    # 3. Add up where the two meet.
    # --- solution: task 7.4 ---
    messages, work = _joined(communication), _joined(computation)
    total = sum(end - start for start, end in messages)
    if total == 0:
        return None
    hidden = sum(max(0.0, min(end, until) - max(start, since)) for start, end in messages for since, until in work)
    return hidden / total
    # --- end ---


# --- solution only ---
def _joined(intervals: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same moments as intervals in order that do not overlap."""
    joined: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if end < start:
            raise ValueError(f"something cannot end at {end} that starts at {start}")
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


# --- end ---


def plot_sharding(results: Sequence[ShardingResult], path: Path) -> Path:
    """Given: bytes held and sent by a rank, measured (bars) and predicted (dashes), by method and number of ranks.

    Returns:
        The path written.
    """
    figure, axes = plotting.new_figure("Sharding", x_label="ranks", y_label="MB per rank", columns=2)
    methods = list(dict.fromkeys(result.method for result in results))
    sizes = sorted({result.ranks for result in results})
    for axis, title, measured, predicted in (
        (axes[0], "held", "held_bytes", "predicted_held_bytes"),
        (axes[1], "sent in a step", "sent_bytes", "predicted_sent_bytes"),
    ):
        axis.set_title(title)
        for number, method in enumerate(methods):
            rows = [result for result in results if result.method == method and getattr(result, measured) is not None]
            places = [sizes.index(row.ranks) + 0.27 * (number - 1) for row in rows]
            heights = [getattr(row, measured) / 1e6 for row in rows]
            axis.bar(places, heights, width=0.25, color=plotting.COLORS[number % 4], label=method)
            dashes = [getattr(row, predicted) / 1e6 for row in rows]
            axis.scatter(places, dashes, marker="_", s=200, color=plotting.INK, zorder=3)
        axis.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes[1].legend(loc="upper left")
    return plotting.save_png(figure, path)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure three ways to train on several ranks; print a table; write OUT/sharding.json and OUT/sharding.png."""
    parser = program.make_parser(__doc__ or "", results=RESULTS)
    parser.add_argument(
        "--ranks", type=program.positive_ints, default=(1, 2, 4), metavar="N,N", help="numbers of ranks"
    )
    parser.add_argument("--width", type=program.positive_int, default=1024, help="of the transformer, a multiple of 4")
    parser.add_argument("--layers", type=program.positive_int, default=4, help="of the transformer")
    options = parser.parse_args(argv)
    from .measuring import Predictions, measure_rank  # needs all other tasks; what is above, and its checks, do not

    results: list[ShardingResult] = []
    # A virtual GPU keeps shapes, times and memory only: the numbers of such models would take a CPU minutes.
    with open_device(options.device, values=False, gpus=max(options.ranks)) as device:
        predictions = Predictions(memory_per_rank, sent_per_rank, hidden_share)
        measure = functools.partial(measure_rank, predictions=predictions, width=options.width, layers=options.layers)
        for size in track(options.ranks, "numbers of ranks"):
            results += run_ranks(measure, size, start_method="fork" if device.simulated else "spawn")[0]
        program.print_table(
            f"Training on {device.name}: MB per rank, measured and predicted (of)",
            ("method", "ranks", "held", "of", "peak", "sent", "of", "hidden", "ms"),
            [
                (result.method, result.ranks, f"{result.held_bytes / 1e6:.1f}",
                 f"{result.predicted_held_bytes / 1e6:.1f}", f"{result.peak_bytes / 1e6:.1f}",
                 "" if result.sent_bytes is None else f"{result.sent_bytes / 1e6:.1f}",
                 f"{result.predicted_sent_bytes / 1e6:.1f}",
                 "" if result.hidden_share is None else f"{result.hidden_share:.0%}",
                 f"{result.step_seconds * 1e3:.2f}")
                for result in results
            ],
        )  # fmt: skip
        program.print_written(
            save_json(options.out / "sharding.json", results, device.provenance()),
            plot_sharding(results, options.out / "sharding.png"),
        )
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
