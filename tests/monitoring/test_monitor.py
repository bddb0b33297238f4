"""What a monitor does besides its exports: it lives next to others, ends cleanly, and ends no training."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.monitoring import Alert
from labkit.monitoring.names import SAMPLES
from solutions.lab5_production.monitor import GPUMonitor
from tests import exposition
from tests.monitoring.conftest import BUSY, HOT, NEVER, Watched, read


def test_two_monitors_in_one_process_do_not_disturb_each_other(watched: Watched) -> None:
    first, second = watched(BUSY, port=0), watched(HOT, port=0)
    first.log_metrics(1, {"loss": 1.0})
    second.log_metrics(1, {"loss": 2.0})
    for monitor, loss in ((first, 1.0), (second, 2.0)):
        assert exposition.values(read(f"{monitor.url}/metrics"))["training_loss"] == [loss]


def test_a_full_disk_ends_the_files_and_not_the_training(tmp_path: Path, watched: Watched, capsys) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    monitor = watched(BUSY, log_dir=tmp_path, port=0)
    for step in range(3):
        monitor.log_metrics(step, {"loss": 1.0})
    assert capsys.readouterr().err.count("No space left on device") == 1
    assert exposition.values(read(f"{monitor.url}/metrics"))["training_step"] == [2.0]


def test_an_existing_file_is_continued(tmp_path: Path, watched: Watched) -> None:
    for step in range(2):
        monitor = watched(log_dir=tmp_path / "runs" / "first")
        monitor.log_metrics(step, {"loss": 1.0})
        monitor.close()
    assert len((tmp_path / "runs" / "first" / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_port_that_is_taken_is_an_error_that_leaves_nothing_behind() -> None:
    before = threading.active_count()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(OSError, match="in use"):
            GPUMonitor(port=taken.getsockname()[1], interval=0.01, rank=0)
        end = time.monotonic() + 10
        while threading.active_count() > before and time.monotonic() < end:
            time.sleep(0.01)
        assert threading.active_count() == before


def test_after_the_end_nothing_answers(watched: Watched) -> None:
    monitor = watched(BUSY, port=0)
    monitor.close()
    monitor.close()
    with pytest.raises(OSError, match="refused"):
        read(f"{monitor.url}/metrics")


def test_a_client_that_hangs_up_is_not_worth_a_line(watched: Watched, capfd) -> None:
    monitor = watched(BUSY, port=0)
    host, port = monitor.url.removeprefix("http://").split(":")
    for _ in range(5):
        client = socket.create_connection((host, int(port)))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # hangs up with a reset
        with contextlib.suppress(OSError):
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        client.close()
    assert "gpu_up" in exposition.names(read(f"{monitor.url}/metrics"))
    assert "Traceback" not in capfd.readouterr().err


def test_an_alert_is_told_once_until_it_has_ended(monkeypatch: pytest.MonkeyPatch, watched: Watched) -> None:
    alerts: list[Alert] = []
    monitor = watched(BUSY, on_alert=alerts.append)
    for up in (True, False, False, True, False):
        monitor._reader.gpus = (replace(BUSY, up=up),)
        monitor.sample()
    assert [alert.rule for alert in alerts] == ["GpuLost", "GpuLost"]


def test_the_background_thread_samples_until_the_end(watched: Watched) -> None:
    monitor = watched(BUSY, interval=0.01)
    end = time.monotonic() + 30
    while len(monitor.history) < 5 and time.monotonic() < end:
        time.sleep(0.01)
    monitor.close()
    count = len(monitor.history)
    assert count >= 5
    families = {sample.name: sample.value for family in monitor.collect() for sample in family.samples}
    assert families[SAMPLES] == count


@pytest.mark.parametrize("interval", [0.0, -1.0])
def test_an_interval_that_is_no_time_is_refused(interval: float) -> None:
    with pytest.raises(ValueError, match="interval"):
        GPUMonitor(interval=interval)


def test_other_ranks_do_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    before = threading.active_count()
    with GPUMonitor(tmp_path / "logs", port=0, interval=NEVER) as monitor:
        monitor.log_metrics(1, {"loss": 1.0})
        monitor.sample()
        assert threading.active_count() == before
    assert monitor.url is None
    assert not list(tmp_path.iterdir())
