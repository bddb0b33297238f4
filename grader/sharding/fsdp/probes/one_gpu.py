"""Training without sharding, on one GPU. Runs without a submission; no other probe imports it."""

from __future__ import annotations

import torch
from torch import nn

from gradebox.sandbox.probe_loader import Student
from grader.sharding.fsdp.cases import OneGpuReply, OneGpuRun, TrainOnOneGpu, WholeState, WholeStateReply
from grader.sharding.fsdp.probes.network import Network, half_squares, make_optimizer


def train(student: Student, inputs: TrainOnOneGpu) -> OneGpuReply:
    """Losses and weights of one GPU that has all samples and all parameters, in float32."""
    runs = []
    for case in inputs.cases:
        model = Network(inputs.inputs.shape[-1], case["width"], case["blocks"], case["seed"]).cuda()
        optimizer = make_optimizer(case, model)
        losses = []
        for step in range(case["steps"]):
            loss = half_squares(model(inputs.inputs[step].cuda()), inputs.targets[step].cuda())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), case["max_norm"] or float("inf"))
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss))
        weights = torch.cat([parameter.detach().cpu().double().reshape(-1) for parameter in model.parameters()])
        runs.append(OneGpuRun(losses=losses, weights=weights))
    return OneGpuReply(runs=runs)


def state(student: Student, inputs: WholeState) -> WholeStateReply:
    """Names and shapes in the state of the network, and its buffer."""
    model = Network(inputs.features, inputs.width, inputs.blocks, inputs.seed)
    return WholeStateReply(
        names=list(model.state_dict()),
        shapes={name: list(value.shape) for name, value in model.state_dict().items()},
        factors=model.get_buffer("factors").double(),
    )
