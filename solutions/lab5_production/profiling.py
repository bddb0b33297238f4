"""Task 5.2: find out what a training pipeline's GPU waits for.

Not for turning anything (tuning.py, which is also the program), nor for making a model's own operations faster: this is
about the loop around them.
"""

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, record_function

from labkit.profiling import Timeline, TrainingJob, intersect, read_timeline, subtract, total
from labkit.results import DeviceTime

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
    "backward" the clearing of old gradients; `after_step` is in no region.

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
    # 3. Run the steps, each part in its record_function; call profiler.step() at the end of each.
    # 4. Wait for the device in the two places that the docstring names, before profiler.step().
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
    - sync: the moment is in a gap in which the host waits for the device, or something is copied from it, outside the
      regions "data" and "transfer", be it for a part of the gap only. A gap is the time from the end of what
      ran (kernels and collectives) to the start of the next, or to the start or stop of the timeline;
    - launch: none of these: the host was busy launching.

    Args:
        timeline: of one or more steps. Its intervals may reach beyond its start and stop; the parts there are left out.

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


def find_bottleneck(times: DeviceTime, *, target: float = 0.8) -> Bottleneck:
    """Say what to work on first.

    "compute" if the device computes for more than `target` of the step (communication does not count): the pipeline is
    as good as its model and its device. Otherwise the largest of
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
