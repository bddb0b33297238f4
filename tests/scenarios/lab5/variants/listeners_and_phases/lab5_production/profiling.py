"""Task 5.4: find out what a training pipeline's GPU waits for.

Not for turning anything (tuning.py, which is also the program), nor for making a model's own operations faster: this is
about the loop around them.
"""

import contextlib
import itertools
import math
from pathlib import Path
from typing import Literal

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, record_function

from labkit.profiling import Timeline, TrainingJob, intersect, read_timeline, subtract, total
from labkit.results import DeviceTime, StepBreakdown

from .loop import Stopwatch, idle, steps_of, touched

WAIT, WARMUP = 1, 2
"""Steps that the profiler leaves out, and steps in which it gets ready; neither is recorded."""
Bottleneck = Literal["data", "transfer", "sync", "communication", "launch", "compute"]
LOSSES: tuple[Bottleneck, ...] = ("data", "transfer", "sync", "communication", "launch")


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
    if steps < 1:
        raise ValueError(f"steps is {steps}: record at least one")
    cuda = job.device.startswith("cuda")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    quiet = {WAIT + WARMUP - 1, WAIT + WARMUP + steps - 1}
    parts = steps_of(job, record_function)
    with (
        contextlib.closing(parts),
        torch.profiler.profile(
            activities=activities, schedule=torch.profiler.schedule(wait=WAIT, warmup=WARMUP, active=steps, repeat=1)
        ) as recorded,
    ):
        for step in itertools.islice(parts, WAIT + WARMUP + steps):
            if step in quiet:
                idle(job)
            recorded.step()
    if trace is not None:
        Path(trace).parent.mkdir(parents=True, exist_ok=True)
        recorded.export_chrome_trace(str(trace))
    return read_timeline(recorded)


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
    whole = [(timeline.start, timeline.stop)]
    busy = [*timeline.kernels, *timeline.collectives]
    gaps = subtract(whole, busy)
    hosts = [*timeline.regions.get("data", ()), *timeline.regions.get("transfer", ())]
    looks = subtract([*timeline.waits, *timeline.copies_out], hosts)
    claims = (
        ("compute", timeline.kernels),
        ("communication", timeline.collectives),
        ("data", timeline.regions.get("data", ())),
        ("transfer", [*timeline.copies_in, *timeline.regions.get("transfer", ())]),
        ("sync", list(touched(gaps, looks))),
        ("launch", whole),
    )
    left, seconds = whole, {}
    for name, moments in claims:
        seconds[f"{name}_seconds"] = total(intersect(left, moments)) / timeline.steps
        left = subtract(left, moments)
    return DeviceTime(**seconds)


def utilization(times: DeviceTime) -> float:
    """The share of a step in which at least one kernel runs, collectives included, 0 to 1: what NVML calls utilisation.

    Source: nvml.h, nvmlUtilization_t.
    """
    return (times.compute_seconds + times.communication_seconds) / times.step_seconds


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
    limit = target * times.step_seconds
    if times.compute_seconds > limit and not math.isclose(times.compute_seconds, limit, rel_tol=1e-9):
        return "compute"
    return max(LOSSES, key=lambda name: getattr(times, f"{name}_seconds"))


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
    if steps < 1 or warmup < 0:
        raise ValueError(f"{steps} timed steps after {warmup} others make no sense")
    watch = Stopwatch(job)
    with contextlib.closing(steps_of(job, watch.time)) as parts:
        medians = watch.medians(parts, warmup, steps)
        communication = 0.0
        if isinstance(job.model, DistributedDataParallel):
            watch.exchange = False
            alone = watch.medians(parts, warmup, steps)
            communication = max(0.0, medians["backward"] - alone["backward"])
            medians = alone
    return StepBreakdown(
        **{f"{name}_seconds": seconds for name, seconds in medians.items()}, communication_seconds=communication
    )
