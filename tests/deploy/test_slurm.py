"""The batch scripts, on a real Slurm: two nodes on loopback, ranks that meet over gloo, exit codes that arrive."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy import slurm_cluster
from tests.deploy.conftest import DEPLOY, ROOT, tool
from tests.deploy.slurm_cluster import GPUS_PER_NODE, NODES, Cluster

RANKS = len(NODES) * GPUS_PER_NODE

# Stands in for the programs that the scripts start: who am I, do all ranks reach each other, and what was I given?
PROGRAM = """
import json, os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
names = ("SLURMD_NODENAME", "LOCAL_RANK", "WORLD_SIZE", "OMP_NUM_THREADS", "BATCH_SIZE", "DATA_DIR", "OUTPUT_DIR",
         "TORCHELASTIC_MAX_RESTARTS")
seen = {name: os.environ.get(name) for name in names}
with open(f"rank{dist.get_rank()}.json", "w") as file:
    json.dump({**seen, "sum": total.item(), "arguments": sys.argv[1:]}, file)
dist.barrier()
rank = dist.get_rank()
dist.destroy_process_group()
"""
# Ends as the acceptance test would; one rank writes the report. They end together: when one process of a job fails,
# Slurm ends the others.
VERDICT = """
import json, os, pathlib, sys, time

rank = int(os.environ["RANK"])
with open(f"rank{rank}.json", "w") as file:
    json.dump({"restarts": os.environ["TORCHELASTIC_MAX_RESTARTS"], "arguments": sys.argv[1:]}, file)
if rank == 0 and (verdict := os.environ["VERDICT"]) != "none":
    with open(sys.argv[sys.argv.index("--report") + 1] + "/cluster_test_report.json", "w") as file:
        json.dump({"acceptance": {"status": verdict}}, file)
pathlib.Path(f"ready{rank}").touch()
while len(list(pathlib.Path().glob("ready*"))) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.05)
sys.exit(int(os.environ["EXIT_CODE"]))
"""


# Works until it is told to stop, then notes that it was.
PATIENT = """
import os, pathlib, signal, sys, time

def stop(number, frame):
    pathlib.Path(f"stopped{os.environ['RANK']}").touch()
    time.sleep(float(os.environ.get("WRITING", 0)))
    pathlib.Path(f"written{os.environ['RANK']}").touch()
    sys.exit(143)

signal.signal(signal.SIGTERM, stop)
pathlib.Path(f"started{os.environ['RANK']}").touch()
time.sleep(300)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if absent := slurm_cluster.missing():
        pytest.skip(f"{absent[0]} is not on this machine: `apt install slurm-wlm munge` brings it")
    with slurm_cluster.running() as started:
        yield started


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder to submit in: the scripts, and stand-ins for what they start."""
    shutil.copytree(DEPLOY / "slurm", tmp_path / "deploy" / "slurm")
    package = tmp_path / "cluster"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "job.py").write_text(PROGRAM)
    (package / "acceptance.py").write_text(VERDICT)
    return tmp_path


def submit(cluster: Cluster, checkout: Path, script: str, *arguments: str, **environment: str) -> tuple[int, str]:
    """Submit a script, wait for its end; its exit code and what it printed."""
    job = queue(cluster, checkout, script, *arguments, **environment)
    return cluster.wait_for_job(job), (checkout / "out.txt").read_text()


def queue(cluster: Cluster, checkout: Path, script: str, *arguments: str, **environment: str) -> str:
    """Submit a script; the job's number."""
    variables = {**environment, "PATH": f"{Path(sys.executable).parent}:{cluster.environment['PATH']}"}
    there = Cluster(cluster.folder, {**cluster.environment, **variables})
    done = there.run("sbatch", "--parsable", "--output=out.txt", f"deploy/slurm/{script}", *arguments, cwd=checkout)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def written(checkout: Path) -> list[dict[str, object]]:
    """What each rank wrote."""
    missing = [rank for rank in range(RANKS) if not (checkout / f"rank{rank}.json").is_file()]
    assert not missing, (checkout / "out.txt").read_text()
    return [json.loads((checkout / f"rank{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.night
def test_every_gpu_of_both_nodes_gets_a_rank_and_they_reach_each_other(cluster: Cluster, checkout: Path) -> None:
    code, output = submit(cluster, checkout, "train.sbatch", "--epochs", "2", BATCH_SIZE="64")
    assert code == 0, output
    ranks = written(checkout)
    assert {rank["sum"] for rank in ranks} == {float(sum(range(RANKS)))}
    assert sorted((rank["SLURMD_NODENAME"], rank["LOCAL_RANK"]) for rank in ranks) == [
        (node, str(local)) for node in NODES for local in range(GPUS_PER_NODE)
    ]
    for rank in ranks:
        assert rank["WORLD_SIZE"] == str(RANKS)
        assert rank["BATCH_SIZE"] == "64"
        assert rank["arguments"] == ["--epochs", "2"]
        assert rank["OMP_NUM_THREADS"] == "4", "8 CPUs for 2 ranks"
        assert rank["TORCHELASTIC_MAX_RESTARTS"] == "3"
        assert rank["DATA_DIR"] == f"{checkout}/data"
        assert Path(str(rank["OUTPUT_DIR"])).parent == checkout / "runs"
        assert Path(str(rank["OUTPUT_DIR"])).is_dir()


@pytest.mark.night
@pytest.mark.parametrize(
    ("verdict", "exit_code", "expected"),
    [("PASS", 0, 0), ("PASS", 1, 1), ("INCOMPLETE", 3, 3), ("none", 2, 2), ("none", 4, 4)],
)
def test_the_jobs_exit_code_is_the_verdict(
    cluster: Cluster, checkout: Path, verdict: str, exit_code: int, expected: int
) -> None:
    code, output = submit(cluster, checkout, "acceptance.sbatch", VERDICT=verdict, EXIT_CODE=str(exit_code))
    assert code == expected, output
    assert {rank["restarts"] for rank in written(checkout)} == {"0"}
    (arguments,) = {" ".join(map(str, rank["arguments"])) for rank in written(checkout)}  # type: ignore[call-overload]
    assert f"--expect-nodes {len(NODES)} --expect-gpus {GPUS_PER_NODE}" in arguments


@pytest.mark.night
def test_the_course_itself_runs_on_both_nodes(cluster: Cluster, tmp_path: Path) -> None:
    """No stand-ins: the acceptance test and then the training job, on the CPU."""
    shutil.copytree(DEPLOY / "slurm", tmp_path / "deploy" / "slurm")
    for name in ("cluster", "labkit", "vgpu", "solutions"):
        (tmp_path / name).symlink_to(ROOT / name)
    code, output = submit(cluster, tmp_path, "acceptance.sbatch", "--device", "cpu", "--validation-only")
    assert code == 3, output
    (report,) = tmp_path.glob("reports/slurm-*/cluster_test_report.json")
    result = json.loads(report.read_text())
    assert (result["world_size"], result["acceptance"]["status"]) == (RANKS, "INCOMPLETE")
    quick = {"EPOCHS": "1", "BATCH_SIZE": "64", "MODEL": "small-cnn", "DEVICE": "cpu"}
    code, output = submit(cluster, tmp_path, "train.sbatch", **quick)
    assert code == 0, output
    (metadata,) = tmp_path.glob("runs/slurm-*/training_metadata.json")
    assert json.loads(metadata.read_text())["world_size"] == RANKS


@pytest.mark.night
def test_every_rank_hears_the_signal_that_slurm_sends_before_the_time_is_up(cluster: Cluster, checkout: Path) -> None:
    (checkout / "cluster" / "job.py").write_text(PATIENT)
    job = queue(cluster, checkout, "train.sbatch")
    assert cluster.wait_until(lambda: len(list(checkout.glob("started*"))) == RANKS), "the ranks did not start"
    # As Slurm does it to a job that is preempted: to the processes of the step, not to the batch script.
    cluster.run("scancel", "--signal=TERM", job)
    cluster.wait_for_job(job)
    assert sorted(path.name for path in checkout.glob("stopped*")) == [f"stopped{rank}" for rank in range(RANKS)]


@pytest.mark.night
def test_before_its_time_is_up_the_ranks_write_and_the_job_is_queued_again(cluster: Cluster, checkout: Path) -> None:
    """Their checkpoint takes longer than torchrun's own patience of half a minute."""
    (checkout / "cluster" / "job.py").write_text(PATIENT)
    job = queue(cluster, checkout, "train.sbatch", WRITING="33")
    assert cluster.wait_until(lambda: len(list(checkout.glob("started*"))) == RANKS), "the ranks did not start"
    # What `--signal=B:USR1@180` does: to the batch script alone.
    cluster.run("scancel", "--batch", "--signal=USR1", job)

    def restarts() -> str:
        return cluster.run("scontrol", "show", "job", job).stdout

    # It is completing first, and then it waits again.
    waits = cluster.wait_until(lambda: "Restarts=1" in restarts() and "JobState=PENDING" in restarts())
    assert waits, (checkout / "out.txt").read_text()
    assert len(list(checkout.glob("written*"))) == RANKS, (checkout / "out.txt").read_text()
    cluster.run("scancel", job)


@pytest.mark.night
def test_a_job_that_was_queued_often_enough_is_not_queued_again(cluster: Cluster, checkout: Path) -> None:
    (checkout / "cluster" / "job.py").write_text(PATIENT)
    job = queue(cluster, checkout, "train.sbatch", MOST_RESTARTS="0")
    assert cluster.wait_until(lambda: len(list(checkout.glob("started*"))) == RANKS), "the ranks did not start"
    cluster.run("scancel", "--batch", "--signal=USR1", job)
    assert cluster.wait_for_job(job) != 0
    assert "not queued again" in (checkout / "out.txt").read_text()


def test_more_gpus_than_there_are_is_refused_at_once(cluster: Cluster, checkout: Path) -> None:
    done = cluster.run("sbatch", "--gpus-per-node=3", "deploy/slurm/train.sbatch", cwd=checkout)
    assert done.returncode != 0
    assert "Requested node configuration is not available" in done.stderr


@pytest.mark.parametrize("script", ["train.sbatch", "acceptance.sbatch", "launch.sh", "health_check.sh", "prolog.sh"])
def test_shellcheck_has_nothing_to_say(script: str) -> None:
    shellcheck = tool("shellcheck", brings="apt install shellcheck")
    command = [shellcheck, "--shell=bash", "--external-sources", f"deploy/slurm/{script}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
