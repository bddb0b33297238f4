"""Probes of Lab 5's trainer. They run in each rank, next to the student's code.

They look only at things that any trainer must do: batches that pass the model, learning rates at optimizer steps,
parameters and states in the end, files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import optimizer as optimizers
from torch.utils.data import Dataset

from gradebox.sandbox.probe_loader import WrongReturn
from grader.shared.probes.collectives import Collectives
from grader.shared.probes.endings import ending
from grader.shared.probes.kept import nap
from grader.shared.probes.ranks import Indexed, group, numbered
from grader.shared.probes.support import fields, instance, plain
from labkit.loader import ResumableLoader
from labkit.results import EpochResult, TrainerRun, ValidationResult

CONFIG, TRAINER = "lab5_production.config", "lab5_production.trainer"
KEPT: list[object] = []
"""A DistributedDataParallel that dies after its process group hangs now and then: trainers live on here."""


class Model(nn.Module):
    """A linear classifier with dropout, a bias and a frozen gain of 1; the first number of each input is only noted.

    The last column of `weight` is the bias.
    """

    def __init__(self, weight: Tensor, *, dropout: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear = nn.Linear(weight.shape[1] - 1, weight.shape[0], dtype=dtype)
        self.linear.weight.data = weight[:, :-1].to(dtype).clone()
        self.linear.bias.data = weight[:, -1].to(dtype).clone()
        self.gain = nn.Parameter(torch.ones(weight.shape[1] - 1, dtype=dtype), requires_grad=False)
        self.dropout = dropout
        self.seen: list[list[int]] = []
        self.validated: list[int] = []
        self.products: dict[bool, set[str]] = {True: set(), False: set()}
        """Dtypes of the products, in training mode and in evaluation mode."""

    def forward(self, x: Tensor) -> Tensor:
        numbers = [round(number) for number in x[:, 0].tolist()]
        if self.training:
            self.seen.append(numbers)
        else:
            self.validated += numbers
        dropped = functional.dropout(x[:, 1:].to(self.linear.weight.dtype), self.dropout, self.training)
        output: Tensor = self.linear(dropped * self.gain)
        self.products[self.training].add(str(output.dtype).removeprefix("torch."))
        return output

    def whole(self) -> Tensor:
        """Weight and bias, as they were given."""
        return torch.cat([self.linear.weight, self.linear.bias.unsqueeze(1)], dim=1).detach().cpu().clone()


class Signalling(Dataset[tuple[Tensor, Tensor]]):
    """Samples by number; when the `at`-th ones are asked for, SIGTERM is sent to this process."""

    def __init__(self, inner: Indexed, at: Collection[int]) -> None:
        self.inner, self.at, self.asked = inner, at, 0

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.asked += 1
        if self.asked in self.at:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.inner[index]


def make(
    student: Any,
    folder: Path,
    *,
    weight: Tensor,
    inputs: Tensor,
    classes: Tensor,
    batch_size: int,
    config: Mapping[str, Any],
    device: str = "cpu",
    dropout: float = 0.0,
    start: float = 1.0,
    at: Collection[int] = (),
    monitor: Any = None,
) -> Any:
    """A trainer that writes below `folder`; its model begins with `start` times the weight.

    Parameters are float64, or float32 for a run in autocast. SIGTERM comes with the `at`-th samples.
    """
    dtype = torch.float64 if config.get("dtype", "float32") == "float32" else torch.float32
    settings = student.module(CONFIG).TrainerConfig(output_dir=str(folder), **config)
    model = Model(weight * start, dropout=dropout, dtype=dtype).to(device)
    dataset = Indexed(numbered(inputs).to(dtype), classes)
    train = ResumableLoader(Signalling(dataset, at), batch_size, seed=5)
    val = ResumableLoader(dataset, batch_size, shuffle=False, padded=False)
    more = {} if monitor is None else {"monitor": monitor}
    trainer = student.module(TRAINER).ProductionTrainer(model, train, val, settings, **more)
    KEPT.append(trainer)
    return trainer


@contextlib.contextmanager
def ranks_of(student: Any) -> Iterator[None]:
    with group(student) if student.ranks > 1 else contextlib.nullcontext():
        yield


def base_of(student: Any) -> Path:
    """A folder that all ranks share."""
    return Path(student.rendezvous.removeprefix("file://")).parent if student.ranks > 1 else Path.cwd()


def attribute(trainer: Any, name: str, kind: type) -> Any:
    """What a trainer must have."""
    return instance(getattr(trainer, name, None), kind, f"ProductionTrainer.{name}")


def steps_of(trainer: Any) -> Any:
    return plain(getattr(trainer, "steps", None), "ProductionTrainer.steps")


def rate_of(trainer: Any) -> float:
    """The learning rate of the next step."""
    return float(attribute(trainer, "optimizer", torch.optim.Optimizer).param_groups[0]["lr"])


def scale_of(trainer: Any) -> float | None:
    scaler = attribute(trainer, "scaler", torch.amp.GradScaler)
    return float(scaler.get_scale()) if scaler.is_enabled() else None


def epoch_of(trainer: Any, epoch: int) -> dict[str, Any]:
    result = fields(trainer.train_epoch(epoch), EpochResult, "train_epoch()")
    for name in ("samples", "optimizer_steps", "skipped_steps"):
        if type(result[name]) is not int:
            raise WrongReturn(f"train_epoch() returned EpochResult.{name} = {result[name]!r}, expected a whole number")
    return result


def try_parts(trainer: Any) -> None:
    """Call the trainer's own parts by themselves, so that what does not fit is called by its name."""
    batch = next(iter(trainer.train_loader))
    given = trainer.forward(trainer.model, *batch)
    if not (isinstance(given, tuple) and len(given) == 2 and all(isinstance(each, Tensor) for each in given)):
        raise WrongReturn(f"forward() returned a {type(given).__name__}, expected a tuple: logits and mean loss")
    if not isinstance(plain(trainer.train_window([batch]), "train_window()"), bool):
        raise WrongReturn("train_window() returned no bool, expected whether the step was taken")


class Sink:
    """Receives metrics, as a `GPUMonitor` does."""

    def __init__(self) -> None:
        self.logged: list[list[Any]] = []

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of one step."""
        self.logged.append([int(step), {str(name): float(value) for name, value in metrics.items()}])


@contextlib.contextmanager
def optimizer_steps(model: Any) -> Iterator[tuple[list[float], list[int]]]:
    """Of every optimizer step taken in the block: its learning rate, and the batch that passed the model last.

    A fused optimizer is called for a step that overflows, too, and leaves it out by itself: GradScaler gives it
    `found_inf`.
    """
    rates: list[float] = []
    batches: list[int] = []

    def note(optimizer: Any, given: Any, named: Any) -> None:
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            return
        rates.append(float(optimizer.param_groups[0]["lr"]))
        batches.append(len(model.seen) - 1)

    handle = optimizers.register_optimizer_step_pre_hook(note)
    try:
        yield rates, batches
    finally:
        handle.remove()


def epochs(student: Any, *, trainings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`train_epoch` for every epoch of each training, by a trainer of its own.

    Each epoch begins with the model in evaluation mode. Then, for the first training, other orders of epochs.
    """
    torch.set_num_threads(1)
    runs = []
    with ranks_of(student):
        try_parts(make(student, base_of(student) / "parts", **trainings[0]))
        for number, each in enumerate(trainings):
            trainer = make(student, base_of(student) / f"run-{number}", **each)
            model, results, modes = trainer.model, [], []
            with optimizer_steps(model) as (rates, _), Collectives() as reduced:
                for epoch in range(each["config"]["epochs"]):
                    model.eval()
                    results.append(epoch_of(trainer, epoch))
                    modes.append(model.training)
            runs.append(
                {
                    "results": results,
                    "seen": model.seen,
                    "validated": len(model.validated),
                    "modes": modes,
                    "rates": rates,
                    "steps": steps_of(trainer),
                    "weight": model.whole(),
                    "frozen": bool((model.gain == 1).all()),
                    "reduced_gradients": reduced.reduced_bytes / model.whole().nbytes,
                }
            )
        orders = {
            "epoch 1, and again": _order(student, trainings[0], None, (1, 1)),
            "the rest of epoch 0": _order(student, trainings[0], 0, (0,)),
            "epoch 1 in the middle of epoch 0": _order(student, trainings[0], 0, (1,)),
        }
    return {"runs": runs, "orders": orders}


def _order(student: Any, training: Mapping[str, Any], begun: int | None, epochs: Sequence[int]) -> Any:
    """The samples of each batch of these epochs, if the loader has handed out one batch of the epoch `begun` before."""
    trainer = make(student, base_of(student) / f"from {begun} to {epochs}", **training)
    if begun is not None:
        trainer.train_loader.set_epoch(begun)
        next(iter(trainer.train_loader))
    for epoch in epochs:
        trainer.train_epoch(epoch)
    return trainer.model.seen


def mixed(student: Any, *, training: Mapping[str, Any], growth: int) -> dict[str, Any]:
    """Epochs in float16 or bfloat16, a validation, and with which batches steps were taken.

    The loss scale grows after `growth` steps in a row that were taken.
    """
    torch.set_num_threads(1)
    sink = Sink()
    trainer = make(student, Path("mixed"), **training, device=student.device, monitor=sink)
    attribute(trainer, "scaler", torch.amp.GradScaler).set_growth_interval(growth)
    model = trainer.model
    with optimizer_steps(model) as (rates, batches):
        results = [epoch_of(trainer, epoch) for epoch in range(training["config"]["epochs"])]
    return {
        "results": results,
        "validation": fields(trainer.validate(), ValidationResult, "validate()"),
        "products": [sorted(model.products[mode]) for mode in (True, False)],
        "parameters": str(model.linear.weight.dtype).removeprefix("torch."),
        "seen": model.seen,
        "taken": batches,
        "rates": [*rates, rate_of(trainer)],
        "weight": model.whole(),
        "steps": steps_of(trainer),
        "scale": scale_of(trainer),
        "logged": sink.logged,
    }


class _Classifier(nn.Module):
    """Says what its inputs say, unless dropout is on; it counts outputs that hold a graph."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(classes, classes, bias=False, dtype=torch.float64)
        self.linear.weight.data = torch.eye(classes, dtype=torch.float64)
        self.dropout = nn.Dropout(0.9)
        self.graphs = 0

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.linear(self.dropout(x))
        self.graphs += output.requires_grad
        return output


def validate(
    student: Any, *, logits: Tensor, classes: Tensor, sizes: Sequence[Sequence[int]], epochs: int
) -> dict[str, Any]:
    """`validate` on batches of `sizes[rank]` samples, with the model in training and in evaluation mode.

    The ranks' samples come one after the other. In training mode one of the model's modules is in evaluation mode. One
    rank alone also has nothing to validate.
    """
    torch.set_num_threads(1)
    start, own = sum(map(sum, sizes[: student.rank])), list(sizes[student.rank])
    part = slice(start, start + sum(own))
    batches = list(zip(logits.double()[part].split(own), classes[part].split(own), strict=True)) if own else []
    with ranks_of(student):
        settings = student.module(CONFIG).TrainerConfig(output_dir=str(base_of(student) / "run"), epochs=epochs)
        model = _Classifier(logits.shape[1])
        train = ResumableLoader(Indexed(logits.double(), classes), 4)
        trainer = student.module(TRAINER).ProductionTrainer(model, train, batches, settings)
        KEPT.append(trainer)
        seen: dict[str, Any] = {}
        for name, training in (("training", True), ("evaluation", False)):
            model.train(training)
            model.linear.eval()
            before = [module.training for module in model.modules()]
            result = fields(trainer.validate(), ValidationResult, "validate()")
            seen[name] = {"result": result, "before": before, "modes": [each.training for each in model.modules()]}
        empty = ""
        if student.ranks == 1:
            nothing = student.module(TRAINER).ProductionTrainer(model, train, [], settings)
            empty = ending(nothing.validate)
    return {**seen, "graphs": model.graphs, "empty": empty}


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
        "seen": [list(batch) for batch in trainer.model.seen],
        "steps": steps_of(trainer),
        "rate": rate_of(trainer).hex(),
        "scale": scale_of(trainer),
        "weight": trainer.model.whole().double(),
        "optimizer": _fingerprint(attribute(trainer, "optimizer", torch.optim.Optimizer).state_dict()),
        "random": _generators(trainer.model.linear.weight.device),
    }


def _generators(device: torch.device) -> dict[str, str]:
    """Where the generators are, by name; equal where they would draw the same."""
    numpy_state: Any = np.random.get_state(legacy=True)
    found = {
        "PyTorch's": _fingerprint(torch.get_rng_state()),
        "NumPy's": _fingerprint([part.tolist() if isinstance(part, np.ndarray) else part for part in numpy_state]),
        "Python's": _fingerprint(random.getstate()),
    }
    if device.type == "cuda":
        found["the GPU's"] = _fingerprint(torch.cuda.get_rng_state())
    return found


def seed(number: int) -> None:
    """Generators that are somewhere, two of them with half of a pair of normal numbers still to give."""
    torch.manual_seed(number)
    random.seed(number)
    random.gauss(0, 1)
    np.random.seed(number)
    np.random.standard_normal()


@contextlib.contextmanager
def slow_names(seconds: float) -> Iterator[None]:
    """Files get their names late."""
    real, wait = os.replace, nap(seconds)

    def late(*given: Any, **named: Any) -> None:
        wait()
        real(*given, **named)

    os.replace = late
    try:
        yield
    finally:
        os.replace = real


def resume(student: Any, *, training: Mapping[str, Any], stop: int, middle: bool) -> dict[str, Any]:
    """All epochs in one run; and `stop` of them, saved, then the others by a new trainer with other weights.

    In the `middle`: what is loaded is the checkpoint that `train_epoch` saved after the first step of the next epoch.
    """
    torch.set_num_threads(1)
    low = training["config"].get("dtype", "float32") != "float32"
    options = {**training, "dropout": 0.5, "device": student.device if low else "cpu"}
    folder, total = base_of(student) / "resumed", training["config"]["epochs"]
    with ranks_of(student):
        whole = make(student, base_of(student) / "whole", **options)
        _halve_scale(whole)
        seed(1 + student.rank)
        results = [epoch_of(whole, epoch) for epoch in range(total)]
        expected = ended(whole)
        every = sum(int(result["optimizer_steps"]) for result in results[:stop]) + 1
        saving = {"save_every_steps": every} if middle else {}
        first = make(student, folder, **{**options, "config": {**options["config"], **saving}})
        _halve_scale(first)
        seed(1 + student.rank)
        for epoch in range(stop + middle):
            first.train_epoch(epoch)
        drawn = [_generators(first.model.linear.weight.device)]
        with slow_names(0.3):
            returned = first.save_checkpoint(stop + middle - 1)
        if not isinstance(returned, (str, Path)):
            raise WrongReturn(f"save_checkpoint() returned a {type(returned).__name__}, expected the path of the file")
        path = Path(returned)
        complete = path.is_file()
        drawn.append(_generators(first.model.linear.weight.device))
        if middle:
            path = folder / "checkpoints" / f"step-{every:08d}.pt"
            if not path.is_file():
                raise WrongReturn(
                    f"train_epoch() with save_every_steps={every} left no {path.name}: {names(path.parent)}"
                )
        second = make(student, folder, **options, start=0.5)
        seed(99)
        begin = plain(second.load_checkpoint(path), "load_checkpoint()")
        resumed = [epoch_of(second, epoch) for epoch in range(stop, total)]
        again = ended(second)
    refused = ""
    if student.ranks > 1:
        refused = ending(partial(make(student, folder, **options).load_checkpoint, path))
    return {
        "expected": expected,
        "complete": complete,
        "again": again,
        "begin": begin,
        "results": results,
        "resumed": resumed,
        "drawn": drawn,
        "refused": refused,
    }


def _halve_scale(trainer: Any) -> None:
    """As if a step had overflowed before: what a checkpoint holds is not what a new trainer begins with."""
    scaler = attribute(trainer, "scaler", torch.amp.GradScaler)
    if scaler.is_enabled():
        state = scaler.state_dict()
        scaler.load_state_dict({**state, "scale": state["scale"] / 2})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def stopped(student: Any, *, training: Mapping[str, Any], places: Mapping[str, int], signalled: int) -> dict[str, Any]:
    """`fit` to the end; and for each place a `fit` that SIGTERM stops, then a new trainer's `fit`.

    A place is the number of the sample with which SIGTERM comes to rank `signalled`.
    """
    torch.set_num_threads(1)
    options = {**training, "dropout": 0.5}
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        with ranks_of(student):
            whole, saved_before = make(student, base_of(student) / "whole", **options), []
            validate = whole.validate

            def noting() -> Any:
                saved_before.append(f"step-{steps_of(whole):08d}.pt" in names(base_of(student) / "whole/checkpoints"))
                return validate()

            whole.validate = noting
            seed(1 + student.rank)
            uninterrupted = _fit(whole)
            seen: dict[str, Any] = {"expected": ended(whole)}
            for number, (place, at) in enumerate(places.items()):
                folder = base_of(student) / f"stopped-{number}"
                first = make(student, folder, **options, at=[at] if student.rank == signalled else [])
                seed(1 + student.rank)
                run = _fit(first)
                second = make(student, folder, **options, start=0.5)
                seed(99)
                again = _fit(second)
                batches = len(first.model.seen)
                seen[place] = {"stopped": run, "run": again, "batches": batches}
                seen[f"{place}/again"] = ended(second)
    finally:
        signal.signal(signal.SIGTERM, before)
    files = names(base_of(student) / "whole" / "checkpoints")
    return {
        "uninterrupted": uninterrupted,
        "files": files,
        "saved_before": saved_before,
        "received": len(received),
        **seen,
    }


def _fit(trainer: Any) -> dict[str, Any]:
    return fields(trainer.fit(), TrainerRun, "fit()")


def logged(student: Any, *, training: Mapping[str, Any], back_to: int) -> dict[str, Any]:
    """`fit` on ranks that each have a folder of their own: their files, and TensorBoard's entries by its own reader.

    Then, on one rank, another trainer goes back to the checkpoint of step `back_to` and on from there, as after a kill:
    `again` are the entries that then count.
    """
    torch.set_num_threads(1)
    folder = base_of(student) / f"own-{student.rank}"
    folder.mkdir()
    os.chdir(folder)
    sink = Sink()
    with ranks_of(student):
        trainer = make(student, Path("run"), **training, monitor=sink)
        trainer.fit()
        files = _files(folder)
        entries, again = _entries(folder), {}
        if student.ranks == 1:
            second = make(student, Path("run"), **training)
            second.load_checkpoint(Path("run", "checkpoints", f"step-{back_to:08d}.pt"))
            second.fit()
            again = _entries(folder)
    return {"seen": trainer.model.seen, "files": files, "entries": entries, "again": again, "logged": sink.logged}


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _entries(folder: Path) -> dict[str, list[list[float]]]:
    """[step, value] of what TensorBoard shows, by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    entries: dict[str, list[list[float]]] = {}
    for place in sorted({Path(name).parent for name in _files(folder) if "tfevents" in name}):
        reader = EventAccumulator(str(folder / place))
        reader.Reload()
        for tag in reader.Tags()["scalars"]:
            rows = [[entry.step, entry.value] for entry in reader.Scalars(tag)]
            entries.setdefault(tag, []).extend(rows)
    return entries
