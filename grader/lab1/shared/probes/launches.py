"""Which products Lab 1's benchmark launches, and when it waits, without any student's code: for a picture.

Reads no clock: what a product takes, the device's own timeline shows. No other probe imports this.
"""

from __future__ import annotations

import torch

from gradebox.sandbox.probe_loader import Student
from grader.lab1.shared.cases.products import Matmul, MatmulReply
from grader.shared.probes.record import next_stage

_ITERATIONS, _WARMUP = 100, 10
"""What `benchmark_matmul` takes when nothing is given."""
_WARM = 3


def matmul(student: Student, inputs: Matmul) -> MatmulReply:
    """The products of these calls of `benchmark_matmul`, each timed one launched on an idle device.

    Takes what the probe of a submission takes, so that a condition of the device hits the same products. Calls on the
    CPU launch nothing. Nothing is observed.
    """
    for call in inputs.calls:
        on_gpu = torch.device(call.get("device", student.device)).type == "cuda"
        if not on_gpu:
            next_stage(student.gpu)
            continue
        dtype, size = getattr(torch, call.get("dtype", "float32")), call["size"]
        operand = torch.ones(size, size, device="cuda", dtype=dtype)
        if inputs.warm:
            _launch(operand, _WARM)
            torch.cuda.synchronize()
        next_stage(student.gpu)
        _launch(operand, call.get("busy", inputs.busy_products) + call.get("warmup", _WARMUP))
        torch.cuda.synchronize()
        for _ in range(call.get("iterations", _ITERATIONS)):
            _launch(operand, 1)
            torch.cuda.synchronize()
    return MatmulReply(calls=[])


def _launch(operand: torch.Tensor, count: int) -> None:
    for _ in range(count):
        torch.mm(operand, operand)
