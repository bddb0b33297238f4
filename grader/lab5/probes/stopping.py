"""Probes of Lab 5's trainer that is told to stop: wherever SIGTERM comes, and how often, and who goes on afterwards.

Runs in each rank.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grader.lab5.probes.counting import Tagger
from grader.lab5.probes.pipeline import CONFIG, KEPT, TRAINER, Case, Signalling, base_of, ranks_of
from grader.lab5.probes.resume import disturb, ended, names, seed
from grader.shared.probes.ranks import Indexed
from grader.shared.probes.support import fields, plain
from labkit.loader import ResumableLoader
from labkit.results import TrainerRun


def terminated(
    student: Any,
    *,
    weight: Tensor,
    inputs: Tensor,
    targets: Tensor,
    batch_size: int,
    config: Mapping[str, Any],
    places: Mapping[str, Mapping[str, Sequence[int]]],
    signalled: int,
    again: Sequence[int],
    sequences: Mapping[str, Any],
    between: int,
) -> dict[str, Any]:
    """`fit` to the end; and `fit` that SIGTERM stops at each of the `places`, then a new trainer's `fit`.

    A place says with which samples SIGTERM comes to rank `signalled`, those trained (`at`) or validated (`validating`).
    Then one trainer's `fit`, time after time: with the samples `again` SIGTERM comes twice, and to every rank. Last a
    `fit` over `sequences` (as `counting.tokens` gets them), where SIGTERM comes with the sample number `between`.
    """
    torch.set_num_threads(1)
    case = Case(weight, inputs, targets, batch_size, config, dropout=0.5)
    base = base_of(student)
    with ranks_of(student):
        whole = case.make(student, base / "whole")
        validate, saved_before = whole.validate, []

        def noting() -> Any:
            own = f"step-{plain(whole.steps, 'ProductionTrainer.steps'):08d}.pt"
            saved_before.append(own in names(base / "whole" / "checkpoints"))
            return validate()

        whole.validate = noting
        seed(1)
        uninterrupted = fields(whole.fit(), TrainerRun, "fit()")
        seen: dict[str, Any] = {"expected": ended(whole)}
        for number, (name, place) in enumerate(places.items()):
            own = place if student.rank == signalled else {}
            seen[name] = _killed(student, case, base / f"killed-{number}", own)
            seen[f"{name}_seen"] = seen[name].pop("seen")
        trainer = case.make(student, base / "again", at=again, times=2)
        seed(1)
        runs, received = _fits(trainer, len(again) + 1)
        seen["again"] = {"runs": runs, "received": received}
        seen["again_seen"] = ended(trainer)
        at = [between] if student.rank == signalled else []
        seen["between"] = _between(student, base / "between", at, **sequences)
    files = names(base / "whole" / "checkpoints")
    return {"uninterrupted": uninterrupted, "files": files, "saved_before": saved_before, **seen}


def _fits(trainer: Any, times: int) -> tuple[list[dict[str, Any]], int]:
    """What so many calls of `fit` returned, and how often SIGTERM went past them."""
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        runs = [fields(trainer.fit(), TrainerRun, "fit()") for _ in range(times)]
    finally:
        signal.signal(signal.SIGTERM, before)
    return runs, len(received)


def _killed(student: Any, case: Case, folder: Path, when: Mapping[str, Any]) -> dict[str, Any]:
    """A `fit` that SIGTERM stops, then a new trainer's."""
    first = case.make(student, folder, **when)
    seed(1)
    (stopped,), received = _fits(first, 1)
    disturb()
    second = case.make(student, folder, start=0.5)
    disturb()
    again = fields(second.fit(), TrainerRun, "fit()")
    return {
        "stopped": stopped,
        "again": again,
        "seen": ended(second),
        "before": len(first.model.seen),
        "received": received,
    }


def _between(
    student: Any,
    folder: Path,
    at: Collection[int],
    *,
    weight: Tensor,
    inputs: Tensor,
    targets: Tensor,
    batch_size: int,
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """`fit` over sequences to the end; then one that SIGTERM stops, and a new trainer's."""

    def make(name: str, at: Collection[int] = ()) -> Any:
        settings = student.module(CONFIG).TrainerConfig(output_dir=str(folder / name), **config)
        dataset = Indexed(inputs.double(), targets)
        train = ResumableLoader(Signalling(dataset, at=at), batch_size, shuffle=False)
        val = ResumableLoader(dataset, batch_size, shuffle=False, padded=False)
        trainer = student.module(TRAINER).ProductionTrainer(Tagger(weight), train, val, settings)
        KEPT.append(trainer)
        return trainer

    whole = make("whole")
    uninterrupted = fields(whole.fit(), TrainerRun, "fit()")
    (stopped,), received = _fits(make("stopped", at), 1)
    files = names(folder / "stopped" / "checkpoints")
    second = make("stopped")
    again = fields(second.fit(), TrainerRun, "fit()")
    return {
        "uninterrupted": uninterrupted,
        "stopped": stopped,
        "received": received,
        "files": files,
        "again": again,
        "weights": [trainer.model.linear.weight.detach().clone() for trainer in (whole, second)],
    }
