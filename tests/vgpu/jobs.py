"""Runs a function as every rank of a distributed job: forked processes, each with its own virtual machine.

Not here: what the ranks do.
"""

from __future__ import annotations

import datetime
import multiprocessing
import pickle  # plain: multiprocessing's own would send tensors through shared memory
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import vgpu

# No job here needs more than a second or two of real time; one that hangs is ended after this long.
_LIMIT_REAL_SECONDS = 60.0
# Autograd begins its threads, one for each kind of device, at the first backward pass of a process, and no process that
# has them may be forked. Fake tensors count as a kind (`torch._C._ensureCUDADeviceGuardSet`): so it begins before there
# are any, whichever test comes first.
torch.ones((), requires_grad=True).backward()  # type: ignore[no-untyped-call]


class Job:
    """Calls `job(work, ranks=2, ...)`: `work(rank)` runs on every rank, what it returns comes back by rank.

    A rank that raises fails the test with its traceback, and one that hangs is killed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def __call__(
        self,
        work: Callable[[int], Any],
        *,
        ranks: int = 2,
        backend: str | None = "nccl",
        timeout_real_seconds: float = 30.0,
        spec: str = "T4",
        join: Callable[[int, str], None] | None = None,
        **options: Any,
    ) -> list[Any]:
        """`join(rank, address)` replaces the usual set_device and init_process_group; other options go to attach."""
        self._count += 1
        address = (self._folder / f"store{self._count}").as_uri()

        def run(rank: int, connection: Connection) -> None:
            torch.set_num_threads(1)
            try:
                with vgpu.attach(spec, gpus=ranks, **options):
                    if join is not None:
                        join(rank, address)
                    else:
                        torch.cuda.set_device(rank)
                        dist.init_process_group(
                            backend, init_method=address, rank=rank, world_size=ranks,
                            timeout=datetime.timedelta(seconds=timeout_real_seconds),
                        )  # fmt: skip
                    result = work(rank)
                    dist.destroy_process_group()
                connection.send_bytes(pickle.dumps((True, result)))
            except BaseException:
                connection.send_bytes(pickle.dumps((False, traceback.format_exc())))

        return _collect(run, ranks)


def _collect(run: Callable[[int, Connection], None], ranks: int) -> list[Any]:
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(ranks)]
    processes = [context.Process(target=run, args=(rank, pipes[rank][1])) for rank in range(ranks)]
    for process in processes:
        process.start()
    for _, theirs in pipes:
        theirs.close()
    deadline = time.monotonic() + _LIMIT_REAL_SECONDS
    results: list[Any] = [None] * ranks
    failures = []
    try:
        for rank, (ours, _) in enumerate(pipes):
            try:
                if not ours.poll(max(0.0, deadline - time.monotonic())):
                    failures.append(f"rank {rank} hangs")
                    continue
                succeeded, results[rank] = pickle.loads(ours.recv_bytes())
            except EOFError:
                failures.append(f"rank {rank} died")
                continue
            if not succeeded:
                failures.append(f"rank {rank}: {results[rank]}")
    finally:
        for process in processes:
            process.join(max(0.1, min(5.0, deadline - time.monotonic())) if not failures else 0.1)
            if process.is_alive():
                process.kill()
                process.join()
    assert not failures, "\n".join(failures)
    return results
