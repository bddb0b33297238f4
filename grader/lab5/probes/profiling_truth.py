"""The truth about the jobs of Lab 5's profiling, made and timed by ourselves: no other probe imports this.

Everything here runs on a virtual GPU with shapes only; times are simulated.
"""

from __future__ import annotations

from typing import Any

import torch

from grader.lab5.probes.jobs import job_of

_UNRECORDED = 3
"""Steps before the recorded ones: the docstring's WAIT and WARMUP."""


def planted_truth(student: Any, *, job: dict[str, Any], steps: int) -> dict[str, Any]:
    """The same steps made by ourselves: intervals of what the device and the host did, in seconds."""
    made = job_of(**job)
    batches = made.batches()
    regions: dict[str, list[list[float]]] = {"data": [], "transfer": []}
    start = 0.0
    for step in range(_UNRECORDED + steps):
        if step == _UNRECORDED:
            torch.cuda.synchronize()
            start = student.gpu.now()
        moments = [student.gpu.now()]
        inputs, targets = next(batches)
        moments.append(student.gpu.now())
        inputs, targets = inputs.cuda(), targets.cuda()
        moments.append(student.gpu.now())
        regions["data"].append(moments[:2])
        regions["transfer"].append(moments[1:])
        made.optimizer.zero_grad()
        loss = made.criterion(made.model(inputs), targets)
        loss.backward()
        made.optimizer.step()
        if made.after_step is not None:
            made.after_step(step, made.model, loss)
    torch.cuda.synchronize()
    spans: dict[str, list[list[float]]] = {"kernels": [], "copies_in": [], "copies_out": []}
    for kernel in student.gpu.timeline:
        into = "HtoD" in kernel.name, "DtoH" in kernel.name
        name = "copies_in" if into[0] else "copies_out" if into[1] else "kernels"
        spans[name].append([kernel.start, kernel.end])
    waits = [[s.start, s.end] for s in student.gpu.clock.spans if s.kind == "wait" and s.name.startswith("cuda")]
    return {"start": start, "stop": student.gpu.now(), **spans, "waits": waits, "regions": regions}
