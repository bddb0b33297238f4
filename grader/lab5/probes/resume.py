"""Probes of Lab 5's checkpoints: what a run in two parts ends with, and what a kill or a full disk leaves.

Runs in each rank.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradebox.sandbox.student import WrongReturn
from grader.lab5.probes.pipeline import Case, base_of, ranks_of
from grader.shared.probes.kept import nap
from grader.shared.probes.support import fields, instance, plain
from labkit.device import open_device
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


def ended(trainer: Any) -> dict[str, Any]:
    """Everything that two equal runs have in common in the end, and what the process would draw next."""
    return {
        "weight": trainer.model.whole().double(),
        "model": _fingerprint(trainer.model.state_dict()),
        "optimizer": _fingerprint(trainer.optimizer.state_dict()),
        "scheduler": float(trainer.optimizer.param_groups[0]["lr"]).hex(),
        "scale": float(trainer.scaler.get_scale()) if trainer.scaler.is_enabled() else None,
        "steps": plain(trainer.steps, "ProductionTrainer.steps"),
        "random": _generators(trainer.device),
        "seen": [list(batch) for batch in trainer.model.seen],
    }


def _generators(device: Any) -> dict[str, str]:
    """Where the generators are, by name; equal where they would draw the same."""
    found = {
        "torch": _fingerprint(torch.get_rng_state()),
        "numpy": _fingerprint([part.tolist() if isinstance(part, np.ndarray) else part for part in _of_numpy()]),
        "python": _fingerprint(random.getstate()),
    }
    if torch.device(device).type == "cuda":
        found["cuda"] = _fingerprint(torch.cuda.get_rng_state())
    return found


def _of_numpy() -> Any:
    return np.random.get_state(legacy=True)


def seed(number: int) -> None:
    """Generators that lie somewhere, two of them with half of a pair of normal numbers still to give."""
    random.seed(number)
    random.gauss(0, 1)
    np.random.seed(number)
    np.random.standard_normal()


def disturb() -> None:
    """What another process would begin with: other random numbers."""
    torch.manual_seed(99)
    seed(99)
    random.random()
    torch.rand(7)


@contextlib.contextmanager
def slow_names(seconds: float, then: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Files get their names late; `then` is called when one has got its name."""
    real = os.replace, os.rename
    wait = nap(seconds)

    def late(rename: Callable[..., None]) -> Callable[..., None]:
        def call(*given: Any, **named: Any) -> None:
            wait()
            rename(*given, **named)
            then()

        return call

    os.replace, os.rename = late(real[0]), late(real[1])
    try:
        yield
    finally:
        os.replace, os.rename = real


def _refusal(call: Callable[[], Any]) -> str:
    """Of which kind the error was; "" where there was none."""
    try:
        call()
    except NotImplementedError:
        raise
    except Exception as error:
        kinds = (OSError, ValueError, RuntimeError)
        return next((kind.__name__ for kind in kinds if isinstance(error, kind)), type(error).__name__)
    return ""


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
    middle: bool = False,
) -> dict[str, Any]:
    """All epochs in one run; and `stop` of them, saved, then the others by a new trainer with other weights.

    `drawn` is where the generators are before saving, after it, and after loading. In the `middle`: what is loaded is
    the checkpoint that `train_epoch` has saved after the first step of the epoch after these; where the generators were
    then, nobody has seen.
    """
    torch.set_num_threads(1)
    low = dtype != "float32"
    device = student.device if low else "cpu"
    case = Case(weight, inputs, targets, batch_size, {**config, "dtype": dtype}, dropout=0.5, low=low)
    folder = base_of(student) / "resumed"
    with ranks_of(student):
        whole = case.make(student, base_of(student) / "whole", device=device)
        _halve_scale(whole)
        seed(1)
        results = [fields(whole.train_epoch(epoch), EpochResult, "train_epoch()") for epoch in range(config["epochs"])]
        expected = ended(whole)
        every = sum(int(result["optimizer_steps"]) for result in results[:stop]) + 1
        saving = {**case.config, "save_every_steps": every} if middle else case.config
        first = replace(case, config=saving).make(student, folder, device=device)
        _halve_scale(first)
        seed(1)
        for epoch in range(stop + middle):
            first.train_epoch(epoch)
        drawn = [_generators(device)]
        with slow_names(0.4):
            path = Path(first.save_checkpoint(stop + middle - 1))
            complete = path.is_file()
        drawn.append(_generators(device))
        if middle:
            path = folder / "checkpoints" / f"step-{every:08d}.pt"
        if middle and not path.is_file():
            raise WrongReturn(
                f"train_epoch() with save_every_steps={every} left no {path.name} in checkpoints: {names(path.parent)}"
            )
        disturb()
        second = case.make(student, folder, device=device, start=0.5)
        disturb()
        begin = plain(second.load_checkpoint(path), "load_checkpoint()")
        drawn.append({} if middle else _generators(device))
        rest = range(stop, config["epochs"])
        resumed = [fields(second.train_epoch(epoch), EpochResult, "train_epoch()") for epoch in rest]
        seen = ended(second)
        refused: dict[str, str] = {}
        if student.ranks == 1:
            others = {
                "a model of another shape": replace(case, weight=weight[:, 1:], inputs=inputs[:, 1:]),
                "a loader with other batches": replace(case, batch_size=batch_size + 1),
            }
            for name, other in others.items():
                trainer = other.make(student, folder, device=device)
                refused[name] = _refusal(partial(trainer.load_checkpoint, path))
            refused["no such file"] = _refusal(lambda: trainer.load_checkpoint(folder / "step-99999999.pt"))
    if student.ranks > 1:
        alone = case.make(student, folder, device=device)
        refused["a run on more ranks"] = _refusal(partial(alone.load_checkpoint, path))
    return {
        "expected": expected,
        "complete": complete,
        "seen": seen,
        "begin": begin,
        "results": results,
        "resumed": resumed,
        "drawn": drawn,
        "refused": refused,
    }


def _halve_scale(trainer: Any) -> None:
    """As if a step had overflowed before: what a checkpoint holds is not what a new trainer begins with."""
    if trainer.scaler.is_enabled():
        state = trainer.scaler.state_dict()
        trainer.scaler.load_state_dict({**state, "scale": state["scale"] / 2})


def moved(student: Any) -> dict[str, Any]:
    """The generators captured where there is a GPU, and restored where there is none; and the other way round."""
    module = student.module(CHECKPOINTS)
    with open_device("vgpu:T4"):
        with_gpu = module.capture_random_state()
    without_gpu = module.capture_random_state()
    before = _generators("cpu")
    disturb()
    refused = [_refusal(lambda: module.restore_random_state(with_gpu))]
    disturb()
    with open_device("vgpu:T4"):
        refused.append(_refusal(lambda: module.restore_random_state(without_gpu)))
    return {"refused": refused, "kept": _generators("cpu") == before}


def early(
    student: Any,
    *,
    weight: Tensor,
    inputs: Tensor,
    targets: Tensor,
    config: Mapping[str, Any],
    cases: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """`fit` whose validation `losses` are given, with a `patience`; then a new trainer's `fit` on the same folder.

    A loss of None is not a number. `best` is the epoch in best.pt, and how far its parameters are from those that were
    validated in that epoch; None where there is no such file.
    """
    torch.set_num_threads(1)
    runs = []
    for number, each in enumerate(cases):
        own = {**config, "epochs": len(each["losses"]), "patience": each["patience"]}
        case = Case(weight, inputs, targets, 8, own)
        pair = []
        weights: list[Tensor] = []
        for start in (1.0, 0.5):
            trainer = case.make(student, Path(f"early-{number}"), start=start)
            given = iter(each["losses"])

            def validate(given: Any = given, trainer: Any = trainer, weights: list[Tensor] = weights) -> Any:
                weights.append(trainer.model.whole())
                loss = next(given)
                return ValidationResult(loss=math.nan if loss is None else loss, accuracy=None, samples=8)

            trainer.validate = validate
            run = instance(trainer.fit(), TrainerRun, "fit()")
            pair.append(
                {
                    "ended": plain(run.ended, "TrainerRun.ended"),
                    "epochs": len(run.epochs),
                    "best_epoch": plain(run.best_epoch, "TrainerRun.best_epoch"),
                    "batches": len(trainer.model.seen),
                    "best": _best(Path(f"early-{number}", "best.pt"), weights),
                }
            )
        runs.append(pair)
    return {"runs": runs}


def _best(path: Path, weights: Sequence[Tensor]) -> list[Any] | None:
    if not path.exists():
        return None
    state = torch.load(path, map_location="cpu", weights_only=True)
    try:
        found, epoch = state["model"], plain(state["epoch"], "epoch in best.pt")
        weight = torch.cat([found["linear.weight"], found["linear.bias"].unsqueeze(1)], dim=1)
    except (LookupError, TypeError, AttributeError) as error:
        raise WrongReturn(f"best.pt holds no model's state and epoch: {error!r}") from error
    if not isinstance(epoch, int) or not 0 <= epoch < len(weights):
        return [epoch, None]
    return [epoch, float((weight - weights[epoch]).abs().max())]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
