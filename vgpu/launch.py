"""Child processes and their virtual GPUs: torchrun's workers, and those of `multiprocessing`.

A spawned child attaches before it imports the program's main module; a forked one goes on with a copy of its parent's
machine, whose GPUs it may use only if the parent has not (CUDA: "Cannot re-initialize CUDA in forked subprocess").
Not here: what the processes say to each other (`vgpu.distributed`), and the command line (`vgpu.__main__`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from multiprocessing import process, spawn
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vgpu.errors import AttachError
from vgpu.spec import HostSpec, Interconnect, Spec

if TYPE_CHECKING:
    from vgpu.machine import Machine
    from vgpu.outputs import Outputs
    from vgpu.patches.base import PatchSet

# Modules that start workers by themselves: they run without a GPU, and give one to each worker.
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch")
_KEY = "vgpu"
_outputs: list[Outputs] = []


def is_launcher(program: str, *, module: bool) -> bool:
    """Whether the program of a command line is torchrun, by its command or its module."""
    return program in _LAUNCHERS if module else program == "torchrun" and not Path(program).is_file()


def leave_behind(outputs: Outputs) -> None:
    """What each child process that uses its GPU writes at its end."""
    _outputs[:] = [outputs]


def run_launcher(arguments: Sequence[str], options: Sequence[str], attach: Callable[[], Any]) -> int:
    """Run torchrun; each worker is `python -m vgpu OPTIONS script ...`. Returns the exit status.

    `attach` gives the context in which torchrun counts GPUs (`--nproc-per-node gpu`); it runs outside of it, since its
    timeouts are real. Raises AttachError for workers that are no Python programs.
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    configure = run.config_from_args

    def with_gpus(args: Any) -> tuple[Any, Any, list[str]]:
        with attach():
            config, command, words = configure(args)
        if args.no_python or args.run_path:
            raise AttachError("torchrun's --no-python and --run-path start workers that get no virtual GPU")
        return config, command, ["-u", "-m", "vgpu", *options, *words[words[:1] == ["-u"] :]]

    run.config_from_args = with_gpus
    try:
        run.main(list(arguments))
    except ChildFailedError as error:
        print(error, file=sys.stderr)
        return 1
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    finally:
        run.config_from_args = configure
    return 0


# ---- multiprocessing -------------------------------------------------------------------------------------------------


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

_left_open: list[Any] = []


class _Attach:
    """Attaches when it is unpickled: the first thing that a spawned child does, before it imports the program."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self._description = dict(description)

    def __reduce__(self) -> Any:
        root = str(Path(__file__).resolve().parent.parent)
        code = f"import sys; sys.path.append({root!r}); import vgpu.launch; vgpu.launch._enter({self._description!r})"
        return exec, (code,)


def describe(machine: Machine) -> dict[str, Any]:
    """A machine as plain values, from which `rebuild` makes the arguments of `attach`."""
    outputs = _outputs[0] if _outputs else None
    return {
        "spec": _plain(machine.spec),
        "gpus": len(machine.gpus),
        "interconnect": _plain(machine.interconnect),
        "values": machine.values,
        "outputs": None if outputs is None else (outputs.summary, _text(outputs.picture), _text(outputs.trace)),
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


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _enter(description: Mapping[str, Any]) -> None:
    """In a spawned child: attach until its end."""
    from vgpu.api import attach
    from vgpu.outputs import Outputs

    if description["outputs"] is not None:
        summary, picture, trace = description["outputs"]
        leave_behind(Outputs(summary, picture and Path(picture), trace and Path(trace)))
    context = attach(**rebuild(description))
    context.__enter__()
    _left_open.append(context)


def _finish(machine: Machine) -> None:
    """At the end of a child: what it leaves behind, if it has used a GPU."""
    if _outputs and any(gpu.started for gpu in machine.gpus):
        rank = machine.rank
        outputs = _outputs[0] if rank is None else _outputs[0].for_rank(rank)
        outputs.write(machine.gpus[0])
    while _left_open:
        _left_open.pop().__exit__(None, None, None)
