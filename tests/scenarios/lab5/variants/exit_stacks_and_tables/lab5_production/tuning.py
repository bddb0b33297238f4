"""Task 5.2: turn what can be turned in a training pipeline, and show what it gave.

Not for finding out what is slow (profiling.py).

Run: python -m labs.lab5_production.tuning
"""

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch

from labkit import plotting, program
from labkit.device import open_device
from labkit.profiling import TrainingJob
from labkit.progress import track
from labkit.results import PipelineSettings, PipelineStage, TuningPoint, save_json

from .profiling import LOSSES, find_bottleneck, profile_job, where_time_goes
from .slow_pipeline import AS_FOUND, make_job

RESULTS = Path(__file__).parent / "results"
LOG_EVERY = 50
ADVICE = {
    "data": "load batches in worker processes",
    "transfer": "pin the batches' memory and do not wait for copies",
    "sync": "look at values less often, and at all of them at once",
    "communication": "overlap it, or exchange less often",
    "launch": "give each kernel more to do: larger batches",
    "compute": "nothing: the device is at work",
}


def _seconds(job: TrainingJob, steps: int, warmup: int) -> float:
    """Of the timed steps together."""
    batches = job.batches()
    clock: list[float] = []
    for number in range(warmup + steps + 1):
        if number in (warmup, warmup + steps):
            if job.device == "cuda":
                torch.cuda.synchronize()
            clock.append(time.monotonic())
        if number < warmup + steps:
            inputs, targets = next(batches)
            job.train(number, inputs, targets)
    batches.close()  # type: ignore[attr-defined]
    return clock[1] - clock[0]


def _points(
    make_job: Callable[[PipelineSettings], TrainingJob], settings: Sequence[PipelineSettings], steps: int, warmup: int
) -> Iterator[TuningPoint]:
    for each in settings:
        point = None
        try:
            job = make_job(each)
            rate = steps * job.batch_size / _seconds(job, steps, warmup)
            share = where_time_goes(profile_job(job)).utilization
            point = TuningPoint(settings=each, samples_per_second=rate, utilization=share)
        except torch.cuda.OutOfMemoryError:
            pass
        job = None  # type: ignore[assignment]
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if point is not None:
            yield point


def tune(
    make_job: Callable[[PipelineSettings], TrainingJob],
    settings: Sequence[PipelineSettings],
    *,
    steps: int = 10,
    warmup: int = 3,
) -> list[TuningPoint]:
    """Try settings, each with a job of its own, of which nothing is left when the next is made.

    Args:
        make_job: makes the job of some settings.
        settings: what to try.
        steps: timed steps, one after the other as training does them: the device idle before the first and after the
            last, and not waited for in between. A step begins with taking its batch, also the first of them.
        warmup: untimed steps before them.

    Returns:
        One point for each of the settings, in their order: samples_per_second of the timed steps, without a profiler;
        and the utilization by `profile_job` of the same job, run after that. Settings for which the device's memory
        does not suffice (`torch.OutOfMemoryError`) are left out; other errors go through.
    """
    return list(_points(make_job, settings, steps, warmup))


def choose(points: Sequence[TuningPoint], *, tolerance: float = 0.05) -> TuningPoint:
    """The settings to train with: the cheapest that are about as fast as the fastest.

    Of the points whose samples_per_second are at least (1 - tolerance) of the largest, the one with the smallest
    batch_size (a larger batch changes how the model learns); of these, the one with the fewest num_workers (they cost
    memory and cores); of these the fastest.

    Raises:
        ValueError: there are no points.
    """
    if len(points) == 0:
        raise ValueError("no points")
    fastest = max(points, key=lambda point: point.samples_per_second).samples_per_second
    fast = (point for point in points if point.samples_per_second >= (1 - tolerance) * fastest)
    by_speed = sorted(fast, key=lambda point: point.samples_per_second, reverse=True)
    by_workers = sorted(by_speed, key=lambda point: point.settings.num_workers)
    return sorted(by_workers, key=lambda point: point.settings.batch_size)[0]


def nvml_utilization(job: TrainingJob, seconds: float) -> float | None:
    """Given: NVML's utilisation of GPU 0 while the job runs for `seconds`, 0 to 1; None where there is no NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceGetUtilizationRates(handle)
    except Exception:  # no package, no library, no driver, no GPU, not supported: one answer for all
        return None
    readings, began = [], time.perf_counter()
    for step, batch in enumerate(job.batches()):
        job.train(step, *batch)
        elapsed = time.perf_counter() - began
        if elapsed > 1:  # NVML looks back by up to a second
            readings.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
        if elapsed > max(seconds, 1.1) and readings:
            break
    return statistics.fmean(readings)


def plot_stages(stages: Sequence[PipelineStage], path: Path | str) -> Path:
    """Given: plot what the device does in a step of each stage, as shares of the step, with utilisation and throughput.

    Args:
        stages: in the order of the improvements.
        path: the PNG file to write.

    Returns:
        The path written.

    Raises:
        OSError: the file cannot be written.
    """
    figure, (axis,) = plotting.new_figure("What the device does in a training step", x_label="share of the step")
    colors = (*plotting.COLORS, "#999999", "#ddbb44")
    names = [
        f"{stage.name}\n{stage.point.samples_per_second:,.0f} samples/s, {stage.point.utilization:.0%} utilised"
        for stage in stages
    ]
    left = [0.0] * len(stages)
    for name, color in zip(("compute", *LOSSES), colors, strict=True):
        times = [stage.device_time for stage in stages]
        shares = [getattr(each, f"{name}_seconds") / each.step_seconds for each in times]
        axis.barh(names, shares, left=left, color=color, label=name)
        left = [before + share for before, share in zip(left, shares, strict=True)]
    axis.invert_yaxis()
    axis.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    return plotting.save_png(figure, path)


def main(argv: Sequence[str] | None = None) -> int:
    """Given: improve the slow pipeline stage by stage, print tables, and write OUT/profiling.json, its plot and traces.

    The stages are "as found", "metrics read every 50 steps", "batches of N" (the largest) and "tuned"; each has a
    trace, OUT/trace-1.json.gz and so on.

    Returns:
        0.
    """
    parser = program.make_parser(__doc__ or "", results=RESULTS)
    parser.add_argument("--batch-sizes", type=program.positive_ints, default=(16, 64, 256, 1024, 4096), metavar="N,N")
    parser.add_argument("--workers", type=program.positive_ints, default=(1, 2, 4), metavar="N,N", help="besides none")
    parser.add_argument("--steps", type=program.positive_int, default=5, metavar="N", help="recorded and timed steps")
    options = parser.parse_args(argv)
    # Only times matter here, so a virtual GPU need not compute anything.
    with open_device(options.device, values=False) as device:

        def make(settings: PipelineSettings) -> TrainingJob:
            return make_job(settings, device.torch_device)

        def measured(name: str, point: TuningPoint, number: int) -> PipelineStage:
            times = where_time_goes(
                profile_job(make(point.settings), steps=options.steps, trace=options.out / f"trace-{number}.json.gz")
            )
            return PipelineStage(
                name=name,
                point=point,
                bottleneck=find_bottleneck(times),
                device_time=times,
                # A virtual GPU's timeline is exact; a second of training would add nothing but time.
                nvml_utilization=None if device.simulated else nvml_utilization(make(point.settings), 3.0),
            )

        seldom = replace(AS_FOUND, log_every=LOG_EVERY)
        larger = replace(seldom, batch_size=max(options.batch_sizes))
        first = {
            "as found": AS_FOUND,
            f"metrics read every {LOG_EVERY} steps": seldom,
            f"batches of {larger.batch_size}": larger,
        }
        stages = [
            measured(name, tune(make, [settings], steps=options.steps)[0], number)
            for number, (name, settings) in enumerate(first.items(), start=1)
        ]
        grid = [
            replace(seldom, batch_size=batch, num_workers=workers, pin_memory=workers > 0)
            for workers, batch in product((0, *options.workers), options.batch_sizes)
        ]
        points = []
        for settings in track(grid, "tuning"):
            points += tune(make, [settings], steps=options.steps)
        stages.append(measured("tuned", choose(points), len(stages) + 1))
        _print(points, stages)
        written = save_json(options.out / "profiling.json", stages, device.provenance())
        program.print_written(written, plot_stages(stages, options.out / "profiling.png"))
    return 0


def _print(points: Sequence[TuningPoint], stages: Sequence[PipelineStage]) -> None:
    rows = [
        (p.settings.batch_size, p.settings.num_workers, f"{p.samples_per_second:,.0f}", f"{p.utilization:.0%}")
        for p in points
    ]
    program.print_table("Tuning", ("batch", "workers", "samples/s", "util."), rows)
    shares = []
    for stage in stages:
        times = stage.device_time
        parts = [f"{getattr(times, f'{name}_seconds') / times.step_seconds:.0%}" for name in ("compute", *LOSSES)]
        shares.append((stage.name, *parts))
    program.print_table("Share of the step", ("stage", "comp.", "data", "transf.", "sync", "comm.", "launch"), shares)
    for stage in stages:
        rate = f"{stage.point.samples_per_second:,.0f} samples/s, utilisation {stage.point.utilization:.0%}"
        print(f"{stage.name}: {rate}; bottleneck: {stage.bottleneck} ({ADVICE[stage.bottleneck]})")


if __name__ == "__main__":
    sys.exit(program.run(main))
