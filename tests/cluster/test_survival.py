"""The test survives what it tests: nodes, processes and disks are really taken away. No GPU; all on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import processes
from tests.cluster.faults.running import NAMESPACE, NO_NAMESPACE
from tests.cluster.processes import Launcher, until
from tests.cluster.sound import failures

QUICK = ("--device", "cpu", "--validation-only")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Launcher]:
    yield from processes.launcher(tmp_path)


@pytest.mark.night
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_survivor_reports_when_the_node_of_the_store_is_lost(run: Launcher, how: signal.Signals) -> None:
    first, second, third = run.nodes(3, *QUICK)
    first.wait_for("... collectives")
    first.kill(how)  # stopped, it is like a node without power: nothing refuses, nothing answers
    assert second.ended() == third.ended() == 1
    (survivor,) = [node for node in (second, third) if node.reported]
    report = survivor.report
    assert report["acceptance"]["status"] == "FAIL"
    named = [(name, subject) for name, subject in failures(report) if name.startswith("run:")]
    assert named == [("run: node", "node node0"), ("run: process", "rank 0, node0")]
    assert {rank["rank"]: rank["ending"] for rank in report["ranks"]}[0] == "lost"
    assert "- Error: run: node, node node0: no word from any of its ranks (0)" in survivor.output
    assert second.alive() == third.alive() == {}


@pytest.mark.night
def test_a_report_is_written_when_torchrun_is_killed(run: Launcher) -> None:
    (node,) = run.nodes(1, *QUICK)
    node.wait_for("... presence")
    node.process.kill()
    until(lambda: node.alive() == {})
    assert node.report["acceptance"]["status"] == "INCOMPLETE"
    assert node.report["ranks"][0]["ending"] == "stopped"


@pytest.mark.night
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_in_a_report_that_is_no_pass(run: Launcher, number: signal.Signals) -> None:
    started = run.plain(*QUICK)
    started.wait_for("... compute")
    started.process.send_signal(number)
    assert started.ended() == 3
    assert started.report["acceptance"]["status"] == "INCOMPLETE"
    assert started.alive() == {}


@pytest.mark.night
def test_a_worker_whose_watchdog_is_killed_while_it_imports_goes_as_well(run: Launcher) -> None:
    started = run.plain(*QUICK)
    until(lambda: sum("cluster.acceptance.rank" in words for words in started.alive().values()) == 2)
    started.process.kill()
    until(lambda: started.alive() == {})


def test_nobody_who_is_killed_early_leaves_an_older_pass(run: Launcher, tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    (reports / "cluster_test_report.json").write_text('{"acceptance": {"status": "PASS"}}')
    started = run.plain(*QUICK, "--report", str(reports))
    until(lambda: not (reports / "cluster_test_report.json").exists())
    started.process.kill()
    (reports / "cluster_test_report.json").write_text('{"acceptance": {"status": "PASS"}}')
    assert run.plain("--no-such-option", "--report", str(reports)).ended() == 2
    assert not (reports / "cluster_test_report.json").exists()


def test_a_baseline_that_the_report_would_take_the_place_of_is_kept(run: Launcher) -> None:
    folder = run.folder / "plain" / "reports"
    folder.mkdir(parents=True)
    (folder / "cluster_test_report.json").write_text("{}")
    started = run.plain(*QUICK, "--baseline", "reports/cluster_test_report.json")
    assert started.ended() == 2
    assert "copy it elsewhere" in started.output
    assert (folder / "cluster_test_report.json").read_text() == "{}"


@pytest.mark.night
@pytest.mark.skipif(NO_NAMESPACE, reason="no disk can be mounted here (unshare)")
def test_a_full_disk_costs_neither_banner_nor_report(run: Launcher, tmp_path: Path) -> None:
    disk, other = tmp_path / "disk", tmp_path / "other"
    disk.mkdir()
    other.mkdir()
    # The disk has room for the folder and for nothing else.
    script = f'mount -t tmpfs -o size=4k none {disk} && mkdir {disk}/reports && exec "$0" "$@"'
    started = run.plain(*QUICK, "--report", f"{disk}/reports", before=(*NAMESPACE, script), TMPDIR=str(other))
    assert started.ended() == 4
    lines = started.output.splitlines()
    banner = lines.index("FINAL ACCEPTANCE: INCOMPLETE")
    complaint = next(number for number, line in enumerate(lines) if "No space left on device" in line)
    assert banner < complaint
    (written,) = other.glob("cluster-acceptance-*/cluster_test_report.json")
    assert any(line == f"wrote {written}" for line in lines)
    assert started.alive() == {}


def test_a_process_that_stands_in_the_kernel_does_not_hold_the_report_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from cluster.acceptance import watchdog
    from cluster.acceptance.records import Record
    from cluster.acceptance.store import SurvivingStore, serve, within

    monkeypatch.setattr(watchdog, "KILL_SECONDS", 0.1)
    monkeypatch.setattr(watchdog, "STACK_SECONDS", 0.0)
    process = subprocess.Popen(["sleep", "60"])
    try:
        monkeypatch.setattr(process, "kill", lambda: None)  # what SIGKILL is to a process in state D
        reader, writer = os.pipe()
        os.close(writer)
        watched = watchdog.Watched(record=Record(rank=0), process=process, pipe=reader, log=watchdog._log())
        process.send_signal(signal.SIGSTOP)  # nor does it hear SIGUSR1
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)  # else it may hear that one first
        watchdog.Watchdog(SurvivingStore(within(serve())), stage_seconds=1, show=False)._end(watched, "hung", "no end")
        assert watched.over
        assert "waits in the kernel" in watched.record.detail
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
