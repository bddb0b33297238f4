"""A monitor in a terminal, by rich: the training's metrics, one row per GPU, and alerts.

Not for keeping anything: what was there a second ago is gone.
"""

import threading
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from labkit.monitoring.readings import GpuReading, Snapshot

_COLORS = {"critical": "bold red", "warning": "yellow", "info": "cyan"}
_BAR = 12
_ABSENT = "-"


class Monitor(Protocol):
    """What is shown."""

    def snapshot(self) -> Snapshot: ...


def render(snapshot: Snapshot) -> Group:
    """A snapshot for `rich.print`. What a GPU cannot tell is a dash."""
    training = Text("no step yet" if snapshot.step is None else f"step {snapshot.step}", style="bold")
    for name, value in snapshot.metrics.items():
        training.append(f"  {name} ", style="dim")
        training.append(f"{value:.4g}", style="")
    table = Table(expand=False, box=None, pad_edge=False)
    for column in ("GPU", "name", "utilisation", "memory", "temperature", "power", "SM clock", "slowed by"):
        table.add_column(column, justify="left", no_wrap=True)
    for gpu in snapshot.gpus:
        table.add_row(*(Text(cell) for cell in _cells(gpu)))
    alerts = [
        Text(f"{alert.severity}: {alert.message}", style=_COLORS.get(alert.severity, "")) for alert in snapshot.alerts
    ]
    note = [] if snapshot.message is None else [Text(snapshot.message, style="dim")]
    return Group(training, *([table] if snapshot.gpus else note), *(alerts or [Text("no alerts", style="dim")]))


def _cells(gpu: GpuReading) -> tuple[str, ...]:
    name = gpu.name or _ABSENT
    if not gpu.up:
        return (str(gpu.index), name, "lost", *[_ABSENT] * 5)
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    memory = _ABSENT if used is None else f"{used / 2**30:.1f}" + (f" / {total / 2**30:.1f}" if total else "") + " GiB"
    power = _ABSENT if gpu.power_watts is None else f"{gpu.power_watts:.0f}"
    if gpu.power_watts is not None:
        power += f" / {gpu.power_limit_watts:.0f} W" if gpu.power_limit_watts is not None else " W"
    reasons = _ABSENT if gpu.throttle_reasons is None else ", ".join(gpu.throttle_reasons) or "nothing"
    return (
        str(gpu.index),
        name,
        _ABSENT if gpu.utilization_ratio is None else _bar(gpu.utilization_ratio),
        memory,
        _ABSENT if gpu.temperature_celsius is None else f"{gpu.temperature_celsius:.0f} °C",
        power,
        _ABSENT if gpu.sm_clock_hertz is None else f"{gpu.sm_clock_hertz / 1e6:.0f} MHz",
        reasons,
    )


def _bar(ratio: float) -> str:
    full = round(min(max(ratio, 0.0), 1.0) * _BAR)
    return "█" * full + "·" * (_BAR - full) + f" {ratio:4.0%}"


class LiveView:
    """Shows a monitor on standard error, twice a second, while its block runs; nothing where that is no terminal."""

    def __init__(self, monitor: Monitor, *, shown: bool = True) -> None:
        console = Console(stderr=True)
        self._monitor = monitor
        self._stop = threading.Event()
        self._live = Live(console=console, auto_refresh=False) if shown and console.is_terminal else None
        self._thread = threading.Thread(target=self._run, name="monitor-view", daemon=True)

    def _run(self) -> None:
        while self._live is not None and not self._stop.wait(0.5):
            self._live.update(render(self._monitor.snapshot()), refresh=True)

    def __enter__(self) -> "LiveView":
        if self._live is not None:
            self._live.start()
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._stop.set()
            self._thread.join()
            self._live.update(render(self._monitor.snapshot()), refresh=True)
            self._live.stop()
