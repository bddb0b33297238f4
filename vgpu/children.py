"""Child processes of `multiprocessing` and their virtual GPUs.

A spawned child attaches before it imports the program's main module (`vgpu.launch.enter`); a forked one goes on with a
copy of its parent's machine, whose GPUs it may use only if the parent has not (CUDA: "Cannot re-initialize CUDA in
forked subprocess"). Not here: torchrun (`vgpu.launch`), and what the processes say to each other (`vgpu.distributed`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import fields
from multiprocessing import process, spawn
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vgpu.spec import HostSpec, Interconnect, Spec

if TYPE_CHECKING:
    from vgpu.machine import Machine
    from vgpu.outputs import Outputs
    from vgpu.patching import PatchSet

_KEY = "vgpu"
_outputs: list[Outputs] = []
_left_open: list[Any] = []


def leave_behind(outputs: Outputs) -> None:
    """What each child process that uses its GPU writes at its end."""
    _outputs[:] = [outputs]


def leave_open(context: Any) -> None:
    """A context that this process, a spawned child, has entered, and leaves at its end."""
    _left_open.append(context)


def install(patches: PatchSet, machine: Machine) -> None:
    """Give children of this process their own machine."""
    prepare, bootstrap = spawn.get_preparation_data, process.BaseProcess._bootstrap  # type: ignore[attr-defined]
    owner = os.getpid()

    def preparation(name: str) -> dict[str, Any]:
        data: dict[str, Any] = {_KEY: _Attach(describe(machine))}
        return {**data, **prepare(name)}

    def run_child(child: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return bootstrap(child, *args, **kwargs)
        finally:
            # A spawned child attached by itself (`_enter`), a forked one carries its parent's patches.
            if os.getpid() != owner or _left_open:
                _finish(machine)

    patches.set(spawn, "get_preparation_data", preparation)
    patches.set(process.BaseProcess, "_bootstrap", run_child)
    forkserver = sys.modules.get("multiprocessing.forkserver")
    if forkserver is not None:
        # It would import the program before a GPU is attached.
        patches.set(forkserver._forkserver, "_preload_modules", [])


def after_fork_in_child() -> None:
    """CUDA cannot be used in the child of a process that has used it (torch/cuda/__init__.py, `_lazy_init`)."""
    state = sys.modules.get("vgpu.state")
    machine = state.machine() if state is not None else None
    if machine is not None:
        machine.forked()


os.register_at_fork(after_in_child=after_fork_in_child)


class _Attach:
    """Attaches when it is unpickled: the first thing that a spawned child does, before it imports the program."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self._description = dict(description)

    def __reduce__(self) -> Any:
        root = str(Path(__file__).resolve().parent.parent)
        code = f"import sys; sys.path.append({root!r}); import vgpu.launch; vgpu.launch.enter({self._description!r})"
        return exec, (code,)


def describe(machine: Machine) -> dict[str, Any]:
    """A machine as plain values, from which `rebuild` makes the arguments of `attach`."""
    outputs = _outputs[0] if _outputs else None
    return {
        "spec": _plain(machine.spec),
        "gpus": len(machine.gpus),
        "interconnect": _plain(machine.interconnect),
        "values": machine.values,
        "outputs": None if outputs is None else outputs.described(),
    }


def rebuild(description: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `vgpu.attach` for a machine like the one described."""
    spec = dict(description["spec"])
    spec["host"] = HostSpec(**_frozen(spec["host"]))
    spec["links"] = {name: Interconnect(**_frozen(link)) for name, link in spec["links"].items()}
    return {
        "spec": Spec(**_frozen(spec)),
        "gpus": description["gpus"],
        "interconnect": Interconnect(**_frozen(description["interconnect"])),
        "values": description["values"],
        "force": True,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, (Spec, HostSpec, Interconnect)):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _frozen(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: MappingProxyType(value) if isinstance(value, dict) else value for key, value in table.items()}


def _finish(machine: Machine) -> None:
    """At the end of a child: what it leaves behind, if it has used a GPU."""
    if _outputs and any(gpu.started for gpu in machine.gpus):
        rank = machine.rank
        outputs = _outputs[0] if rank is None else _outputs[0].for_rank(rank)
        outputs.write(machine.gpus[0])
    while _left_open:
        _left_open.pop().__exit__(None, None, None)
