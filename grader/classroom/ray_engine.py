"""The engine beyond one machine: the same judges as actors of a Ray cluster. Results come back here; only we write.

A judge takes one CPU, and one GPU when it grades on real ones. Its node needs this project installed in the same
version. When a node is lost, what ran there is graded elsewhere; the submission is not to blame for it.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from grader import rubric
from grader.classroom import versions
from grader.classroom.judging import SandboxJudge
from grader.classroom.pool import ATTEMPTS
from grader.classroom.tasks import EngineError, Grading, OpenJudge, Task

_LOOK_SECONDS = 1.0
"""How often to look whether something has taken too long."""

_CLOSE_SECONDS = 30.0

Files = Mapping[str, bytes]


class _RayJudge:
    """The actor: a judge in a process of some node, with files that come with each task."""

    def __init__(self, open_judge: OpenJudge) -> None:
        self._room = Path(tempfile.mkdtemp(prefix="gpulabs-ray-"))
        self._judge = open_judge(self._room)

    def ready(self) -> tuple[str, str]:
        """This node's id, and the digest of the code that grades here."""
        digests = versions.digests(rubric.load())
        return ray.get_runtime_context().get_node_id(), versions.grader_digest(digests)

    def grade(self, task: Task, files: Files) -> Grading:
        """Grade a submission that lies in `files`."""
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


@dataclass
class _Slot:
    """One actor, as seen from here."""

    actor: Any
    pending: Any
    """The reference that it will answer."""
    node: str = ""
    """Empty before it is ready."""
    task: Task | None = None
    deadline: float = math.inf
    begun: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def idle(self) -> bool:
        return self.pending is None

    def begin(self, task: Task) -> Task:
        files = {
            path.relative_to(task.folder).as_posix(): path.read_bytes()
            for path in sorted(task.folder.rglob("*"))
            if path.is_file()
        }
        self.task, self.begun = task, datetime.now(UTC)
        self.deadline = time.monotonic() + task.seconds
        self.pending = self.actor.grade.remote(task, files)
        return task


class RayEngine:
    """Grades on a Ray cluster. Use from one thread."""

    def __init__(self, jobs: int, device: str, open_judge: OpenJudge = SandboxJudge) -> None:
        """Join the cluster that Ray knows (`RAY_ADDRESS`, or one on this machine), or start one here.

        Args:
            jobs: judges at the same time.
            device: what is graded on; judges for `cuda` take a GPU each.
        """
        self._started_ray = not ray.is_initialized()
        if self._started_ray:
            ray.init(log_to_driver=False, logging_level="error", include_dashboard=False)
        gpus = 1 if device == "cuda" else 0
        # No restarts: a judge that ended may have been ended by its submission, and we count that.
        options = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0}
        self._new_actor = ray.remote(**options)(_RayJudge).remote
        self._jobs = jobs
        self._open_judge = open_judge
        self._slots: list[_Slot] = []
        self._digest = versions.grader_digest(versions.digests(rubric.load()))

    def run(self, tasks: Sequence[Task], started: Callable[[Task], None]) -> Iterator[tuple[Task, Grading]]:
        """Grade all tasks. See `tasks.Engine`."""
        waiting = deque(tasks)
        failures: dict[str, int] = {}
        left = len(tasks)
        while left:
            self._open(min(self._jobs, left))
            for slot in self._slots:
                if slot.idle and waiting:
                    started(slot.begin(waiting.popleft()))
            for slot in self._answering():
                task, answer = slot.task, self._answer(slot)
                if isinstance(answer, Grading):
                    assert task is not None
                    left -= 1
                    yield task, answer
                elif answer:
                    self._slots.remove(slot)
                    if task is None:
                        continue  # it was lost before it had begun
                    if _is_alive(slot.node):
                        failures[task.content] = failures.get(task.content, 0) + 1
                    if failures.get(task.content, 0) < ATTEMPTS:
                        waiting.append(task)
                        continue
                    left -= 1
                    problem = f"{answer}, and so it did the time before; grade it alone to see more"
                    yield task, Grading(document=None, problem=problem, started=slot.begun, ended=datetime.now(UTC))

    def close(self) -> None:
        """End our judges, and Ray if we started it."""
        closing = [slot.actor.close.remote() for slot in self._slots if slot.idle]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_SECONDS)
        for slot in self._slots:
            ray.kill(slot.actor)
        self._slots.clear()
        if self._started_ray:
            ray.shutdown()

    def _open(self, count: int) -> None:
        while len(self._slots) < count:
            actor = self._new_actor(self._open_judge)
            self._slots.append(_Slot(actor, actor.ready.remote()))

    def _answering(self) -> list[_Slot]:
        """The judges that answer, or have taken too long."""
        pending = [slot.pending for slot in self._slots if slot.pending is not None]
        ready, _ = ray.wait(pending, timeout=_LOOK_SECONDS)
        now = time.monotonic()
        return [slot for slot in self._slots if slot.pending in ready or now >= slot.deadline]

    def _answer(self, slot: _Slot) -> Grading | str:
        """A grading, or why there is none, and then the judge is gone; an empty text from one that is ready now.

        Raises:
            EngineError: no judge can be started there.
        """
        pending, slot.pending, slot.deadline = slot.pending, None, math.inf
        task, slot.task = slot.task, None
        try:
            answer = ray.get(pending, timeout=0)
        except TimeoutError:  # Ray's own is one
            assert task is not None
            ray.kill(slot.actor)
            return f"it took longer than {task.seconds / 60:g} minutes"
        except RayActorError as error:
            if error.actor_init_failed:
                lines = str(error).strip().splitlines()
                raise EngineError(f"no grading process can be started on the cluster: {lines[-1]}") from None
            return "its grading process ended"
        except RayError as error:
            ray.kill(slot.actor)
            return f"its grading broke: {str(error).strip().splitlines()[-1]}"
        if isinstance(answer, Grading):
            return answer
        slot.node, digest = answer
        if digest != self._digest:
            raise EngineError(f"node {slot.node[:12]} has another version of this project; install the same everywhere")
        return ""


def _is_alive(node: str) -> bool:
    return any(one["NodeID"] == node and one["Alive"] for one in ray.nodes())
