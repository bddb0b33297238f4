"""Python starts with this on PYTHONPATH: a virtual A100 is attached first of all, and `labkit` takes it for real.

For tests alone: nothing that is installed reads it. The launcher of the acceptance test keeps the host's real clock, as
it does next to a real GPU: it is told the number of GPUs and attaches none.
"""

import atexit
import os
import sys
from dataclasses import replace

GPUS = int(os.environ.get("REHEARSED_GPUS", "1"))
VALUES = os.environ.get("REHEARSED_VALUES", "1") == "1"
"""Without, for programs that open their device so: work of an A100's size, which no CPU computes."""
_arguments = " ".join(sys.orig_argv)
_is_tool = any(word in _arguments for word in ("multiprocessing.resource_tracker", "forkserver", "-m pip"))


_is_handed_its_gpus = "--multiprocessing-fork" in sys.orig_argv
"""Spawned by a process that has some."""


def _launcher() -> None:
    import torch

    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: GPUS


def _program() -> None:
    import torch

    import vgpu

    attachment = vgpu.attach("A100-80GB", gpus=GPUS, values=VALUES)
    attachment.__enter__()
    # By its module the container exercise's program, which cannot ask `labkit`, knows a virtual GPU.
    torch.cuda.is_available.__module__ = "torch.cuda"
    atexit.register(attachment.__exit__, None, None, None)
    torch.cuda.init()


if not _is_tool:
    import labkit.device

    labkit.device._attached = lambda: None
    if sys.orig_argv[1:3] == ["-m", "cluster.acceptance"]:
        _launcher()
    elif not _is_handed_its_gpus:
        _program()
    if "cluster.acceptance" in _arguments:
        # A CPU computes it all: as small as for a virtual GPU.
        from cluster.acceptance import options
        from cluster.acceptance.checks import health, memory

        options.REAL_GPU = replace(
            options.VIRTUAL_GPU, rows=4096, message_bytes=(options.KIB, 64 * options.MIB), pair_bytes=16 * options.MIB
        )
        memory.TESTED = replace(memory.TESTED, value=1e-4)
        health.BUSY_ROWS, health.BUSY_SECONDS = 256, 0.005
