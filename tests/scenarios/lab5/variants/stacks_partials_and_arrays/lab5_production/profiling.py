"""Task 5.2: find out what a training pipeline's GPU waits for.

Not for turning anything (tuning.py, which is also the program), nor for making a model's own operations faster: this is
about the loop around them.
"""

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
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
    if steps <= 0:
        raise ValueError("at least one step is recorded")
    on_gpu = job.device == "cuda"
    last = WAIT + WARMUP + steps
    batches = job.batches()
    with contextlib.ExitStack() as stack:
        recording = stack.enter_context(
            torch.profiler.profile(
                activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])],
                schedule=torch.profiler.schedule(wait=WAIT, warmup=WARMUP, active=steps, repeat=1),
            )
        )
        for number in range(last):
            batch = _region("data", functools.partial(next, batches))
            move = functools.partial(torch.Tensor.to, device=job.device, non_blocking=job.non_blocking)
            inputs, targets = _region("transfer", lambda: tuple(map(move, batch)))  # noqa: B023
            loss = _region("forward", lambda: job.criterion(job.model(inputs), targets))  # noqa: B023
            _region("backward", lambda: (job.optimizer.zero_grad(), loss.backward()))  # noqa: B023
            _region("optimizer", job.optimizer.step)
            if job.after_step is not None:
                job.after_step(number, job.model, loss.detach())
            if on_gpu and number in (WAIT + WARMUP - 1, last - 1):
                torch.cuda.synchronize()
            recording.step()
    for path in map(Path, filter(None, [trace])):
        path.parent.mkdir(parents=True, exist_ok=True)
        recording.export_chrome_trace(str(path))
    return read_timeline(recording)


def _region(name: str, work: Callable[[], Any]) -> Any:
    """What the work returns, done in a named region."""
    with record_function(name):
        return work()


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
    inside = functools.partial(intersect, [(timeline.start, timeline.stop)])
    loading, moving = timeline.regions.get("data", ()), timeline.regions.get("transfer", ())
    kernels = inside(timeline.kernels)
    collectives = subtract(inside(timeline.collectives), kernels)
    idle = subtract([(timeline.start, timeline.stop)], [*kernels, *collectives])
    excuses = subtract([*timeline.waits, *timeline.copies_out], [*loading, *moving])
    synchronising = [gap for gap in idle if intersect([gap], excuses)]
    shares = {}
    rest = idle
    for name, causes in (
        ("data", loading),
        ("transfer", [*timeline.copies_in, *moving]),
        ("sync", synchronising),
        ("launch", idle),
    ):
        shares[name] = total(intersect(rest, causes))
        rest = subtract(rest, causes)
    shares |= {"compute": total(kernels), "communication": total(collectives)}
    return DeviceTime(**{f"{name}_seconds": share / timeline.steps for name, share in shares.items()})


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
    seconds = np.array([getattr(times, f"{name}_seconds") for name in LOSSES])
    busy = times.compute_seconds > target * times.step_seconds
    return "compute" if busy else LOSSES[int(np.argmax(seconds))]
