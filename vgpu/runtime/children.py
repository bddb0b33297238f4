"""Child processes of `multiprocessing` and `subprocess`, and their virtual GPUs.

A spawned child attaches before it imports the program's main module (`vgpu.tools.launch.enter`); a forked one goes on
with a copy of its parent's machine, whose GPUs it may use only if the parent has not (CUDA: "Cannot re-initialize CUDA
in forked subprocess"). A Python program that `subprocess` starts is run by `vgpu.tools.child`. Not here: torchrun
(`vgpu.tools.launch`), and what the processes say to each other (`vgpu.torch_integration.distributed`).
"""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from multiprocessing import process, spawn
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vgpu.device.spec import HostSpec, Interconnect, Spec
from vgpu.runtime import smi

if TYPE_CHECKING:
    from vgpu.runtime.machine import Machine
    from vgpu.runtime.outputs import Outputs
    from vgpu.runtime.patching import PatchSet

_KEY = "vgpu"
VARIABLE = "VGPU_CHILD"
"""Of the environment: the machine that a child gets."""
# Flags of the interpreter that take no argument, behind which the program stands.
_FLAGS = frozenset(("-u", "-B", "-O", "-OO", "-q", "-v", "-X", "-W"))
_WITH_ARGUMENT = frozenset(("-X", "-W"))
_NO_PROGRAMS = frozenset(("vgpu", "vgpu.tools.child", "pip", "venv", "ensurepip", "compileall"))
_outputs: list[Outputs] = []
_left_open: list[Any] = []


def leave_behind(outputs: Outputs) -> None:
    """What each child process that uses its GPU writes at its end."""
    _outputs[:] = [outputs]


def mark_unplaced(context: Any) -> None:
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


@contextlib.contextmanager
def programs_followed(machine: Any) -> Iterator[None]:
    """In this block Python programs that this process starts by `subprocess` get the machine; `nvidia-smi` shows it.

    For the command line: to replace a function of Python's is not for those who attach in a program of theirs.
    """
    popen: Any = subprocess.Popen
    begin = popen.__init__

    def start(child: Any, args: Any, *rest: Any, **options: Any) -> None:
        program = None if rest or options.get("shell") or options.get("executable") else _program_of(args)
        if program is not None:
            args = [*args[:program], "-m", "vgpu.tools.child", *args[program:]]
            options["env"] = _environment(options.get("env"), machine)
        stand_in.refresh(args)
        begin(child, args, *rest, **options)

    with smi.on_path(machine) as stand_in:
        popen.__init__ = start
        try:
            yield
        finally:
            popen.__init__ = begin


def _program_of(args: Any) -> int | None:
    """Where in the arguments of a Python interpreter its program begins; None where there is none of the user's."""
    if not isinstance(args, (list, tuple)) or len(args) < 2 or not all(isinstance(arg, str) for arg in args):
        return None
    if not args[0] or os.path.realpath(shutil.which(args[0]) or args[0]) != os.path.realpath(sys.executable):
        return None
    place = 1
    while place < len(args) and args[place] in _FLAGS:
        place += 1 + (args[place] in _WITH_ARGUMENT)
    if place >= len(args) or (args[place].startswith("-") and args[place] not in ("-c", "-m")):
        return None
    if args[place] in ("-c", "-m") and (place + 1 >= len(args) or args[place + 1].split(".")[0] in _NO_PROGRAMS):
        return None
    return place


def _environment(env: Any, machine: Machine) -> dict[str, str]:
    environment = dict(os.environ if env is None else env)
    environment[VARIABLE] = base64.b64encode(pickle.dumps(describe(machine))).decode()
    root = str(Path(__file__).resolve().parents[2])
    known = environment.get("PYTHONPATH", "")
    if root not in known.split(os.pathsep):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (known, root)))
    return environment


def finish() -> None:
    """At the end of a child that `subprocess` started."""
    state = sys.modules.get("vgpu.runtime.attachment")
    machine = state.machine() if state is not None else None
    if machine is not None:
        _finish(machine)


def after_fork_in_child() -> None:
    """CUDA cannot be used in the child of a process that has used it (torch/cuda/__init__.py, `_lazy_init`)."""
    state = sys.modules.get("vgpu.runtime.attachment")
    machine = state.machine() if state is not None else None
    if machine is not None:
        machine.forked()


os.register_at_fork(after_in_child=after_fork_in_child)


class _Attach:
    """Attaches when it is unpickled: the first thing that a spawned child does, before it imports the program."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self._description = dict(description)

    def __reduce__(self) -> Any:
        root = str(Path(__file__).resolve().parents[2])
        start = f"from vgpu.tools.launch import enter; enter({self._description!r})"
        code = f"import sys; sys.path.append({root!r}); {start}"
        return exec, (code,)


def describe(machine: Machine) -> dict[str, Any]:
    """A machine as plain values, from which `rebuild` makes the arguments of `attach`."""
    outputs = _outputs[0] if _outputs else None
    return {
        "spec": _plain(machine.spec),
        "gpus": len(machine.cards),
        "visible": machine.visible.at_attach,
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
