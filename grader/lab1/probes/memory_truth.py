"""The truth about Lab 1's memory, measured by ourselves: no other probe imports this, and none hands it out."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from grader.shared.probes.handed_out import network

IMPLEMENTATIONS: tuple[dict[str, Any], ...] = ({}, {"foreach": False}, {"fused": True})
"""Of Adam: they keep the same, but the step takes different temporary tensors."""


def memory(student: Any, *, runs: Sequence[dict[str, Any]], kept: int, freed: int) -> dict[str, Any]:
    """The same training steps, measured by the course: runs in a child of its own, without any student's code.

    Returns:
        `stages`: for each implementation of Adam and each of `runs`, the stages. Each implementation begins anew.
    """
    measured = []
    for options in IMPLEMENTATIONS:
        torch._C._cuda_clearCublasWorkspaces()
        others = torch.empty(kept, dtype=torch.uint8, device="cuda")
        torch.empty(freed, dtype=torch.uint8, device="cuda")
        measured.append([_step(**run, adam=options) for run in runs])
        del others
    return {"stages": measured}


def _step(
    *,
    widths: Sequence[int],
    batch: int,
    room: Sequence[int],
    adam: dict[str, Any],
    dtype: str = "float32",
    indexed: bool = False,
) -> list[dict[str, Any]]:
    create_model, create_batch = network(widths, batch, room)
    stages: list[dict[str, Any]] = []

    def end(stage: str) -> None:
        torch.cuda.synchronize()
        stages.append(
            {
                "stage": stage,
                "allocated_bytes": torch.cuda.memory_allocated(),
                "reserved_bytes": torch.cuda.memory_reserved(),
                "peak_bytes": torch.cuda.max_memory_allocated(),
            }
        )
        torch.cuda.reset_peak_memory_stats()

    gc.collect()
    kind = getattr(torch, dtype)
    inputs, targets = create_batch()
    with torch.device("meta"):  # how many bytes there are does not depend on the weights
        model = create_model()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    end("baseline")
    model = model.to(kind).to_empty(device="cuda")
    optimizer = torch.optim.Adam(model.parameters(), **adam)
    end("model")
    inputs, targets = inputs.to("cuda", kind), targets.to("cuda")
    output = model(inputs)
    end("forward")
    loss = nn.functional.cross_entropy(output, targets)
    end("loss")
    loss.backward()
    end("backward")
    optimizer.step()
    end("step")
    optimizer.zero_grad()
    end("zero_grad")
    return stages
