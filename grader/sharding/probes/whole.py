"""The truth about training without sharding: PyTorch's own optimizers on one GPU. Asked without a submission."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from grader.sharding.probes.course import follow
from grader.sharding.probes.network import Network, half_squares, make_optimizer


def train(student: Any, *, cases: Sequence[dict[str, Any]], numbers: Tensor, slopes: Tensor) -> dict[str, Any]:
    """What `zero.train` tells, of the optimizer class itself."""

    def make(groups: Any, kind: Any, **options: Any) -> Any:
        return kind(groups, **options)

    return {"runs": [follow(case, numbers, slopes, make) for case in cases]}


def network(student: Any, *, cases: Sequence[dict[str, Any]], inputs: Tensor, targets: Tensor) -> dict[str, Any]:
    """What `fsdp.train` tells of losses and weights, of one GPU that has all samples and all parameters, in float32."""
    runs = []
    for case in cases:
        model = Network(inputs.shape[-1], case["width"], case["blocks"], case["seed"]).cuda()
        optimizer = make_optimizer(case, model)
        losses, norms = [], []
        for step in range(case["steps"]):
            loss = half_squares(model(inputs[step].cuda()), targets[step].cuda())
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), case["max_norm"] or float("inf"))
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss))
            norms.append(float(norm))
        weights = torch.cat([one.detach().cpu().double().reshape(-1) for one in model.parameters()])
        runs.append({"losses": losses, "norms": norms, "weights": weights})
    return {"runs": runs}


def state(student: Any, *, seed: int, features: int, width: int, blocks: int) -> dict[str, Any]:
    """Names and shapes in the state of the network, and its buffer."""
    model = Network(features, width, blocks, seed)
    return {
        "names": list(model.state_dict()),
        "shapes": {name: list(value.shape) for name, value in model.state_dict().items()},
        "factors": model.get_buffer("factors").double(),
    }
