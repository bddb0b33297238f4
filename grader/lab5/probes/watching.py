"""Probes of Lab 5's `watch.py`: how it makes its monitor, what its plot shows of made-up snapshots, its program."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import itertools
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim import optimizer as optimizers

from grader.lab5.probes.monitoring import MONITOR
from grader.lab5.probes.monitoring_care import READINGS
from grader.shared.probes.figures import watch_png
from grader.shared.probes.kept import nap, notes
from grader.shared.probes.support import fields, plain, run_program
from labkit.device import open_device
from labkit.monitoring import GpuReading, Snapshot
from labkit.results import MonitorOverhead

PROGRAM = "lab5_production.watch"


def watched(
    student: Any, *, steps: int, interval: float, snapshots: Sequence[Mapping[str, Any]], reading_seconds: float
) -> dict[str, Any]:
    """`measure_overhead`, and what its monitors were asked for; then what `plot_history` draws of these snapshots.

    Each reading of the GPUs takes `reading_seconds` longer. Where one step is measured on a virtual GPU, only what the
    result says of the device is looked at.
    """
    torch.set_num_threads(1)
    _slow_down(student.module(READINGS).GpuReader, reading_seconds)
    module, monitor = student.module(PROGRAM), student.module(MONITOR).GPUMonitor
    note, made = notes()
    begin = monitor.__init__
    signature = inspect.signature(begin)

    @functools.wraps(begin)
    def noting(*given: Any, **named: Any) -> None:
        asked = signature.bind(*given, **named)
        asked.apply_defaults()
        arguments = asked.arguments
        note([float(arguments["interval"]), arguments["log_dir"] is not None, arguments["port"] is not None])
        begin(*given, **named)

    monitor.__init__ = noting
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            overhead = fields(module.measure_overhead(steps, interval=interval), MonitorOverhead, "measure_overhead()")
            with open_device("vgpu:T4"):
                told = module.measure_overhead(1, device="cuda", interval=interval)
                on_gpu = fields(told, MonitorOverhead, "measure_overhead()")
    finally:
        monitor.__init__ = begin
    history = [Snapshot(**{**given, "gpus": tuple(GpuReading(**gpu) for gpu in given["gpus"])}) for given in snapshots]
    path = Path("history.png")
    with watch_png(_series) as figures:
        told = module.plot_history(history, path)
    return {
        "monitors": made(),
        "overhead": overhead,
        "on_gpu": on_gpu["device"],
        "drawn": [*itertools.chain(*figures)],
        "told": plain(str(told), "plot_history()"),
    }


def _slow_down(reader: Any, more: float) -> None:
    read, wait = reader.read, nap(more)

    @functools.wraps(read)
    def slow(*given: Any) -> Any:
        wait()
        return read(*given)

    reader.read = slow


def _series(figure: Any) -> list[list[list[float]]]:
    """The points of what a figure shows: lines, groups of markers, bars."""
    from matplotlib.collections import PathCollection

    drawn: list[list[list[float]]] = []
    for axes in figure.axes:
        found = [line.get_xydata() for line in axes.lines]
        found += [each.get_offsets() for each in axes.collections if isinstance(each, PathCollection)]
        for group in axes.containers:
            bars = [bar for bar in group if hasattr(bar, "get_height")]
            found.append([[bar.get_x() + bar.get_width() / 2, bar.get_height()] for bar in bars])
        for points in found:
            numbers: Any = np.ma.filled(np.ma.asarray(points, dtype=float), np.nan).reshape(-1, 2)
            drawn.append(numbers[np.isfinite(numbers).all(axis=1)].tolist())
    return drawn


def program(student: Any, *, steps: int, step_seconds: float, log_seconds: float, slow: int) -> dict[str, Any]:
    """The program, with few steps, where every optimizer step and every `log_metrics` takes so much longer.

    From step number `slow` on three take a quarter of a second more, which no median sees; so does one `log_metrics`.

    `steps` are the moments of the optimizer steps, `logs` those at which `log_metrics` began and ended, by the clock
    that the program reads.
    """
    torch.set_num_threads(1)
    monitor = student.module(MONITOR).GPUMonitor
    log_metrics, (step, stepped), (log, logged) = monitor.log_metrics, notes(), notes()
    wait_for_step, wait_for_log, wait_long = nap(step_seconds), nap(log_seconds), nap(0.25)

    def slow_step(*_: Any) -> None:
        step(time.perf_counter())
        wait_for_step()
        if slow <= len(stepped()) - 1 < slow + 3:
            wait_long()

    def slow_log(*given: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        wait_for_log()
        if len(logged()) == 3:
            wait_long()
        try:
            return log_metrics(*given, **named)
        finally:
            log([begin, time.perf_counter()])

    monitor.log_metrics = slow_log
    handle = optimizers.register_optimizer_step_pre_hook(slow_step)
    try:
        with tempfile.TemporaryDirectory() as folder:
            seen = run_program(student, PROGRAM, ["--steps", str(steps)], Path(folder, "results"))
    finally:
        handle.remove()
    return {**seen, "steps": stepped(), "logs": logged()}
