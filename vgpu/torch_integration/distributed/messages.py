"""Point to point between virtual GPUs: a message carries its sender's time, and the receiver starts no earlier.

A send does not wait for its receiver: it keeps its stream busy for the time of the transfer, and real delivery goes on
behind the program's back. Not here: collectives (`vgpu.torch_integration.distributed.group`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

from vgpu.device import cost
from vgpu.device.kernel_work import COLLECTIVE, KernelWork
from vgpu.device.spec import Interconnect, get_interconnect
from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.machine import Machine
from vgpu.torch_integration.distributed import gloo_transport
from vgpu.torch_integration.distributed.arguments import check_nccl_message
from vgpu.torch_integration.distributed.channel import CALL_SECONDS, Channel, slower
from vgpu.torch_integration.distributed.group import CollectiveGroup
from vgpu.torch_integration.distributed.unwrap import plain
from vgpu.torch_integration.distributed.work import Ending, VirtualWork, on_stream

_T = torch.Tensor
_KERNEL = "ncclDevKernel_SendRecv"
# Bytes before the values: the sender's time as a float64.
_HEADER = 8


@dataclass(frozen=True)
class Message:
    """One send or receive of a batch. `peer` is a rank of the group, None for any sender."""

    tensor: _T
    peer: int | None
    tag: int
    is_send: bool


class MessageGroup(CollectiveGroup):
    """The messages of `VirtualProcessGroup`."""

    _batch: list[Message] | None = None

    def send(self, tensors: Sequence[_T], dstRank: int, tag: int = 0) -> Any:  # noqa: N803 - PyTorch's names
        return self._post(Message(tensors[0], dstRank, tag, is_send=True))

    def recv(self, tensors: Sequence[_T], srcRank: int, tag: int = 0) -> Any:  # noqa: N803
        return self._post(Message(tensors[0], srcRank, tag, is_send=False))

    def recv_anysource(self, tensors: Sequence[_T], tag: int = 0) -> Any:
        return self._post(Message(tensors[0], None, tag, is_send=False))

    def _start_coalescing(self, device: torch.device) -> None:
        """What is posted until `_end_coalescing` is one kernel (ncclGroupStart)."""
        self._batch = []

    def _end_coalescing(self, device: torch.device) -> Any:
        batch, self._batch = self._batch or [], None
        return self._exchange(batch, -1) if batch else None

    def _post(self, message: Message) -> Any:
        if self._batch is not None:
            self._batch.append(message)
            return None
        return self._exchange([message], message.peer if message.peer is not None else -1)

    def _exchange(self, batch: Sequence[Message], key: int) -> Any:
        machine, gpu, channel = self._channel([message.tensor for message in batch])
        on_device = gpu is not None and channel.is_nccl
        if on_device and any(message.peer is None for message in batch):
            raise RuntimeError("Backend nccl does not support recvAnysource")
        if on_device:
            for message in batch:
                with plain():
                    check_nccl_message(message.tensor, message.peer, channel.size)
        party = _Party(machine, channel, gpu if on_device else None, key)
        link = machine.interconnect if on_device else slower(get_interconnect("loopback"), machine.interconnect)
        ready = party.ready(gpu)
        for message in batch:
            if message.is_send:
                _send(channel, message, ready)
        arriving = [_receive(channel, message) for message in batch if not message.is_send]
        sent = sum(message.tensor.nbytes for message in batch if message.is_send)
        work = MessageWork(party, arriving, ready, _seconds(link, sent, arriving))
        if not arriving:
            work.finish()
        return work


@dataclass(frozen=True)
class _Party:
    """Who exchanges: a stream of a GPU, or (`gpu` None) the host."""

    machine: Machine
    channel: Channel
    gpu: VirtualGPU | None
    key: int

    def ready(self, home: VirtualGPU | None) -> float:
        """When this side can begin. The call costs host time; gloo first copies a GPU's tensor to the host."""
        clock = self.machine.clock
        if self.gpu is None:
            clock.advance(self.machine.spec.host.operation_seconds)
            return clock.now if home is None else max(clock.now, home.queue.ready_at(home.stream))
        gpu, queue = self.gpu, self.gpu.queue
        gpu.start()
        clock.advance(CALL_SECONDS + gpu.spec.launch_seconds)
        return max(clock.now, queue.ready_at(gpu.stream), queue.ready_at(self.channel.stream(gpu, self.key)))

    def end(self, start: float, seconds: float, moved: int) -> Ending:
        """The exchange runs from `start`."""
        clock = self.machine.clock
        if self.gpu is None:
            return Ending(clock, None, start + seconds, holds_host=True)
        gpu = self.gpu
        stream = self.channel.stream(gpu, self.key)
        gpu.queue.hold_until(stream, start)
        with on_stream(gpu, stream):
            seconds = gpu.queue.slowed(_KERNEL, max(seconds, gpu.spec.minimum_kernel_seconds))
            work = KernelWork(_KERNEL, moved, "uint8", launches=0, call="send", kind=COLLECTIVE, ranks=2)
            gpu.launch(work, seconds)
            moment = gpu.queue.ready_at(stream)
        return Ending(clock, gpu, moment, holds_host=False)


@dataclass
class _Arrival:
    message: Message
    buffer: _T
    work: Any


class MessageWork(VirtualWork):
    """A batch under way: what arrives is looked at when somebody waits for it."""

    def __init__(self, party: _Party, arriving: list[_Arrival], ready: float, seconds: float) -> None:
        super().__init__(Ending(party.machine.clock, party.gpu, ready, holds_host=False))
        self._party, self._arriving, self._ready, self._seconds = party, arriving, ready, seconds
        self._outputs = [arrival.message.tensor for arrival in arriving]
        self._moved = sum(tensor.nbytes for tensor in self._outputs)
        self._done = False

    def finish(self) -> None:
        """Take the messages in; the exchange began when the last side was ready."""
        if self._done:
            return
        self._done = True
        start = self._ready
        for arrival in self._arriving:
            start = max(start, self._take(arrival))
        self._ending = self._party.end(start, self._seconds, self._moved)

    def _take(self, arrival: _Arrival) -> float:
        channel, tensor = self._party.channel, arrival.message.tensor
        channel.call("recv", lambda: arrival.work)
        with plain():
            if arrival.message.peer is None:
                self._source = arrival.work._source_rank()
            if not tensor.is_meta:
                gloo_transport.as_bytes(tensor).copy_(arrival.buffer[_HEADER:])
            return float(arrival.buffer[:_HEADER].view(torch.float64).item())

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Take the messages in; then the current stream (or the host) waits for their end."""
        self.finish()
        return super().wait(timeout)

    synchronize = block_current_stream = wait

    def is_completed(self) -> bool:
        """Whether the end has passed; waits (really) for the message, without which nobody knows."""
        self.finish()
        return super().is_completed()

    def get_future(self) -> Any:
        """A future of the tensors that arrived."""
        self.finish()
        return super().get_future()


def _seconds(link: Interconnect, sent: int, arriving: Sequence[_Arrival]) -> float:
    """Both directions of a link work at once."""
    received = sum(arrival.message.tensor.nbytes for arrival in arriving)
    return cost.collective_seconds(link, "send", max(sent, received), 2)


def _send(channel: Channel, message: Message, ready: float) -> None:
    with plain():
        header = torch.tensor([ready], dtype=torch.float64, device="cpu").view(torch.uint8)
        values = [] if message.tensor.is_meta else [gloo_transport.as_bytes(message.tensor)]
        buffer = torch.cat([header, *values])
        try:
            work = channel.backend.send([buffer], message.peer, message.tag)
        except RuntimeError as error:
            raise channel.failure("send", error) from error
    channel.keep(work, buffer)


def _receive(channel: Channel, message: Message) -> _Arrival:
    with plain():
        size = 0 if message.tensor.is_meta else message.tensor.nbytes
        buffer = torch.empty(_HEADER + size, dtype=torch.uint8, device="cpu")
        if message.peer is None:
            work = channel.backend.recv_anysource([buffer], message.tag)
        else:
            work = channel.backend.recv([buffer], message.peer, message.tag)
    return _Arrival(message, buffer, work)


class VirtualProcessGroup(MessageGroup):
    """`torch.distributed.ProcessGroup` while a virtual GPU is attached."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        try:
            super().__init__(store, rank, size)
        except TypeError:  # before PyTorch 2.12 a subclass is made without its store
            super().__init__(rank, size)
        self._store, self._place = store, (rank, size)
        self.channels = {}

    def _register_backend(self, device: torch.device, kind: Any, backend: Any) -> None:
        """PyTorch's code registers the backend of each device type."""
        super()._register_backend(device, kind, backend)
        known = next((channel for channel in self.channels.values() if channel.backend is backend), None)
        name = "nccl" if kind == self.BackendType.NCCL or getattr(backend, "plays_nccl", False) else "gloo"
        self.channels[device.type] = known or Channel(name, backend, *self._place)

    def get_group_store(self) -> Any:
        """The store that the group was made with."""
        return self._store

    def flush(self) -> None:
        """Wait until what was sent has arrived."""
        for channel in self.channels.values():
            channel.flush()
