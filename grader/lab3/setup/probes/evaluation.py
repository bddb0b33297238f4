"""Probe of Lab 3's `evaluate`: which samples passed each rank's model, and what the call returned.

Runs in every rank.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from gradebox.sandbox.probe_loader import Student
from grader.lab3.setup.cases.evaluation import Evaluate, Evaluated, EvaluateReply, Evaluation, EvaluationReply
from grader.lab3.shared.cases.modules import DDP
from grader.shared.probes.facts import has_graph, is_training, modules_of
from grader.shared.probes.kept import Noted, method, notes
from grader.shared.probes.ranks import Indexed, group
from grader.shared.probes.support import plain

_kept: list[object] = []
"""A DistributedDataParallel that dies after its process group hangs now and then: what may hold one lives on here."""


class _Constant(nn.Module):
    """A classifier that says what its inputs say; with a buffer, as batch norm has, and dropout.

    The first number of each input is the sample's. Of the samples that are `turned` on this rank it says the next
    class, so that nobody but this rank knows how many it gets right here.
    """

    def __init__(self, classes: int, turned: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(classes, classes, bias=False)
        self.linear.weight.data = torch.eye(classes)
        self.dropout = nn.Dropout(0.9)
        self.register_buffer("batches", torch.zeros(1))
        self.turned = turned  # no buffer: those are made equal


def _noting(classes: int, turned: Tensor, note: Callable[[tuple[bool, tuple[int, ...]]], None]) -> _Constant:
    """A classifier that notes its forward passes; nothing that it holds leads to the notes."""

    def noting(model: _Constant, x: Tensor) -> Tensor:
        numbers = x[:, 0].round().long()
        quiet = not any(is_training(module) for module in modules_of(model))
        inner = functional.dropout(x[:, 1:], model.dropout.p, model.dropout.training)
        # Not by calling the layers, whose hooks could return something without a graph.
        output = functional.linear(inner, model.linear.weight)
        note((quiet and not has_graph(output), tuple(numbers.tolist())))
        return torch.where(model.turned[numbers].unsqueeze(1), output.roll(1, dims=1), output)

    class Noting(_Constant):
        forward = method(noting)

    return Noting(classes, turned)


def evaluate(student: Student, inputs: Evaluate) -> EvaluateReply:
    """`evaluate` by all ranks with a replicated and with a plain model, and by this rank alone, of each case's samples;
    then of none.

    Before, the replicated model is in training mode except for one of its parts, the plain one the other way round.
    Every other call alone names the device that its model is on.
    """
    torch.set_num_threads(1)
    module = student.module(DDP)
    with group(student):
        together = [_together(student, module, case) for case in inputs.cases]
    alone = [
        _alone(student, module, case, inputs.kind, device_given=bool(index % 2))
        for index, case in enumerate(inputs.cases)
    ]
    model = _noting(2, torch.zeros(1).bool(), notes()[0])
    try:
        module.evaluate(model, Indexed(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)), batch_size=2)
    except Exception as error:
        refused = isinstance(error, ValueError)
    else:
        refused = False
    cases = [EvaluationReply(together=ours, alone=own) for ours, own in zip(together, alone, strict=True)]
    return EvaluateReply(cases=cases, refused=refused)


def _together(student: Student, module: ModuleType, case: Evaluation) -> list[Evaluated]:
    model, noted = _constant(student, case, "cpu")
    replica = DistributedDataParallel(model)
    replies = [
        _evaluated(module, case, replica, model, noted, training=True),
        _evaluated(module, case, model, model, noted, training=False),
    ]
    _kept.append(replica)
    return replies


def _alone(student: Student, module: ModuleType, case: Evaluation, kind: str, *, device_given: bool) -> Evaluated:
    model, noted = _constant(student, case, kind)
    options: dict[str, object] = {"device": model.turned.device} if device_given else {}
    return _evaluated(module, case, model, model, noted, training=True, **options)


def _constant(student: Student, case: Evaluation, kind: str) -> tuple[_Constant, Callable[[], list[Noted]]]:
    """The model, and what it notes of its forward passes."""
    note, noted = notes()
    return _noting(case.logits.shape[1], case.turned[student.rank].bool().to(kind), note).to(kind), noted


def _evaluated(
    module: ModuleType,
    case: Evaluation,
    model: nn.Module,
    inner: _Constant,
    noted: Callable[[], list[Noted]],
    *,
    training: bool,
    **options: object,
) -> Evaluated:
    """One call of `evaluate` with a model that is, or replicates, the `inner` one."""
    numbers = torch.arange(len(case.logits), dtype=case.logits.dtype).unsqueeze(1)
    dataset = Indexed(torch.cat([numbers, case.logits], dim=1), case.targets)
    model.train(training)
    inner.dropout.train(not training)
    modes = [is_training(part) for part in modules_of(model)]
    before = len(noted())
    share = plain(module.evaluate(model, dataset, batch_size=case.batch_size, **options), "evaluate()")
    batches = noted()[before:]
    return Evaluated(
        share=share,
        samples=[number for _, batch in batches for number in batch],
        batches=[len(batch) for _, batch in batches],
        quiet=all(quiet for quiet, _ in batches),
        modes_kept=[is_training(part) for part in modules_of(model)] == modes,
    )
