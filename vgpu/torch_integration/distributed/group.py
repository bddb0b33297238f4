"""The collectives of the process group that programs get while a virtual GPU is attached.

PyTorch's own code makes the group, names it and registers backends with it; only the collectives are replaced, in
Python as for the C++ callers (DDP's reducer). Not here: sends and receives
(`vgpu.torch_integration.distributed.messages`), and how a collective is run
(`vgpu.torch_integration.distributed.runner`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._C._distributed_c10d as c10d

from vgpu.runtime.attachment import machine as attached_machine
from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.machine import Machine
from vgpu.torch_integration.devices import gpu_at
from vgpu.torch_integration.distributed import gloo_transport
from vgpu.torch_integration.distributed.arguments import (
    listed,
    nested,
    parts_of,
    reduction_name,
    require_list,
    require_one_dtype,
    require_one_each,
    require_splits,
    total_bytes,
    with_reduction,
)
from vgpu.torch_integration.distributed.channel import Channel
from vgpu.torch_integration.distributed.runner import Carrier, Collective, GlooCarrier, Lend, Runner
from vgpu.torch_integration.distributed.unwrap import plain
from vgpu.torch_integration.distributed.work import Ending, VirtualWork

_T = torch.Tensor


class CollectiveGroup(Runner):
    """In the order of ProcessGroup.hpp."""

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        tensors, opts = listed(tensors), with_reduction(opts, c10d.AllreduceOptions)
        return self._reduce_all(tensors, opts, lambda channel, lend: channel.backend.allreduce(lend(tensors), opts))

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or c10d.AllreduceCoalescedOptions()
        return self._reduce_all(
            tensors, opts, lambda channel, lend: channel.backend.allreduce_coalesced(lend(tensors), opts)
        )

    def _reduce_all(self, tensors: Sequence[_T], opts: Any, on_gloo: GlooCarrier) -> Any:
        def on_nccl(channel: Channel) -> None:
            for tensor in tensors:
                gloo_transport.all_reduce(channel, tensor, gloo_transport.reduction_of(opts.reduceOp))

        kernel = f"AllReduce_{reduction_name(opts, tensors)}_{{}}_RING_LL"
        return self._run(Collective("all_reduce", kernel, tensors, total_bytes(tensors), tensors), on_nccl, on_gloo)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        tensors, opts = listed(tensors), opts or c10d.BroadcastOptions()

        def on_nccl(channel: Channel) -> None:
            for tensor in tensors:
                gloo_transport.broadcast(channel, tensor, opts.rootRank)

        collective = Collective("broadcast", "Broadcast_RING_LL", tensors, total_bytes(tensors), tensors)
        return self._run(collective, on_nccl, lambda channel, lend: channel.backend.broadcast(lend(tensors), opts))

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        tensors, opts = listed(tensors), with_reduction(opts, c10d.ReduceOptions)

        def on_nccl(channel: Channel) -> None:
            gloo_transport.reduce(channel, tensors[0], gloo_transport.reduction_of(opts.reduceOp), opts.rootRank)

        kernel = f"Reduce_{reduction_name(opts, tensors)}_{{}}_RING_LL"
        collective = Collective("reduce", kernel, tensors, total_bytes(tensors), tensors)
        return self._run(collective, on_nccl, lambda channel, lend: channel.backend.reduce(lend(tensors), opts))

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        outputs, inputs = nested(output_tensors), listed(input_tensors)
        opts = opts or c10d.AllgatherOptions()

        def on_nccl(channel: Channel) -> None:
            for parts, tensor in zip(outputs, inputs, strict=True):
                gloo_transport.all_gather(channel, parts, tensor)

        return self._gather_all(
            outputs,
            inputs,
            on_nccl,
            lambda c, lend: c.backend.allgather(lend(outputs), lend(inputs), opts),
            rules=lambda: require_one_each(outputs, self.size()),
        )

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Any:
        opts = opts or c10d.AllgatherOptions()

        def on_nccl(channel: Channel) -> None:
            for index, tensor in enumerate(input_list):
                gloo_transport.all_gather(channel, [parts[index] for parts in output_lists], tensor)

        def on_gloo(channel: Channel, lend: Lend) -> Any:
            return channel.backend.allgather_coalesced(lend(output_lists), lend(input_list), opts)

        return self._gather_all(output_lists, input_list, on_nccl, on_gloo)

    def _gather_all(
        self,
        outputs: Any,
        inputs: Sequence[_T],
        on_nccl: Carrier,
        on_gloo: GlooCarrier,
        rules: Callable[[], None] | None = None,
    ) -> Any:
        written = [tensor for parts in outputs for tensor in parts]
        collective = Collective(
            "all_gather", "AllGather_RING_LL", [*written, *inputs], total_bytes(written), outputs, rules
        )
        return self._run(collective, on_nccl, on_gloo)

    def all_gather_single(self, output: _T, input: _T, opts: Any = None) -> Any:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: Sequence[_T], inputs: Sequence[_T], opts: Any = None) -> Any:
        for output, tensor in zip(outputs, inputs, strict=True):
            if output.numel() != tensor.numel() * self.size():
                raise ValueError("output tensor size must be equal to world_size times input tensor size")

        def carrier(channel: Channel) -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                gloo_transport.all_gather(channel, gloo_transport.flat(output).chunk(self.size()), tensor)

        pairs, text = list(zip(outputs, inputs, strict=True)), "output tensor must have the same type as input tensor"
        collective = Collective(
            "all_gather", "AllGather_RING_LL", [*outputs, *inputs], total_bytes(outputs), list(outputs),
            lambda: require_one_dtype(pairs, text),
        )  # fmt: skip
        return self._run(collective, carrier, lambda channel, lend: carrier(channel))

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        outputs, inputs = listed(output_tensors), nested(input_tensors)
        return self._scatter_reduced(
            outputs,
            inputs,
            with_reduction(opts, c10d.ReduceScatterOptions),
            rules=lambda: require_one_each(inputs, self.size()),
        )

    def reduce_scatter_single(self, output: _T, input: _T, opts: Any = None) -> Any:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Sequence[_T], inputs: Sequence[_T], opts: Any = None) -> Any:
        for output, tensor in zip(outputs, inputs, strict=True):
            if output.numel() * self.size() != tensor.numel():
                raise ValueError("input tensor must be the same size as output size times world size")
        pairs, text = (
            list(zip(outputs, inputs, strict=True)),
            "input tensor must be the same type as the output tensor.",
        )
        with plain():
            parts = [list(gloo_transport.flat(tensor).chunk(self.size())) for tensor in inputs]
        return self._scatter_reduced(
            list(outputs),
            parts,
            with_reduction(opts, c10d.ReduceScatterOptions),
            rules=lambda: require_one_dtype(pairs, text),
        )

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _scatter_reduced(
        self, outputs: Sequence[_T], inputs: Sequence[Sequence[_T]], opts: Any, rules: Callable[[], None]
    ) -> Any:
        def carrier(channel: Channel) -> None:
            for output, parts in zip(outputs, inputs, strict=True):
                gloo_transport.reduce_scatter(channel, output, parts, gloo_transport.reduction_of(opts.reduceOp))

        read = [tensor for parts in inputs for tensor in parts]
        kernel = f"ReduceScatter_{reduction_name(opts, outputs)}_{{}}_RING_LL"
        collective = Collective("reduce_scatter", kernel, [*outputs, *read], total_bytes(read), outputs, rules)
        return self._run(collective, carrier, lambda channel, lend: carrier(channel))

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        outputs, inputs = list(output_tensors), list(input_tensors)

        def carrier(channel: Channel) -> None:
            gloo_transport.all_to_all(channel, outputs, inputs)

        def on_gloo(channel: Channel, lend: Lend) -> None:
            raise RuntimeError("Backend gloo does not support alltoall")

        collective = Collective(
            "all_to_all", "SendRecv", [*outputs, *inputs], total_bytes(inputs), outputs,
            lambda: require_one_each([outputs, inputs], self.size()),
        )  # fmt: skip
        return self._run(collective, carrier, on_gloo)

    def all_to_all_single(self, output: _T, input: _T, sizes_out: Any, sizes_in: Any, opts: Any = None) -> Any:
        def carrier(channel: Channel) -> None:
            gloo_transport.all_to_all(
                channel,
                parts_of(output, sizes_out, self.size()),
                parts_of(input, sizes_in, self.size()),
            )

        def rules() -> None:
            require_splits(input, sizes_in, self.size())
            require_splits(output, sizes_out, self.size())

        collective = Collective("all_to_all", "SendRecv", [output, input], input.nbytes, [output], rules)
        return self._run(collective, carrier, lambda channel, lend: carrier(channel))

    alltoall_base = all_to_all_single

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        outputs, inputs = nested(output_tensors), listed(input_tensors)
        opts = opts or c10d.GatherOptions()
        written = [tensor for parts in outputs for tensor in parts]

        def on_nccl(channel: Channel) -> None:
            gloo_transport.gather(channel, written, inputs[0], opts.rootRank)

        moved = inputs[0].nbytes * self.size()
        is_root = self.rank() == opts.rootRank

        def rules() -> None:
            if is_root:
                require_list("gather", "output", written, inputs[0], self.size())

        collective = Collective("gather", "SendRecv", [*written, *inputs], moved, outputs, rules)
        return self._run(collective, on_nccl, lambda c, lend: c.backend.gather(lend(outputs), lend(inputs), opts))

    def gather_single(self, output: _T, input: _T, opts: Any = None) -> Any:
        parts = list(output.chunk(self.size())) if self.rank() == (opts.rootRank if opts else 0) else []
        return self.gather([parts] if parts else [], [input], opts)

    gather_into_tensor = gather_single

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        outputs, inputs = listed(output_tensors), nested(input_tensors)
        opts = opts or c10d.ScatterOptions()
        read = [tensor for parts in inputs for tensor in parts]

        def on_nccl(channel: Channel) -> None:
            gloo_transport.scatter(channel, outputs[0], read, opts.rootRank)

        moved = outputs[0].nbytes * self.size()
        is_root = self.rank() == opts.rootRank

        def rules() -> None:
            if is_root:
                require_list("scatter", "input", read, outputs[0], self.size())

        collective = Collective("scatter", "SendRecv", [*outputs, *read], moved, outputs, rules)
        return self._run(collective, on_nccl, lambda c, lend: c.backend.scatter(lend(outputs), lend(inputs), opts))

    def barrier(self, opts: Any = None) -> Any:
        """With NCCL an all-reduce of one element for which the host waits (ProcessGroupNCCL.cpp, `barrier`)."""
        machine = attached_machine()
        device = getattr(opts, "device", None)
        on_gpu = "cpu" not in self.channels or (device is not None and device.type == "cuda")
        channel = self.channels["cuda" if on_gpu and "cuda" in self.channels else "cpu"]
        if machine is None or not channel.is_nccl:
            return self._run(Collective("all_reduce", "", [], 0, []), _nothing, lambda channel, lend: None)
        gpu = self._of_barrier(machine, opts.device_ids if opts is not None else [])
        ending = channel.kernel(machine, gpu, "all_reduce", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 4, "float32")
        return VirtualWork(Ending(machine.clock, gpu, ending.moment, holds_host=True))

    def _of_barrier(self, machine: Machine, chosen: Sequence[int]) -> VirtualGPU:
        """Its GPU: the call's, the group's, the one it used first, or else by the global rank (`dist.barrier`)."""
        if chosen:
            return gpu_at(machine, chosen[0])
        if self.bound_device_id is not None or self.channels["cuda"].connected:
            return self._usual(machine)
        rank = self.rank() if machine.rank is None else machine.rank
        return machine.gpus[rank % len(machine.gpus)]

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        machine = attached_machine()
        channel = self.channels["cpu"]
        channel.backend.monitored_barrier(timeout, wait_all_ranks)
        if machine is not None:
            channel.equalise(machine)


def _nothing(channel: Channel) -> None:
    return None
