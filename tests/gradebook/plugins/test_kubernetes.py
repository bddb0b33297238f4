"""`gpulabs class --on kubernetes`: the Job by Kubernetes' own schemas, and the engine with a kubectl that is played."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import grader
from gradebook.grading.cluster.code_digest import code_digest
from gradebook.grading.cluster.engine import ClusterEngine, State, Unreachable
from gradebook.grading.cluster.shared_folder import Batch
from gradebook.grading.engine import EngineError
from gradebook.plugins.kubernetes.scheduler import Kubernetes, Site, indices
from tests.gradebook.conftest import SmallClass

ROOT = Path(__file__).parents[3]
IMAGE = "registry.example.edu/gpu-computing-labs:1"
# Plays a cluster in a folder: `create` keeps a Job, and each `get pods` runs as many indices as may run at once, as
# processes. What becomes of an index that fails is told as Kubernetes tells it.
KUBECTL = """#!{python}
import json, os, subprocess, sys
from pathlib import Path

there = Path(os.environ["PLAYED_CLUSTER"])
arguments = sys.argv[1:]
if (there / "away").exists():
    (there / "away").unlink()
    sys.exit("Unable to connect to the server: dial tcp 10.0.0.1:443: i/o timeout")
if arguments[0] == "--namespace":
    assert arguments[1] == "teaching"
    arguments = arguments[2:]
if arguments[0] == "create":
    job = json.load(sys.stdin)
    (there / job["metadata"]["name"]).with_suffix(".json").write_text(json.dumps({{**job, "status": {{}}, "pods": []}}))
    print("job.batch/" + job["metadata"]["name"])
elif arguments[:2] == ["get", "jobs"]:
    name = arguments[3].removeprefix("metadata.name=")
    path = there / f"{{name}}.json"
    print(json.dumps({{"items": [json.loads(path.read_text())] if path.exists() else []}}))
elif arguments[:2] == ["get", "pods"]:
    path = there / f"{{arguments[3].rpartition('=')[2]}}.json"
    job = json.loads(path.read_text())
    spec = job["spec"]
    done = len(job["pods"])
    running = []
    for index in range(done, min(spec["completions"], done + spec["parallelism"])):
        container = spec["template"]["spec"]["containers"][0]
        environment = {{**os.environ, "JOB_COMPLETION_INDEX": str(index),
                        **{{one["name"]: one["value"] for one in container["env"]}}}}
        running.append((index, subprocess.Popen(container["command"], env=environment)))
    for index, process in running:
        code = process.wait()
        job["pods"].append({{
            "metadata": {{"creationTimestamp": "2026-03-01T10:00:00Z",
                          "annotations": {{"batch.kubernetes.io/job-completion-index": str(index)}}}},
            "status": {{"phase": "Failed" if code else "Succeeded", "containerStatuses": [
                {{"state": {{"terminated": {{"reason": "Error", "exitCode": code}}}}}}]}}}})
        name = "failedIndexes" if code else "completedIndexes"
        job["status"][name] = ",".join(filter(None, [job["status"].get(name, ""), str(index)]))
    path.write_text(json.dumps(job))
    print(json.dumps({{"items": job["pods"]}}))
elif arguments[:2] == ["delete", "job"]:
    (there / f"{{arguments[2]}}.json").unlink(missing_ok=True)
else:
    sys.exit(f"error: unknown command {{arguments}}")
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs, there = tmp_path / "programs", tmp_path / "cluster of nobody"
    programs.mkdir()
    there.mkdir()
    kubectl = programs / "kubectl"
    kubectl.write_text(KUBECTL.format(python=sys.executable))
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PLAYED_CLUSTER", str(there))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return there


def scheduler(folder: Path, device: str = "cuda") -> Kubernetes:
    return Kubernetes(folder / "out" / "cluster", device, Site(IMAGE, "class", folder, "teaching"))


def job(tmp_path: Path, count: int = 3, **options: Any) -> dict[str, Any]:
    batch = Batch("20260301-101500-abc123", tuple(str(number) for number in range(count)))
    return scheduler(tmp_path, **options).manifest(batch, 2, 1500.5)


def test_kubernetes_own_schemas_accept_the_job(tmp_path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate brings the schemas")
    for version in ("1.30", validate.latest_version()):
        validate.validate(job(tmp_path), version, strict=True)
        validate.validate(job(tmp_path, device="vgpu:T4"), version, strict=True)


def test_the_job_says_what_a_class_needs(tmp_path: Path) -> None:
    spec = job(tmp_path)["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 2)
    assert spec["backoffLimitPerIndex"] == 0  # what fails is judged by us ...
    assert spec["maxFailedIndexes"] == 3  # ... and ends no other one
    assert spec["podFailurePolicy"]["rules"][0]["action"] == "Ignore"  # a node that is lost counts for nothing
    assert pod["activeDeadlineSeconds"] == 1501
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert pod["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert container["volumeMounts"][0] == {"name": "class", "mountPath": str(tmp_path)}
    assert "nvidia.com/gpu" not in json.dumps(job(tmp_path, device="vgpu:T4"))


def test_names_that_kubernetes_takes(tmp_path: Path) -> None:
    name = job(tmp_path)["metadata"]["name"]
    assert name == "gpulabs-20260301-101500-abc123"
    assert len(f"{name}-9999-abcde") <= 63  # a pod's name is its host name


def test_sets_of_indices() -> None:
    assert indices("") == set()
    assert indices("1,3-5,7") == {1, 3, 4, 5, 7}


@pytest.mark.night
def test_a_class_on_a_played_cluster(cluster: Path, small_class: SmallClass, tmp_path: Path) -> None:
    for name in ("ada", "bob", "eve"):
        small_class.hands_in(name)
    small_class.hands_in("dies", behaviour="dies")
    said: list[str] = []

    def open_engine(jobs: int, room: Path, device: str) -> ClusterEngine:
        course = ("grader", code_digest(grader.course()))
        judge = "tests.gradebook.cluster_judge:open_judge"
        return ClusterEngine(
            scheduler(tmp_path, device), small_class.out / "cluster", 2, course, said.append, judge, 0.0, 30.0
        )

    result = small_class.grade(open_engine, jobs=2)
    statuses = {student.student: student.status for student in result.students}
    assert statuses == {"ada": "graded", "bob": "graded", "dies": "could_not_grade", "eve": "graded"}
    assert any("dies: its job ended without a result (Error, exit code -9" in line for line in said)


def test_pods_that_take_too_long_and_pods_that_wait(cluster: Path, tmp_path: Path) -> None:
    kubernetes = scheduler(tmp_path)
    batch = Batch("b", ("x", "y", "z"), "gpulabs-b")
    pods = [
        {"metadata": {"labels": {"batch.kubernetes.io/job-completion-index": "0"}},
         "status": {"phase": "Failed", "reason": "DeadlineExceeded"}},
        {"metadata": {"labels": {"batch.kubernetes.io/job-completion-index": "1"}},
         "status": {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}},
    ]  # fmt: skip
    stored = {"status": {"failedIndexes": "0"}, "spec": {"completions": 2, "parallelism": 0}, "pods": pods}
    (cluster / "gpulabs-b.json").write_text(json.dumps(stored))
    states = kubernetes.states([batch])
    assert states["b", 0].state is State.TOO_LONG
    assert (states["b", 1].state, states["b", 1].detail) == (State.WAITS, "ImagePullBackOff")
    assert states["b", 2].state is State.WAITS
    assert kubernetes.find(batch) == "gpulabs-b"
    kubernetes.cancel(batch, [0])
    assert kubernetes.find(batch) == "gpulabs-b"
    kubernetes.cancel(batch, [0, 1, 2])
    assert kubernetes.find(batch) == ""
    assert kubernetes.states([batch]) == {}
    (cluster / "away").touch()
    with pytest.raises(Unreachable, match="i/o timeout"):
        kubernetes.find(batch)


def test_a_folder_that_pods_cannot_see_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="which is not below"):
        Kubernetes(tmp_path / "out" / "cluster", "cuda", Site(IMAGE, "class", Path("/srv/class")))
