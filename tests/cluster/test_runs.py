"""The acceptance test as it is called: on the CPU, on virtual GPUs, with faults, under torchrun. Needs no GPU.

One run each, since a run costs many seconds; every assertion about it stands in its test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

import cluster.acceptance
from tests.cluster.sound import failures, outcomes
from tests.cluster.test_adapters import node, program
from tests.proc import proc

__all__ = ["program"]

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((Path(cluster.acceptance.__file__).parent / "report.schema.json").read_text())
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=0", "-m")
LIMIT_SECONDS = 900
FEW_STEPS = ("--steps", "8")


@dataclass
class Run:
    """A run that is over."""

    code: int
    output: str
    report: dict[str, Any]
    page: str

    @property
    def status(self) -> str:
        return str(self.report["acceptance"]["status"])


class Acceptance:
    """Calls the test in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"

    def start(self, *words: str, launcher: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *launcher, "cluster.acceptance", "--report", "reports", *words],
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def ended(self, process: subprocess.Popen[bytes]) -> Run:
        """Wait for its end; the report is there, fits the schema, and says what the exit code says."""
        try:
            code = process.wait(LIMIT_SECONDS)
        finally:
            process.kill()
        output, reports = self.log.read_text(), self.folder / "reports"
        assert (reports / "cluster_test_report.json").is_file(), output
        report = json.loads((reports / "cluster_test_report.json").read_text())
        jsonschema.validate(report, SCHEMA)
        page = (reports / "cluster_test_report.html").read_text()
        assert f">{report['acceptance']['status']}<" in page
        return Run(code, output, report, page)

    def __call__(self, *words: str, launcher: tuple[str, ...] = ()) -> Run:
        run = self.ended(self.start(*words, launcher=launcher))
        if not launcher:  # torchrun makes a 1 of every exit code
            assert run.code == run.report["acceptance"]["exit_code"], run.output
        return run


@pytest.fixture
def acceptance(tmp_path: Path) -> Acceptance:
    return Acceptance(tmp_path)


@pytest.mark.night
def test_on_a_cpu_all_the_rest_runs_and_the_verdict_is_incomplete(acceptance: Acceptance) -> None:
    run = acceptance("--device", "cpu", *FEW_STEPS)
    assert run.code == 3
    assert run.status == "INCOMPLETE"
    assert failures(run.report) == []
    lines = run.output.splitlines()
    banner = lines[lines.index("=" * 50) :]
    assert banner[1:3] == ["FINAL ACCEPTANCE: INCOMPLETE", "- GPU Available: NO"]
    assert "- NCCL Communication: UNVERIFIED (gloo, on the CPU: PASS)" in banner
    # What a report has always had, by these names.
    assert {"test_timestamp", "world_size", "validation", "performance", "status", "acceptance"} <= run.report.keys()
    assert {"status", "summary"} <= run.report["acceptance"].keys()
    assert run.report["world_size"] == 2
    parts = run.report["validation"]["parts"]
    assert (parts["run"], parts["gpu"], parts["health"]) == ("pass", "unverified", "unverified")
    passed = {name for name, _ in outcomes(run.report, "pass")}
    assert passed >= {"product float32: result", "training: loss falls", "training: replicas are equal"}
    operations = ("all_gather", "all_reduce", "broadcast", "reduce_scatter", "all_to_all", "point_to_point")
    assert passed >= {f"{operation}: result" for operation in operations}
    assert {collective["operation"] for collective in run.report["performance"]["collectives"]} == set(operations)
    hashes = run.report["performance"]["training"]["sha256"].values()
    assert len(hashes) == 2
    assert len(set(hashes)) == 1
    for word in ("Matrix products", "Collectives", "Training", "images/s", "polyline"):
        assert word in run.page


@pytest.mark.night
def test_virtual_gpus_are_marked_and_never_pass(
    acceptance: Acceptance, tmp_path: Path, program: Callable[..., None]
) -> None:
    program()
    adapters = node(tmp_path / "sys", 2)
    run = acceptance("--device", "vgpu:H100", "--sysfs", str(adapters), *FEW_STEPS)
    assert run.code == 3
    unverified = outcomes(run.report, "unverified")
    assert (
        unverified.count(("product float8_e4m3fn: result", "GPU 0 (rank 0, " + run.report["ranks"][0]["node"] + ")"))
        == 1
    )
    assert [name for name, _ in unverified if name.startswith("adapter")] == ["adapter: mlx5_0/1", "adapter: mlx5_1/1"]
    assert "each adapter on its own" not in run.report["unjudged"]["not_read"]
    assert run.report["simulated"] is True
    assert failures(run.report) == []
    assert {part for part, status in run.report["validation"]["parts"].items() if status == "pass"} == {"run"}
    assert "- GPU Available: SIMULATED" in run.output
    assert "Simulated: these GPUs are virtual" in run.page
    deltas = run.report["gpu_health"][0]["deltas"]
    assert deltas["temperature_celsius"] > 0
    assert deltas["memory_used_bytes"] > 0
    assert deltas["energy_joules"] > 0


@pytest.mark.night
def test_injected_faults_are_found_and_their_gpus_named(acceptance: Acceptance) -> None:
    faults = ("wrong-result:0", "slow:1", "hot:0", "wrong-collective:1", "diverged:1")
    injected = [word for fault in faults for word in ("--inject", fault)]
    run = acceptance("--device", "vgpu:T4", *FEW_STEPS, *injected)
    assert run.code == 1
    actual = {(name, subject.partition(" (")[0]) for name, subject in failures(run.report)}
    assert actual == {
        ("product float32: result", "GPU 0"),
        ("product float16: result", "GPU 0"),
        ("product float32: time against peers", "GPU 1"),
        ("product float16: time against peers", "GPU 1"),
        ("product float32: rate against the data sheet", "GPU 1"),
        ("product float16: rate against the data sheet", "GPU 1"),
        ("all_reduce: result", "GPU 1"),
        ("training: replicas are equal", "GPU 0"),  # of two that differ either may be the wrong one
        ("training: replicas are equal", "GPU 1"),
        ("training: pace", "GPU 1"),
        ("training: pace of forward and backward", "GPU 1"),
        ("health: temperature", "GPU 0"),
    }
    assert len(run.report["injected_faults"]) == len(faults)
    assert "Faults were injected on purpose" in run.page
    assert run.report["simulated"] is True
    assert "Simulated: these GPUs are virtual" in run.page


@pytest.mark.night
def test_a_dead_rank_and_a_lost_gpu_are_named(acceptance: Acceptance) -> None:
    run = acceptance("--device", "vgpu:T4", "--validation-only", "--inject", "dead:0", "--inject", "lost:1")
    assert run.code == 1
    (dead, who), (lost, where) = failures(run.report)
    assert (dead, lost) == ("run: process", "health: GPU is still there")
    assert who.startswith("GPU 0 (rank 0,")
    assert where.startswith("GPU 1 (rank 1,")
    assert "killed by SIGKILL" in run.output


@pytest.mark.night
def test_a_hung_collective_ends_in_a_report_that_names_the_rank_behind(acceptance: Acceptance) -> None:
    run = acceptance("--device", "cpu", "--ranks", "3", "--stage-seconds", "20", "--inject", "hung:1")
    assert run.code == 1
    ((name, subject),) = failures(run.report)
    assert name == "run: process"
    assert subject.startswith("rank 1,")
    assert "stand_still" in run.report["ranks"][1]["log"], "the stack says where it stood"


@pytest.mark.night
def test_running_out_of_memory_is_the_error_in_the_banner(acceptance: Acceptance) -> None:
    run = acceptance("--device", "vgpu:T4", "--inject", "oom:1")
    assert run.code == 1
    assert [name for name, _ in failures(run.report)] == ["training: runs"]
    assert "- Training Status: FAIL" in run.output
    assert any(line.startswith("- Error: ") and "CUDA out of memory" in line for line in run.output.splitlines())


@pytest.mark.night
def test_under_torchrun_the_report_is_the_same(acceptance: Acceptance) -> None:
    run = acceptance("--device", "cpu", "--validation-only", launcher=TORCHRUN)
    assert run.status == "INCOMPLETE"
    assert failures(run.report) == []
    assert ("training: runs", run.report["ranks"][0]["node"]) not in outcomes(run.report, "unverified")
    assert "- Training Status: SKIPPED" in run.output
    # torchrun has the last word, and it is the banner.
    last = [line.strip() for line in run.output.rstrip().splitlines()[-10:]]
    assert last[:2] == ["=" * 50, "FINAL ACCEPTANCE: INCOMPLETE"], last
    assert last[-2:] == ["=" * 50, "=" * 60], last


@pytest.mark.night
@pytest.mark.parametrize("rank", [0, 1])
def test_under_torchrun_somebody_reports_when_a_whole_rank_is_killed(acceptance: Acceptance, rank: int) -> None:
    process = acceptance.start("--device", "cpu", launcher=TORCHRUN)
    ends = time.monotonic() + LIMIT_SECONDS
    while "... collectives" not in acceptance.log.read_text():
        assert time.monotonic() < ends, acceptance.log.read_text()
        assert process.poll() is None, acceptance.log.read_text()
        time.sleep(0.1)
    os.kill(watchdog_of(process.pid, rank), signal.SIGKILL)
    run = acceptance.ended(process)
    assert run.code == 1
    ((name, subject),) = failures(run.report)
    assert name == "run: process"
    assert subject.startswith(f"rank {rank},")
    assert run.report["ranks"][rank]["ending"] == "lost"


def watchdog_of(launcher: int, rank: int) -> int:
    """The process that torchrun started for a rank."""
    for folder in proc().glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == launcher and f"RANK={rank}".encode() in environment:
            return int(folder.name)
    raise AssertionError(f"no process of rank {rank}")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_what_could_not_run_says_so_and_leaves_no_old_report(acceptance: Acceptance) -> None:
    reports = acceptance.folder / "reports"
    reports.mkdir()
    (reports / "cluster_test_report.json").write_text('{"acceptance": {"status": "PASS"}}')
    run = acceptance("--device", "cuda")
    assert run.code == 2
    assert run.status == "COULD NOT RUN"
    assert "PyTorch finds no NVIDIA GPU" in run.output


@pytest.mark.night
def test_a_baseline_that_is_no_report_is_refused(acceptance: Acceptance) -> None:
    (acceptance.folder / "other.json").write_text("[]")
    run = acceptance("--device", "cpu", "--baseline", "other.json")
    assert run.code == 2
    assert "not a report of cluster.acceptance" in run.output
