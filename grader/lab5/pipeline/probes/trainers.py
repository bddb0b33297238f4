"""How the trainer's probes make trainers of the submission's, and what they read of them.

Only at things that any trainer must have: a model, an optimizer, a scaler, steps, and what its methods return.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from gradebox.sandbox.probe_loader import Student, WrongReturn
from grader.lab5.pipeline.cases import EndState, Fields, LoggedStep, Training
from grader.shared.probes.ranks import Indexed, group, numbered
from grader.shared.probes.support import StudentObject, fields, instance, plain
from labkit.loader import ResumableLoader
from labkit.results import EpochResult

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
        self.batches: list[list[int]] = []
        self.validated: list[int] = []
        self.validating = False
        """Whether `validate` runs, in whatever mode."""
        self.products: dict[bool, set[str]] = {True: set(), False: set()}
        """Dtypes of the products, in training and in validation."""

    def forward(self, x: Tensor) -> Tensor:
        numbers = [round(number) for number in x[:, 0].tolist()]
        trained = self.training and not self.validating
        if trained:
            self.batches.append(numbers)
        else:
            self.validated += numbers
        dropped = functional.dropout(x[:, 1:].to(self.linear.weight.dtype), self.dropout, self.training)
        output: Tensor = self.linear(dropped * self.gain)
        self.products[trained].add(str(output.dtype).removeprefix("torch."))
        return output

    def whole(self) -> Tensor:
        """Weight and bias, as they were given."""
        return torch.cat([self.linear.weight, self.linear.bias.unsqueeze(1)], dim=1).detach().cpu().clone()


class Signalling(Dataset[tuple[Tensor, Tensor]]):
    """Samples by number; when the `at`-th ones are asked for, SIGTERM is sent to this process."""

    def __init__(self, inner: Indexed, at: Collection[int]) -> None:
        self.inner, self.at, self.count = inner, at, 0

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.count += 1
        if self.count in self.at:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.inner[index]


class Sink:
    """Receives metrics, as a `GPUMonitor` does."""

    def __init__(self) -> None:
        self.logged: list[LoggedStep] = []

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of one step."""
        self.logged.append(
            LoggedStep(step=int(step), metrics={str(name): float(value) for name, value in metrics.items()})
        )


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
) -> StudentObject:
    """A trainer that writes below `folder`; its model begins with `start` times the weight.

    Parameters are float64, or float32 for a run in autocast. SIGTERM comes with the `at`-th samples. With `cleared`,
    gradients are cleared before each window.
    """
    dtype = torch.float64 if training.config.get("dtype", "float32") == "float32" else torch.float32
    settings = student.module(CONFIG).TrainerConfig(output_dir=str(folder), **training.config)
    model = Model(training.weight * start, dropout=dropout, dtype=dtype).to(device)
    dataset = Indexed(numbered(training.inputs).to(dtype), training.classes)
    train = ResumableLoader(Signalling(dataset, at), training.batch_size, seed=5)
    val = ResumableLoader(dataset, training.batch_size, shuffle=False, padded=False)
    more = {} if monitor is None else {"monitor": monitor}
    trainer = student.module(TRAINER).ProductionTrainer(model, train, val, settings, **more)
    trainer.validate = _apart(model, trainer.validate)
    if cleared:
        trainer.train_window = _clearing(model, trainer.train_window)
    KEPT.append(trainer)
    return trainer


def _clearing(model: Model, train_window: Callable[[StudentObject], object]) -> Callable[[StudentObject], object]:
    """A window before which there are no gradients."""

    def clearing(window: StudentObject) -> object:
        model.zero_grad()
        return train_window(window)

    return clearing


def _apart(model: Model, validate: Callable[[], object]) -> Callable[[], object]:
    """A validation whose samples the model tells apart from those that it is trained with, whatever its mode."""

    def validating() -> object:
        model.validating = True
        try:
            return validate()
        finally:
            model.validating = False

    return validating


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
    return {name: _fingerprint(part) for name, part in parts.items()}


class Watched:
    """What a trainer holds when it saves a checkpoint, and what another one holds once it has loaded it."""

    def __init__(self) -> None:
        self.saved: dict[str, dict[str, str]] = {}
        self._next: dict[str, int] = {}
        self.pair: list[dict[str, str]] = []
        """What the last loaded checkpoint should have put back, and what it put back; empty before."""

    def saving(self, trainer: StudentObject) -> None:
        """Note what this trainer saves, by the name of the file."""
        save = trainer.save_checkpoint

        def noting(epoch: int) -> object:
            parts, loader = parts_of(trainer), trainer.train_loader
            following = epoch + (loader.position >= len(loader))
            path = save(epoch)
            if isinstance(path, (str, Path)):
                self.saved[Path(path).name] = parts | {"next epoch": str(following)}
            return path

        trainer.save_checkpoint = noting

    def loading(self, trainer: StudentObject) -> None:
        """Note what this trainer has loaded."""
        load = trainer.load_checkpoint

        def noting(path: Path | str) -> object:
            following = load(path)
            if (saved := self.saved.get(Path(path).name)) is not None:
                self.pair = [saved, parts_of(trainer) | {"next epoch": str(following)}]
            return following

        trainer.load_checkpoint = noting


def end_state(trainer: StudentObject) -> EndState:
    """Everything that two equal runs have in common in the end, and what the process would draw next."""
    return EndState(
        batches=[list(batch) for batch in trainer.model.batches],
        steps=steps_of(trainer),
        rate=rate_of(trainer).hex(),
        scale=scale_of(trainer),
        weight=trainer.model.whole().double(),
        optimizer=_fingerprint(optimizer_of(trainer).state_dict()),
        random=generators(trainer.model.linear.weight.device),
    )


def generators(device: torch.device) -> dict[str, str]:
    """Where the generators are, by name; equal where they would draw the same."""
    numpy_state: tuple[object, ...] = np.random.get_state(legacy=True)  # type: ignore[assignment]  # legacy: no dict
    states = {
        "PyTorch's": _fingerprint(torch.get_rng_state()),
        "NumPy's": _fingerprint([part.tolist() if isinstance(part, np.ndarray) else part for part in numpy_state]),
        "Python's": _fingerprint(random.getstate()),
    }
    if device.type == "cuda":
        states["the GPU's"] = _fingerprint(torch.cuda.get_rng_state())
    return states


def _fingerprint(value: object) -> str:
    """Of a state dictionary: equal bits, equal text."""
    digest = hashlib.sha256()

    def take(item: object) -> None:
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


def seed(number: int) -> None:
    """Generators that are somewhere, two of them with half of a pair of normal numbers still to give."""
    torch.manual_seed(number)
    random.seed(number)
    random.gauss(0, 1)
    np.random.seed(number)
    np.random.standard_normal()


def names(folder: Path) -> list[str]:
    """What is in a folder, if there is one."""
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
