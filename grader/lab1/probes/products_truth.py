"""Which products Lab 1's benchmark launches, and when it waits, without any student's code: for a picture.

Reads no clock: what a product takes, the device's own timeline shows. No other probe imports this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from grader.shared.probes.record import next_stage

_ITERATIONS, _WARMUP = 100, 10
"""What `benchmark_matmul` takes when nothing is given."""
_WARM = 3


def matmul(
    student: Any, *, calls: Sequence[dict[str, Any]], warm: bool = False, busy_products: int = 0, truth: bool = False
) -> dict[str, Any]:
    """The products of these calls of `benchmark_matmul`, each timed one launched on an idle device.

    Takes what `gpu_basics.matmul` takes, so that a condition of the device hits the same products. Calls on the CPU
    launch nothing.
    """
    del truth
    for call in calls:
        on_gpu = torch.device(call.get("device", student.device)).type == "cuda"
        if not on_gpu:
            next_stage(student.gpu)
            continue
        operand = torch.ones(
            call["size"], call["size"], device="cuda", dtype=getattr(torch, call.get("dtype", "float32"))
        )
        if warm:
            _launch(operand, _WARM)
            torch.cuda.synchronize()
        next_stage(student.gpu)
        _launch(operand, call.get("busy", busy_products) + call.get("warmup", _WARMUP))
        torch.cuda.synchronize()
        for _ in range(call.get("iterations", _ITERATIONS)):
            _launch(operand, 1)
            torch.cuda.synchronize()
    return {}


def _launch(operand: torch.Tensor, count: int) -> None:
    for _ in range(count):
        torch.mm(operand, operand)
