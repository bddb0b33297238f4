"""What the terminal view shows, as text."""

from __future__ import annotations

import io

from rich.console import Console

from labkit.monitoring import Snapshot
from labkit.monitoring.terminal import LiveView, render
from tests.monitoring.conftest import BUSY, HOT, LOST, POOR, Watched


def shown(snapshot: Snapshot, width: int = 120) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(render(snapshot))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_one_row_per_gpu_and_a_dash_for_what_is_absent() -> None:
    lines = shown(Snapshot(time=0.0, step=7, metrics={"loss": 0.5}, gpus=(BUSY, POOR, LOST)))
    assert lines[0] == "step 7  loss 0.5"
    (busy, poor, lost) = lines[2:5]
    for text in ("88%", "6.0 / 16.0 GiB", "61 °C", "180 / 250 W", "1410 MHz", "power_cap"):
        assert text in busy
    assert poor.split() == ["2", "Old", "GPU", "-", "1.0", "/", "4.0", "GiB", "40", "°C", "-", "-", "-"]
    assert lost.split() == ["3", "-", "lost", "-", "-", "-", "-", "-"]
    assert lines[-1] == "no alerts"


def test_without_gpus_the_reason_is_shown() -> None:
    assert shown(Snapshot(time=0.0, message="no driver"))[:2] == ["no step yet", "no driver"]


def test_alerts_are_named(watched: Watched) -> None:
    monitor = watched(HOT)
    monitor.log_metrics(1, {"loss": float("inf")})
    assert any(line.startswith("critical: LossNotFinite") for line in shown(monitor.snapshot()))


def test_the_live_view_is_silent_where_there_is_no_terminal(watched: Watched, capfd) -> None:
    with LiveView(watched(BUSY)):
        pass
    assert capfd.readouterr() == ("", "")
