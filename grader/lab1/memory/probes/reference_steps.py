"""Lab 1's training steps, measured by ourselves: no other probe imports this, and none hands it out."""

from __future__ import annotations

import gc
from typing import TypedDict

import torch
from torch import nn

from gradebox.sandbox.probe_loader import Student
from grader.lab1.memory.cases import Network, ReferenceSteps, ReferenceStepsReply, StageBytes
from grader.shared.probes.handed_out import network


class Adam(TypedDict, total=False):
    """Options of `torch.optim.Adam`."""

    foreach: bool
    fused: bool


IMPLEMENTATIONS: tuple[Adam, ...] = ({}, {"foreach": False}, {"fused": True})
"""Of Adam: they keep the same, but the step takes different temporary tensors."""


def measured(student: Student, inputs: ReferenceSteps) -> ReferenceStepsReply:
    """The same training steps, measured by the course: runs in a child of its own, without any student's code.

    Each implementation of Adam begins with an empty device.
    """
    implementations = []
    for options in IMPLEMENTATIONS:
        torch._C._cuda_clearCublasWorkspaces()
        others = torch.empty(inputs.kept, dtype=torch.uint8, device="cuda")
        torch.empty(inputs.freed, dtype=torch.uint8, device="cuda")
        models: list[nn.Module] = []
        implementations.append([step(run, options, inputs.mistake, models) for run in inputs.runs])
        del others, models
        gc.collect()
        torch.cuda.empty_cache()
    return ReferenceStepsReply(stages=implementations)


def step(run: Network, adam: Adam, mistake: str, models: list[nn.Module]) -> list[StageBytes]:
    """One step, with a mistake of `MISTAKES` or with none; `models` is for those that stay on the device."""
    create_model, create_batch = network(run["widths"], run["batch"], run["room"])
    stages: list[StageBytes] = []

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

    if mistake == "model_kept" and "dtype" in run and run["dtype"] == "float32":
        models.clear()
    gc.collect()
    kind = getattr(torch, "float32" if mistake == "not_cast" else run.get("dtype", "float32"))
    inputs, targets = create_batch()
    with torch.device("meta"):  # how many bytes there are does not depend on the weights
        model = create_model()
    if mistake != "cache_kept":
        torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    end("baseline")
    model = model.to(kind).to_empty(device="cuda")
    if mistake == "model_kept":
        models.append(model)
    optimizer = torch.optim.Adam(model.parameters(), **adam)
    end("model")
    targets = targets.to("cuda")
    if mistake == "batch_let_go":
        output = model(inputs.to("cuda", kind))
    else:
        inputs = inputs.to("cuda", kind)
        output = model(inputs)
    end("forward")
    loss = nn.functional.cross_entropy(output.float() if mistake == "loss_in_float32" else output, targets)
    if mistake == "output_let_go":
        del output
    end("loss")
    loss.backward(retain_graph=mistake == "graph_kept")
    end("backward")
    optimizer.step()
    end("step")
    optimizer.zero_grad(set_to_none=mistake != "gradients_kept")
    end("zero_grad")
    return stages
