"""Task 5.2: find out what a training pipeline's GPU waits for.

Not for turning anything (tuning.py, which is also the program), nor for making a model's own operations faster: this is
about the loop around them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.profiler import ProfilerAction, ProfilerActivity, profile, record_function

from labkit.profiling import Interval, Timeline, TrainingJob, intersect, read_timeline, subtract, total, union
from labkit.results import DeviceTime

WAIT, WARMUP = 1, 2
"""Steps that the profiler leaves out, and steps in which it gets ready; neither is recorded."""
Bottleneck = Literal["data", "transfer", "sync", "communication", "launch", "compute"]
LOSSES: tuple[Bottleneck, ...] = ("data", "transfer", "sync", "communication", "launch")


class _Step:
    """The parts of a step, each in its region."""

    def __init__(self, job: TrainingJob, batches: Iterator[tuple[Tensor, Tensor]]) -> None:
        self.job, self.batches = job, batches
        self.forward = record_function("forward")(self._forward)
        self.backward = record_function("backward")(self._backward)
        self.optimize = record_function("optimizer")(lambda: job.optimizer.step())
        self.fetch = record_function("data")(lambda: next(batches))

    @record_function("transfer")
    def move(self, batch: tuple[Tensor, Tensor]) -> list[Tensor]:
        return [part.to(self.job.device, non_blocking=self.job.non_blocking) for part in batch]

    def _forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.job.criterion(self.job.model(inputs), targets)

    def _backward(self, loss: Tensor) -> None:
        self.job.optimizer.zero_grad()
        torch.autograd.backward(loss)

    def __call__(self, number: int) -> None:
        loss = self.forward(*self.move(self.fetch()))
        self.backward(loss)
        self.optimize()
        if self.job.after_step:
            self.job.after_step(number, self.job.model, loss.detach())


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
    if steps < 1:
        raise ValueError("record one step at least")
    on_gpu = job.device == "cuda"
    first, last = WAIT + WARMUP, WAIT + WARMUP + steps - 1

    def action(step: int) -> ProfilerAction:
        if step < WAIT or step > last:
            return ProfilerAction.NONE
        if step < first:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD_AND_SAVE if step == last else ProfilerAction.RECORD

    profiler = profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU],
        schedule=action,
    )
    step = _Step(job, job.batches())
    profiler.start()
    for number in range(last + 1):
        step(number)
        if on_gpu and number in (first - 1, last):
            torch.cuda.synchronize()
        profiler.step()
    profiler.stop()
    if trace is not None:
        file = Path(trace)
        file.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(file))
    return read_timeline(profiler)


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
    span = [(timeline.start, timeline.stop)]
    data, transfer = (timeline.regions.get(name, ()) for name in ("data", "transfer"))
    waits = subtract([*timeline.waits, *timeline.copies_out], [*data, *transfer])
    idle = subtract(span, [*timeline.kernels, *timeline.collectives])
    stalled = [gap for gap in idle if any(start < gap[1] and stop > gap[0] for start, stop in waits)]
    classes: dict[str, list[Interval]] = {
        "compute": list(timeline.kernels),
        "communication": list(timeline.collectives),
        "data": list(data),
        "transfer": [*timeline.copies_in, *transfer],
        "sync": stalled,
        "launch": span,
    }
    seconds: dict[str, float] = {}
    left = union(span)
    for name, moments in classes.items():
        seconds[f"{name}_seconds"] = total(intersect(left, moments)) / timeline.steps
        left = subtract(left, moments)
    return DeviceTime(**seconds)


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
    if times.compute_seconds / times.step_seconds > target:
        return "compute"
    lost = [(-getattr(times, f"{name}_seconds"), place) for place, name in enumerate(LOSSES)]
    return LOSSES[min(lost)[1]]
