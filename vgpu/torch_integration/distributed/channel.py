"""One backend of a process group: how its ranks agree on when a collective starts and ends.

Each rank says when it could start; the latest decides, and all end together (NCCL's kernels wait for their peers, NCCL
user guide, "CUDA Stream Semantics"). The clocks travel by a tiny gloo reduction. Not here: the values.
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import zlib
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from vgpu.device import cost
from vgpu.device.kernel_work import COLLECTIVE, COPY, KernelWork
from vgpu.device.pricing import Pricing
from vgpu.device.spec import Interconnect, get_interconnect
from vgpu.runtime.attachment import machine as attached_machine
from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.machine import Machine
from vgpu.torch_integration.distributed.unwrap import plain
from vgpu.torch_integration.distributed.work import Ending, on_stream

# Host time to create a communicator at first use (ncclCommInitRank): modelled; some hundred milliseconds are usual.
COMMUNICATOR_SECONDS = 0.2
# Host time of one collective in ProcessGroupNCCL next to the launch (checks, event records, work object): modelled.
CALL_SECONDS = 1.5e-5
# Real time that leaving a process group waits for a message which nobody has received yet.
FLUSH_REAL_TIMEOUT = timedelta(seconds=10)


def _held() -> contextlib.AbstractContextManager[None]:
    """Other threads of this process do not overtake one that waits for other ranks."""
    machine = attached_machine()
    return contextlib.nullcontext() if machine is None else machine.clock.hold()


class Channel:
    """A gloo backend that plays `name` ("nccl" or "gloo") for the ranks of one process group."""

    def __init__(self, name: str, backend: Any, rank: int, size: int) -> None:
        self.name = name
        self.backend = backend
        self.rank = rank
        self.size = size
        self.sequence = 0
        self.label = ""
        """The group's name, the same on every rank."""
        self.connected: list[VirtualGPU] = []
        """The GPUs of this rank that have a communicator, in the order of their first use."""
        self._streams: dict[tuple[int, int], int] = {}
        self._under_way: list[tuple[Any, Any]] = []

    @property
    def is_nccl(self) -> bool:
        """Whether collectives are kernels on the device."""
        return self.name == "nccl"

    # ---- clocks --------------------------------------------------------------------------------------------------

    def latest(self, *numbers: float) -> list[float]:
        """The largest of each number over the ranks."""
        if self.size == 1:
            return list(numbers)
        with plain():
            values = torch.tensor(numbers, dtype=torch.float64, device="cpu")
            options = dist.AllreduceOptions()
            options.reduceOp = dist.ReduceOp.MAX
            self.call("clocks", lambda: self.backend.allreduce([values], options))
            moments: list[float] = values.tolist()
        return moments

    def equalise(self, machine: Machine) -> None:
        """All ranks go on at the time of the latest."""
        now = machine.clock.now
        start = self.noted(machine, self.latest(now)[0], now)
        machine.clock.wait_until(start, "process group", "communication")

    def noted(
        self,
        machine: Machine,
        start: float,
        ready: float,
        *,
        host_seconds: float = 0.0,
        place: tuple[int, int, int] | None = None,
        after: float | None = None,
        seconds: float = 0.0,
    ) -> float:
        """When what the ranks begin at `start` is over, `seconds` later; a recording learns how it came about."""
        if machine.recorder is None:
            return start + seconds
        return machine.recorder.met(
            f"{self.label}, {self.name}", self.size, lag=start - ready, end=start + seconds, host_seconds=host_seconds,
            place=place, after=after, seconds=seconds,
        )  # fmt: skip

    def call(self, what: str, start: Any) -> None:
        """Run one gloo operation to its end; errors are those of the backend that this one plays."""
        try:
            with _held():
                work = start()
                if work is not None:
                    work.wait()
        except RuntimeError as error:
            if not self.is_nccl:
                raise
            raise self.failure(what, error) from error

    def failure(self, what: str, error: RuntimeError) -> RuntimeError:
        """A gloo error in the words of ProcessGroupNCCL."""
        text = str(error).splitlines()[0]
        if "imed out" in text or "timeout" in text.lower():
            return dist.DistBackendError(
                f"[Rank {self.rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={self.sequence}, "
                f"OpType={what.upper()}): another rank did not take part in time ({text}) [simulated by vgpu]"
            )
        return dist.DistBackendError(
            f"NCCL error: remote process exited or there was a network error in {what} on rank {self.rank} "
            f"(ncclRemoteError: {text}) [simulated by vgpu]"
        )

    def keep(self, work: Any, buffer: Any) -> None:
        """A message's memory must live until gloo has sent it."""
        self._under_way = [entry for entry in self._under_way if not entry[0].is_completed()]
        self._under_way.append((work, buffer))

    def flush(self) -> None:
        """Wait until every message has been sent; one that nobody receives is given up."""
        for work, _ in self._under_way:
            with contextlib.suppress(RuntimeError):
                work.wait(FLUSH_REAL_TIMEOUT)
        self._under_way.clear()

    # ---- the device ----------------------------------------------------------------------------------------------

    def stream(self, gpu: VirtualGPU, key: int = -1) -> int:
        """The channel's own stream on a GPU; one more per peer (`key`) for point to point."""
        number = self._streams.get((gpu.index, key))
        if number is None:
            number = self._streams[gpu.index, key] = gpu.queue.new_stream(gpu.clock.now)
        return number

    def connect(self, gpu: VirtualGPU) -> None:
        """Create the communicator of a GPU at its first use; refuses two ranks on one GPU, as NCCL does."""
        gpu.start(by_library=True)
        if gpu in self.connected:
            return
        self.connected.append(gpu)
        self._refuse_duplicates(gpu)
        gpu.clock.spend(COMMUNICATOR_SECONDS, "start", "NCCL communicator")

    def _refuse_duplicates(self, gpu: VirtualGPU) -> None:
        """NCCL compares host and bus id of all ranks (init.cc, "Duplicate GPU detected").

        NCCL_HOSTID stands for the host's name where it is set (misc/utils.cc, getHostHash).
        """
        if self.size == 1:
            return
        host = os.environ.get("NCCL_HOSTID") or socket.gethostname()
        mine = (zlib.crc32(host.encode()), gpu.machine.physical_number(gpu))
        with plain():
            here = torch.tensor(mine, dtype=torch.int64, device="cpu")
            all_ranks = [torch.empty_like(here) for _ in range(self.size)]
            self.call("init", lambda: self.backend.allgather([all_ranks], [here]))
            places = [tuple(place.tolist()) for place in all_ranks]
        order = [self.rank, *(rank for rank in range(self.size) if rank != self.rank)]
        for position, first in enumerate(order):
            for second in order[position + 1 :]:
                if places[first] == places[second]:
                    raise dist.DistBackendError(
                        "NCCL error in: ncclCommInitRankConfig, invalid usage (run with NCCL_DEBUG=WARN for details)\n"
                        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
                        f"Duplicate GPU detected : rank {first} and rank {second} both on CUDA device "
                        f"{places[first][1]}: give each rank its own GPU, torch.cuda.set_device(local_rank) "
                        "[simulated by vgpu]"
                    )

    def kernel(self, machine: Machine, gpu: VirtualGPU, kind: str, name: str, moved: int, dtype: str) -> Ending:
        """A collective as a kernel on the channel's stream: starts when all ranks are ready, ends on all together."""
        self.connect(gpu)
        gpu.clock.advance(CALL_SECONDS)
        queue, stream = gpu.queue, self.stream(gpu)
        link = _chosen(machine.interconnect)
        work = KernelWork(name, moved, dtype, call=kind, kind=COLLECTIVE, ranks=self.size)
        seconds = queue.slowed(name, Pricing(gpu.spec, link).seconds(work))
        launched = gpu.clock.now + gpu.spec.launch_seconds
        before = max(launched, queue.ready_at(gpu.stream)) + queue.slowest_is_late_by(self.size)
        ready = max(before, queue.ready_at(stream))
        start, seconds = self.latest(ready, seconds)
        place = gpu.index, gpu.stream, stream
        start = self.noted(machine, start, ready, host_seconds=gpu.spec.launch_seconds, place=place)
        queue.hold_until(stream, start)
        with on_stream(gpu, stream):
            gpu.launch(work, seconds)
        return Ending(machine.clock, gpu, queue.ready_at(stream), holds_host=False)

    # ---- the host ------------------------------------------------------------------------------------------------

    def on_host(self, machine: Machine, gpu: VirtualGPU | None, kind: str, moved: int) -> Ending:
        """A collective of gloo: over the host's network; tensors of a GPU are copied to the host and back.

        Gloo stages CUDA tensors through pinned memory on streams of its own (ProcessGroupGlooCuda.cpp).
        """
        link = slower(get_interconnect("loopback"), machine.interconnect)
        seconds = cost.collective_seconds(link, kind, moved, self.size)
        clock = machine.clock
        clock.advance(machine.spec.host.operation_seconds)
        if gpu is None:
            (start,) = self.latest(clock.now)
            return Ending(clock, None, self.noted(machine, start, clock.now, seconds=seconds), holds_host=True)
        gpu.start()
        stream = self.stream(gpu)
        gpu.queue.hold_until(stream, gpu.queue.ready_at(gpu.stream))
        with on_stream(gpu, stream):
            gpu.launch(KernelWork("Memcpy DtoH (Device -> Pinned)", moved, kind=COPY))
            here = gpu.queue.ready_at(stream)
            (start,) = self.latest(here)
            gpu.queue.hold_until(stream, self.noted(machine, start, here, after=here, seconds=seconds))
            gpu.launch(KernelWork("Memcpy HtoD (Pinned -> Device)", moved, kind=COPY))
        return Ending(clock, gpu, gpu.queue.ready_at(stream), holds_host=True)


def _chosen(link: Interconnect) -> Interconnect:
    """The link without its switch's sums where NCCL_NVLS_ENABLE=0 forbids them (NCCL's environment variables)."""
    if link.switch_bytes_per_second and os.environ.get("NCCL_NVLS_ENABLE") == "0":
        return dataclasses.replace(link, switch_bytes_per_second=0.0)
    return link


def slower(first: Interconnect, other: Interconnect) -> Interconnect:
    """The link with the smaller bandwidth."""
    return min(first, other, key=lambda link: link.bandwidth_bytes_per_second)
