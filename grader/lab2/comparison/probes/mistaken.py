"""The course's own training steps with a mistake in how they are run or timed, by which that mistake is recognised."""

from __future__ import annotations

import time

import torch
from torch import nn

from gradebox.sandbox.measuring import measures
from gradebox.sandbox.probe_loader import Student
from grader.lab2.comparison.cases.mistaken import MistakenReply, MistakenRow, MistakenSteps
from grader.lab2.comparison.probes.measuring import makers
from grader.lab2.shared.probes import dtype_of


@measures("time")
def steps(student: Student, inputs: MistakenSteps) -> MistakenReply:
    """In a child without any student's code."""
    kept: list[torch.optim.Optimizer] = []
    rows = {name: _measure(inputs, dtype_of(name), kept) for name, _ in inputs.plan.accuracies}
    return MistakenReply(rows)


def _measure(inputs: MistakenSteps, dtype: torch.dtype, kept: list[torch.optim.Optimizer]) -> MistakenRow:
    mistake, plan = inputs.mistake, inputs.plan
    create_model, create_batch = makers(inputs.network)
    model, batch = create_model(), create_batch()
    is_cast = mistake == "model_cast" and dtype != torch.float32
    torch.cuda.reset_peak_memory_stats()
    model.to("cuda", dtype if is_cast else None).train()
    optimizer = torch.optim.Adam(model.parameters())
    if mistake == "models_kept":
        kept.append(optimizer)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16 and not is_cast)
    features, labels = batch
    if mistake != "batch_moved":
        features, labels = features.to("cuda", dtype if is_cast else None), labels.cuda()

    def step() -> None:
        optimizer.zero_grad()
        samples = batch[0].cuda() if mistake == "batch_moved" else features
        targets = batch[1].cuda() if mistake == "batch_moved" else labels
        with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32 and not is_cast):
            loss = nn.functional.cross_entropy(
                model(batch[0].cuda() if mistake == "batch_moved_again" else samples), targets
            )
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    for _ in range(plan.warmup):
        step()
    seconds = []
    for _ in range(plan.steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        if mistake != "not_waited":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return MistakenRow(seconds, torch.cuda.max_memory_allocated())
