"""Probes of Lab 5's checkpoints: what a run in two parts ends with, and what a kill or a full disk leaves.

Runs in each rank.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grader.lab5.probes.pipeline import KEPT, Case, base_of, ranks_of
from grader.shared.probes.ranks import disk_full_after
from grader.shared.probes.support import fields, plain
from labkit.results import EpochResult, TrainerRun, ValidationResult

CHECKPOINTS = "lab5_production.checkpoints"


def _fingerprint(value: Any) -> str:
    """Of a state dictionary: equal bits, equal text."""
    digest = hashlib.sha256()

    def take(item: Any) -> None:
        if isinstance(item, Tensor):
            content = item.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            digest.update(str(item.dtype).encode() + content)
        elif isinstance(item, Mapping):
            for key in sorted(item, key=str):
                digest.update(str(key).encode())
                take(item[key])
        elif isinstance(item, (list, tuple)):
            digest.update(b"[")
            for each in item:
                take(each)
        elif not callable(item):
            digest.update(repr(item).encode())

    take(value)
    return digest.hexdigest()[:16]


def _ended(trainer: Any) -> dict[str, Any]:
    """Everything that two equal runs have in common in the end, and what the process would draw next."""
    return {
        "weight": trainer.model.linear.weight.detach().cpu().double().clone(),
        "model": _fingerprint(trainer.model.state_dict()),
        "optimizer": _fingerprint(trainer.optimizer.state_dict()),
        "scheduler": float(trainer.optimizer.param_groups[0]["lr"]).hex(),
        "scale": float(trainer.scaler.get_scale()) if trainer.scaler.is_enabled() else None,
        "steps": plain(trainer.steps, "ProductionTrainer.steps"),
        "random": [torch.rand(1).item(), random.random()],
        "seen": [list(batch) for batch in trainer.model.seen],
    }


def _disturb() -> None:
    """What another process would begin with: other random numbers."""
    torch.manual_seed(99)
    random.seed(99)
    torch.rand(7)


def resume(
    student: Any,
    *,
    weight: Tensor,
    inputs: Tensor,
    targets: Tensor,
    batch_size: int,
    config: Mapping[str, Any],
    stop: int,
    dtype: str = "float32",
) -> dict[str, Any]:
    """All epochs in one run; and `stop` of them, saved, then the others by a new trainer with other weights."""
    torch.set_num_threads(1)
    low = dtype != "float32"
    device = student.device if low else "cpu"
    case = Case(weight, inputs, targets, batch_size, {**config, "dtype": dtype}, dropout=0.5, low=low)
    folder = base_of(student) / "resumed"
    with ranks_of(student):
        whole = case.make(student, base_of(student) / "whole", device=device)
        random.seed(1)
        results = [fields(whole.train_epoch(epoch), EpochResult, "train_epoch()") for epoch in range(config["epochs"])]
        expected = _ended(whole)
        first = case.make(student, folder, device=device)
        random.seed(1)
        for epoch in range(stop):
            first.train_epoch(epoch)
        path = first.save_checkpoint(stop - 1)
        _disturb()
        second = case.make(student, folder, device=device, start=0.5)
        _disturb()
        begin = plain(second.load_checkpoint(path), "load_checkpoint()")
        rest = range(stop, config["epochs"])
        resumed = [fields(second.train_epoch(epoch), EpochResult, "train_epoch()") for epoch in rest]
        seen = _ended(second)
    return {"expected": expected, "seen": seen, "begin": begin, "results": results, "resumed": resumed}


def terminated(
    student: Any,
    *,
    weight: Tensor,
    inputs: Tensor,
    targets: Tensor,
    batch_size: int,
    config: Mapping[str, Any],
    at: int,
    signalled: int = 0,
) -> dict[str, Any]:
    """`fit` to the end; and `fit` that SIGTERM stops (it comes to rank `signalled`), then a new trainer's `fit`."""
    torch.set_num_threads(1)
    case = Case(weight, inputs, targets, batch_size, config, dropout=0.5)
    base = base_of(student)
    with ranks_of(student):
        whole = case.make(student, base / "whole")
        random.seed(1)
        uninterrupted = fields(whole.fit(), TrainerRun, "fit()")
        expected = _ended(whole)
        received: list[int] = []
        before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
        try:
            first = case.make(student, base / "killed", at=at if student.rank == signalled else None)
            random.seed(1)
            stopped = fields(first.fit(), TrainerRun, "fit()")
        finally:
            signal.signal(signal.SIGTERM, before)
        _disturb()
        second = case.make(student, base / "killed", start=0.5)
        _disturb()
        again = fields(second.fit(), TrainerRun, "fit()")
        seen = _ended(second)
    return {
        "uninterrupted": uninterrupted,
        "stopped": stopped,
        "again": again,
        "expected": expected,
        "seen": seen,
        "before": len(first.model.seen),
        "received": len(received),
    }


def early(
    student: Any,
    *,
    weight: Tensor,
    inputs: Tensor,
    targets: Tensor,
    config: Mapping[str, Any],
    cases: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """`fit` whose validation `losses` are given, with a `patience`; then a new trainer's `fit` on the same folder."""
    torch.set_num_threads(1)
    runs = []
    for number, each in enumerate(cases):
        own = {**config, "epochs": len(each["losses"]), "patience": each["patience"]}
        case = Case(weight, inputs, targets, 8, own)
        pair = []
        for start in (1.0, 0.5):
            trainer = case.make(student, Path(f"early-{number}"), start=start)
            given = iter(each["losses"])
            trainer.validate = lambda given=given: ValidationResult(loss=next(given), accuracy=None, samples=8)
            run = fields(trainer.fit(), TrainerRun, "fit()")
            pair.append({"run": run, "batches": len(trainer.model.seen)})
        runs.append(pair)
    return {"runs": runs}


def saving(student: Any, *, steps: Sequence[int], killed: int, later: int) -> dict[str, Any]:
    """Save at `steps`; be killed while saving; save `later`, also where the disk is full; look for the newest.

    Files are looked at by loading them; the rest of a folder by name.
    """
    torch.set_num_threads(1)
    module = student.module(CHECKPOINTS)
    folder = Path("saved", "checkpoints")
    payload = {"numbers": torch.arange(20_000, dtype=torch.float64)}
    none = plain(_name(module.latest_checkpoint(folder)), "latest_checkpoint()")
    synced: list[str] = []
    real_fsync, real_replace, real_rename = os.fsync, os.replace, os.rename

    def fsync(fd: Any) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()
        synced.append("folder" if os.path.isdir(f"/proc/self/fd/{number}") else "file")
        real_fsync(number)

    def replace(*given: Any, **named: Any) -> None:
        synced.append("name")
        real_replace(*given, **named)

    for step in steps:
        module.write_checkpoint(module.checkpoint_path(folder, step), {**payload, "steps": step}, keep=2)
    kept = _names(folder)
    was_killed = _killed_while_writing(module, module.checkpoint_path(folder, killed), {**payload, "steps": killed})
    after_kill = plain(_name(module.latest_checkpoint(folder)), "latest_checkpoint()")
    os.fsync, os.replace, os.rename = fsync, replace, replace
    try:
        module.write_checkpoint(module.checkpoint_path(folder, later), {**payload, "steps": later}, keep=2)
    finally:
        os.fsync, os.replace, os.rename = real_fsync, real_replace, real_rename
    cleaned = _names(folder)
    failed = False
    with disk_full_after(60_000):
        try:
            module.write_checkpoint(module.checkpoint_path(folder, later), {**payload, "steps": later + 1}, keep=2)
        except Exception as error:
            KEPT.append(error)
            failed = True
    after_failure = _names(folder)
    newest = module.latest_checkpoint(folder)
    read = plain(module.read_checkpoint(newest)["steps"], "read_checkpoint()") if newest else None
    # A disk that lied: the newest is cut in two. Times of files say the opposite of their numbers.
    bad = module.checkpoint_path(folder, 2 * later)
    torch.save({**payload, "steps": 2 * later}, bad)
    os.truncate(bad, 40_000)
    if (touched := module.checkpoint_path(folder, steps[-1])).exists():
        os.utime(touched, (4e9, 4e9))
    older = plain(_name(module.latest_checkpoint(folder)), "latest_checkpoint()")
    return {
        "none": none,
        "kept": kept,
        "killed": was_killed,
        "after_kill": after_kill,
        "cleaned": cleaned,
        "synced": synced,
        "failed": failed,
        "after_failure": after_failure,
        "newest": plain(_name(newest), "latest_checkpoint()"),
        "steps": read,
        "older": older,
    }


def _killed_while_writing(module: Any, path: Path, state: dict[str, Any]) -> bool:
    """Write in another process, which is killed when it forces something to the disk or renames it; whether it was."""
    child = os.fork()
    if child == 0:
        for name in ("fsync", "fdatasync", "sync", "replace", "rename", "renames", "link"):
            setattr(os, name, lambda *given, **named: os.kill(os.getpid(), signal.SIGKILL))
        try:
            module.write_checkpoint(path, state, keep=2)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _name(path: Any) -> str | None:
    return None if path is None else Path(path).name
