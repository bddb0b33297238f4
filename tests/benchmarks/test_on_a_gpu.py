"""The queue for a visit to a GPU: its order, what it skips, what it survives, and what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.measured.drawn import cases
from benchmarks.on_a_gpu import job as content
from benchmarks.on_a_gpu import jobs, results, table
from benchmarks.on_a_gpu.__main__ import main
from benchmarks.on_a_gpu.job import ROOT, Job
from benchmarks.on_a_gpu.results import Results, ResultsError, merge
from benchmarks.on_a_gpu.schedule import Visit
from grader.rehearsal import devices as rehearsal_devices
from tests.benchmarks import made_up_jobs as made_up
from tests.proc import proc
from tests.scenarios.build import SCENARIOS, load

CARD = "some-gpu"


class Queue:
    """A queue in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []

    @property
    def results(self) -> Results:
        return Results(self.folder / "results", CARD)

    @property
    def runs(self) -> list[str]:
        """What has been carried out, in order, in all visits."""
        path = self.folder / "work" / "runs.txt"
        return path.read_text().split() if path.is_file() else []

    def visit(self, *chosen: Job, seconds: float = 60.0, out: Path | None = None, slowness: float = 1.0) -> bool:
        return Visit(
            results=self.results,
            jobs=chosen,
            ends=time.monotonic() + seconds,
            folder=self.folder / "work",
            out=out,
            slowness=slowness,
            module="tests.benchmarks.made_up_jobs",
            say=self.said.append,
        ).run()


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue(tmp_path)


def test_jobs_run_in_order_and_what_is_known_is_skipped(queue: Queue) -> None:
    assert queue.visit(made_up.FIRST, made_up.SECOND)
    assert queue.runs == ["first", "second"]
    assert queue.visit(made_up.FIRST, made_up.SECOND)
    assert queue.runs == ["first", "second"]
    assert queue.said[-1].startswith("nothing is left")


def test_another_content_is_another_result(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.visit(made_up.FIRST)
    monkeypatch.setattr(content, "version", lambda name: "another version of PyTorch")
    content.digest.cache_clear()
    queue.visit(made_up.FIRST)
    content.digest.cache_clear()
    assert queue.runs == ["first", "first"]


def test_a_digest_follows_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "ROOT", tmp_path)
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "check.py").write_text("1")
    (tmp_path / "lab" / "__pycache__").mkdir()

    def digest() -> str:
        content.digest.cache_clear()
        content._sha256.cache_clear()
        return content.digest(("lab",))

    before = digest()
    (tmp_path / "lab" / "__pycache__" / "check.py").write_text("2")
    assert digest() == before
    (tmp_path / "lab" / "check.py").write_text("2")
    assert digest() != before
    content.digest.cache_clear()
    content._sha256.cache_clear()
    with pytest.raises(FileNotFoundError, match="depends on absent"):
        content.digest(("absent",))


def test_nothing_is_started_that_would_not_end_in_time(queue: Queue) -> None:
    assert queue.visit(made_up.LONG, made_up.FIRST)
    assert queue.runs == ["first"]
    assert "left: 1 of 2 jobs" in queue.said[-1]
    assert "long, 1000 s" in queue.said[-1]


def test_without_time_nothing_is_started(queue: Queue) -> None:
    assert queue.visit(made_up.FIRST, made_up.MEASURES, seconds=0.0)
    assert queue.runs == []
    assert "left: 2 of 2 jobs" in queue.said[-1]


def test_a_job_that_the_end_of_the_visit_cuts_off_is_not_said_to_hang(queue: Queue) -> None:
    assert queue.visit(replace(made_up.HANGS, seconds=0.1), seconds=7.0)
    assert queue.results.jobs == {}
    assert "left: 1 of 1 jobs" in queue.said[-1]
    assert any("no time is left" in line for line in queue.said)


def test_a_jobs_own_duration_counts_once_it_is_known(queue: Queue) -> None:
    queue.visit(made_up.SLOW)
    assert 2.0 <= queue.results.seconds_of(made_up.SLOW) < 30.0


@pytest.mark.parametrize(
    ("bad", "outcome", "summary", "slowness"),
    [
        (made_up.FAILS, "failed", "19 of 20", 1.0),
        (made_up.RAISES, "no answer", "an illegal memory access was encountered", 1.0),
        (made_up.DIES, "no answer", "its process ended", 1.0),
        # Long enough for a busy machine to start the worker: a job that is cut off before it runs leaves no trace.
        (made_up.HANGS, "no answer", "no answer within 9 s", 0.1),
    ],
)
def test_a_job_that_fails_stops_no_other_and_is_reported(
    queue: Queue, bad: Job, outcome: str, summary: str, slowness: float
) -> None:
    assert not queue.visit(bad, made_up.FIRST, slowness=slowness)
    assert queue.runs == [bad.name, "first"]
    entry = queue.results.jobs[bad.name]
    assert (entry["outcome"], queue.results.jobs["first"]["outcome"]) == (outcome, "passed")
    assert summary in entry["summary"]
    assert any(summary in line for line in queue.said)


def test_a_verdict_is_not_repeated_and_what_broke_is_tried_again_on_the_next_visit(queue: Queue) -> None:
    for _ in range(2):
        queue.visit(made_up.FAILS, made_up.RAISES)
    assert queue.runs == ["fails", "raises", "raises"]


def test_an_elastic_job_goes_on_where_it_was_and_takes_what_time_is_left(queue: Queue) -> None:
    queue.visit(made_up.MEASURES, made_up.FIRST)
    entries = queue.results.measured["measures"]
    assert [entry["id"] for entry in entries] == [f"case-{number}" for number in range(made_up.CASES)]
    assert queue.runs[:2] == ["measures", "first"]
    assert queue.results.is_known(made_up.MEASURES)


def test_results_come_out_after_every_job_in_few_files(queue: Queue, tmp_path: Path) -> None:
    out = tmp_path / "out"
    queue.visit(made_up.FIRST, made_up.MEASURES, made_up.DIES, out=out)
    assert sorted(path.name for path in out.iterdir()) == [f"{CARD}-measured.json", f"{CARD}.json"]
    there = Results(out, CARD)
    assert set(there.jobs) == {"first", "measures", "dies"}
    assert len(there.measured["measures"]) == made_up.CASES


def _start(queue: Queue, *names: str) -> subprocess.Popen[bytes]:
    program = f"""
import time
from pathlib import Path
from benchmarks.on_a_gpu.results import Results
from benchmarks.on_a_gpu.schedule import Visit
from grader.rehearsal import devices as rehearsal_devices
from tests.benchmarks import made_up_jobs as made_up
folder = Path({str(queue.folder)!r})
Visit(results=Results(folder / "results", {CARD!r}), jobs=[getattr(made_up, name) for name in {names!r}],
      ends=time.monotonic() + 60, folder=folder / "work", module="tests.benchmarks.made_up_jobs").run()
"""
    return subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.DEVNULL)


def _until_running(queue: Queue, name: str) -> None:
    ends = time.monotonic() + 30
    while name not in queue.runs:
        assert time.monotonic() < ends
        time.sleep(0.05)


def _workers(folder: Path) -> list[int]:
    pids = []
    for path in proc().glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if b"benchmarks.on_a_gpu.worker" in words and os.fsencode(folder) in words:
            pids.append(int(path.parent.name))
    return pids


@pytest.mark.night
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_queue_that_is_killed_loses_one_job_and_repeats_none(queue: Queue, number: signal.Signals) -> None:
    running = _start(queue, "FIRST", "HANGS", "SECOND")
    _until_running(queue, "hangs")
    running.send_signal(number)
    running.wait(30)
    assert set(queue.results.jobs) == {"first"}
    ends = time.monotonic() + 10
    while _workers(queue.folder) and time.monotonic() < ends:
        time.sleep(0.1)
    assert _workers(queue.folder) == []
    assert queue.visit(made_up.FIRST, made_up.SECOND)
    assert queue.runs == ["first", "hangs", "second"]


# --- results ----------------------------------------------------------------------------------------------------------


def test_results_of_another_machine_are_taken_over_the_newer_ones_only(queue: Queue, tmp_path: Path) -> None:
    queue.visit(made_up.FIRST, made_up.MEASURES)
    here = tmp_path / "here"
    assert merge(queue.folder / "results", here) == {CARD: 2 + made_up.CASES}
    assert merge(queue.folder / "results", here) == {CARD: 0}
    ours = Results(here, CARD)
    ours.jobs["first"] |= {"date": "2999-01-01T00:00:00+00:00", "summary": "of later"}
    ours.write()
    merge(queue.folder / "results", here)
    assert Results(here, CARD).jobs["first"]["summary"] == "of later"


@pytest.mark.parametrize(
    ("text", "said"), [(None, "holds no results"), ("{", "cannot be read as results"), ("[]", "is no file of results")]
)
def test_what_is_no_result_is_refused_by_name(tmp_path: Path, text: str | None, said: str) -> None:
    source, here = tmp_path / "source", tmp_path / "here"
    source.mkdir()
    if text is not None:
        (source / f"{CARD}.json").write_text(text)
    with pytest.raises(ResultsError, match=said):
        merge(source, here)
    assert not here.exists()
    with pytest.raises(ResultsError, match="there is no folder"):
        merge(tmp_path / "absent", here)


def test_results_of_a_rehearsal_are_not_taken_for_measured_ones(tmp_path: Path) -> None:
    card = results.card_of(rehearsal_devices.parse("cuda").label)
    Results(tmp_path / "source", card).write()
    with pytest.raises(ResultsError, match="is of a rehearsal"):
        merge(tmp_path / "source", tmp_path / "here")


def test_a_file_that_could_not_be_brought_back_is_refused(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.visit(made_up.FIRST)
    monkeypatch.setattr(results, "LARGEST_BYTES", 100)
    with pytest.raises(ResultsError, match="no more than 100 come back"):
        queue.results.write(tmp_path / "out")


def test_a_card_has_one_name(tmp_path: Path) -> None:
    assert results.card_of("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3"
    assert results.card_of("NVIDIA A100-SXM4-80GB MIG 1g.10gb") == "nvidia-a100-sxm4-80gb-mig-1g-10gb"


# --- the table --------------------------------------------------------------------------------------------------------


def _results(tmp_path: Path, chosen: Sequence[Job], outcome: str, summary: str) -> Results:
    made = Results(tmp_path, CARD)
    for job in chosen:
        made.add(
            job,
            {"outcome": outcome, "summary": summary, "details": {}, "complete": True, "digest": job.digest,
             "seconds": 1.0, "date": "2026-11-28T00:00:00+00:00"},
        )  # fmt: skip
    made.write()
    return made


def test_the_table_says_what_passed_what_did_not_and_what_was_not_run(tmp_path: Path) -> None:
    bugs = [job for job in jobs.JOBS if job.group == "e"]
    _results(tmp_path, bugs[:3], "passed", "caught")
    _results(tmp_path, bugs[3:4], "failed", "passed | although")
    shown = table.render(tmp_path)
    assert f"3 of 4 passed, {len(bugs) - 4} not run (2026-11-28)" in shown
    assert f"- `{bugs[3].name}`: failed: passed \\| although" in shown
    assert "| a. The reference | not run |" in shown


def test_the_pages_table_is_that_of_the_results() -> None:
    text = table.PAGE.read_text(encoding="utf-8")
    shown = text.split(table.BEGIN)[1].split(table.END)[0].strip()
    assert shown == table.render(), "make gpu-results writes it"


# --- the jobs ---------------------------------------------------------------------------------------------------------


def test_jobs_have_names_of_their_own_and_depend_on_what_is_there() -> None:
    names = [job.name for job in jobs.JOBS]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z0-9._-]+", name) for name in names)
    assert {job.group for job in jobs.JOBS} == set(table.GROUPS)
    assert [job.group for job in jobs.JOBS] == sorted(job.group for job in jobs.JOBS)
    for job in jobs.JOBS:
        assert job.digest


def test_every_conformance_program_belongs_to_a_job() -> None:
    listed = [file for files in jobs._CONFORMANCE.values() for file in files]
    there = {path.name for path in (ROOT / "tests" / "conformance").glob("test_*.py")}
    assert len(listed) == len(set(listed))
    assert set(listed) == there - {"test_suite.py"}


def test_every_family_of_drawn_cases_belongs_to_a_job() -> None:
    listed = [*jobs._OF_THE_HOST, *jobs._OF_THE_DEVICE]
    lines = cases.FILE.read_text(encoding="utf-8").splitlines()
    assert sorted(listed) == sorted({json.loads(line)["family"] for line in lines})


BUGS = {
    check: scenario
    for checks in tomllib.loads(jobs.BUGS.read_text(encoding="utf-8")).values()
    for check, scenario in checks.items()
}


@pytest.mark.parametrize(("check", "scenario"), BUGS.items())
def test_a_bug_of_the_list_fails_its_check_by_its_own_word(check: str, scenario: str) -> None:
    assert check in load(SCENARIOS / scenario).fails


def test_no_real_gpu_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--minutes", "1"]) == 2
    assert "no NVIDIA GPU answers here" in capsys.readouterr().err
    assert main(["--only", "nothing-of-this-name"]) == 2
    assert "--list shows them" in capsys.readouterr().err


# --- the rehearsal ----------------------------------------------------------------------------------------------------


@pytest.mark.night
def test_the_queue_runs_on_a_hidden_virtual_gpu_in_a_copy_and_goes_on_there(tmp_path: Path) -> None:
    names = "rewritten-1,bug-lab1.benchmark.warmed_up"
    command = [sys.executable, "-m", "benchmarks.on_a_gpu.rehearsal", str(tmp_path), "--minutes", "5", "--only", names]
    first, again = (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300) for _ in range(2)
    )
    assert first.returncode == 0, first.stdout + first.stderr
    assert "on A100-80GB (rehearsed): 2 jobs" in first.stdout
    assert "4 of 4 passed" in first.stdout
    assert "nothing is left" in first.stdout
    assert again.stdout.splitlines()[1:] == ["nothing is left: every job has a result for this card and this content"]
    assert (tmp_path / "checkout" / "benchmarks" / "results" / "gpu" / "a100-80gb-rehearsed.json").is_file()
    assert not (results.FOLDER / "a100-80gb-rehearsed.json").exists()
