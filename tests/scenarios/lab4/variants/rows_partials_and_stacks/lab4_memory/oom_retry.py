"""Task 4.4: go on with smaller micro-batches when memory runs out, and only then.

Not for making a training fit in the first place: oom_fixes.py.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

T = TypeVar("T")


def _halves(size: int) -> Iterator[int]:
    while size:
        yield size
        size >>= 1


def run_with_oom_retry(attempt: Callable[[int], T], micro_batch: int) -> tuple[T, int]:
    """Call `attempt(micro_batch)`; while memory runs out, halve the micro-batch and try again.

    Before a further attempt nothing of the failed one is left on the device: an exception holds its traceback, the
    traceback the frames, the frames their local variables, and those the tensors. So the next attempt begins *after*
    the except block, garbage is collected, because objects that refer to each other hold their tensors, too, and the
    allocator's cache is emptied, because what is left of it may be in pieces.

    Args:
        attempt: does the work from its beginning, with micro-batches of the size it is given.
        micro_batch: the size to begin with.

    Returns:
        What `attempt` returned, whatever it is (None, too), and the size it succeeded with. An odd size is halved
        downwards, as in 7, 3, 1.

    Raises:
        ValueError: `micro_batch` is below 1.
        torch.OutOfMemoryError: memory ran out with a micro-batch of 1 as well.
        Exception: any other error of `attempt`, at once and as it is; a RuntimeError is not lack of memory, whatever
            its message says, and neither is Python's MemoryError.

    Source: https://docs.pytorch.org/docs/stable/notes/faq.html#my-out-of-memory-exception-handler-can-t-allocate-memory
    """
    if micro_batch <= 0:
        raise ValueError(f"{micro_batch} samples at once are too few")
    for size in _halves(micro_batch):
        with contextlib.suppress(*([torch.OutOfMemoryError] if size > 1 else [])):
            return attempt(size), size
        gc.collect()
        torch.cuda.empty_cache()
    raise AssertionError("the last attempt returns or raises")
