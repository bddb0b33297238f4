"""A step as partial functions by name, and a timeline as a line that is painted piece by piece."""

from __future__ import annotations

import functools
import gc
import itertools
import logging
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from labkit.profiling import REGIONS, read_timeline
from labkit.results import DeviceTime, TuningPoint

LOG = logging.getLogger(__name__)


class Step:
    """The parts of one step; what one computes is there for the next."""

    def __init__(self, job, batches, number):
        self.job, self.batches, self.number = job, batches, number

    def data(self):
        self.inputs, self.targets = next(self.batches)

    def transfer(self):
        move = functools.partial(torch.Tensor.to, device=self.job.device, non_blocking=self.job.non_blocking)
        self.inputs, self.targets = map(move, (self.inputs, self.targets))

    def forward(self):
        self.loss = self.job.criterion(self.job.model(self.inputs), self.targets)

    def backward(self):
        self.job.optimizer.zero_grad()
        self.loss.backward()

    def optimizer(self):
        self.job.optimizer.step()

    def after(self):
        if self.job.after_step:
            self.job.after_step(self.number, self.job.model, self.loss.detach())
        LOG.debug("step %d of %d samples", self.number, self.job.batch_size)


def recorded_job(job, steps, trace):
    from .profiling import WAIT, WARMUP

    if steps <= 0:
        raise ValueError("record one step at least")
    on_gpu = torch.device(job.device).type == "cuda"
    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA][: 1 + on_gpu]
    batches = job.batches()
    before = WAIT + WARMUP
    with profile(activities=kinds, schedule=schedule(wait=WAIT, warmup=WARMUP, active=steps, repeat=1)) as recording:
        for number in itertools.count():
            step = Step(job, batches, number)
            for name in REGIONS:
                with record_function(name):
                    getattr(step, name)()
            step.after()
            if on_gpu and number + 1 in {before, before + steps}:
                torch.cuda.current_stream().synchronize()
            recording.step()
            if number + 1 == before + steps:
                break
    if trace:
        trace = Path(trace)
        trace.parent.mkdir(exist_ok=True, parents=True)
        recording.export_chrome_trace(str(trace))
    return read_timeline(recording)


def _inside(spans, start, stop):
    return any(first <= start and stop <= last for first, last in spans)


def _touching(spans, start, stop):
    return any(first < stop and start < last for first, last in spans)


def painted(timeline):
    """Cut the line at every edge there is, and give each piece to the first thing that is true of it."""
    regions = {name: timeline.regions.get(name, ()) for name in ("data", "transfer")}
    groups = (timeline.kernels, timeline.collectives, regions["data"], timeline.copies_in, regions["transfer"],
              timeline.waits, timeline.copies_out)  # fmt: skip
    edges = {min(max(edge, timeline.start), timeline.stop) for spans in groups for span in spans for edge in span}
    pieces = list(itertools.pairwise(sorted(edges | {timeline.start, timeline.stop})))
    colors = []
    for piece in pieces:
        if _inside(timeline.kernels, *piece):
            colors.append("compute")
        elif _inside(timeline.collectives, *piece):
            colors.append("communication")
        else:
            colors.append("idle")
    given = [*regions["data"], *regions["transfer"]]
    waiting = [
        _touching([*timeline.waits, *timeline.copies_out], *piece) and not _inside(given, *piece) for piece in pieces
    ]
    seconds = dict.fromkeys(("compute", "communication", "data", "transfer", "sync", "launch"), 0.0)
    rows = zip(colors, pieces, waiting, strict=True)
    for color, group in itertools.groupby(rows, key=lambda row: row[0]):
        gap = list(group)
        waited = any(row[2] for row in gap)
        for _, piece, _ in gap:
            kind = color
            if color == "idle":
                if _inside(regions["data"], *piece):
                    kind = "data"
                elif _inside([*timeline.copies_in, *regions["transfer"]], *piece):
                    kind = "transfer"
                else:
                    kind = "sync" if waited else "launch"
            seconds[kind] += piece[1] - piece[0]
    return DeviceTime(**{f"{kind}_seconds": total / timeline.steps for kind, total in seconds.items()})


def tried(make_job, settings, steps, warmup):
    """Points, one setting after the other; each is tried when the one before it is through."""
    for each in settings:
        try:
            point = _try(make_job, each, steps, warmup)
        except torch.OutOfMemoryError as error:
            LOG.warning("%s: %s", each, type(error).__name__)
            point = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if point is not None:
            yield point


def _try(make_job, each, steps, warmup):
    from .profiling import where_time_goes
    from .tuning import profile_job

    job = make_job(each)
    numbered = enumerate(job.batches())
    wait = torch.cuda.synchronize if job.device == "cuda" else lambda: None
    for number, batch in itertools.islice(numbered, warmup):
        job.train(number, *batch)
    wait()
    began = time.perf_counter()
    for number, batch in itertools.islice(numbered, steps):
        job.train(number, *batch)
        LOG.debug("step %d", number)
    wait()
    rate = steps * each.batch_size / (time.perf_counter() - began)
    del numbered
    return TuningPoint(
        settings=each, samples_per_second=rate, utilization=where_time_goes(profile_job(job)).utilization
    )
