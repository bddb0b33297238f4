"""The node's side: `python -m gradebook.grading.cluster.array_task FOLDER BATCH INDEX` grades one of a batch.

No submission meets the effects of another: each array task is a process of its own, with a sandbox of its own.
It ends with 0 when it has answered, whatever the answer is. Not started by hand.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from gradebook.grading.cluster.code_digest import code_digest
from gradebook.grading.cluster.shared_folder import BROKEN, GRADING, WRONG_VERSION, Errand, SharedFolder
from gradebook.grading.engine import Judge
from gradebox.common.texts import printable
from gradebox.course import course as courses

T = TypeVar("T")

_PATIENCE_SECONDS = 180.0
"""So long a shared folder may take to show what was written elsewhere; NFS remembers for a minute what is not there."""
_LOOK_SECONDS = 2.0


def main(arguments: list[str]) -> int:
    """Carry out one errand; the exit code."""
    folder, batch, index = Path(arguments[0]), arguments[1], int(arguments[2])
    shared = SharedFolder(folder)
    key = _when_seen(lambda: shared.batch(batch))[index]
    errand = _when_seen(lambda: shared.errand(key))
    _when_seen(lambda: next(errand.task.folder.iterdir()))
    if shared.has_result(key):  # queued again by the scheduler after it had answered
        return 0
    errand = replace(errand, task=replace(errand.task, course=_course(errand.course)))
    if code_digest(courses.load(errand.task.course)) != errand.digest:
        shared.answer(key, WRONG_VERSION, "a node has another version of this project; install the same everywhere")
        return 0
    room = Path(tempfile.mkdtemp(prefix="gpulabs-task-"))
    try:
        _grade(shared, key, errand, room)
    finally:
        shutil.rmtree(room, ignore_errors=True)
    return 0


def _grade(shared: SharedFolder, key: str, errand: Errand, room: Path) -> None:
    module, _, name = errand.judge.partition(":")
    judge: Judge = getattr(importlib.import_module(module), name)(room, errand.task.course)
    try:
        try:
            grading = judge.grade(errand.task)
        except Exception as error:
            shared.answer(key, BROKEN, f"its grading broke: {type(error).__name__}: {error}")
            return
        shared.answer(key, GRADING, grading)
    finally:
        judge.close()


def _course(named: str) -> Path:
    """The course's folder on this node."""
    if "/" in named:
        return Path(named)
    file = importlib.import_module(named).__file__
    assert file is not None
    return Path(file).parent


def _when_seen(look: Callable[[], T]) -> T:
    """What `look` returns, once it finds what it looks for."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return look()
        except (OSError, StopIteration) as error:
            if time.monotonic() > deadline:
                what = getattr(error, "filename", None) or "the submission"
                sys.exit(printable(f"{what} cannot be seen on this node: --out has to lie where every node sees it"))
            time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
