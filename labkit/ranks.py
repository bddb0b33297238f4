"""Start the processes of a job and collect what they return.

Not for what a rank does: it joins the others with `torch.distributed.init_process_group`.
"""

import importlib
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
import torch.multiprocessing as mp

from labkit import program


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    start_method: Literal["spawn", "fork"] = "spawn",
) -> list[Any]:
    """Call `function(rank, world_size, init_method, *arguments)` in `world_size` new processes.

    The ranks meet in a file that did not exist before: `init_method` is its address, "file:///...". Two jobs on one
    machine can never take each other's meeting place, as they can with a port.

    Args:
        function: of a module's top level, or a `functools.partial` of one: its name travels to the other process.
        world_size: number of processes.
        arguments: anything that can be pickled.
        start_method: "spawn" starts new interpreters, which takes seconds. "fork" copies this one, which is quick, but
            fails if this process has already used a GPU, or has threads.

    Returns:
        What the ranks returned, in their order.

    Raises:
        torch.multiprocessing.ProcessRaisedException: a rank raised; its traceback is in the message. The other ranks
            have been ended.
    """
    if start_method == "fork":
        importlib.import_module("torch._dynamo")  # DistributedDataParallel needs it: once here, not once in every copy
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        everything = (world_size, f"file://{folder}/rendezvous", folder, start_method, function, arguments)
        mp.start_processes(_rank, args=everything, nprocs=world_size, start_method=start_method)  # type: ignore[attr-defined,no-untyped-call]
        # Our own processes wrote these files, in a folder nobody else can write to: safe to unpickle.
        return [pickle.loads(Path(folder, f"{rank}.pickle").read_bytes()) for rank in range(world_size)]


def _rank(
    rank: int,
    world_size: int,
    init_method: str,
    folder: str,
    start_method: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    # As torchrun does: PyTorch binds a process group to the GPU of LOCAL_RANK, which would be the parent's.
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    os.environ.update({name: str(value) for name, value in places.items()})
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world_size))  # the ranks of a machine share its cores
    returned = function(rank, world_size, init_method, *arguments)
    Path(folder, f"{rank}.pickle").write_bytes(pickle.dumps(returned))
    if start_method == "spawn":  # a copy of another process ends without taking the interpreter down anyway
        program.end_process(0)
