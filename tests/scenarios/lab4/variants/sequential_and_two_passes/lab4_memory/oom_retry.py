"""The failure is only noted in the except block."""

import gc

import torch


def run_with_oom_retry(attempt, micro_batch):
    if micro_batch < 1:
        raise ValueError(micro_batch)
    size = micro_batch
    while size > 1:
        result, failed = None, False
        try:
            result = attempt(size)
        except torch.cuda.OutOfMemoryError:
            failed = True
        if not failed:
            return result, size
        gc.collect()
        torch.cuda.empty_cache()
        size = size // 2
    return attempt(1), 1
