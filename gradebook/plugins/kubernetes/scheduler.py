"""Kubernetes by kubectl: an Indexed Job for each array, a pod for each submission.

kubectl decides who may do so, on which cluster. A pod that is evicted, preempted or loses its node is replaced
by the Job itself (`podFailurePolicy`); one that fails is ours to judge, so the Job does not try again. Sources:
Kubernetes' pages on Jobs, "Pod failure policy" and "Backoff limit per index" (on by default since 1.29).
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradebook.grading.cluster.engine import Full, Scheduler, State, TaskStatus, Unreachable
from gradebook.grading.cluster.shared_folder import Batch
from gradebook.grading.engine import EngineError

_SECONDS = 120
_KEPT_SECONDS = 7 * 24 * 3600
"""So long a finished Job stays to be looked at."""
_INDEX = "batch.kubernetes.io/job-completion-index"
_UNREACHABLE = ("unable to connect to the server", "connection refused", "i/o timeout", "tls handshake timeout",
                "service unavailable", "too many requests", "no route to host", "etcdserver")  # fmt: skip


@dataclass(frozen=True)
class Site:
    """What only the site knows."""

    image: str
    """With this project in it, in the same version."""
    claim: str
    """The PersistentVolumeClaim of the shared folder."""
    mounted_at: Path
    """Where this machine has what the claim holds; pods get it at the same place."""
    namespace: str = ""
    """Empty: kubectl's own."""


class Kubernetes(Scheduler):
    """The cluster that kubectl speaks to."""

    most = 10_000
    """Completions of an Indexed Job whose indices are counted apart; it could be more, but a Job's state has a size."""

    def __init__(self, folder: Path, device: str, site: Site) -> None:
        """Ask nothing yet.

        Args:
            folder: the shared one.
            device: what is graded on; `cuda` takes a GPU for each pod.
            site: image and volume.

        Raises:
            EngineError: the folder does not lie on the volume.
        """
        self._folder, self._device, self._site = folder.resolve(), device, site
        if site.mounted_at.resolve() not in self._folder.parents:
            raise EngineError(
                f"--out is at {self._folder.parent}, which is not below {site.mounted_at}: pods cannot see it"
            )

    def manifest(self, batch: Batch, at_once: int, seconds: float) -> dict[str, Any]:
        """The Job."""
        count = len(batch.keys)
        gpu = {"nvidia.com/gpu": "1"} if self._device == "cuda" else {}
        script = 'exec python -m gradebook.grading.cluster.array_task "$0" "$1" "$JOB_COMPLETION_INDEX"'
        container = {
            "name": "grading",
            "image": self._site.image,
            "command": ["sh", "-c", script, str(self._folder), batch.name],
            "env": [{"name": "HOME", "value": "/tmp"}],
            "resources": {"requests": {"cpu": "2", "memory": "5Gi", **gpu}, "limits": {"memory": "8Gi", **gpu}},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [
                {"name": "class", "mountPath": str(self._site.mounted_at)},
                {"name": "scratch", "mountPath": "/tmp"},
                {"name": "shared-memory", "mountPath": "/dev/shm"},
            ],
        }
        pod = {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": math.ceil(seconds),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}, **_user()},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}] if gpu else [],
            "containers": [container],
            "volumes": [
                {"name": "class", "persistentVolumeClaim": {"claimName": self._site.claim}},
                {"name": "scratch", "emptyDir": {}},
                {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}},
            ],
        }
        labels = {"app.kubernetes.io/part-of": "gpu-computing-labs", "app.kubernetes.io/component": "class"}
        lost = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": _name(batch), "labels": labels},
            "spec": {
                "completionMode": "Indexed",
                "completions": count,
                "parallelism": min(count, max(1, at_once)),
                "backoffLimitPerIndex": 0,
                "maxFailedIndexes": count,
                "podFailurePolicy": {"rules": [lost]},
                "ttlSecondsAfterFinished": _KEPT_SECONDS,
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        }

    def submit(self, batch: Batch, at_once: int, seconds: float) -> str:
        self._run("create", "-f", "-", "-o", "name", stdin=json.dumps(self.manifest(batch, at_once, seconds)))
        return _name(batch)

    def find(self, batch: Batch) -> str:
        return _name(batch) if self._jobs(_name(batch)) else ""

    def states(self, batches: Sequence[Batch]) -> Mapping[tuple[str, int], TaskStatus]:
        statuses: dict[tuple[str, int], TaskStatus] = {}
        for batch in batches:
            jobs = self._jobs(batch.job)
            if not jobs:
                continue  # taken away by somebody, or finished long ago
            pods = self._json("get", "pods", "-l", f"batch.kubernetes.io/job-name={batch.job}", "-o", "json")
            by_index = _by_index(pods.get("items", []))
            status = jobs[0].get("status", {})
            done, failed = indices(status.get("completedIndexes", "")), indices(status.get("failedIndexes", ""))
            for index in range(len(batch.keys)):
                pod = by_index.get(index, {})
                if index in done:
                    status_of_pod = TaskStatus(State.ENDED, "completed")
                elif index in failed:
                    status_of_pod = _failure(pod)
                else:
                    runs = pod.get("status", {}).get("phase") == "Running"
                    status_of_pod = TaskStatus(State.RUNS if runs else State.WAITS, _waiting(pod))
                statuses[batch.name, index] = status_of_pod
        return statuses

    def cancel(self, batch: Batch, indices: Sequence[int]) -> None:
        """A Job gives up no single pod: it goes as a whole, or runs on."""
        if len(indices) == len(batch.keys):
            self._run("delete", "job", batch.job, "--ignore-not-found", "--wait=false")

    def how_to_stop(self, batches: Sequence[Batch]) -> str:
        where = f" -n {self._site.namespace}" if self._site.namespace else ""
        return f"kubectl{where} delete job {' '.join(batch.job for batch in batches if batch.job)}"

    def _jobs(self, name: str) -> list[dict[str, Any]]:
        jobs = self._json("get", "jobs", "--field-selector", f"metadata.name={name}", "-o", "json")
        return list(jobs.get("items", []))

    def _json(self, *arguments: str) -> dict[str, Any]:
        try:
            return dict(json.loads(self._run(*arguments)))
        except ValueError:
            raise Unreachable("kubectl answered something that is no JSON") from None

    def _run(self, *arguments: str, stdin: str = "") -> str:
        where = ("--namespace", self._site.namespace) if self._site.namespace else ()
        try:
            done = subprocess.run(
                ["kubectl", *where, *arguments],
                input=stdin,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except FileNotFoundError:
            raise EngineError("there is no kubectl here") from None
        except subprocess.TimeoutExpired:
            raise Unreachable(f"kubectl took longer than {_SECONDS} s") from None
        if done.returncode == 0:
            return done.stdout
        said = (done.stderr.strip().splitlines() or [f"kubectl ended with {done.returncode}"])[-1]
        if any(words in done.stderr.lower() for words in _UNREACHABLE):
            raise Unreachable(said)
        if "exceeded quota" in done.stderr:
            raise Full(said)
        raise EngineError(f"kubectl refuses: {said}")


def indices(text: str) -> set[int]:
    """`1,3-5` as Kubernetes writes sets of indices."""
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def _user() -> dict[str, Any]:
    """Pods read and write the folder as the user who gives the command; nobody else may."""
    user = os.getuid()
    return {"runAsUser": user, "runAsGroup": os.getgid(), **({"runAsNonRoot": True} if user else {})}


def _by_index(pods: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """The latest pod of each index."""
    latest: dict[int, Mapping[str, Any]] = {}
    for pod in sorted(pods, key=lambda pod: pod.get("metadata", {}).get("creationTimestamp", "")):
        metadata = pod.get("metadata", {})
        index = {**metadata.get("labels", {}), **metadata.get("annotations", {})}.get(_INDEX)
        if index is not None:
            latest[int(index)] = pod
    return latest


def _failure(pod: Mapping[str, Any]) -> TaskStatus:
    status = pod.get("status", {})
    if status.get("reason") == "DeadlineExceeded":
        return TaskStatus(State.TOO_LONG, "DeadlineExceeded")
    for container in status.get("containerStatuses", []):
        if ended := container.get("state", {}).get("terminated"):
            return TaskStatus(State.BROKE, f"{ended.get('reason', 'Error')}, exit code {ended.get('exitCode')}")
    return TaskStatus(State.BROKE, status.get("reason") or status.get("message") or "its pod failed")


def _waiting(pod: Mapping[str, Any]) -> str:
    for container in pod.get("status", {}).get("containerStatuses", []):
        if waits := container.get("state", {}).get("waiting"):
            return str(waits.get("reason", ""))
    return ""


def _name(batch: Batch) -> str:
    return f"gpulabs-{batch.name}"
