"""Given: join the other ranks of a job that torchrun started, or be alone. Nothing to write here.

Not for learning how that is done: Lab 3 teaches it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist


@contextmanager
def job(kind: str) -> Iterator[torch.device]:
    """Be one rank of the job that torchrun started, if it did; leave the process group when the block ends.

    Args:
        kind: "cpu" or "cuda".

    Yields:
        The device of this rank.
    """
    own = torch.device("cpu")
    if kind == "cuda":
        own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        torch.cuda.set_device(own)
    if not dist.is_torchelastic_launched():
        yield own
        return
    enough = kind == "cuda" and int(os.environ["LOCAL_WORLD_SIZE"]) <= torch.cuda.device_count()
    dist.init_process_group("nccl" if enough else "gloo")
    try:
        yield own
    finally:
        dist.destroy_process_group()
