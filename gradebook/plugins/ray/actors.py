"""Workers beyond one machine: the same judges as actors of a Ray cluster. Results come back here; only we write.

A judge takes one CPU, and one GPU when it grades on real ones. Its node needs this project installed in the same
version. When a node is lost, what ran there is graded elsewhere; the submission is not to blame for it.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from gradebook import versions
from gradebook.grading.engine import EngineError, OpenJudge
from gradebook.grading.pool import Failed, Pool, Worker
from gradebook.results import Grading, Task
from gradebox.course import course as courses

_LOOK_SECONDS = 1.0
"""How often to look whether something has taken too long."""
_CLOSE_SECONDS = 30.0

Files = Mapping[str, bytes]


def ray_pool(jobs: int, device: str, course: Path, open_judge: OpenJudge) -> Pool:
    """Grades on the cluster that Ray knows (`RAY_ADDRESS`, or one on this machine), or on one that is started here.

    Args:
        jobs: judges at the same time.
        device: what is graded on; judges for `cuda` take a GPU each.
        course: the course's folder, here and on every node.
        open_judge: starts a judge.
    """
    return Pool(jobs, RayCrew(device, course, open_judge))


class _RayJudge:
    """The actor: a judge in a process of some node, with files that come with each task."""

    def __init__(self, open_judge: OpenJudge, course: Path) -> None:
        self._course = course
        self._room = Path(tempfile.mkdtemp(prefix="gpulabs-ray-"))
        self._judge = open_judge(self._room)

    def ready(self) -> tuple[str, str]:
        """This node's id, and the digest of the code that grades here."""
        digests = versions.digests(courses.load(self._course))
        return ray.get_runtime_context().get_node_id(), versions.grader_digest(digests)

    def grade(self, task: Task, files: Files) -> Grading:
        """Grade the submission `files`."""
        folder = self._room / "submission" / "labs"
        shutil.rmtree(folder, ignore_errors=True)
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return self._judge.grade(replace(task, folder=folder))

    def close(self) -> None:
        """Leave nothing behind on this node."""
        self._judge.close()
        shutil.rmtree(self._room, ignore_errors=True)


class RayCrew:
    """Actors of a cluster."""

    def __init__(self, device: str, course: Path, open_judge: OpenJudge) -> None:
        self._started_ray = not ray.is_initialized()
        if self._started_ray:
            ray.init(log_to_driver=False, logging_level="error", include_dashboard=False)
        gpus = 1 if device == "cuda" else 0
        # No restarts: a judge that ended may have been ended by its submission, and we count that.
        options = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0}
        self._new_actor = ray.remote(**options)(_RayJudge).remote
        self._open_judge, self._course = open_judge, course
        self._digest = versions.grader_digest(versions.digests(courses.load(course)))

    def open(self, number: int) -> Worker:
        return _Actor(self._new_actor(self._open_judge, self._course), self._digest)

    def events(self, workers: Sequence[Worker]) -> Sequence[Worker]:
        actors = [worker for worker in workers if isinstance(worker, _Actor) and worker.pending is not None]
        ready, _ = ray.wait([actor.pending for actor in actors], timeout=_LOOK_SECONDS)
        now = time.monotonic()
        return [actor for actor in actors if (actor.pending in ready and not actor.arrives()) or now >= actor.deadline]

    def close(self) -> None:
        if self._started_ray:
            ray.shutdown()


class _Actor:
    """One actor, as seen from here."""

    def __init__(self, actor: Any, digest: str) -> None:
        self.actor = actor
        self.pending: Any = actor.ready.remote()
        """The reference that it will answer; None of one that waits for a task."""
        self.deadline = math.inf
        self._digest = digest
        self._node = ""
        """Empty before it is ready."""
        self._task: Task | None = None

    @property
    def idle(self) -> bool:
        return self.pending is None

    def arrives(self) -> bool:
        """Take note of an actor that says it is ready; false for any other answer, or none.

        Raises:
            EngineError: it runs another version of the code.
        """
        if self._node:
            return False
        try:
            self._node, digest = ray.get(self.pending, timeout=0)
        except RayError:
            return False
        if digest != self._digest:
            raise EngineError(
                f"node {self._node[:12]} has another version of this project; install the same everywhere"
            )
        self.pending = None
        return True

    def begin(self, task: Task) -> None:
        files = {
            path.relative_to(task.folder).as_posix(): path.read_bytes()
            for path in sorted(task.folder.rglob("*"))
            if path.is_file()
        }
        self._task = task
        self.deadline = time.monotonic() + task.seconds
        self.pending = self.actor.grade.remote(task, files)

    def answer(self) -> Grading | Failed:
        pending, self.pending, self.deadline = self.pending, None, math.inf
        task, self._task = self._task, None
        try:
            graded: Grading = ray.get(pending, timeout=0)
        except TimeoutError:  # Ray's own is one
            assert task is not None
            return Failed(f"it took longer than {task.seconds / 60:g} minutes")
        except RayActorError as error:
            if error.actor_init_failed:
                lines = str(error).strip().splitlines()
                raise EngineError(f"no grading process can be started on the cluster: {lines[-1]}") from None
            return Failed("its grading process ended", counts=_is_alive(self._node))
        except RayError as error:
            return Failed(f"its grading broke: {str(error).strip().splitlines()[-1]}")
        return graded

    def end(self) -> None:
        if self.idle and self._node:
            ray.wait([self.actor.close.remote()], timeout=_CLOSE_SECONDS)
        ray.kill(self.actor)


def _is_alive(node: str) -> bool:
    return any(entry["NodeID"] == node and entry["Alive"] for entry in ray.nodes())
