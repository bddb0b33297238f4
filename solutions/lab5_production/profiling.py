"""Task 5.2: find out what a training pipeline's GPU waits for, turn what can be turned, and show what it gave.

Not for making a model's own operations faster: this is about the loop around them.

Run: python -m labs.lab5_production.profiling
"""

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, record_function

from labkit import plotting, program
from labkit.device import open_device
from labkit.profiling import Timeline, TrainingJob, intersect, read_timeline, subtract, total
from labkit.progress import track
from labkit.results import DeviceTime, PipelineSettings, PipelineStage, StepBreakdown, TuningPoint, save_json

from .slow_pipeline import AS_FOUND, make_job

RESULTS = Path(__file__).parent / "results"
WAIT, WARMUP = 1, 2
"""Steps that the profiler leaves out, and steps in which it gets ready; neither is recorded."""
LOG_EVERY = 50
Bottleneck = Literal["data", "transfer", "sync", "communication", "launch", "compute"]
LOSSES: tuple[Bottleneck, ...] = ("data", "transfer", "sync", "communication", "launch")
ADVICE = {
    "data": "load batches in worker processes",
    "transfer": "pin the batches' memory and do not wait for copies",
    "sync": "look at values less often, and at all of them at once",
    "communication": "overlap it, or exchange less often",
    "launch": "give each kernel more to do: larger batches",
    "compute": "nothing: the device is at work",
}


def profile_job(job: TrainingJob, *, steps: int = 5, trace: Path | str | None = None) -> Timeline:
    """Record some steps of a training loop with `torch.profiler`, as it runs: nothing waits that would not without.

    The first WAIT + WARMUP steps of the job are not recorded (`torch.profiler.schedule`), the `steps` after them are.
    Only twice is the device waited for: before the first recorded step, so that none of the earlier work is left, and
    at the end of the last. In each step the five parts are named regions (`record_function`), once each and in the
    order of `labkit.profiling.REGIONS`: "data" is the wait for the batch; "forward" includes the criterion;
    "backward" the clearing of old gradients; `after_step` lies in no region.

    Args:
        job: what to run; WAIT + WARMUP + steps steps of it, from step 0.
        steps: recorded ones.
        trace: where to write the recording for Perfetto or TensorBoard (Chrome's trace format), a path that ends in
            .json or .json.gz; missing folders are made. None: nowhere.

    Returns:
        The `Timeline` of the recorded steps, by `labkit.profiling.read_timeline`.

    Raises:
        ValueError: `steps` is below 1.

    Source: https://docs.pytorch.org/docs/stable/profiler.html
    """
    # TODO(task 5.2):
    # 1. Refuse arguments that make no sense.
    # 2. Make a torch.profiler.profile for the CPU and, on a GPU, for CUDA, with a schedule that records once.
    # 3. Run the steps, each part in its record_function; tell the profiler at the end of each step.
    # 4. Wait for the device in the two places where the docstring says so, before the profiler is told of the step.
    # 5. Write the trace, and read the timeline.
    # --- solution: task 5.2 ---
    if steps < 1:
        raise ValueError(f"steps start at 1, got {steps}")
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (job.device == "cuda")
    schedule = torch.profiler.schedule(wait=WAIT, warmup=WARMUP, active=steps, repeat=1)
    batches = job.batches()
    with torch.profiler.profile(activities=activities, schedule=schedule) as recorded:
        for step in range(WAIT + WARMUP + steps):
            with record_function("data"):
                inputs, targets = next(batches)
            _train(job, step, inputs, targets)
            if step + 1 in (WAIT + WARMUP, WAIT + WARMUP + steps):
                _synchronize(job.device)
            recorded.step()
    if trace is not None:
        Path(trace).parent.mkdir(parents=True, exist_ok=True)
        recorded.export_chrome_trace(str(trace))
    return read_timeline(recorded)
    # --- end ---


# --- solution only ---
def _train(job: TrainingJob, step: int, inputs: Tensor, targets: Tensor) -> None:
    """All of a step but its data, in named regions."""
    with record_function("transfer"):
        inputs = inputs.to(job.device, non_blocking=job.non_blocking)
        targets = targets.to(job.device, non_blocking=job.non_blocking)
    with record_function("forward"):
        loss = job.criterion(job.model(inputs), targets)
    with record_function("backward"):
        job.optimizer.zero_grad()
        loss.backward()
    with record_function("optimizer"):
        job.optimizer.step()
    if job.after_step is not None:
        job.after_step(step, job.model, loss.detach())


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


# --- end ---


def where_time_goes(timeline: Timeline) -> DeviceTime:
    """Say of each moment between a timeline's start and stop what the device did, or what it waited for.

    A moment belongs to the first of these that is true of it:

    - compute: a kernel is running;
    - communication: a collective is running;
    - data: the host is in its region "data";
    - transfer: a copy to the device is running, or the host is in its region "transfer";
    - sync: the moment lies in a gap in which the host waits for the device, or something is copied from it, outside the
      regions "data" and "transfer", be it for a part of the gap only. A gap is the time from the end of what
      ran (kernels and collectives) to the start of the next, or to the start or stop of the timeline;
    - launch: none of these: the host was busy launching.

    Args:
        timeline: of one or more steps. Its intervals may reach beyond its start and stop; what lies there is left out.

    Returns:
        The seconds of each, divided by the number of steps; together they make up (stop - start) / steps.
    """
    # TODO(task 5.2): labkit.profiling has union, intersect, subtract and total for intervals.
    # 1. Take the moments of kernels; then those of collectives that are left; what is idle is then left.
    # 2. Of the idle moments take those of the data region; of the rest those of transfers.
    # 3. Find the gaps with a wait in them; the rest is sync inside of these, and launch outside.
    # --- solution: task 5.2 ---
    whole = [(timeline.start, timeline.stop)]
    regions = timeline.regions
    compute = intersect(whole, timeline.kernels)
    communication = subtract(intersect(whole, timeline.collectives), compute)
    gaps = subtract(whole, [*compute, *communication])

    loading = regions.get("data", ())
    moving = [*timeline.copies_in, *regions.get("transfer", ())]
    rest = subtract(gaps, loading)
    launching = subtract(rest, moving)
    waits = subtract([*timeline.waits, *timeline.copies_out], [*loading, *regions.get("transfer", ())])
    waited = [gap for gap in gaps if intersect([gap], waits)]
    return DeviceTime(
        compute_seconds=total(compute) / timeline.steps,
        communication_seconds=total(communication) / timeline.steps,
        data_seconds=total(intersect(gaps, loading)) / timeline.steps,
        transfer_seconds=total(intersect(rest, moving)) / timeline.steps,
        sync_seconds=total(intersect(launching, waited)) / timeline.steps,
        launch_seconds=total(subtract(launching, waited)) / timeline.steps,
    )
    # --- end ---


def utilization(times: DeviceTime) -> float:
    """The share of a step in which at least one kernel runs, collectives included, 0 to 1: what NVML calls utilisation.

    Source: nvml.h, nvmlUtilization_t.
    """
    # TODO(task 5.2): divide.
    # --- solution: task 5.2 ---
    return (times.compute_seconds + times.communication_seconds) / times.step_seconds
    # --- end ---


def find_bottleneck(times: DeviceTime, *, target: float = 0.8) -> Bottleneck:
    """Say what to work on first.

    "compute" if the device computes for more than `target` of the step (communication does not count): the pipeline is
    as good as its model and its device. Else the largest of
    "data" (a slow loader), "transfer", "sync" (waiting for the device where there is no need), "communication", and
    "launch" (batches too small for the device). Of equal ones, the first in this order.

    Args:
        times: of a step.
        target: share of the step in which the device should compute, 0 to 1.
    """
    # TODO(task 5.2): compare the device's computing with the step, and else find the largest of the five.
    # --- solution: task 5.2 ---
    if times.compute_seconds > target * times.step_seconds:
        return "compute"
    return max(LOSSES, key=lambda name: float(getattr(times, f"{name}_seconds")))  # max keeps the first of equal ones
    # --- end ---


def step_breakdown(job: TrainingJob, *, steps: int = 5, warmup: int = 2) -> StepBreakdown:
    """Time the parts of a step one by one, with the device idle whenever the clock is read.

    First `warmup` untimed steps, then `steps` timed ones. The parts are the regions of `profile_job`; `after_step` is
    called, and not counted. Each figure is the median over the timed steps.

    If the job's model is a DistributedDataParallel, as many steps follow without exchange of gradients (`no_sync`, for
    the forward and the backward pass). All figures are then of these, and communication_seconds is what backward took
    longer in the steps with exchange, by the medians, never below 0. Otherwise communication_seconds is 0.0.

    Args:
        job: what to run.
        steps: timed ones, of each sort.
        warmup: untimed ones before them, of each sort.

    Raises:
        ValueError: `steps` is below 1 or `warmup` below 0.
    """
    # TODO(task 5.2):
    # 1. Refuse arguments that make no sense.
    # 2. Time the five parts, and wait for the device before each reading of the clock; take medians.
    # 3. With several processes do it again without exchange, and compare the backward passes.
    # --- solution: task 5.2 ---
    if steps < 1 or warmup < 0:
        raise ValueError(f"steps start at 1, warmup at 0; got {steps}, {warmup}")
    batches = job.batches()
    data, transfer, forward, backward, optimizer = _time_parts(job, batches, steps, warmup)
    communication = 0.0
    if isinstance(job.model, DistributedDataParallel):
        exchanged = backward
        with job.model.no_sync():
            data, transfer, forward, backward, optimizer = _time_parts(job, batches, steps, warmup)
        communication = max(0.0, exchanged - backward)
    return StepBreakdown(
        data_seconds=data,
        transfer_seconds=transfer,
        forward_seconds=forward,
        backward_seconds=backward,
        optimizer_seconds=optimizer,
        communication_seconds=communication,
    )
    # --- end ---


# --- solution only ---
def _time_parts(
    job: TrainingJob, batches: Iterator[tuple[Tensor, Tensor]], steps: int, warmup: int
) -> tuple[float, ...]:
    """Median seconds of data, transfer, forward, backward, optimizer."""

    def now() -> float:
        _synchronize(job.device)
        return time.perf_counter()

    readings = []
    for step in range(warmup + steps):
        moments = [now()]
        inputs, targets = next(batches)
        moments.append(now())
        inputs = inputs.to(job.device, non_blocking=job.non_blocking)
        targets = targets.to(job.device, non_blocking=job.non_blocking)
        moments.append(now())
        loss = job.criterion(job.model(inputs), targets)
        moments.append(now())
        job.optimizer.zero_grad()
        loss.backward()
        moments.append(now())
        job.optimizer.step()
        moments.append(now())
        if job.after_step is not None:
            job.after_step(step, job.model, loss.detach())
        readings.append([stop - start for start, stop in zip(moments, moments[1:], strict=False)])
    return tuple(statistics.median(column) for column in zip(*readings[warmup:], strict=True))


# --- end ---


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
            last, and not waited for in between.
        warmup: untimed steps before them.

    Returns:
        One point for each of the settings, in their order: samples_per_second of the timed steps, without a profiler;
        and the utilization by `profile_job` of the same job, run after that. Settings for which the device's memory
        does not suffice (`torch.OutOfMemoryError`) are left out.
    """
    # TODO(task 5.2):
    # 1. Make the job; warm up; wait for the device; time the steps; wait again before the clock is read.
    # 2. Profile it for its utilization.
    # 3. Leave out what runs out of memory, and free what it held before the next one is made.
    # --- solution: task 5.2 ---
    points = []
    for each in settings:
        try:
            points.append(_measure(make_job(each), each, steps, warmup))
        except torch.OutOfMemoryError:
            pass  # the traceback, and with it the job, is gone once this block is left
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return points
    # --- end ---


# --- solution only ---
def _measure(job: TrainingJob, settings: PipelineSettings, steps: int, warmup: int) -> TuningPoint:
    batches = job.batches()
    start = 0.0
    for step in range(warmup + steps):
        if step == warmup:
            _synchronize(job.device)
            start = time.perf_counter()
        inputs, targets = next(batches)
        _train(job, step, inputs, targets)
    _synchronize(job.device)
    seconds = time.perf_counter() - start
    del batches  # with its workers
    return TuningPoint(
        settings=settings,
        samples_per_second=steps * settings.batch_size / seconds,
        utilization=utilization(where_time_goes(profile_job(job))),
    )


# --- end ---


def choose(points: Sequence[TuningPoint], *, tolerance: float = 0.05) -> TuningPoint:
    """The settings to train with: the cheapest that are about as fast as the fastest.

    Of the points whose samples_per_second are at least (1 - tolerance) of the largest, the one with the smallest
    batch_size (a larger batch changes how the model learns); of these, the one with the fewest num_workers (they cost
    memory and cores); of these the fastest.

    Raises:
        ValueError: there are no points.
    """
    # TODO(task 5.2): keep the fast ones, and take the least of them in the order that the docstring gives.
    # --- solution: task 5.2 ---
    if not points:
        raise ValueError("there is nothing to choose from")
    enough = (1 - tolerance) * max(point.samples_per_second for point in points)
    fast = [point for point in points if point.samples_per_second >= enough]
    return min(fast, key=lambda p: (p.settings.batch_size, p.settings.num_workers, -p.samples_per_second))
    # --- end ---


def nvml_utilization(job: TrainingJob, seconds: float) -> float | None:
    """Given: NVML's utilisation of GPU 0 while the job runs for `seconds`, 0 to 1; None where there is no NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceGetUtilizationRates(handle)
    except Exception:  # no package, no library, no driver, no GPU, not supported: one answer for all
        return None
    readings, began, step = [], time.perf_counter(), 0
    for inputs, targets in job.batches():
        loss = job.criterion(job.model(inputs.to(job.device)), targets.to(job.device))
        job.optimizer.zero_grad()
        loss.backward()
        job.optimizer.step()
        if job.after_step is not None:
            job.after_step(step, job.model, loss.detach())
        step += 1
        elapsed = time.perf_counter() - began
        if elapsed > 1:  # NVML looks back by up to a second
            readings.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
        if elapsed > max(seconds, 1.1) and readings:
            break
    return statistics.fmean(readings)


def plot_stages(stages: Sequence[PipelineStage], path: Path | str) -> Path:
    """Plot what the device does in a step of each stage, as shares of the step, with utilisation and throughput.

    Args:
        stages: in the order of the improvements.
        path: the PNG file to write.

    Returns:
        The path written.

    Raises:
        OSError: the file cannot be written.
    """
    # TODO(task 5.2):
    # 1. Take a figure from labkit.plotting.new_figure.
    # 2. Draw a bar for each stage, stacked from the six shares of its device_time.
    # 3. Write it with labkit.plotting.save_png.
    # --- solution: task 5.2 ---
    figure, (axis,) = plotting.new_figure("What the device does in a training step", x_label="share of the step")
    colors = (*plotting.COLORS, "#999999", "#ddbb44")
    names = [f"{stage.name}\n{stage.point.samples_per_second:,.0f} samples/s" for stage in stages]
    left = [0.0] * len(stages)
    for name, color in zip(("compute", *LOSSES), colors, strict=True):
        times = [stage.device_time for stage in stages]
        shares = [getattr(each, f"{name}_seconds") / each.step_seconds for each in times]
        axis.barh(names, shares, left=left, color=color, label=name)
        left = [before + share for before, share in zip(left, shares, strict=True)]
    axis.invert_yaxis()
    axis.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    return plotting.save_png(figure, path)
    # --- end ---


def main(argv: Sequence[str] | None = None) -> int:
    """Improve the slow pipeline stage by stage; print tables; write OUT/profiling.json, OUT/profiling.png and traces.

    The stages are "as found", "metrics read every 50 steps", "batches of N" (the largest) and "tuned"; each has a trace,
    OUT/trace-1.json.gz and so on.

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
        # TODO(task 5.2):
        # 1. Save the stages with save_json as OUT/profiling.json, with device.provenance().
        # 2. Draw OUT/profiling.png with plot_stages.
        # 3. Print both paths with program.print_written.
        # --- solution: task 5.2 ---
        written = save_json(options.out / "profiling.json", stages, device.provenance())
        program.print_written(written, plot_stages(stages, options.out / "profiling.png"))
        # --- end ---
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
