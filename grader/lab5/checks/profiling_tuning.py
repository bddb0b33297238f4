"""Judges Lab 5's tuning: settings that are measured, the one that is chosen, a GPU that is busy then.

`profiling.py` asks for them. Simulated throughout, as there.
"""

from __future__ import annotations

from typing import Any

from gradebox.run.assertions import number, require, require_between, require_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.shared.programs import picture_and_json

PROGRAM = "lab5_production.tuning"
DEVICE = "vgpu:T4"
TOLERANCE = 0.05
"""Of samples per second."""
TARGET = 0.8


def judge_settings(submission: Submission, generator: InputGenerator) -> None:
    """Fail unless each of the settings that fit is measured, with a job of its own."""
    case = tuning(generator)
    seen = submission.probe("lab5.tuning.tuned", device=DEVICE, values=False, **case)
    fits = [each for each in case["settings"] if each["batch_size"] < case["maker"]["too_large"]]
    require_equal(
        [point["settings"] for point in seen.points], fits, what="tune(): settings of its points",
        hint="one point each, in the order given; settings that do not fit in memory are left out",
    )  # fmt: skip
    require_equal(
        seen.error, "RuntimeError", what="error that comes out of tune() where tensors do not fit each other",
        hint="only torch.OutOfMemoryError says that settings do not fit: any other is somebody's mistake",
    )  # fmt: skip
    require_equal(len(seen.held), len(case["settings"]), what="jobs that tune() asked for, one for each setting")
    require(bool(seen.held), "tune() asked for no job, and measured nothing")
    require(
        max(seen.held) < 1 << 20,
        f"tune() asked for a job while {max(seen.held) / 2**20:.1f} MiB of an earlier one were still on the GPU",
        "drop every name of the job, batches and loss included; an exception's traceback holds them, too",
    )
    options: dict[str, Any] = {"device": DEVICE, "values": False, "student": False, **case, "settings": fits}
    truths = submission.probe("lab5.tuning_truth.tuned_truth", **options).points
    for point, truth in zip(seen.points, truths, strict=True):
        about = f"{point['settings']['batch_size']} samples, {point['settings']['num_workers']} workers (simulated)"
        require_close(
            point["samples_per_second"], truth["samples_per_second"], relative=TOLERANCE,
            what=f"tune(): samples_per_second with {about}",
            hint="wait for the device before the first timed step and after the last, and never in between",
        )  # fmt: skip
        require_between(
            point["utilization"], max(0.0, truth["utilization"] - 0.1),  # the first recorded step finds an idle device
            truth["utilization"] + 0.1, what=f"tune(): utilization with {about}", show=lambda share: f"{share:.0%}",
        )  # fmt: skip


def judge_choice(submission: Submission, generator: InputGenerator) -> None:
    """Fail unless the cheapest of the fast settings is chosen."""
    fast = generator.log_uniform(1e3, 1e5)
    rows = _settings(generator)
    tolerances = generator.shuffled([None, 0.12, 0.002, 0.0])
    wanted = [_cheapest(rows, _TOLERATED if tolerance is None else tolerance) for tolerance in tolerances]
    points = [_point(fast, *row) for row in rows]
    seen = submission.probe("lab5.tuning.chosen", device="cpu", points=points, tolerances=tolerances)
    shown = "; ".join(f"batch {b}, {w} workers: {share:.1%} of the fastest" for b, w, share, _ in rows)
    for told, row, tolerance in zip(seen.best, wanted, tolerances, strict=True):
        at = "the default tolerance" if tolerance is None else f"tolerance={tolerance}"
        expected = _point(fast, *row)
        require_equal(told["settings"], expected["settings"], what=f"choose() at {at} among {shown}")
        require_close(
            told["samples_per_second"], expected["samples_per_second"], relative=1e-6,
            what=f"choose() at {at}: of equal settings, the faster point",
        )  # fmt: skip
    require_equal(
        seen.exact["settings"]["batch_size"], 32,
        what="batch size that choose() takes of 64 at 4096 and 32 at 2048 samples per second, with tolerance=0.5",
        hint="at least (1 - tolerance) of the largest",
    )  # fmt: skip
    require(seen.refused, "choose([]) raised no ValueError")


def judge_program(submission: Submission) -> None:
    """Fail unless the program ends with a GPU that is busy."""
    arguments = ["--batch-sizes", "16,1024", "--workers", "2", "--steps", "2", "--device", DEVICE]
    seen = submission.probe("shared.programs.run", device="cpu", module=PROGRAM, arguments=arguments)
    stages = picture_and_json(seen, f"python -m labs.{PROGRAM}")
    require(len(stages) >= 2, f"{len(stages)} stages in the results, expected those before and after tuning")
    try:
        before, after = (float(stages[index]["point"]["utilization"]) for index in (0, -1))
        settings, bottlenecks = stages[-1]["point"]["settings"], [stage["bottleneck"] for stage in stages]
    except (KeyError, TypeError, ValueError):
        require(False, "a stage in the results lacks a figure", "save PipelineStage objects with save_json")
        return
    number(before, "utilization as found")
    require(
        before < TARGET < after,
        f"utilisation {before:.0%} as found and {after:.0%} after tuning (simulated), expected more than "
        f"{TARGET:.0%} after it; its settings are {settings}",
        "compare with where the time of a step goes in each stage",
    )
    require_equal(bottlenecks[-1], "compute", what="the bottleneck of the tuned pipeline")
    require(bottlenecks[0] != "compute", "the pipeline as found has the bottleneck 'compute'")


def tuning(generator: InputGenerator) -> dict[str, Any]:
    """A pipeline with a slow data set, and settings for it, one of which does not fit in memory."""
    generator = generator.shared("lab5.tuning")
    rows = [(16, 0, False), (512, 0, False), (1 << 14, 0, False), (512, 2, True), (64, 1, True)]
    settings = [
        {"batch_size": batch, "num_workers": workers, "pin_memory": pinned, "log_every": 1}
        for batch, workers, pinned in rows
    ]
    return {
        "maker": {
            "width": 512,  # kernels that outlast their launches, so that the device lags behind
            "layers": generator.integer(6, 9),
            "decode_seconds": generator.uniform(2e-6, 3e-6),
            "too_large": 1 << 14,
            "late_batch": rows[0][0],
            "late_step": 8,  # of those that are timed, and not of the untimed ones, however these two are exchanged
            "late_seconds": generator.uniform(0.02, 0.04),
        },
        "settings": settings,
        "steps": 12,
        "warmup": 6,  # the workers' first batches are waiting when it begins; then they come as they are made
    }


Row = tuple[int, int, float, float]
"""Batch, workers, share of the fastest, utilization."""
_TOLERATED = 0.05
"""What `choose` may lose without being told, by its docstring."""


def _cheapest(rows: list[Row], tolerance: float) -> Row:
    """The smallest batch, then the fewest workers, among those that are fast enough; of equal settings the faster."""
    return min((row for row in rows if row[2] >= 1 - tolerance), key=lambda row: (row[0], row[1], -row[2]))


def _settings(generator: InputGenerator) -> list[Row]:
    """Settings of which neither the fastest, nor the busiest, nor the one with fewest workers is the one to take."""
    while True:
        batches, workers = generator.shuffled((32, 64, 128, 256, 512, 1024))[:4], generator.shuffled(range(9))[:4]
        # Far from the limits, and two of them with the same settings.
        shares = [
            1.0,
            *(generator.uniform(0.955, 0.995) for _ in range(4)),
            *(generator.uniform(0.89, 0.94) for _ in range(2)),
        ]
        shares += [generator.uniform(0.4, 0.8)]
        rows = [
            (generator.shuffled(batches)[0], generator.shuffled(workers)[0], share, generator.uniform(0.5, 0.99))
            for share in shares
        ]
        best = _cheapest(rows, _TOLERATED)
        rows.append((best[0], best[1], generator.uniform(0.952, best[2]), generator.uniform(0.5, 0.99)))
        enough = [row for row in rows if row[2] >= 1 - _TOLERATED]
        others = (
            max(rows, key=lambda row: row[2]),
            max(enough, key=lambda row: row[3]),
            min(enough, key=lambda row: (row[1], row[0])),
            _cheapest(rows, 0.12),
        )
        if all(row[:2] != best[:2] for row in others):
            return generator.shuffled(rows)


def _point(fastest: float, batch: int, workers: int, share: float, utilization: float) -> dict[str, Any]:
    settings = {"batch_size": batch, "num_workers": workers, "pin_memory": True, "log_every": 50}
    return {"settings": settings, "samples_per_second": share * fastest, "utilization": utilization}
