"""Probe of Lab 3's `setup` and `cleanup`: who met where, by which backend and on which device, and how long one waits.

Runs in every rank.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from gradebox.sandbox.probe_loader import WrongReturn
from grader.lab3.probes.training import DDP, occupy_usual_ports
from grader.shared.probes.calls import if_accepted
from grader.shared.probes.endings import ending
from grader.shared.probes.ranks import GPU_TIMEOUT_SECONDS, TIMEOUT_SECONDS
from grader.shared.probes.support import instance, plain

_LOCAL = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
_kept: list[object] = []


def join(student: Any) -> dict[str, Any]:
    """Join and leave with the arguments of the document: where the ranks meet, the environment says.

    What `setup` returns is not looked at.
    """
    module = student.module(DDP)
    _kept.append(occupy_usual_ports(student.rank))
    for name in (*_LOCAL, "RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)  # another job has taken the usual one
    module.setup(student.rank, student.ranks)
    if not dist.is_initialized():
        raise WrongReturn("after setup() there is no process group: it must call dist.init_process_group")
    backend = str(dist.get_backend())
    total = torch.ones(1, device="cuda" if backend == "nccl" else "cpu")
    _all_reduce(total)
    place = [dist.get_rank(), dist.get_world_size()]
    module.cleanup()
    return {"backend": backend, "place": place, "sum": float(total.item()), "left": not dist.is_initialized()}


def _all_reduce(total: torch.Tensor) -> None:
    try:
        dist.all_reduce(total)
    except RuntimeError as error:
        raise WrongReturn(f"after setup() a collective on {total.device} fails: {str(error)[:300]}") from error


def setup(student: Any, *, kind: str, cases: Sequence[dict[str, Any]], patience: float) -> dict[str, Any]:
    """Join and leave once for each case; then what must be refused.

    A case says how the ranks meet ("file", "tcp" or "environment"), perhaps which `device` is asked for, how many GPUs
    can be seen, if not all of them, and what torchrun says of this machine: `local` has the LOCAL_RANK of each rank,
    `machine` is LOCAL_WORLD_SIZE, if not all ranks. With `patience` there is an appointment at the end which rank 1
    does not keep.
    """
    module = student.module(DDP)
    for name in (*_LOCAL, "RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    environment = {name: os.environ.pop(name) for name in ("MASTER_ADDR", "MASTER_PORT")}
    port = int(environment["MASTER_PORT"]) + 1  # beside the usual one, which another job has taken
    environment["MASTER_PORT"] = str(port)
    _kept.append(occupy_usual_ports(student.rank))
    seen = []
    wait = GPU_TIMEOUT_SECONDS if kind == "cuda" and student.gpu is None else TIMEOUT_SECONDS
    for index, case in enumerate(cases):
        options: dict[str, Any] = {"init_method": f"{student.rendezvous}-{index}"}
        if case["way"] == "tcp":
            # One for each: who is slow to leave meets nobody else.
            options = {"init_method": f"tcp://127.0.0.1:{port + index}"}
        elif case["way"] == "environment":
            os.environ.update(environment, MASTER_PORT=str(port + index))
            options = {}
        if case["device"] is not None:
            options["device"] = case["device"]
        if "local" in case:
            place = (case["local"][student.rank], case.get("machine", student.ranks))
            os.environ.update(zip(_LOCAL, map(str, place), strict=True))
            if place[1] < student.ranks:  # NCCL believes in other machines, too
                os.environ["NCCL_HOSTID"] = f"machine{student.rank // place[1]}"
        with _seeing(case.get("gpus", torch.cuda.device_count())):
            returned = module.setup(
                student.rank, student.ranks, **options, **if_accepted(module.setup, timeout_seconds=wait)
            )
        own = instance(returned, torch.device, "setup()")
        total = torch.ones(1, device=own)
        _all_reduce(total)
        seen.append(
            {
                "device": plain(own, "setup()"),
                "current": torch.cuda.current_device() if torch.cuda.is_available() else None,
                "backend": str(dist.get_backend()),
                "place": [dist.get_rank(), dist.get_world_size()],
                "sum": float(total.item()),
            }
        )
        module.cleanup()
        seen[-1]["left"] = not dist.is_initialized()
        for name in (*environment, *_LOCAL, "NCCL_HOSTID"):
            os.environ.pop(name, None)
    return {
        "seen": seen,
        "left_alone": ending(module.cleanup),
        "refused": _refused(student, module, environment),
        "gpus": torch.cuda.device_count(),
        **(_appointment(student, module, patience) if patience else {}),
    }


@contextlib.contextmanager
def _seeing(gpus: int) -> Iterator[None]:
    """No more than so many GPUs are counted."""
    with (
        mock.patch("torch.cuda.device_count", return_value=gpus),
        mock.patch("torch.accelerator.device_count", return_value=gpus),
    ):
        yield


def _refused(student: Any, module: Any, environment: dict[str, str]) -> dict[str, bool]:
    """Whether `setup` raised a ValueError, for each thing that it must not accept."""
    refused, elsewhere = {}, f"{student.rendezvous}-wrong"
    for what, rank, address, known in (
        ("without init_method, MASTER_ADDR and MASTER_PORT", student.rank, None, ()),
        ("without init_method and MASTER_PORT", student.rank, None, ("MASTER_ADDR",)),
        ("without init_method and MASTER_ADDR", student.rank, None, ("MASTER_PORT",)),
        (f"as rank {student.ranks} of {student.ranks}", student.ranks, elsewhere, ()),
        ("as rank -1", -1, elsewhere, ()),
    ):
        os.environ.update({name: environment[name] for name in known})
        try:
            options = {} if address is None else {"init_method": address}
            module.setup(rank, student.ranks, **options, **if_accepted(module.setup, timeout_seconds=1.0))
        except Exception as error:
            refused[what] = isinstance(error, ValueError)
        else:
            refused[what] = False
        for name in environment:
            os.environ.pop(name, None)
        if dist.is_initialized():
            dist.destroy_process_group()
    return refused


def _appointment(student: Any, module: Any, patience: float) -> dict[str, Any]:
    """Rank 0 waits in a collective for rank 1, which comes only where rank 0 has waited far too long."""
    folder = Path(student.rendezvous.removeprefix("file://")).parent
    (folder / f"ready-{student.rank}").touch()
    _until(lambda: all((folder / f"ready-{rank}").exists() for rank in range(student.ranks)), 60.0)
    module.setup(
        student.rank,
        student.ranks,
        init_method=f"{student.rendezvous}-appointment",
        **({"device": "cpu"} if torch.cuda.is_available() else {}),
        timeout_seconds=patience,
    )
    given_up = folder / "given-up"
    waited, start = None, time.perf_counter()
    if student.rank == 0:
        try:
            dist.all_reduce(torch.ones(1))
        except Exception as error:
            _kept.append(error)
            waited = time.perf_counter() - start
        given_up.touch()
    else:
        _until(given_up.exists, 3 * patience)
        if not given_up.exists():
            dist.all_reduce(torch.ones(1))
    module.cleanup()
    return {"waited": waited}


def _until(happened: Callable[[], bool], seconds: float) -> None:
    """Wait for a thing to happen, but not longer."""
    end = time.perf_counter() + seconds
    while not happened() and time.perf_counter() < end:
        time.sleep(0.01)
