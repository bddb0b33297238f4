"""Processes that begin with a virtual GPU: torchrun's workers, and children that `multiprocessing` spawns.

Not here: what a process does for its children (`vgpu.runtime.children`), and the command line (`vgpu.__main__`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vgpu.device.errors import AttachError
from vgpu.runtime import children, visible_devices

# Modules that start workers by themselves: they run without a GPU, and give one to each worker.
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch")


def is_launcher(program: str, *, module: bool) -> bool:
    """Whether the program of a command line is torchrun, by its command or its module."""
    return program in _LAUNCHERS if module else program == "torchrun" and not Path(program).is_file()


def run_launcher(arguments: Sequence[str], options: Sequence[str], attached: Callable[[], Any]) -> int:
    """Run torchrun; each worker is `python -m vgpu OPTIONS script ...`. Returns the exit status.

    `attached` gives the context in which torchrun counts GPUs (`--nproc-per-node gpu`); it runs outside of it, since
    its timeouts are real. Raises AttachError for workers that are no Python programs.
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    configure = run.config_from_args

    def with_gpus(args: Any) -> tuple[Any, Any, list[str]]:
        with attached():
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


def enter(description: Mapping[str, Any]) -> None:
    """In a spawned child: attach until its end."""
    from vgpu.runtime.outputs import Outputs
    from vgpu.torch_integration.attach import attach  # needs torch, which the command line's lists do without

    if description["outputs"] is not None:
        outputs = Outputs.rebuilt(description["outputs"])
        children.leave_behind(outputs)
    visible_devices.inherit(description["visible"])
    context = attach(**children.rebuild(description))
    gpu = context.__enter__()
    if description["outputs"] is not None and outputs.recording is not None:
        gpu.machine.record()
    children.mark_unplaced(context)
