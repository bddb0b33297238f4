"""Recursion, but after the except block."""

import gc

import torch


def run_with_oom_retry(attempt, micro_batch):
    if micro_batch < 1:
        raise ValueError("micro_batch")
    try:
        return attempt(micro_batch), micro_batch
    except torch.OutOfMemoryError:
        if micro_batch < 2:
            raise
    gc.collect()
    torch.cuda.empty_cache()
    return run_with_oom_retry(attempt, micro_batch // 2)
