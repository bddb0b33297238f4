"""A flag instead of a second block; what the message says, and of what kind it is."""

import gc

import torch


def run_with_oom_retry(attempt, micro_batch):
    if micro_batch < 1:
        raise ValueError(f"{micro_batch} samples")
    size = micro_batch
    while size >= 1:
        result, failed = None, False
        try:
            result = attempt(size)
        except RuntimeError as error:
            failed = isinstance(error, torch.cuda.OutOfMemoryError) and "out of memory" in str(error)
            if not failed or size == 1:
                raise
        if not failed:
            return result, size
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        size >>= 1
    raise AssertionError("not reached")
