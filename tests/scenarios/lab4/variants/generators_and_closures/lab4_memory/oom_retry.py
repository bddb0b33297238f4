"""The sizes come from a generator; one call is wrapped, and says whether it failed."""

import gc

import torch

_FAILED = object()


def sizes(first):
    while first >= 1:
        yield first
        first >>= 1


def run_with_oom_retry(attempt, micro_batch):
    if micro_batch < 1:
        raise ValueError("micro_batch")

    def once(size):
        try:
            return attempt(size)
        except torch.OutOfMemoryError:
            if size == 1:
                raise
            return _FAILED

    for size in sizes(micro_batch):
        result = once(size)
        if result is not _FAILED:
            return result, size
        gc.collect()
        torch.cuda.empty_cache()
    raise AssertionError
