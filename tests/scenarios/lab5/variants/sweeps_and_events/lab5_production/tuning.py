"""Tuning, written from the docstrings: CUDA events instead of the clock, one sorted pass to choose."""

import gc
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch

from labkit import plotting, program
from labkit.device import open_device
from labkit.profiling import REGIONS, TrainingJob
from labkit.progress import track
from labkit.results import PipelineSettings, PipelineStage, TuningPoint, save_json

from .profiling import LOSSES, find_bottleneck, profile_job, step_breakdown, utilization, where_time_goes
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


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def tune(make_job, settings, *, steps=10, warmup=3):
    points = {}
    for number, one in enumerate(settings):
        _free()
        point = _try(make_job, one, steps, warmup)
        if point is not None:
            points[number] = point
    _free()
    return list(points.values())


def _try(make_job, one, steps, warmup):
    job = None
    try:
        job = make_job(one)
        rate = _rate(job, one.batch_size, steps, warmup)
        used = utilization(where_time_goes(profile_job(job)))
    except torch.OutOfMemoryError:
        return None
    return TuningPoint(settings=one, samples_per_second=rate, utilization=used)


def _rate(job, batch_size, steps, warmup):
    feed = iter(job.batches())

    def several(first, last):
        for step in range(first, last):
            inputs, targets = next(feed)
            inputs, targets = (each.to(job.device, non_blocking=job.non_blocking) for each in (inputs, targets))
            job.optimizer.zero_grad()
            loss = job.criterion(job.model(inputs), targets)
            loss.backward()
            job.optimizer.step()
            if job.after_step is not None:
                job.after_step(step, job.model, loss.detach())

    several(0, warmup)
    if job.device != "cuda":
        began = time.perf_counter()
        several(warmup, warmup + steps)
        return batch_size * steps / (time.perf_counter() - began)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    several(warmup, warmup + steps)
    last.record()
    last.synchronize()
    return batch_size * steps / (first.elapsed_time(last) / 1000)


def choose(points, *, tolerance=0.05):
    ranked = sorted(points, key=lambda point: point.samples_per_second, reverse=True)
    if len(ranked) == 0:
        raise ValueError("no points")
    best = ranked[0]
    for point in ranked[1:]:
        if point.samples_per_second < ranked[0].samples_per_second * (1 - tolerance):
            break
        cost = (point.settings.batch_size, point.settings.num_workers)
        if cost < (best.settings.batch_size, best.settings.num_workers):
            best = point
    return best


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
    figure, (axis,) = plotting.new_figure("Where a step goes", y_label="share")
    bottom = [0.0 for _ in stages]
    for part in ("compute", "communication", "data", "transfer", "sync", "launch"):
        heights = [getattr(s.device_time, f"{part}_seconds") / s.device_time.step_seconds for s in stages]
        axis.bar([s.name for s in stages], heights, bottom=bottom, label=part)
        bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
    axis.legend()
    return plotting.save_png(figure, path)


def main(argv: Sequence[str] | None = None) -> int:
    """Improve the slow pipeline stage by stage; print tables; write OUT/profiling.json, OUT/profiling.png and traces.

    The stages are "as found", "metrics read every 50 steps", "batches of N" (the largest) and "tuned"; each has a
    trace, OUT/trace-1.json.gz and so on.

    Returns:
        0.
    """
    parser = program.make_parser(__doc__ or "", results=RESULTS)
    parser.add_argument("--batch-sizes", type=program.positive_ints, default=(16, 64, 256, 1024), metavar="N,N")
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
                breakdown=step_breakdown(make(point.settings), steps=options.steps),
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
    parts = [f"{name}_seconds" for name in (*REGIONS, "communication")]
    each_part = [(stage.name, *(f"{getattr(stage.breakdown, part) * 1e6:,.0f}" for part in parts)) for stage in stages]
    columns = ("stage", "data", "transf.", "forward", "backw.", "optim.", "comm.")
    program.print_table("Parts of a step one by one, microseconds", columns, each_part)
    for stage in stages:
        rate = f"{stage.point.samples_per_second:,.0f} samples/s, utilisation {stage.point.utilization:.0%}"
        print(f"{stage.name}: {rate}; bottleneck: {stage.bottleneck} ({ADVICE[stage.bottleneck]})")


if __name__ == "__main__":
    sys.exit(program.run(main))
