"""Probes of Lab 4's prediction, and the reference: what a training step of the course's own models holds."""

from __future__ import annotations

import gc
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import flop_registry

from gradebox.sandbox.probe_loader import Student
from grader.lab4.analysis.cases import Predictions, PredictionsReply, StepBytes, Steps, StepsReply
from grader.lab4.shared.cases import Fields
from grader.shared.probes.record import watch_host_work, watch_products
from grader.shared.probes.support import fields
from labkit.models import TransformerBlock
from labkit.results import MemoryPrediction, TrainingSetup

_FORMULAS = MappingProxyType(dict(flop_registry))
"""A copy, made before there is a submission."""


def predictions(student: Student, inputs: Predictions) -> PredictionsReply:
    """`predict_memory` of each setup, and the work in products that it did; what measures is out of its reach."""
    module = student.module("lab4_memory.memory_analysis")

    def measure_memory(*_: object, **__: object) -> None:
        raise RuntimeError("predict_memory() calls measure_memory(): a prediction is worked out, and nothing is run")

    module.__dict__["measure_memory"] = measure_memory
    predict = module.predict_memory
    with watch_products(student.gpu) as products, watch_host_work(_FORMULAS) as host_flops:
        predicted: list[Fields] = [
            fields(predict(TrainingSetup(**setup)), MemoryPrediction, "predict_memory()") for setup in inputs.setups
        ]
        flops, on_host = products.flops(), host_flops()
    return PredictionsReply(predictions=predicted, flops=flops, host_flops=on_host)


def steps(student: Student, inputs: Steps) -> StepsReply:
    """What a step of each setup holds: bytes that tensors asked for, by the allocator's own statistics."""
    return StepsReply(steps=[_step(TrainingSetup(**setup)) for setup in inputs.setups])


class _Segments(nn.Module):
    def __init__(self, layers: list[nn.Module], every: int | None) -> None:
        super().__init__()
        self.layers, self.every = nn.Sequential(*layers), every

    def forward(self, x: Tensor) -> Tensor:
        if self.every is None:
            plain: Tensor = self.layers(x)
            return plain
        for first in range(0, len(self.layers), self.every):
            x = checkpoint(self.layers[first : first + self.every], x, use_reentrant=False)
        return x


def _step(setup: TrainingSetup) -> StepBytes:
    gc.collect()
    start = _requested()
    with torch.device("cuda"):
        model = _Segments(_layers(setup), setup.checkpoint_every)
    parameters = _requested() - start
    inputs = torch.zeros(1, setup.tokens, setup.width, device="cuda")
    dtype = getattr(torch, setup.dtype)
    gradient = torch.zeros_like(inputs, dtype=dtype if setup.model == "mlp" else torch.float32)
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters())
    if setup.optimizer != "adam":
        momentum = 0.9 if setup.optimizer == "momentum" else 0.0
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)

    def forward(module: nn.Module) -> Tensor:
        with torch.autocast("cuda", dtype=dtype, enabled=setup.dtype != "float32"):
            output: Tensor = module(inputs)
        return output

    forward(model.layers[0]).backward(gradient)  # first use of the libraries: of one layer as of all
    optimizer.zero_grad(set_to_none=True)
    before = _requested()
    output = forward(model)
    activations = _requested() - before
    output.backward(gradient)
    del output
    gradients = _requested() - before
    optimizer.step()
    return {
        "parameter_bytes": parameters,
        "gradient_bytes": gradients,
        "optimizer_state_bytes": _requested() - before - gradients,
        "activation_bytes": activations,
    }


def _layers(setup: TrainingSetup) -> list[nn.Module]:
    if setup.model == "mlp":
        return [layer for _ in range(setup.layers) for layer in (nn.Linear(setup.width, setup.width), nn.ReLU())]
    return [TransformerBlock(setup.width, setup.heads) for _ in range(setup.layers)]


def _requested() -> int:
    return int(torch.cuda.memory_stats().get("requested_bytes.all.current", 0))
