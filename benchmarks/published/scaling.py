"""Throughput of several GPUs over that of one: DistributedDataParallel in as many processes, shapes only.

Run as a program it is one of these processes; `speedup` starts them.
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.published import networks, transformers
from benchmarks.published.figures import Figure
from benchmarks.published.timing import allow_tf32, wall_seconds

_MARK = "seconds per step: "


def speedup(figure: Figure) -> float:
    """Throughput of `figure.gpus` ranks over that of one, each with the same batch."""
    return figure.gpus * _step_seconds(figure, 1) / _step_seconds(figure, figure.gpus)


def _step_seconds(figure: Figure, ranks: int) -> float:
    order = [sys.executable, "-m", "vgpu", "--gpu", figure.gpu, "--gpus", str(ranks), "--shapes-only"]
    launch = ["torchrun", "--standalone", "--nproc-per-node", str(ranks), "-m", "benchmarks.published.scaling"]
    done = subprocess.run(
        [*order, *launch, json.dumps(dataclasses.asdict(figure))],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    lines = [line for line in done.stdout.splitlines() if _MARK in line]
    if done.returncode or not lines:
        raise RuntimeError(f"{figure.id} on {ranks} GPUs: {done.stderr[-2000:]}")
    return float(lines[0].partition(_MARK)[2])


def _step(figure: dict[str, Any], wrap: Callable[[nn.Module], nn.Module]) -> Callable[[], object]:
    sizes, precision = figure["sizes"], figure["precision"]
    if sizes["model"] == "cnn":
        return networks.training_step(sizes, precision, wrap)
    return transformers.bert_step(sizes, precision, wrap)


def main() -> None:
    """One rank."""
    figure = json.loads(sys.argv[1])
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    allow_tf32(figure["precision"])
    step = _step(figure, lambda made: DistributedDataParallel(made, device_ids=[rank]))
    seconds = wall_seconds(step, 2, 2)
    if rank == 0:
        print(f"{_MARK}{seconds}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
