"""`torch.distributed` and DistributedDataParallel on virtual GPUs: which names of PyTorch are replaced.

Not here: what the replacements do (`vgpu.torch_integration.distributed`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from vgpu.runtime.machine import Machine
from vgpu.runtime.patching import PatchSet
from vgpu.runtime.unsupported import unsupported

# These pickle on the host and send the bytes as tensors.
_OBJECTS = (
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list",
    "recv_object_list",
)  # fmt: skip


def install(patches: PatchSet, machine: Machine) -> None:
    """Let "nccl" work by name, with gloo underneath, on virtual time."""
    if not dist.is_available():
        return
    from torch._C import _distributed_c10d as _c10d
    from torch.distributed import distributed_c10d as c10d

    from vgpu.torch_integration.distributed import backends, ddp, messages

    patches.set(c10d, "ProcessGroup", messages.VirtualProcessGroup)
    for name in backends.NAMES:
        real = getattr(c10d, name, None)
        if real is not None:
            patches.rebind(real, backends.ProcessGroupNCCL)
        else:
            patches.set(c10d, name, backends.ProcessGroupNCCL)
            patches.set(dist, name, backends.ProcessGroupNCCL)
    patches.set(c10d, "_NCCL_AVAILABLE", True)
    if not isinstance(getattr(c10d, "default_pg_nccl_timeout", None), timedelta):
        patches.set(c10d, "default_pg_nccl_timeout", timedelta(minutes=10))  # kBackendDefaultTimeout
    patches.set(dist, "Reducer", ddp.Reducer)
    patches.set(dist, "Logger", ddp.Logger)
    patches.set(dist, "_register_builtin_comm_hook", ddp.register_builtin_comm_hook)
    patches.set(dist, "_verify_params_across_processes", ddp.verify_params_across_processes)
    patches.set(dist, "_broadcast_coalesced", _by_device(machine, _c10d._broadcast_coalesced))
    _groups(patches, machine, c10d)
    _known_backends(c10d)
    _objects(patches, machine, c10d)


def _by_device(machine: Machine, broadcast: Callable[..., None]) -> Callable[..., None]:
    """reducer.cpp, `compute_bucket_assignment_by_size`: tensors of one device are sent together."""

    def broadcast_coalesced(group: Any, tensors: Sequence[torch.Tensor], *options: Any, **more: Any) -> None:
        devices: dict[torch.device, list[torch.Tensor]] = {}
        for tensor in tensors:
            devices.setdefault(machine.registry.device_of(tensor), []).append(tensor)
        for together in devices.values():
            broadcast(group, together, *options, **more)

    return broadcast_coalesced


def _known_backends(c10d: Any) -> None:
    """Have PyTorch know its own backends without looking for them.

    PyTorch 2.15 asks all installed packages for a backend at its first use, its own as well (2.11 does not): 20 ms of
    real time in each rank. Here they are known before ranks are forked.
    """
    known = getattr(c10d.Backend, "_plugins", {})
    for name in ("gloo", "nccl"):
        register = getattr(c10d, f"_register_builtin_{name}_backend", None)
        if register is not None and name.upper() not in known:
            register()


def _groups(patches: PatchSet, machine: Machine, c10d: Any) -> None:
    from vgpu.torch_integration.distributed.messages import VirtualProcessGroup

    make, destroy, new = c10d._new_process_group_helper, c10d.destroy_process_group, c10d.new_group

    def make_in_time(size: int, rank: int, ranks: Any, *args: Any, **kwargs: Any) -> Any:
        """The ranks of a new group go on at the same time; a device given at the start is connected at once."""
        made = make(size, rank, ranks, *args, **kwargs)
        group = made[0]
        if isinstance(group, VirtualProcessGroup) and group.channels:
            device, channel = kwargs.get("device_id"), next(iter(group.channels.values()))
            if not ranks:
                machine.rank, machine.ranks = rank, size
            for each in group.channels.values():
                each.label = str(group.group_name)
            channel.equalise(machine)
            if device is not None and device.type == "cuda" and not ranks and group.channels["cuda"].is_nccl:
                group.channels["cuda"].connect(machine.gpus[device.index])
        return made

    def flush() -> None:
        for group in list(c10d._world.pg_map):
            if isinstance(group, VirtualProcessGroup):
                group.flush()

    def destroy_process_group(group: Any = None) -> None:
        flush()
        destroy(group)

    def split_group(
        parent_pg: Any = None, split_ranks: list[list[int]] | None = None, timeout: Any = None, pg_options: Any = None,
        group_desc: str | None = None, backend: Any = None,
    ) -> Any:  # fmt: skip
        """NCCL splits a communicator; here the members make a new group among themselves."""
        if not split_ranks:
            raise ValueError("split_ranks cannot be None or empty")
        parent = parent_pg or c10d._get_default_group()
        mine = next((ranks for ranks in split_ranks if parent.rank() in ranks), None)
        if mine is None:
            return c10d.GroupMember.NON_GROUP_MEMBER
        members = [c10d.get_global_rank(parent, rank) for rank in mine]
        name = backend if backend is not None else c10d.get_backend_config(parent)
        options = {"sort_ranks": False} if "sort_ranks" in inspect.signature(new).parameters else {}
        return new(
            members, timeout=timeout, backend=name, pg_options=pg_options, use_local_synchronization=True,
            group_desc=group_desc, **options,
        )  # fmt: skip

    def shrink_group(*args: Any, **kwargs: Any) -> Any:
        raise unsupported("torch.distributed.shrink_group")

    patches.set(c10d, "_new_process_group_helper", make_in_time)
    patches.rebind(destroy, destroy_process_group)
    patches.rebind(c10d.split_group, split_group)
    if hasattr(c10d, "shrink_group"):
        patches.rebind(c10d.shrink_group, shrink_group)
    patches.on_undo(flush)


def _objects(patches: PatchSet, machine: Machine, c10d: Any) -> None:
    """With shapes only a GPU tensor cannot carry a pickled object: these go through host memory."""
    from vgpu.torch_integration.distributed.runner import Flags

    device_for = c10d._get_object_coll_device

    def on_host(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if machine.values:
                return function(*args, **kwargs)
            kwargs.pop("device", None)
            Flags.internal += 1
            try:
                return function(*args, **kwargs)
            finally:
                Flags.internal -= 1

        return call

    for name in _OBJECTS:
        if hasattr(c10d, name):
            function = getattr(c10d, name)
            patches.rebind(function, on_host(function))
    patches.set(c10d, "_get_object_coll_device", lambda group=None: "cpu" if Flags.internal else device_for(group))
