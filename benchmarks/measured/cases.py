"""All that is measured, by section, and how a case is run. A case is ordinary PyTorch on "cuda", whichever that is."""

from __future__ import annotations

import functools
import gc
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.measured import host, kernels, layers, training
from benchmarks.measured.case import Case, Make, kernel_seconds
from benchmarks.published import figures
from benchmarks.published.figures import Figure
from benchmarks.published.run import WORKLOADS
from benchmarks.published.timing import allow_tf32

_NOT_ONE_CARD = ("ratio", "ddp", "allreduce_busbw")
_LONG_SECONDS = 0.5


def programs() -> Iterator[tuple[str, str, Figure]]:
    """Of every published figure that one card can run, once each: group and name here, and the figure."""
    visited = set()
    for figure in figures.load():
        key = (figure.workload, json.dumps(dict(figure.sizes), sort_keys=True), figure.precision)
        if figure.workload in _NOT_ONE_CARD or figure.gpus != 1 or key in visited:
            continue
        visited.add(key)
        yield f"program: {figure.group.removesuffix(', other cards').removesuffix(', T4')}", _title(figure), figure


def published() -> Iterator[Case]:
    """The programs of published figures."""
    for group, name, figure in programs():
        yield Case(group, name, figure.unit, functools.partial(_figure, figure), figure.precision)


def _title(figure: Figure) -> str:
    sizes = ", ".join(f"{name} {value}" for name, value in figure.sizes.items())
    return f"{figure.workload}: {sizes}{f', {figure.precision}' if figure.precision else ''}"


def _figure(figure: Figure) -> float:
    return WORKLOADS[figure.workload](figure.sizes, figure.precision)


def single_kernels() -> Iterator[Case]:
    """Device time of single calls, without the launch."""
    for group, name, precision, make in makers():
        yield Case(group, name, "seconds", functools.partial(_kernel, make), precision)


def makers() -> Iterator[kernels.Entry]:
    """Group, name, precision, and what makes it, of each single kernel."""
    yield from kernels.single()
    yield from layers.single()


def _kernel(make: Make) -> float:
    return kernel_seconds(make())


SECTIONS: dict[str, Callable[[], Iterator[Case]]] = {
    "graphs": training.graphs,
    "hosts": training.hosts,
    "training": training.training,
    "published": published,
    "host": host.host_calls,
    "kernels": single_kernels,
}
"""In this order: what comes last is left out where time runs out."""


def run(case: Case) -> dict[str, Any]:
    """The case's entry: its value, or values by name, or the error that it ended with."""
    entry: dict[str, Any] = {"group": case.group, "name": case.name, "unit": case.unit}
    start = time.monotonic()
    try:
        torch.manual_seed(0)
        torch.cuda.reset_peak_memory_stats()
        allow_tf32(case.precision)
        value = case.run()
        entry |= {"values": value} if isinstance(value, dict) else {"value": value}
    except (RuntimeError, TypeError, ValueError) as error:
        entry["error"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if time.monotonic() - start > _LONG_SECONDS or "training" in case.group:  # modules have reference cycles
        gc.collect()
    torch.cuda.empty_cache()
    return entry
