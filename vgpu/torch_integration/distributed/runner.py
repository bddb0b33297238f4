"""How the process group runs a collective: on which device, over which backend, when, and who carries the values.

Not here: the collectives one by one (`vgpu.torch_integration.distributed.group`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._C._distributed_c10d as c10d
from torch.utils._pytree import tree_leaves

from vgpu.runtime.attachment import machine as attached_machine
from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.machine import Machine
from vgpu.runtime.operations.operation import Operation
from vgpu.runtime.unsupported import unsupported
from vgpu.torch_integration.devices import gpu_at
from vgpu.torch_integration.distributed.arguments import Loan, check_nccl, dtype_name
from vgpu.torch_integration.distributed.channel import Channel
from vgpu.torch_integration.distributed.unwrap import plain
from vgpu.torch_integration.distributed.work import Ending, VirtualWork, require_gpu

_T = torch.Tensor
Carrier = Callable[[Channel], Any]
# Gives gloo a tensor, or lists of them.
Lend = Callable[[Any], Any]
GlooCarrier = Callable[[Channel, Lend], Any]


@dataclass(frozen=True)
class Collective:
    """One collective: `cost` names its formula, `kernel` its kernel, `moved` the bytes that nccl-tests would report."""

    cost: str
    kernel: str
    tensors: Sequence[_T]
    moved: int
    outputs: Any
    rules: Callable[[], None] | None = None
    """Raises what ProcessGroupNCCL refuses of these tensors together."""


class Flags:
    """Whether PyTorch itself is sending (shapes of parameters, pickled objects): then CPU tensors may pass anywhere."""

    internal = 0
    # The GPU for which C++ code is sending tensors that it makes by itself.
    home: VirtualGPU | None = None


@contextlib.contextmanager
def sending_for(gpu: VirtualGPU | None) -> Iterator[None]:
    """Inside, C++ code sends tensors that it makes on `gpu`: those of DDP's reducer, results of operators."""
    before, Flags.home = Flags.home, gpu
    try:
        yield
    finally:
        Flags.home = before


# Without its annotations, which differ between versions of PyTorch.
_ProcessGroup: Any = c10d.ProcessGroup


class Runner(_ProcessGroup):  # type: ignore[misc]
    """The lower half of `VirtualProcessGroup`."""

    channels: dict[str, Channel]

    def _channel(self, tensors: Sequence[_T]) -> tuple[Machine, VirtualGPU | None, Channel]:
        """The machine, the GPU of the tensors (None: the host) and the backend for it; raises as PyTorch does."""
        machine = attached_machine()
        if machine is None:
            raise RuntimeError("this process group belongs to a virtual GPU that is no longer attached")
        registry = machine.registry
        gpus: set[VirtualGPU | None] = {registry.gpu_of(tensor) for tensor in tensors}
        of_gpu = Flags.home is not None or len(gpus) > 1 or "cpu" not in self.channels
        if None in gpus and of_gpu and not Flags.internal:
            # What C++ code made by itself (a DDP bucket) belongs where the collective is.
            home = Flags.home or next(filter(None, gpus), None) or self._usual(machine)
            for tensor in tensors:
                if registry.is_open(tensor) and (machine.values or tensor.is_meta):
                    registry.add(tensor, home)
            gpus = {registry.gpu_of(tensor) for tensor in tensors}
        if Flags.home is not None:
            gpus = {Flags.home}
        if len(gpus) > 1 and not Flags.internal:
            names = sorted(str(registry.device_of(tensor)) for tensor in tensors)
            raise RuntimeError(f"Tensors of one collective must be on the same device, but they are on {names}")
        gpu = next(iter(gpus), None)
        if gpu is None and Flags.internal and "cpu" not in self.channels:
            gpu = self._usual(machine)
        kind = "cpu" if gpu is None else "cuda"
        if kind not in self.channels:
            self._get_backend(torch.device(kind))  # raises in PyTorch's words
        return machine, gpu, self.channels[kind]

    def _usual(self, machine: Machine) -> VirtualGPU:
        """The GPU of a collective without a tensor: the group's own, the one it used first, the current one."""
        if self.bound_device_id is not None and self.bound_device_id.index is not None:
            return gpu_at(machine, self.bound_device_id.index)
        used = self.channels["cuda"].connected if "cuda" in self.channels else []
        return used[0] if used else require_gpu()

    def _run(self, collective: Collective, on_nccl: Carrier, on_gloo: GlooCarrier) -> Any:
        machine, gpu, channel = self._channel(collective.tensors)
        channel.sequence += 1
        with plain():
            has_values = not any(tensor.is_meta for tensor in collective.tensors)
        if gpu is not None and channel.is_nccl:
            dtype = check_nccl(collective.tensors)
            if collective.rules is not None:
                with plain():
                    collective.rules()
            # The clocks first: a rank that shares its GPU is refused before anything moves.
            name = f"ncclDevKernel_{collective.kernel.format(dtype)}"
            ending = channel.kernel(
                machine, gpu, collective.cost, name, collective.moved, dtype_name(collective.tensors)
            )
            self._watch(gpu, channel, name, collective, ending)
            if has_values:
                with plain():
                    on_nccl(channel)
        else:
            ending = channel.on_host(machine, gpu, collective.cost, collective.moved)
            if has_values:
                lent = Loan(copies=gpu is not None)
                with plain():
                    channel.call(collective.cost, lambda: on_gloo(channel, lent.lend))
                    lent.give_back()
        return VirtualWork(ending, collective.outputs)

    def _watch(self, gpu: VirtualGPU, channel: Channel, name: str, collective: Collective, ending: Ending) -> None:
        """A collective is an entry of the channel's stream, which waits for the current one.

        C++ waits by itself, unseen, for what it starts: DDP's reducer, operators.
        """
        watch = gpu.machine.watch
        if watch is None or not watch.follows_streams:
            return
        stream = channel.stream(gpu)
        watch.stream_waits(gpu, stream, watch.point(gpu, gpu.stream))
        if Flags.home is None and not Flags.internal and torch._C._current_graph_task_id() == -1:
            watch.kernel(gpu, stream, name, collective.tensors, tree_leaves(collective.outputs))
        ending.seen = watch.point(gpu, stream)


def run_operator(gpu: VirtualGPU, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A functional collective (`torch.ops._c10d_functional`): its C++ code calls the process group."""
    if not gpu.values and not operation.base.startswith("wait_tensor"):
        raise unsupported("functional collectives with shapes only")
    with sending_for(gpu):
        return operation.overload(*args, **kwargs)
