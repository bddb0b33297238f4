"""Probes of Lab 2's gradient scaling: what each step of a small training did."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor, nn

from gradebox.sandbox.probe_loader import Student
from grader.lab2.scaling.cases.steps import Steps, StepsReply
from grader.lab2.scaling.cases.trainings import Run, RunReport, Train, TrainReply
from grader.lab2.shared.probes import (
    AMP,
    OVERFLOWING_INPUT,
    Rows,
    amp_result,
    batches,
    flat,
    in_dtype,
    linear,
    loader,
    one_thread,
    watched,
)
from grader.shared.probes.record import watch_products

_DISTANT_TARGET = 1e7
"""So far off that the loss is large and finite, but not, in float16, the gradient of that output."""


def train(student: Student, inputs: Train) -> TrainReply:
    """`train_with_amp` once per run; the model's weight is in three parameters of two children."""
    one_thread()
    module = student.module(AMP)
    return TrainReply(runs=[_train(student, module, inputs, run) for run in inputs.runs])


def _train(student: Student, module: ModuleType, inputs: Train, run: Run) -> RunReport:
    dtype = torch.float64 if run.in_float64 else torch.float32
    samples = sum(run.sizes)
    parts = batches(
        inputs.inputs[:samples].to(dtype, copy=True), inputs.targets[:samples].to(dtype, copy=True), run.sizes
    )
    for position in run.overflows_in_forward:
        parts[position][0].fill_(OVERFLOWING_INPUT)
    for position in run.overflows_in_backward:
        parts[position][1][:, -1] = _DISTANT_TARGET
    upper, *lower = inputs.weight.tensor_split(3)
    head, rows = linear(upper, dtype), Rows(torch.cat(lower), dtype=dtype, parts=2)
    model, seen = watched(rows, nn.Identity(), head)
    if not run.device_given:
        model.to(student.device)
    groups = [{"params": list(head.parameters())}, {"params": list(rows.parts.parameters())}]
    optimizer = torch.optim.SGD(groups, lr=run.rate, momentum=run.momentum)
    decay = run.decay
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: decay**step) if decay else None
    scaler = None if run.scaler is None else torch.amp.GradScaler(student.device, **run.scaler)

    def criterion(outputs: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = run.loss_factor * 0.5 * (outputs - targets).square().sum(dim=1).mean()
        return loss

    options = {
        "device": student.device if run.device_given else None,
        "scheduler": scheduler,
        "scaler": scaler,
        "max_grad_norm": run.max_grad_norm,
        "accumulation_steps": run.accumulation_steps,
    }
    with watch_products(student.gpu) as products:
        result = module.train_with_amp(
            model,
            loader(parts) if run.loader else parts,
            run.epochs,
            optimizer=optimizer,
            criterion=criterion,
            **in_dtype(run.dtype),
            **{name: value for name, value in options.items() if value is not None},
        )
        ran = products.counts()
    return RunReport(
        result=amp_result(result),
        before=[note.parameters for note in seen().forwards if note.gradients],
        after=flat(model),
        largest_gradients=[note.largest for note in seen().backwards],
        passes=seen().passes,
        frozen=[float(value) for value in rows.frozen.tolist()],
        scheduler_steps=scheduler.last_epoch if scheduler is not None else None,
        products=ran,
    )


def steps(student: Student, inputs: Steps) -> StepsReply:
    """`train_with_amp` of a classifier whose weight is in three parameters."""
    one_thread()
    parts = batches(inputs.inputs.clone(), inputs.labels, inputs.sizes)
    for position in inputs.overflows_in_forward:
        parts[position][0].fill_(OVERFLOWING_INPUT)
    rows = Rows(inputs.weight)
    model, seen = watched(rows, nn.Identity())
    model.to(student.device)
    with watch_products(student.gpu) as products:
        result = student.module(AMP).train_with_amp(model, parts, inputs.epochs)
        ran = products.dtypes()
    return StepsReply(
        result=amp_result(result),
        before=[note.parameters for note in seen().forwards if note.gradients],
        after=flat(model),
        frozen=[float(value) for value in rows.frozen.tolist()],
        products=ran,
    )
