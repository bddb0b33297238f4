"""The helper process of `labkit.notebook.ranks`: reads folders of jobs from its input and copies itself for each.

It runs no tensor operation and never asks for a GPU, so that its copies may do both. Not for anything a notebook calls.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import pickle
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from time import sleep  # by its own name: in virtual time `time.sleep` waits for nobody
from typing import Any, Literal

import torch
import torch.multiprocessing as mp

from labkit.device import open_device
from labkit.notebook.ranks import Failure, Job

_PRELOADED = (
    "torch._dynamo",
    "torch.distributed",
    "torch.nn.parallel",
    "sklearn.datasets",
    "labkit.data",
    "vgpu.torch_integration.attach",
)
_MAX_FRAMES = 3
_PATIENCE_SECONDS = 1.0
_running: list[int] = []
_OPEN_TASK = re.compile(r"NotImplementedError: (Task \d.*)")


def main() -> None:
    """Do one job after the other until the notebook's process closes the pipe."""
    for name in _PRELOADED:  # DistributedDataParallel needs the first of them: once here, not once in every rank
        importlib.import_module(name)
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)  # the failure itself is told
    signal.signal(signal.SIGTERM, _stop)
    for line in sys.stdin:
        folder = Path(line.strip())
        job: Job = pickle.loads(Path(folder, "job").read_bytes())
        child = os.fork()
        if child == 0:
            _child(job, folder)
        _running[:] = [child]
        _wait(child, job, folder)
        print("done", flush=True)


def _stop(*_: object) -> None:
    """The notebook was interrupted: end with the job that is running."""
    for child in _running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    os._exit(0)


def _wait(child: int, job: Job, folder: Path) -> None:
    """Until the job has ended; one that takes too long is ended, its ranks with it."""
    deadline = time.monotonic() + job.limit_seconds
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG)[0]:
            _running.clear()
            break
        sleep(0.01)
    else:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        message = (
            f"no end after {job.limit_seconds:g} s. A job that stands still mostly waits in a collective for a rank "
            "that does not come: it has failed, has one batch less, or the call is under `if rank == 0`."
        )
        _write(folder / "answer", Failure(kind="TimeoutError", message=message, frames=()))
    if not (folder / "answer").exists():
        _write(folder / "answer", Failure(kind="RuntimeError", message="the job ended without a word", frames=()))


def _child(job: Job, folder: Path) -> None:
    """The job itself, in a copy of this process that does not come back."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with open(folder / "output", "wb", buffering=0) as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    try:
        sys.path[:] = job.search_path
        answer = _do(job, folder)
    except BaseException as error:
        answer = _failure(error, folder)
    _write(folder / "answer", answer)
    sys.stdout.flush()
    os._exit(0)


def _do(job: Job, folder: Path) -> Any:
    with _machine(job) as method:
        if job.alone:
            return _function(job)(**job.arguments)
        mp.start_processes(_rank, args=(job, str(folder)), nprocs=job.world_size, start_method=method)  # type: ignore[attr-defined,no-untyped-call]
        return [pickle.loads((folder / f"{rank}.returned").read_bytes()) for rank in range(job.world_size)]


@contextlib.contextmanager
def _machine(job: Job) -> Iterator[Literal["fork", "spawn"]]:
    """The GPUs of the job, and how its ranks are started: copies are quick, but may not use a GPU that is real."""
    with contextlib.ExitStack() as stack:
        with contextlib.redirect_stdout(io.StringIO()):
            device = stack.enter_context(open_device(job.machine, values=job.values, gpus=job.world_size))
        simulated = device.simulated or device.torch_device == "cpu"
        yield "fork" if simulated and sys.platform == "linux" else "spawn"


def _rank(rank: int, job: Job, folder: str) -> None:
    torch.set_num_threads(1)  # ranks share the cores, and threads that find none wait for each other
    try:
        sys.path[:] = job.search_path
        returned = _function(job)(rank, job.world_size, f"file://{folder}/rendezvous", **job.arguments)
        _write(Path(folder, f"{rank}.returned"), returned)
    except BaseException as error:
        _write(Path(folder, f"{rank}.failed"), _told(error))
        if _is_consequence(_told(error)):
            sleep(_PATIENCE_SECONDS)  # the first rank to raise ends the others: let the one that began it tell
        raise
    # An ordinary end would take down what may still be in use by gloo's threads.
    sys.stdout.flush()
    os._exit(0)


def _function(job: Job) -> Any:
    target: Any = importlib.import_module(job.module)
    for name in job.function.split("."):
        target = getattr(target, name)
    return target


def _failure(error: BaseException, folder: Path) -> Failure:
    """What to tell: a task that is open before all else, then a failure that is no consequence of another."""
    failures: list[Failure] = [pickle.loads(path.read_bytes()) for path in sorted(folder.glob("*.failed"))]
    failures.sort(key=_is_consequence)
    own = _told(error)
    for failure in (*failures, own):
        if failure.kind == "NotImplementedError":
            return failure
        if match := _OPEN_TASK.search(failure.message):
            return Failure(kind="NotImplementedError", message=match[1], frames=failure.frames)
    return failures[0] if failures else own


def _is_consequence(failure: Failure) -> bool:
    """Whether it says no more than that another rank is gone."""
    return failure.kind.startswith("Dist") or "gloo" in failure.message


def _told(error: BaseException) -> Failure:
    """An exception in plain words, with the few frames that help."""
    everything = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in everything if frame.filename.split(os.sep)[-3:-2] == ["labs"]]
    frames = [
        f"{'/'.join(frame.filename.split(os.sep)[-3:])}, line {frame.lineno}, in {frame.name}\n    {frame.line or ''}"
        for frame in (own or everything)[-_MAX_FRAMES:]
    ]
    return Failure(kind=type(error).__name__, message=str(error), frames=tuple(frames))


def _write(path: Path, value: Any) -> None:
    """The file is there as a whole or not at all."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(pickle.dumps(value))
    os.replace(file.name, path)


if __name__ == "__main__":
    main()
