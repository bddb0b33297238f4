"""CUDA graphs of small steps: capturing and replaying them, against launching kernel by kernel."""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's custom
from torch import nn

from benchmarks.measured.case import Step, issue_seconds
from benchmarks.measured.drawn import networks, timing
from benchmarks.measured.drawn.case import Drawn, Family, Measured, Parameters

_EACH = 4
_WARM_UPS = 3
_PRECISIONS = ("tf32", "fp32")


def _draw(rng: random.Random) -> Iterator[Drawn]:
    """Every network as a forward pass and as a training step."""
    for number in range(_EACH):
        for place, kind in enumerate(networks.NETWORKS):
            sizes = networks.draw_network(rng, kind)
            for work in ("forward", "training step"):
                yield _PRECISIONS[(number + place) % len(_PRECISIONS)], {"work": work} | sizes


def _step(p: Parameters) -> Step:
    model, x = networks.network(p)
    if p["work"] == "forward":
        model.eval()

        def forward() -> None:
            with torch.no_grad():
                model(x)

        return forward
    return _training(model, x, networks.targets(p))


def _training(model: nn.Module, x: torch.Tensor, targets: torch.Tensor) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), targets).backward()
        optimizer.step()

    return step


def _capture(step: Step) -> tuple[torch.cuda.CUDAGraph, float]:
    """The graph, and the seconds that recording it took; warmed up on another stream, as PyTorch asks."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()

    def record() -> None:
        with torch.cuda.graph(graph):
            step()

    return graph, issue_seconds(record, 1)


def _measure(p: Parameters, precision: str) -> Measured:
    step = _step(p)
    values: dict[str, Any] = {f"eager_{name}": value for name, value in timing.wall(step).items()}
    graph, seconds = _capture(step)
    values["capture_seconds"] = seconds
    return Measured(values | timing.whole_step(graph.replay))


GRAPHS = Family("cuda-graph", _draw, _measure, networks.bytes_needed)
