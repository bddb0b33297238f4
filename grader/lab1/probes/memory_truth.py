"""The truth about Lab 1's memory, measured by ourselves: no other probe imports this, and none hands it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from grader.shared.probes.handed_out import network


def memory(
    student: Any, *, widths: Sequence[int], batch: int, room: Sequence[int] = (), dtype: str = "float32"
) -> dict[str, Any]:
    """The same training step, measured by the course: runs in a child of its own, without any student's code."""
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

    kind = getattr(torch, dtype)
    inputs, targets = create_batch()
    model = create_model()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    end("baseline")
    model = model.to("cuda", kind)
    optimizer = torch.optim.Adam(model.parameters())
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
    return {"stages": stages}
