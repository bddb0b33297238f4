"""The live page in headless Chromium: what it shows, that it does so without an error, and that it asks nobody else."""

from __future__ import annotations

import json
import math
import re
import struct
import subprocess
import urllib.error
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from labkit.monitoring import Alert, Snapshot
from labkit.monitoring.web import PAGE, Server
from tests.monitoring.conftest import BUSY, HOT, LOST, POOR, read

START = 1_800_000_000.0
SIZE = (1280, 1000)


class Told:
    """A training of five minutes, as a monitor remembers it."""

    def __init__(self, *, gpus: bool = True, points: int = 300) -> None:
        self.registry = CollectorRegistry()
        self.history = deque(self._moments(gpus, points))

    def _moments(self, gpus: bool, points: int) -> Iterator[Snapshot]:
        for second in range(points):
            wave = math.sin(second / 9)
            busy = replace(BUSY, utilization_ratio=0.9 + 0.08 * wave, power_watts=190 + 30 * wave)
            hot = replace(HOT, temperature_celsius=60 + 32 * second / points, utilization_ratio=0.7 + 0.2 * wave)
            lost = replace(LOST, up=False)
            yield Snapshot(
                time=START + second,
                step=10 * second,
                step_time=START + second,
                metrics={
                    "loss": 2.3 * math.exp(-second / 90) + 0.05 * math.sin(second),
                    "accuracy": 1 - math.exp(-second / 80),
                    "throughput": 5200 + 150 * wave,
                    "learning_rate": 1e-3 * (1 + math.cos(math.pi * second / points)) / 2,
                    "val/loss": 1.5,
                },
                gpus=(busy, hot, POOR, lost) if gpus else (),
                message=None if gpus else "no GPU is monitored: NVML says 'Driver Not Loaded'; training metrics go on",
            )

    def snapshot(self) -> Snapshot:
        last = self.history[-1]
        if not last.gpus:
            return replace(last, metrics={**last.metrics, "loss": math.nan})
        hot = Alert(
            rule="GpuHot",
            severity="warning",
            gpu=1,
            value=92.0,
            since=START,
            message="GpuHot on GPU 1 (92): <b>fans</b>",
        )
        lost = Alert(rule="GpuLost", severity="critical", gpu=3, value=1.0, since=START, message="GpuLost on GPU 3 (1)")
        return replace(last, alerts=(hot, lost))


@pytest.fixture
def serve() -> Iterator[object]:
    servers: list[Server] = []

    def start(monitor: Told) -> str:
        servers.append(Server(monitor, 0))
        return servers[-1].url

    yield start
    for server in servers:
        server.close()


class Browser:
    """Chromium without a window, on a profile of its own."""

    def __init__(self, program: str, folder: Path) -> None:
        self._command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        self._command += ["--hide-scrollbars", "--no-first-run", f"--user-data-dir={folder / 'profile'}"]
        self._command += ["--enable-logging=stderr", "--virtual-time-budget=3000", "--no-proxy-server"]

    def _run(self, *options: str) -> str:
        done = subprocess.run([*self._command, *options], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert "CONSOLE" not in done.stderr, done.stderr
        return done.stdout

    def page(self, url: str) -> str:
        """The document after its scripts have run."""
        return self._run("--dump-dom", url)

    def picture(self, url: str, path: Path, *, size: tuple[int, int] = SIZE) -> Path:
        self._run(f"--screenshot={path}", f"--window-size={size[0]},{size[1]}", url)
        return path


@pytest.fixture
def browser(chromium: str, tmp_path: Path) -> Browser:
    return Browser(chromium, tmp_path)


def test_the_page_shows_charts_and_alerts_and_takes_text_as_text(browser: Browser, serve) -> None:
    document = browser.page(serve(Told()))
    titles = re.findall(r"<h2>(.*?)</h2>", document)
    assert titles[:4] == ["Loss", "Accuracy", "Samples per second", "Learning rate"]
    assert "val/loss" in titles
    assert {"Utilisation", "Memory in use", "Temperature", "Power"} <= set(titles)
    assert document.count("<svg") == len(titles)
    assert "step 2990" in document
    assert "GpuHot on GPU 1 (92): &lt;b&gt;fans&lt;/b&gt;" in document
    assert re.findall(r'<li class="(.*?)">', document) == ["critical", "warning"]
    assert '<tr class="lost"><td>3</td><td>\N{EN DASH}</td><td>lost</td><td>\N{EN DASH}</td>' in document
    assert "<td>0</td><td>Made-up GPU</td><td>up</td><td>power cap</td><td>0</td><td>0</td>" in document
    assert ">live<" in document


def test_without_gpus_the_page_says_why_and_a_loss_that_is_no_number_is_named(browser: Browser, serve) -> None:
    document = browser.page(serve(Told(gpus=False)))
    assert "Driver Not Loaded" in document
    assert "<h2>Utilisation" not in document
    assert "</i>NaN</span>" in document


@pytest.mark.night
def test_the_picture_has_the_size_of_the_window(browser: Browser, serve, tmp_path: Path) -> None:
    picture = browser.picture(serve(Told()), tmp_path / "page.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert struct.unpack(">II", picture[16:24]) == SIZE
    assert len(picture) > 20_000  # an empty page has 6 kB


def test_the_page_asks_nobody_else() -> None:
    text = PAGE.read_text()
    assert re.findall(r"https?://[^\"'\s]+", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<(?:script|img|iframe|link)[^>]+(?:src|href)=\"(?!data:)", text)


def test_the_history_is_thinned_out_and_goes_on_where_the_page_stopped(serve) -> None:
    url = serve(Told(points=3000))
    everything = json.loads(read(f"{url}/history"))
    assert len(everything["history"]) <= 600
    later = json.loads(read(f"{url}/history?after={START + 2997}"))
    assert [entry["time"] - START for entry in later["history"]] == [2998, 2999]
    assert json.loads(read(f"{url}/history?after=nonsense"))["now"]["step"] == 29990


def test_other_addresses_are_not_found(serve) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        read(f"{serve(Told())}/../../etc/passwd")
