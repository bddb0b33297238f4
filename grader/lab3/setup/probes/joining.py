"""Probe of Lab 3's `setup` and `cleanup`: which ranks met where, by which backend and on which device, and how
long a rank waits.

Runs in every rank.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from unittest import mock

import torch
import torch.distributed as dist

from gradebox.sandbox.probe_loader import Student, WrongReturn
from grader.lab3.setup.cases.joining import JoinReply, Meeting, MeetingReply, Setup, SetupReply
from grader.lab3.shared.cases.modules import DDP
from grader.lab3.shared.probes.models import patience_of_the_group
from grader.shared.probes.calls import if_accepted
from grader.shared.probes.endings import ending
from grader.shared.probes.groups import in_group as belongs_to_group
from grader.shared.probes.ranks import GPU_TIMEOUT_SECONDS, TIMEOUT_SECONDS
from grader.shared.probes.support import instance, plain

_LOCAL = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
_kept: list[object] = []


def join(student: Student) -> JoinReply:
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
    return JoinReply(place=place, sum=float(total.item()), left=not belongs_to_group())


def _all_reduce(total: torch.Tensor) -> None:
    try:
        dist.all_reduce(total)
    except RuntimeError as error:
        raise WrongReturn(f"after setup() a collective on {total.device} fails: {str(error)[:300]}") from error


def setup(student: Student, inputs: Setup) -> SetupReply:
    """Join and leave once for each meeting; then what must be refused.

    With `patience` there is a last meeting, in which rank 1 does not come to a collective.
    """
    module = student.module(DDP)
    for name in (*_LOCAL, "RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    environment = {name: os.environ.pop(name) for name in ("MASTER_ADDR", "MASTER_PORT")}
    port = int(environment["MASTER_PORT"]) + 1  # next to the usual one, which another job has taken
    environment["MASTER_PORT"] = str(port)
    _kept.append(occupy_usual_ports(student.rank))
    wait = GPU_TIMEOUT_SECONDS if inputs.kind == "cuda" and student.gpu is None else TIMEOUT_SECONDS
    meetings = []
    for index, meeting in enumerate(inputs.meetings):
        options: dict[str, object] = {"init_method": f"{student.rendezvous}-{index}"}
        if meeting.way == "tcp":
            # One for each: a rank that is slow to leave meets nobody else.
            options = {"init_method": f"tcp://127.0.0.1:{port + index}"}
        elif meeting.way == "environment":
            os.environ.update(environment, MASTER_PORT=str(port + index))
            options = {}
        if meeting.device is not None:
            options["device"] = meeting.device
        if meeting.local is not None:
            here = student.ranks if meeting.machine is None else meeting.machine
            os.environ.update(zip(_LOCAL, (str(meeting.local[student.rank]), str(here)), strict=True))
            if here < student.ranks:  # NCCL believes in other machines, too
                os.environ["NCCL_HOSTID"] = f"machine{student.rank // here}"
        meetings.append(_join_and_leave(student, module, meeting, {**options, **_patient(module, wait)}))
        for name in (*environment, *_LOCAL, "NCCL_HOSTID"):
            os.environ.pop(name, None)
    left_alone, refused = ending(module.cleanup), _refused(student, module, environment)
    waited, patience = _wait_for_rank_1(student, module, inputs.patience) if inputs.patience else (None, 0.0)
    return SetupReply(
        meetings=meetings,
        left_alone=left_alone,
        refused=refused,
        gpus=torch.cuda.device_count(),
        waited=waited,
        patience=patience,
    )


def _patient(module: ModuleType, seconds: float) -> dict[str, object]:
    """How long a rank waits for another one, if `setup` has that argument."""
    return if_accepted(module.setup, timeout_seconds=seconds)


def _join_and_leave(student: Student, module: ModuleType, meeting: Meeting, options: dict[str, object]) -> MeetingReply:
    """Join with these options, add up ones, and leave."""
    with visible_gpus(torch.cuda.device_count() if meeting.gpus is None else meeting.gpus):
        returned = module.setup(student.rank, student.ranks, **options)
    own = instance(returned, torch.device, "setup()")
    total = torch.ones(1, device=own)
    _all_reduce(total)
    device, current = plain(own, "setup()"), torch.cuda.current_device() if torch.cuda.is_available() else None
    backend, place = str(dist.get_backend()), [dist.get_rank(), dist.get_world_size()]
    module.cleanup()
    return MeetingReply(
        device=device,
        current=current,
        backend=backend,
        place=place,
        sum=float(total.item()),
        left=not belongs_to_group(),
    )


@contextlib.contextmanager
def visible_gpus(gpus: int) -> Iterator[None]:
    """No more than so many GPUs are counted."""

    # A function of this module: a mock would count as one that the submission put there.
    def device_count() -> int:
        return gpus

    with (
        mock.patch("torch.cuda.device_count", device_count),
        mock.patch("torch.accelerator.device_count", device_count),
    ):
        yield


def _refused(student: Student, module: ModuleType, environment: dict[str, str]) -> dict[str, bool]:
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
            options: dict[str, object] = {} if address is None else {"init_method": address}
            module.setup(rank, student.ranks, **options, **_patient(module, 1.0))
        except Exception as error:
            refused[what] = isinstance(error, ValueError)
        else:
            refused[what] = False
        for name in environment:
            os.environ.pop(name, None)
        if dist.is_initialized():
            dist.destroy_process_group()
    return refused


def _wait_for_rank_1(student: Student, module: ModuleType, patience: float) -> tuple[float | None, float]:
    """Rank 0 waits in a collective for rank 1, which comes only if rank 0 has waited far too long.

    How long rank 0 waited until an error was raised (None: there was none, or this is rank 1), and how long the process
    group says that it waits.
    """
    come_together("ready", student)
    module.setup(
        student.rank,
        student.ranks,
        init_method=f"{student.rendezvous}-appointment",
        **({"device": "cpu"} if torch.cuda.is_available() else {}),
        timeout_seconds=patience,
    )
    said = patience_of_the_group()
    given_up = folder_of(student) / "given-up"
    waited, start = None, time.perf_counter()
    if student.rank == 0:
        try:
            dist.all_reduce(torch.ones(1))
        except Exception as error:
            _kept.append(error)
            waited = time.perf_counter() - start
        given_up.touch()
    else:
        until(given_up.exists, 3 * patience)
        if not given_up.exists():
            dist.all_reduce(torch.ones(1))
    module.cleanup()
    return waited, said


def occupy_usual_ports(rank: int) -> list[socket.socket]:
    """Listen where torchrun's defaults and PyTorch's tutorials meet, as other jobs on this machine would."""
    listeners = []
    for port in (29500, 12355) if rank == 0 else ():
        listener = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET)
        with contextlib.suppress(OSError):  # then somebody else does
            listener.bind(("", port))
            listener.listen()
        listeners.append(listener)
    return listeners


def folder_of(student: Student) -> Path:
    """Where all ranks of a request may leave files."""
    return Path(student.rendezvous.removeprefix("file://")).parent


def come_together(what: str, place: Student) -> None:
    """Wait until all ranks have come here, whatever becomes of their process groups."""
    folder = folder_of(place)
    (folder / f"{what}-{place.rank}").touch()
    until(lambda: all((folder / f"{what}-{rank}").exists() for rank in range(place.ranks)), 60.0)


def until(happened: Callable[[], bool], seconds: float) -> None:
    """Wait for a thing to happen, but not longer."""
    end = time.perf_counter() + seconds
    while not happened() and time.perf_counter() < end:
        time.sleep(0.01)
