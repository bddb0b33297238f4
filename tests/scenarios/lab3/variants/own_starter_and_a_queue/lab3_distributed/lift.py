"""Start ranks; what they return comes back through a queue."""

import importlib
import tempfile

import torch.multiprocessing as mp

from labkit import program


def lift(function, n, how="spawn"):
    if how == "fork":
        importlib.import_module("torch._dynamo")
    queue = mp.get_context(how).SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_go, (n, f"file://{folder}/here", queue, how, function), nprocs=n, start_method=how)
    return [value for _, value in sorted((queue.get() for _ in range(n)), key=lambda pair: pair[0])]


def _go(rank, n, where, queue, how, function):
    queue.put((rank, function(rank, n, where)))
    if how == "spawn":
        program.end_process(0)
