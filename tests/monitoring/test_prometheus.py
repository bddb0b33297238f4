"""What Prometheus itself says of the monitor: names, rules, a real server that scrapes it, the dashboard's queries."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import labkit.monitoring
from labkit.monitoring import prometheus_rules
from labkit.monitoring.names import GPU_METRICS, THROTTLED
from tests import exposition
from tests.monitoring.conftest import BUSY, HOT, LOST, POOR, Watched, read

GIVEN = Path(labkit.monitoring.__file__).parent
RULE_FILE = GIVEN / "alerts.rules.yml"
DASHBOARD = GIVEN / "dashboard.json"
PATIENCE_SECONDS = 60
LOGGED = {"loss": 1.5, "accuracy": 0.25, "throughput": 512.0, "learning_rate": 0.01, "gradient_norm": 2.0}


def run(*command: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_the_rule_file_is_made_from_the_rules() -> None:
    assert RULE_FILE.read_text() == prometheus_rules()


def test_promtool_accepts_the_rule_file(promtool: str) -> None:
    done = run(promtool, "check", "rules", RULE_FILE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 rules found" in done.stdout


def test_promtool_finds_no_name_or_help_to_mend(promtool: str, watched: Watched) -> None:
    monitor = watched(BUSY, HOT, POOR, LOST, port=0)
    monitor.log_metrics(3, LOGGED)
    done = run(promtool, "check", "metrics", stdin=read(f"{monitor.url}/metrics"))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_dcgm_names_can_be_read_too(promtool: str, watched: Watched) -> None:
    monitor = watched(BUSY, port=0, dcgm_names=True)
    text = read(f"{monitor.url}/metrics")
    assert 'DCGM_FI_DEV_FB_USED{UUID="GPU-0a1b",gpu="0",modelName="Made-up GPU"} 6144.0' in text
    done = run(promtool, "check", "metrics", stdin=text)
    assert "error while linting" not in done.stdout + done.stderr


class Scraping:
    """A Prometheus that scrapes one address five times a second and evaluates our rules."""

    def __init__(self, program: str, folder: Path, target: str) -> None:
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 200ms, evaluation_interval: 200ms}\n"
            f"rule_files: [{json.dumps(str(RULE_FILE))}]\n"
            "scrape_configs:\n"
            "  - job_name: training\n"
            f"    static_configs: [{{targets: [{json.dumps(target)}]}}]\n"
        )
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    program,
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    "--web.listen-address=127.0.0.1:0",
                ],
                stderr=log,
                stdout=log,
            )
        self.url = "http://" + self.until(self._address)
        self.until(self._serves)

    def _address(self) -> str | None:
        match = re.search(r'msg="?Listening on"? address=(\S+)', self.log.read_text())
        return match[1] if match else None

    def _serves(self) -> bool:
        """It listens before it can answer, and says 503 until then (`/-/ready`)."""
        try:
            read(f"{self.url}/-/ready")
        except OSError:
            return False
        return True

    def until(self, ask: Callable[[], Any]) -> Any:
        """What `ask` gives, once it gives something."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            if answer := ask():
                return answer
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.1)
        raise AssertionError(self.log.read_text())

    def ask(self, path: str) -> Any:
        return json.loads(read(f"{self.url}/api/v1/{path}"))["data"]

    def values(self, metric: str) -> dict[str, float]:
        """The latest values of a metric, by GPU."""
        rows = self.ask(f"query?query={metric}")["result"]
        return {row["metric"].get("gpu", ""): float(row["value"][1]) for row in rows}

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def scraping(prometheus: str, tmp_path: Path) -> Iterator[Callable[[str], Scraping]]:
    started: list[Scraping] = []

    def start(target: str) -> Scraping:
        started.append(Scraping(prometheus, tmp_path, target))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_prometheus_scrapes_the_monitor_and_its_rules_fire(watched: Watched, scraping) -> None:
    monitor = watched(BUSY, HOT, POOR, LOST, port=0)
    monitor.log_metrics(3, {**LOGGED, "loss": float("nan")})
    server = scraping(monitor.url.removeprefix("http://"))
    assert server.until(lambda: server.values("gpu_power_watts")) == {"0": 180.5, "1": 240.0}
    assert server.values("gpu_up") == {"0": 1.0, "1": 1.0, "2": 1.0, "3": 0.0}
    assert server.values("gpu_memory_used_bytes") == {"0": 6 * 2**30, "1": 6 * 2**30, "2": 2**30}
    assert server.values("training_accuracy_ratio") == {"": 0.25}
    kinds = {row["metric"]: row["type"] for row in server.ask("targets/metadata")}
    for metric in GPU_METRICS:
        assert kinds[metric.name] == metric.kind
    (target,) = server.ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")

    def states() -> dict[tuple[str, str], str]:
        return {
            (alert["labels"]["alertname"], alert["labels"].get("gpu", "")): alert["state"]
            for alert in server.ask("alerts")["alerts"]
        }

    # What waits (GpuHot: a minute) is pending; what does not wait fires at the first evaluation. Prometheus evaluates
    # one rule after the other, so an alert may be there while another is not yet.
    expected = {
        ("GpuHot", "1"): "pending",
        ("GpuThrottled", "1"): "pending",
        ("GpuLost", "3"): "firing",
        ("LossNotFinite", ""): "firing",
    }
    server.until(lambda: expected.keys() <= states().keys())
    assert states() == expected


def test_the_dashboard_asks_only_for_what_is_exported(promtool: str, tmp_path: Path, watched: Watched) -> None:
    monitor = watched(BUSY, port=0)
    monitor.log_metrics(3, LOGGED)
    exported = exposition.names(read(f"{monitor.url}/metrics"))
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(queries) >= 8
    metrics = {name for query in queries for name in re.findall(r"\b(?:gpu|training|monitor)_\w+", query)}
    assert metrics <= exported
    without = {"gpu_up", "gpu_energy_joules_total", "gpu_memory_busy_ratio", "gpu_memory_clock_hertz"}
    assert {metric.name for metric in GPU_METRICS} - metrics <= without
    assert THROTTLED in metrics
    rules = "".join(
        f"      - {{record: 'a:b:{number}', expr: {json.dumps(query.replace('$__rate_interval', '1m'))}}}\n"
        for number, query in enumerate(queries)
    )
    (tmp_path / "queries.yml").write_text(f"groups:\n  - name: queries\n    rules:\n{rules}")
    done = run(promtool, "check", "rules", tmp_path / "queries.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_panel_of_the_dashboard_has_a_unit_a_place_and_the_chosen_source() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    places: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & places, panel["title"]
        assert place["x"] + place["w"] <= 24
        places |= cells
        if panel["type"] in ("timeseries", "stat"):
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
