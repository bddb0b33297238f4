"""How the trainer's probes make trainers of the submission's, and what they read of them.

Only at things that any trainer must have: a model, an optimizer, a scaler, steps, and what its methods return.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MethodType

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import optimizer as optimizers
from torch.utils.data import Dataset

from gradebox.sandbox.probe_loader import Student, WrongReturn
from grader.lab5.pipeline.cases import Batches, EndState, Fields, LoggedStep, Training
from grader.shared.probes.facts import is_training
from grader.shared.probes.kept import alarm, function, method, notes
from grader.shared.probes.looks import fingerprint, generators
from grader.shared.probes.ranks import Indexed, group, numbered
from grader.shared.probes.support import StudentObject, exact, fields, instance, plain
from labkit.loader import ResumableLoader
from labkit.results import EpochResult

CONFIG, TRAINER = "lab5_production.config", "lab5_production.trainer"
KEPT: list[object] = []
"""A DistributedDataParallel that dies after its process group hangs now and then: trainers live on here."""


class Model(nn.Module):
    """A linear classifier with dropout, a bias and a frozen gain of 1; the first number of each input is only noted.

    The last column of `weight` is the bias. In evaluation mode its logits are `asleep` times as large.
    """

    def __init__(
        self,
        weight: Tensor,
        *,
        dropout: float,
        dtype: torch.dtype,
        asleep: float,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(weight.shape[1] - 1, weight.shape[0], dtype=dtype)
        self.linear.weight.data = weight[:, :-1].to(dtype).clone()
        self.linear.bias.data = weight[:, -1].to(dtype).clone()
        self.gain = nn.Parameter(torch.ones(weight.shape[1] - 1, dtype=dtype), requires_grad=False)
        self.dropout, self.asleep = dropout, asleep

    def forward(self, x: Tensor) -> Tensor:
        dropped = functional.dropout(x[:, 1:].to(self.linear.weight.dtype), self.dropout, self.training)
        output: Tensor = self.linear(dropped * self.gain)
        return output if self.training or self.asleep == 1.0 else output * self.asleep

    def whole(self) -> Tensor:
        """Weight and bias, as they were given."""
        weight, bias = exact(self.linear.weight, "the weight").detach(), exact(self.linear.bias, "the bias").detach()
        return torch.cat([weight, bias.unsqueeze(1)], dim=1).cpu().clone()


def _noting(note: Callable[[object], None], *, random_states: bool) -> type[Model]:
    """A class of models that note each batch that passes them, also of copies: they are of the same training.

    With `random_states` also where the generators of random numbers are then.
    """

    def noting(model: Model, x: Tensor) -> Tensor:
        note(("batch", is_training(model), [round(number) for number in x[:, 0].tolist()]))
        if random_states:
            note(("random", generators(x.device)))
        return Model.forward(model, x)

    class Noting(Model):
        forward = method(noting)

    return Noting


@dataclass(frozen=True)
class Made:
    """A trainer of the submission's, and what the probe alone knows of it."""

    trainer: StudentObject
    model: Model
    """The one that the trainer was given."""
    note: Callable[[object], None]
    noted: Callable[[], list[tuple[StudentObject, ...]]]

    def batches(self) -> Batches:
        """The samples of each batch that passed the model in training mode, and outside of `validate`."""
        return [numbers for is_trained, numbers in self._passed() if is_trained]

    def random_states(self) -> list[dict[str, str]]:
        """Hashes of the generators' states at each batch, whatever the mode."""
        return [event[1] for event in self.noted() if event[0] == "random"]

    def validated(self) -> int:
        """How many samples passed it otherwise."""
        return sum(len(numbers) for is_trained, numbers in self._passed() if not is_trained)

    def rates(self) -> list[float]:
        """The learning rate of each optimizer step (`optimizer_steps`)."""
        return [event[1] for event in self.noted() if event[0] == "step"]

    def logged_samples(self) -> list[object]:
        """What `log_step` was told of the samples of each step."""
        return [plain(event[1], "samples given to log_step()") for event in self.noted() if event[0] == "logged"]

    def windows(self) -> list[bool]:
        """What `train_window` returned, one by one."""
        return [event[1] for event in self.noted() if event[0] == "window"]

    def taken(self) -> list[int]:
        """The batch that passed the model last before each optimizer step, counted from 0."""
        batches, taken, validating = -1, [], False
        for event in self.noted():
            validating = event[1] if event[0] == "validating" else validating
            batches += event[0] == "batch" and event[1] and not validating
            if event[0] == "step":
                taken.append(batches)
        return taken

    def _passed(self) -> Iterator[tuple[bool, list[int]]]:
        validating = False
        for event in self.noted():
            if event[0] == "validating":
                validating = event[1]
            elif event[0] == "batch":
                yield event[1] and not validating, event[2]


@contextlib.contextmanager
def optimizer_steps(made: Made) -> Iterator[None]:
    """Note every optimizer step that is taken in the block, with its learning rate."""
    handle = optimizers.register_optimizer_step_pre_hook(function(partial(_note_step, made.note)))
    try:
        yield
    finally:
        handle.remove()


def _note_step(
    note: Callable[[object], None], optimizer: torch.optim.Optimizer, arguments: object, options: object
) -> None:
    """A fused optimizer is called for a step that overflows, too, and leaves it out by itself: GradScaler gives it
    `found_inf`."""
    found_inf = getattr(optimizer, "found_inf", None)
    if found_inf is None or not bool(found_inf):
        note(("step", float(optimizer.param_groups[0]["lr"])))


class Signalling(Dataset[tuple[Tensor, Tensor]]):
    """Samples by number; when the `at`-th ones are asked for, SIGTERM is sent to this process."""

    def __init__(self, inner: Indexed, at: Collection[int]) -> None:
        self._inner = inner
        self._count = alarm(at, partial(os.kill, os.getpid(), signal.SIGTERM))

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self._count()
        return self._inner[index]


class Sink:
    """Receives metrics, as a `GPUMonitor` does."""

    def __init__(self, note: Callable[[LoggedStep], None]) -> None:
        self._note = function(partial(_note_metrics, note))

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of one step."""
        self._note(step, metrics)


def _note_metrics(note: Callable[[LoggedStep], None], step: int, metrics: Mapping[str, float]) -> None:
    note(LoggedStep(step=int(step), metrics={str(name): float(value) for name, value in metrics.items()}))


def make(
    student: Student,
    folder: Path,
    training: Training,
    *,
    device: str = "cpu",
    dropout: float = 0.0,
    start: float = 1.0,
    at: Collection[int] = (),
    monitor: Sink | None = None,
    cleared: bool = False,
    asleep: float = 1.0,
    random_states: bool = False,
) -> Made:
    """A trainer that writes below `folder`; its model begins with `start` times the weight.

    Parameters are float64, or float32 for a run in autocast. SIGTERM comes with the `at`-th samples. With `cleared`,
    gradients are cleared before each window.
    """
    dtype = torch.float64 if training.config.get("dtype", "float32") == "float32" else torch.float32
    settings = student.module(CONFIG).TrainerConfig(output_dir=str(folder), **training.config)
    note, noted = notes()
    noting = _noting(note, random_states=random_states)
    model = noting(training.weight * start, dropout=dropout, dtype=dtype, asleep=asleep).to(device)
    dataset = Indexed(numbered(training.inputs).to(dtype), training.classes)
    train = ResumableLoader(Signalling(dataset, at), training.batch_size, seed=5)
    val = ResumableLoader(dataset, training.batch_size, shuffle=False, padded=False)
    more = {} if monitor is None else {"monitor": monitor}
    trainer = student.module(TRAINER).ProductionTrainer(model, train, val, settings, **more)
    begins, ends = function(partial(note, ("validating", True))), function(partial(note, ("validating", False)))
    trainer.validate = MethodType(_validate, (begins, ends, trainer.validate))
    trainer.log_step = MethodType(_log_step, (function(partial(_note_samples, note)), trainer.log_step))
    trainer.train_window = MethodType(_train_window, (function(partial(_note_window, note)), trainer.train_window))
    if cleared:
        trainer.train_window = MethodType(_clear_and_train, (model, trainer.train_window))
    KEPT.append(trainer)
    return Made(trainer, model, note, noted)


def _clear_and_train(parts: tuple[Model, Callable[[StudentObject], object]], window: StudentObject) -> object:
    """A window before which there are no gradients."""
    model, train_window = parts
    model.zero_grad()
    return train_window(window)


def _log_step(parts: tuple[Callable[[object], None], Callable[..., object]], **step: StudentObject) -> object:
    """Take the metrics of a step, and note its samples."""
    note, log_step = parts
    note(step.get("samples"))
    return log_step(**step)


def _note_samples(note: Callable[[object], None], samples: StudentObject) -> None:
    note(("logged", samples))


def _train_window(
    parts: tuple[Callable[[StudentObject], None], Callable[[StudentObject], object]], window: StudentObject
) -> object:
    """Train a window, and note what is said of it."""
    note, train_window = parts
    taken = train_window(window)
    note(taken)
    return taken


def _note_window(note: Callable[[object], None], taken: StudentObject) -> None:
    note(("window", bool(taken)))


def _validate(parts: tuple[Callable[[], None], Callable[[], None], Callable[[], object]]) -> object:
    """A validation whose samples are told apart from those that the model is trained with, whatever its mode."""
    begins, ends, validate = parts
    begins()
    try:
        return validate()
    finally:
        ends()


@contextlib.contextmanager
def ranks_of(student: Student) -> Iterator[None]:
    """The process group of a request with several ranks."""
    with group(student) if student.ranks > 1 else contextlib.nullcontext():
        yield


def base_of(student: Student) -> Path:
    """A folder that all ranks share."""
    return Path(student.rendezvous.removeprefix("file://")).parent if student.ranks > 1 else Path.cwd()


def optimizer_of(trainer: StudentObject) -> torch.optim.Optimizer:
    """What a trainer must have."""
    return instance(getattr(trainer, "optimizer", None), torch.optim.Optimizer, "ProductionTrainer.optimizer")


def scaler_of(trainer: StudentObject) -> torch.amp.GradScaler:
    """What a trainer must have."""
    return instance(getattr(trainer, "scaler", None), torch.amp.GradScaler, "ProductionTrainer.scaler")


def steps_of(trainer: StudentObject) -> object:
    """`steps` as JSON."""
    return plain(getattr(trainer, "steps", None), "ProductionTrainer.steps")


def rate_of(trainer: StudentObject) -> float:
    """The learning rate of the next step."""
    return float(optimizer_of(trainer).param_groups[0]["lr"])


def scale_of(trainer: StudentObject) -> float | None:
    """The loss scale; None if the loss is not scaled."""
    scaler = scaler_of(trainer)
    return float(scaler.get_scale()) if scaler.is_enabled() else None


def halve_scale(trainer: StudentObject) -> None:
    """As if a step had overflowed before: what a checkpoint holds is not what a new trainer begins with."""
    scaler = scaler_of(trainer)
    if scaler.is_enabled():
        state = scaler.state_dict()
        scaler.load_state_dict({**state, "scale": state["scale"] / 2})


def epoch_of(trainer: StudentObject, epoch: int) -> Fields:
    """Train one epoch; its result."""
    result = fields(trainer.train_epoch(epoch), EpochResult, "train_epoch()")
    for name in ("samples", "optimizer_steps", "skipped_steps"):
        if type(result[name]) is not int:
            raise WrongReturn(f"train_epoch() returned EpochResult.{name} = {result[name]!r}, expected a whole number")
    return result


def try_parts(trainer: StudentObject) -> None:
    """Call the trainer's own parts by themselves, so that what does not fit is called by its name."""
    batch = next(iter(trainer.train_loader))
    pair = trainer.forward(trainer.model, *batch)
    if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(each, Tensor) for each in pair)):
        raise WrongReturn(f"forward() returned a {type(pair).__name__}, expected a tuple: logits and mean loss")
    if not isinstance(plain(trainer.train_window([batch]), "train_window()"), bool):
        raise WrongReturn("train_window() returned no bool, expected whether the step was taken")


def parts_of(trainer: StudentObject) -> dict[str, str]:
    """Hashes of all that a checkpoint holds, by the names that messages have for them."""
    scheduler = getattr(trainer, "scheduler", None)
    progress = dict(getattr(getattr(trainer, "progress", None), "__dict__", {}))
    progress = {name: float(value) for name, value in progress.items()}  # a loss is a tensor, or not
    parts: dict[str, object] = {
        "weights": trainer.model.state_dict(),
        "optimizer": optimizer_of(trainer).state_dict(),
        "scheduler": scheduler.state_dict() if scheduler is not None else "none",
        "scaler": scaler_of(trainer).state_dict(),
        "steps": steps_of(trainer),
        "position": trainer.train_loader.state_dict(),
        "progress": progress,
        "epochs": repr(list(getattr(trainer, "epochs", ()))),
        "validations": repr(list(getattr(trainer, "validations", ()))),
        "random": generators(trainer.model.linear.weight.device),
    }
    return {name: fingerprint(part) for name, part in parts.items()}


class Watched:
    """What a trainer holds when it saves a checkpoint, and what another one holds once it has loaded it."""

    def __init__(self) -> None:
        self._note, self._noted = notes()

    def saving(self, trainer: StudentObject) -> None:
        """Note what this trainer saves, by the name of the file."""
        note, parts = self._note, dict[str, str]()

        @function
        def look(epoch: int) -> None:
            following = epoch + (trainer.train_loader.position >= len(trainer.train_loader))
            parts.update(parts_of(trainer) | {"next epoch": str(following)})

        saved = function(lambda name: note(("saved", name, dict(parts))))
        trainer.save_checkpoint = MethodType(_save, (look, saved, trainer.save_checkpoint))

    def loading(self, trainer: StudentObject) -> None:
        """Note what this trainer has loaded."""
        note = self._note
        loaded = function(
            lambda name, following: note(("loaded", name, parts_of(trainer) | {"next epoch": str(following)}))
        )
        trainer.load_checkpoint = MethodType(_load, (loaded, trainer.load_checkpoint))

    def pair(self) -> list[dict[str, str]]:
        """What the last loaded checkpoint should have put back, and what it put back; empty if there is none."""
        saved: dict[str, dict[str, str]] = {}
        pair: list[dict[str, str]] = []
        for act, name, parts in self._noted():
            if act == "saved":
                saved[name] = parts
            elif name in saved:
                pair = [saved[name], parts]
        return pair


def _save(
    parts: tuple[Callable[[int], None], Callable[[str], None], Callable[[int], StudentObject]], epoch: int
) -> StudentObject:
    look, saved, save = parts
    look(epoch)
    path = save(epoch)
    if isinstance(path, (str, Path)):
        saved(Path(path).name)
    return path


def _load(
    parts: tuple[Callable[[str, StudentObject], None], Callable[[Path | str], StudentObject]], path: Path | str
) -> StudentObject:
    loaded, load = parts
    following = load(path)
    loaded(Path(path).name, following)
    return following


def end_state(made: Made) -> EndState:
    """Everything that two equal runs have in common in the end, and what the process would draw next."""
    return EndState(
        batches=made.batches(),
        steps=steps_of(made.trainer),
        rate=rate_of(made.trainer).hex(),
        scale=scale_of(made.trainer),
        weight=made.model.whole().double(),
        optimizer=fingerprint(optimizer_of(made.trainer).state_dict()),
        random=generators(made.model.linear.weight.device),
    )


def seed(number: int) -> None:
    """Generators that are somewhere, two of them with half of a pair of normal numbers still to give."""
    torch.manual_seed(number)
    random.seed(number)
    random.gauss(0, 1)
    np.random.seed(number)
    np.random.standard_normal()
