"""`gpulabs class --on slurm` on a real Slurm: two nodes on loopback, GPUs that are counted, nodes and jobs that die."""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import grader
from gradebook.grading import class_summary
from gradebook.grading.cluster.code_digest import code_digest
from gradebook.grading.cluster.engine import JUDGE, ClusterEngine, State
from gradebook.grading.cluster.shared_folder import Batch
from gradebook.grading.engine import EngineError
from gradebook.plugins.slurm.scheduler import Slurm
from tests.deploy import slurm_cluster
from tests.deploy.conftest import ROOT
from tests.deploy.slurm_cluster import NODES, Cluster
from tests.gradebook.conftest import SmallClass
from tests.gradebook.fakes import LOG

PRETENDS = "tests.gradebook.cluster_judge:open_judge"
DIGEST = code_digest(grader.course())


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if absent := slurm_cluster.missing():
        pytest.skip(f"{absent[0]} is not on this machine: `apt install slurm-wlm munge` brings it")
    with slurm_cluster.running() as started:
        yield started


class OnSlurm:
    """A small class and the cluster that grades it."""

    def __init__(self, cluster: Cluster, small: SmallClass) -> None:
        self.cluster, self.small = cluster, small
        self.said: list[str] = []
        self.judge = PRETENDS
        self.after_saying: Callable[[], None] = lambda: None

    def grade(self, **options: object) -> dict[str, str]:
        def say(text: str) -> None:
            self.said.append(text)
            self.after_saying()

        def open_engine(jobs: int, room: Path, device: str) -> ClusterEngine:
            slurm = Slurm(self.small.out / "cluster", device)
            folder = self.small.out / "cluster"
            return ClusterEngine(slurm, folder, jobs, ("grader", DIGEST), say, self.judge, 0.3, 30.0)

        result = self.small.grade(open_engine, **{"jobs": 100, **options})
        return {student.student: student.status for student in result.students}

    def squeue(self, form: str) -> list[str]:
        return self.cluster.run("squeue", "-h", "-r", "-o", form).stdout.split()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        assert self.cluster.wait_until(condition)

    @property
    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted((self.small.out / "cluster" / "logs").iterdir()))


@pytest.fixture
def on_slurm(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OnSlurm]:
    small = SmallClass(tmp_path)
    monkeypatch.setenv(LOG, str(small.log))
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield OnSlurm(cluster, small)
    cluster.run("scancel", "--user", getpass.getuser())


@pytest.mark.night
def test_an_array_grades_as_this_machine_does_each_on_a_gpu_of_its_own(on_slurm: OnSlurm, tmp_path: Path) -> None:
    for number in range(5):
        on_slurm.small.hands_in(f"student-{number}")
    statuses = on_slurm.grade()
    assert set(statuses.values()) == {"graded"}, on_slurm.logs
    on_slurm.small.grade(out=tmp_path / "here")
    assert class_summary.dump(on_slurm.small.out) == class_summary.dump(tmp_path / "here")
    assert on_slurm.grade() == statuses
    assert sum("handed in to the cluster" in line for line in on_slurm.said) == 1


def test_a_gpu_is_asked_for_by_each_element(on_slurm: OnSlurm, tmp_path: Path) -> None:
    slurm = Slurm(tmp_path, "cuda", ("--hold",))
    batch = Batch("held", ("key", "other"))
    (tmp_path / "logs").mkdir()
    job = slurm.submit(batch, 4, 90.0)
    shown = on_slurm.cluster.run("scontrol", "show", "job", job).stdout
    assert "TresPerNode=gres/gpu:1" in shown or "TresPerNode=gres:gpu:1" in shown
    assert "Requeue=1" in shown
    assert "TimeLimit=00:02:00" in shown
    assert "ArrayTaskThrottle=4" in shown
    assert slurm.find(batch) == job
    states = slurm.states([Batch("held", ("key", "other"), job)])
    assert {place: task.state for place, task in states.items()} == {("held", 0): State.WAITS, ("held", 1): State.WAITS}
    slurm.cancel(Batch("held", ("key", "other"), job), [1])
    states = slurm.states([Batch("held", ("key", "other"), job)])
    assert {place: task.state for place, task in states.items()} == {
        ("held", 0): State.WAITS,
        ("held", 1): State.CANCELLED,
    }


@pytest.mark.night
def test_one_that_dies_on_its_node_is_tried_once_more_and_told(on_slurm: OnSlurm) -> None:
    on_slurm.small.hands_in("good")
    on_slurm.small.hands_in("once", behaviour="dies once")
    on_slurm.small.hands_in("always", behaviour="dies")
    assert on_slurm.grade() == {"good": "graded", "once": "graded", "always": "could_not_grade"}
    assert any(line.startswith("always: its job ended without a result (FAILED") for line in on_slurm.said)


@pytest.mark.night
def test_a_node_that_dies_and_a_job_that_is_preempted_lose_nothing(on_slurm: OnSlurm, tmp_path: Path) -> None:
    """The node is marked as dead while it grades, which is what Slurm does when its daemon is silent; for preemption
    the element is put back, as `PreemptMode=REQUEUE` does. Slurm lets what it has put back wait for two minutes."""
    for number in range(2):
        on_slurm.small.hands_in(f"student-{number}", behaviour="hangs once")
    done: dict[str, str] = {}
    thread = threading.Thread(target=lambda: done.update(on_slurm.grade()))
    thread.start()
    try:
        on_slurm.wait_for(lambda: on_slurm.squeue("%T").count("RUNNING") == 2 and len(on_slurm.small.graded) == 2)
        lines = on_slurm.cluster.run("squeue", "-h", "-r", "-o", "%F_%K %N").stdout.splitlines()
        node = lines[0].split()[1]
        on_slurm.cluster.run("scontrol", "requeue", lines[1].split()[0])
        on_slurm.cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=it died")
        thread.join(slurm_cluster.JOB_SECONDS)
    finally:
        for node in NODES:
            on_slurm.cluster.run("scontrol", "update", f"nodename={node}", "state=resume")
    assert set(done.values()) == {"graded"}, (done, on_slurm.said, on_slurm.logs)
    assert sum("handed in to the cluster" in line for line in on_slurm.said) == 1, "Slurm queues them again by itself"
    assert len(on_slurm.small.graded) == 4


@pytest.mark.night
def test_a_run_that_is_killed_leaves_the_array_and_the_next_one_takes_it_up(on_slurm: OnSlurm, tmp_path: Path) -> None:
    for number in range(3):
        on_slurm.small.hands_in(f"student-{number}")
    on_slurm.small.hands_in("slow", behaviour="hangs once")
    places = [str(path) for path in (on_slurm.small.submissions, on_slurm.small.out, on_slurm.small.log)]
    program = f"""
from tests.deploy.test_class_on_slurm import *
small = SmallClass.__new__(SmallClass)
small.submissions, small.out, small.log = map(Path, {places!r})
OnSlurm(Cluster(Path("/"), {{}}), small).grade()
"""
    run = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    on_slurm.wait_for(lambda: len(on_slurm.small.graded) == 4)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    on_slurm.wait_for(lambda: len(on_slurm.squeue("%F_%K")) == 1)  # the others write what they have graded
    (element,) = on_slurm.squeue("%F_%K")
    job = element.split("_")[0]
    on_slurm.cluster.run("scontrol", "requeue", element)
    assert set(on_slurm.grade().values()) == {"graded"}, on_slurm.logs
    assert any(line.startswith(f"{job}: ") and "taking them up" in line for line in on_slurm.said)
    assert not any("handed in to the cluster" in line for line in on_slurm.said)
    assert len(on_slurm.small.graded) == 5


@pytest.mark.night
def test_a_controller_that_goes_away_and_comes_back(on_slurm: OnSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    on_slurm.small.hands_in("ada")
    conf = os.environ["SLURM_CONF"]
    elsewhere = on_slurm.small.out.parent / "slurm.conf"
    elsewhere.write_text(
        "".join(
            f"SlurmctldPort={slurm_cluster._free_ports(1)[0]}\n" if line.startswith("SlurmctldPort") else f"{line}\n"
            for line in Path(conf).read_text().splitlines()
        )
        + "MessageTimeout=5\n"
    )

    def switch_configuration() -> None:
        if on_slurm.said[-1].endswith("handed in to the cluster"):
            os.environ["SLURM_CONF"] = str(elsewhere)
        elif on_slurm.said[-1].startswith("the cluster does not answer"):
            os.environ["SLURM_CONF"] = conf

    on_slurm.after_saying = switch_configuration
    assert on_slurm.grade() == {"ada": "graded"}
    assert any(line.startswith("the cluster does not answer (") for line in on_slurm.said)


def test_what_slurm_refuses_is_told_in_its_own_words(on_slurm: OnSlurm) -> None:
    on_slurm.small.hands_in("ada")
    with pytest.raises(EngineError, match=r"sbatch refuses: sbatch: error: .*Invalid partition"):
        Slurm(on_slurm.small.out, "vgpu", ("--partition=nowhere",)).submit(Batch("x", ("key",)), 1, 60)


def test_where_there_is_no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        EngineError, match="there is no scontrol here: give this command where you submit jobs to Slurm"
    ):
        Slurm(tmp_path, "cuda")


@pytest.mark.night
def test_a_time_limit_is_slurms_own(on_slurm: OnSlurm) -> None:
    """Slurm knows minutes only, and looks twice a minute."""
    (on_slurm.small.out.parent / "class.toml").write_text("[limits]\nminutes_per_submission = 0.01\n")
    on_slurm.small.hands_in("eve", behaviour="hangs")
    from gradebook.grading.cluster import engine

    engine._START_SECONDS, before = 1.0, engine._START_SECONDS
    try:
        started = time.monotonic()
        assert on_slurm.grade(configuration=on_slurm.small.out.parent / "class.toml") == {"eve": "could_not_grade"}
    finally:
        engine._START_SECONDS = before
    assert time.monotonic() - started > 60
    assert any(line.startswith("eve: it took longer than 0.01 minutes") for line in on_slurm.said)


@pytest.mark.night
def test_the_whole_command_with_the_real_judge(on_slurm: OnSlurm, tmp_path: Path) -> None:
    """No stand-ins but the GPUs: a submission graded by its sandbox on a node equals one graded here."""
    folder = tmp_path / "work" / "ada"
    subprocess.run(["cp", "-r", str(ROOT / "solutions" / "lab1_gpu_basics"), "."], cwd=_made(folder), check=True)
    program = [
        sys.executable, "-c", "from grader.cli import app; app()", "class", str(folder.parent), "--lab", "1",
        "--device", "vgpu:T4", "--seed", "7",
    ]  # fmt: skip
    for where, more in (("there", ["--on", "slurm"]), ("here", [])):
        done = subprocess.run(
            [*program, "--out", str(tmp_path / where), *more], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert class_summary.dump(tmp_path / "there") == class_summary.dump(tmp_path / "here")
    assert JUDGE.endswith("SandboxJudge")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
