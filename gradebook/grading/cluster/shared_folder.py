"""The folder that we and the nodes share: what is to be graded, and what came of it, each file whole or not there.

A task's key names everything that decides its outcome; a result is under that key. So the same task later finds what
an earlier run had graded, though nobody was there to take it. Tasks and results are JSON, because a node's answer is
read with the rights of the user who grades. Not for the order of gradings.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gradebook.results import Grading, Task
from gradebox.common import reading
from gradebox.report.document import from_document, to_document

_TASKS, _RESULTS, _BATCHES = "tasks", "results", "batches"
PROBLEM, GRADING, WRONG_VERSION, BROKEN = "problem", "grading", "wrong version", "broken"


@dataclass(frozen=True)
class Batch:
    """One array of jobs."""

    name: str
    keys: tuple[str, ...]
    """By index, what each array task grades."""
    job: str = ""
    """As the scheduler calls it; empty where nobody was there to hear it."""


@dataclass(frozen=True)
class Answer:
    """What a node says about a task."""

    grading: Grading | None
    problem: str = ""
    """Why there is none: one line."""
    stops: bool = False
    """Whether no node could grade anything so."""


@dataclass(frozen=True)
class Errand:
    """What one array task is to do."""

    task: Task
    digest: str
    """Of the code that must grade it."""
    judge: str
    """`module:name` of what opens a judge, given a folder of its own and the course's."""
    course: str
    """The course's package, wherever a node has it; or its folder."""


class SharedFolder:
    """Reading and writing it. Use from one process on our side; each array task writes its own result only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    def prepare(self) -> None:
        """Make what is missing of it; nobody else may look in."""
        for name in (_TASKS, _RESULTS, _BATCHES):
            (self.folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)

    def key(self, errand: Errand) -> str:
        """The same for what must have the same outcome."""
        task = errand.task
        parts = (task.content, task.criteria, task.labs, task.seed, task.device, task.retry, errand.digest)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]

    # --- our side ---------------------------------------------------------------------------------------------------

    def put(self, key: str, errand: Errand) -> None:
        """Say what is to be done."""
        document = {**asdict(errand.task), "digest": errand.digest, "judge": errand.judge, "package": errand.course}
        _write(self.folder / _TASKS / f"{key}.json", json.dumps(document, default=str))

    def results(self) -> set[str]:
        """Keys of all that has come; the folder is opened again, which has NFS ask its server again."""
        return {path.stem for path in (self.folder / _RESULTS).iterdir() if path.suffix == ".json"}

    def take(self, key: str) -> Answer:
        """What came of a task. Call `forget` when it is in safe hands."""
        try:
            return _answer(json.loads((self.folder / _RESULTS / f"{key}.json").read_text("utf-8")))
        except (ValueError, KeyError, TypeError) as error:
            return Answer(None, f"what its node wrote cannot be read: {error}")

    def forget(self, key: str) -> None:
        """Leave nothing of a task that is done: the next request grades it again."""
        for name in (_RESULTS, _TASKS):
            (self.folder / name / f"{key}.json").unlink(missing_ok=True)

    def batches(self) -> list[Batch]:
        """Those that were submitted and are not over, as far as we know."""
        paths = sorted((self.folder / _BATCHES).glob("*.json"))
        return [reading.value(Batch, json.loads(path.read_text("utf-8")), path) for path in paths]

    def keep(self, batch: Batch) -> None:
        """Remember a batch."""
        _write(self.folder / _BATCHES / f"{batch.name}.json", json.dumps(asdict(batch)))

    def drop(self, batch: Batch) -> None:
        """It is over."""
        (self.folder / _BATCHES / f"{batch.name}.json").unlink(missing_ok=True)

    def last_words(self, batch: Batch, index: int) -> str:
        """The last line that an array task printed; empty where there is none."""
        try:
            text = self.log(batch.name, str(index)).read_text("utf-8", "replace")
        except OSError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""

    def log(self, batch: str, index: str) -> Path:
        """Where an array task of a batch prints to."""
        return self.folder / "logs" / f"{batch}-{index}.txt"

    # --- the node's side --------------------------------------------------------------------------------------------

    def batch(self, name: str) -> Sequence[str]:
        """The keys of a batch. Raises OSError where it is not to be seen (yet)."""
        path = self.folder / _BATCHES / f"{name}.json"
        return reading.value(Batch, json.loads(path.read_text("utf-8")), path).keys

    def errand(self, key: str) -> Errand:
        """What is to be done. Raises OSError where it is not to be seen (yet)."""
        path = self.folder / _TASKS / f"{key}.json"
        data: dict[str, Any] = json.loads(path.read_text("utf-8"))
        digest, judge, course = data.pop("digest"), data.pop("judge"), data.pop("package")
        return Errand(reading.value(Task, data, path), digest, judge, course)

    def answer(self, key: str, kind: str, what: Grading | str) -> None:
        """Say what came of it; on the server's disk when this returns."""
        content = _document(what) if isinstance(what, Grading) else what
        _write(self.folder / _RESULTS / f"{key}.json", json.dumps({"kind": kind, "what": content}, ensure_ascii=False))

    def has_result(self, key: str) -> bool:
        return (self.folder / _RESULTS / f"{key}.json").exists()


def _document(grading: Grading) -> dict[str, Any]:
    return {
        "grade": to_document(grading.grade) if grading.grade is not None else None,
        "problem": grading.problem,
        "started": grading.started.isoformat(),
        "ended": grading.ended.isoformat(),
        "peak_bytes": grading.peak_bytes,
    }


def _answer(document: Mapping[str, Any]) -> Answer:
    kind, what = document["kind"], document["what"]
    if kind != GRADING:
        return Answer(None, str(what), stops=kind == WRONG_VERSION)
    return Answer(
        Grading(
            grade=None if what["grade"] is None else from_document(what["grade"]),
            problem=str(what["problem"]),
            started=datetime.fromisoformat(what["started"]),
            ended=datetime.fromisoformat(what["ended"]),
            peak_bytes=int(what["peak_bytes"]),
        )
    )


def _write(path: Path, text: str) -> None:
    """Whole or not at all, and not only in this machine's memory."""
    draft = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.draft")
    with draft.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    draft.replace(path)
