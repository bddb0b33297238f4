"""GPUs that are made up, and the programs of others that look at what a monitor tells of them."""

from __future__ import annotations

import shutil
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from labkit.monitoring import GpuReading
from solutions.lab5_production import monitor as lab
from solutions.lab5_production.monitor import GPUMonitor

NEVER = 3600.0
"""An interval in which nothing is sampled in the background: a test samples when it wants to."""

BUSY = GpuReading(
    index=0,
    uuid="GPU-0a1b",
    name="Made-up GPU",
    utilization_ratio=0.875,
    memory_busy_ratio=0.25,
    memory_used_bytes=6 * 2**30,
    memory_total_bytes=16 * 2**30,
    temperature_celsius=61.0,
    power_watts=180.5,
    power_limit_watts=250.0,
    energy_joules=12345.5,
    sm_clock_hertz=1.41e9,
    memory_clock_hertz=5.0e9,
    pcie_sent_bytes_per_second=2.0e9,
    pcie_received_bytes_per_second=1.0e9,
    throttle_reasons=("power_cap",),
    ecc_errors=0,
    xid_errors=0,
)
HOT = replace(
    BUSY,
    index=1,
    uuid="GPU-2c3d",
    utilization_ratio=0.5625,
    temperature_celsius=92.0,
    power_watts=240.0,
    throttle_reasons=("thermal_slowdown",),
)
POOR = GpuReading(index=2, name="Old GPU", memory_used_bytes=2**30, memory_total_bytes=2**32, temperature_celsius=40.0)
"""Tells little."""
LOST = GpuReading(index=3, up=False)


def program(name: str, package: str) -> str:
    """The path of a program, or a visible skip."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not on this machine: `apt install {package}` brings it")
    return path


@pytest.fixture(scope="session")
def promtool() -> str:
    return program("promtool", "prometheus")


@pytest.fixture(scope="session")
def prometheus() -> str:
    return program("prometheus", "prometheus")


@pytest.fixture(scope="session")
def chromium() -> str:
    return program("chromium", "chromium")


@pytest.fixture(scope="session")
def gcc() -> str:
    return program("gcc", "gcc")


class MadeUpGpus:
    """Takes a GpuReader's place; `gpus` may change between samples."""

    message = None

    def __init__(self, *gpus: GpuReading) -> None:
        self.gpus = gpus

    def read(self) -> tuple[GpuReading, ...]:
        return self.gpus

    def close(self) -> None:
        self.gpus = ()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch):
    """Makes monitors of GPUs that are made up, and closes them."""
    made: list[GPUMonitor] = []

    def make(*gpus: GpuReading, **options: Any) -> GPUMonitor:
        monkeypatch.setattr(lab, "GpuReader", lambda: MadeUpGpus(*gpus))
        made.append(GPUMonitor(**{"interval": NEVER, "on_alert": lambda alert: None, **options}))
        return made[-1]

    yield make
    for monitor in made:
        monitor.close()


Watched = Callable[..., GPUMonitor]


def read(url: str) -> str:
    """What a server on this machine answers; never through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=30) as answer:
        return str(answer.read().decode("utf-8"))
