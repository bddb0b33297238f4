"""Probes of Lab 5's trainer: which samples made which step, what a validation counts, who wrote what.

Runs in each rank. Looked at are only things that any trainer must do: batches that pass the model, learning rates at
optimizer steps, parameters and states in the end, files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import optimizer as optimizers
from torch.utils.data import Dataset

from grader.shared.probes.collectives import Collectives
from grader.shared.probes.ranks import Indexed, disk_full_after, group, half_squares, numbered
from grader.shared.probes.support import fields, plain
from labkit.loader import ResumableLoader
from labkit.results import EpochResult, ValidationResult

CONFIG = "lab5_production.config"
TRAINER = "lab5_production.trainer"
SCHEDULE = "lab5_production.schedule"
KEPT: list[object] = []
"""A DistributedDataParallel that dies after its process group hangs now and then: trainers live on here."""


class Model(nn.Module):
    """A linear model with dropout, a bias and a frozen gain of 1; the first number of each input is only noted.

    The last column of `weight` is the bias. What it is asked is noted: samples, dtypes, and what the loss was given.
    """

    def __init__(self, weight: Tensor, *, dropout: float = 0.0, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.linear = nn.Linear(weight.shape[1] - 1, weight.shape[0], dtype=dtype)
        self.linear.weight.data = weight[:, :-1].to(dtype).clone()
        self.linear.bias.data = weight[:, -1].to(dtype).clone()
        self.gain = nn.Parameter(torch.ones(weight.shape[1] - 1, dtype=dtype), requires_grad=False)
        self.dropout = dropout
        self.seen: list[list[int]] = []
        self.validated: list[int] = []
        self.products: list[str] = []
        self.validated_products: list[str] = []
        self.losses_of: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        numbers = [round(number) for number in x[:, 0].tolist()]
        if self.training:
            self.seen.append(numbers)
        else:
            self.validated += numbers
        dropped = functional.dropout(x[:, 1:].to(self.linear.weight.dtype), self.dropout, self.training)
        output: Tensor = self.linear(dropped * self.gain)
        products = self.products if self.training else self.validated_products
        products.append(str(output.dtype).removeprefix("torch."))
        return output

    def whole(self) -> Tensor:
        """Weight and bias, as they were given."""
        return torch.cat([self.linear.weight, self.linear.bias.unsqueeze(1)], dim=1).detach().cpu().clone()

    def criterion(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Half the squared distance; notes what it is given, and whether autocast is on."""
        noted = self.losses_of

        def judge(outputs: Tensor, targets: Tensor) -> Tensor:
            autocast = " in autocast" if torch.is_autocast_enabled(outputs.device.type) else ""
            noted.append(str(outputs.dtype).removeprefix("torch.") + autocast)
            return half_squares(outputs, targets)

        return judge


class Signalling(Dataset[tuple[Tensor, Tensor]]):
    """Samples by number; when the `at`-th ones are asked for, SIGTERM is sent to this process so many `times`."""

    def __init__(self, inner: Indexed, *, at: Collection[int], times: int = 1) -> None:
        self.inner, self.at, self.times, self.asked = inner, at, times, 0

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.asked += 1
        if self.asked in self.at:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGTERM)
        return self.inner[index]


@dataclasses.dataclass
class Case:
    """What every trainer of a probe is made of."""

    weight: Tensor
    inputs: Tensor
    targets: Tensor
    batch_size: int
    config: Mapping[str, Any]
    dropout: float = 0.0
    low: bool = False
    """Whether parameters are float32, for autocast; else float64."""
    train: Any = None
    """The loader of the trainer that was made last."""

    def make(
        self,
        student: Any,
        folder: Path,
        *,
        device: str = "cpu",
        start: float = 1.0,
        at: Collection[int] = (),
        times: int = 1,
        validating: Collection[int] = (),
        monitor: Any = None,
    ) -> Any:
        """A trainer that writes below `folder`; its model begins with `start` times the weight.

        SIGTERM comes, so many `times`, with the `at`-th samples that are trained, or once with the `validating`-th that
        are validated.
        """
        config = student.module(CONFIG).TrainerConfig(output_dir=str(folder), **self.config)
        dtype = torch.float32 if self.low else torch.float64
        model = Model(self.weight * start, dropout=self.dropout, dtype=dtype).to(device)
        dataset = Indexed(numbered(self.inputs), self.targets.to(dtype))
        if self.low:
            dataset.inputs = dataset.inputs.float()
        self.train = train = ResumableLoader(Signalling(dataset, at=at, times=times), self.batch_size, seed=5)
        val = ResumableLoader(Signalling(dataset, at=validating), self.batch_size, shuffle=False, padded=False)
        trainer = student.module(TRAINER).ProductionTrainer(
            model, train, val, config, criterion=model.criterion(), device=device, monitor=monitor
        )
        KEPT.append(trainer)
        return trainer


@contextlib.contextmanager
def learning_rates() -> Iterator[list[float]]:
    """The learning rate of every optimizer step in the block, whoever makes it."""
    rates: list[float] = []

    def note(optimizer: Any, given: Any, named: Any) -> None:
        rates.append(float(optimizer.param_groups[0]["lr"]))

    handle = optimizers.register_optimizer_step_pre_hook(note)
    try:
        yield rates
    finally:
        handle.remove()


@contextlib.contextmanager
def ranks_of(student: Any, name: str = "ours") -> Iterator[None]:
    with group(student, name) if student.ranks > 1 else contextlib.nullcontext():
        yield


def base_of(student: Any) -> Path:
    """A folder that all ranks share."""
    return Path(student.rendezvous.removeprefix("file://")).parent if student.ranks > 1 else Path.cwd()


class Sink:
    """Is told metrics, as a `GPUMonitor` is."""

    def __init__(self) -> None:
        self.told: list[list[Any]] = []

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of one step."""
        self.told.append([int(step), sorted(float(value) for value in metrics.values())])


def configuration(
    student: Any, *, texts: Sequence[tuple[str, str]], settings: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Save and load configurations with these values; then load files with these texts, each in an encoding.

    And a file that is not there, a folder, and a file below one that is none.
    """
    module = student.module(CONFIG)
    path = Path("configured", "run.toml")
    loaded = []
    for values in settings:
        module.TrainerConfig(**values).save(path)
        loaded.append(plain(module.TrainerConfig.load(path), "TrainerConfig.load()"))
    outcomes = []
    for index, (text, encoding) in enumerate(texts):
        file = Path(f"given-{index}.toml")
        file.write_bytes(text.encode(encoding))
        try:
            given = module.TrainerConfig.load(file)
        except module.ConfigError as error:
            outcomes.append({"error": "ConfigError", "message": str(error), "named": file.name in str(error)})
        except NotImplementedError:
            raise
        except Exception as error:
            outcomes.append({"error": type(error).__name__, "message": str(error)})
        else:
            outcomes.append({"error": "", "message": "", "given": plain(given, "TrainerConfig.load()")})
    before = path.read_bytes()
    with disk_full_after(len(before) // 2):
        try:
            module.TrainerConfig().save(path)
            failed = False
        except OSError:
            failed = True
    Path("folder.toml").mkdir()
    unreadable = {}
    for what, name in (
        ("there is no file", "missing.toml"),
        ("there is a folder", "folder.toml"),
        ("its folder is a file", "given-0.toml/run.toml"),
    ):
        try:
            module.TrainerConfig.load(name)
            unreadable[what] = "no error"
        except NotImplementedError:
            raise
        except OSError:
            unreadable[what] = "OSError"
        except Exception as error:
            unreadable[what] = type(error).__name__
    return {
        "loaded": loaded,
        "outcomes": outcomes,
        "full": [failed, path.read_bytes() == before],
        "unreadable": unreadable,
    }


def schedule(student: Any, *, cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`warmup_cosine` of each case."""
    module = student.module(SCHEDULE)
    return {"factors": [plain(module.warmup_cosine(**case), "warmup_cosine()") for case in cases]}


def steps(
    student: Any,
    *,
    weight: Tensor,
    inputs: Tensor,
    targets: Tensor,
    batch_size: int,
    config: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """`train_epoch` for every epoch; samples of each batch, learning rates, bytes reduced, and the weights.

    Then the epochs of other `runs`, each by a trainer of its own.
    """
    torch.set_num_threads(1)
    case = Case(weight, inputs, targets, batch_size, config)
    with ranks_of(student):
        trainer = case.make(student, base_of(student) / "steps")
        results = []
        with learning_rates() as rates, Collectives() as reduced:
            for epoch in range(config["epochs"]):
                results.append(fields(trainer.train_epoch(epoch), EpochResult, "train_epoch()"))
                trained = trainer.model.training
                trainer.model.eval()
        elsewhere = {
            "epoch 1, and again": _elsewhere(case, student, None, (1, 1)),
            "the rest of epoch 0": _elsewhere(case, student, 0, (0,)),
            "epoch 1 in the middle of epoch 0": _elsewhere(case, student, 0, (1,)),
        }
        others = [_epochs(student, base_of(student) / f"run-{number}", **run) for number, run in enumerate(runs)]
    return {
        "runs": others,
        "elsewhere": elsewhere,
        "results": results,
        "seen": trainer.model.seen,
        "validated": len(trainer.model.validated),
        "training": trained,
        "rates": rates,
        "steps": plain(trainer.steps, "ProductionTrainer.steps"),
        "weight": trainer.model.whole(),
        "gain": trainer.model.gain.detach(),
        "losses_of": sorted(set(trainer.model.losses_of)),
        "reduced_bytes": reduced.reduced_bytes,
        "gradient_bytes": trainer.model.whole().nbytes,
    }


def _epochs(
    student: Any,
    folder: Path,
    *,
    weight: Tensor,
    inputs: Tensor,
    targets: Tensor,
    batch_size: int,
    dtype: str,
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """All epochs over samples that come by number: what was returned, logged and made of the weights."""
    kind, numbers = getattr(torch, dtype), targets.is_floating_point()
    dataset = Indexed(numbered(inputs), targets.to(kind) if numbers else targets)
    settings = student.module(CONFIG).TrainerConfig(output_dir=str(folder), **config)
    sink = Sink()
    trainer = student.module(TRAINER).ProductionTrainer(
        Model(weight, dtype=kind),
        ResumableLoader(dataset, batch_size, shuffle=False),
        [],
        settings,
        criterion=half_squares if numbers else None,
        monitor=sink,
    )
    KEPT.append(trainer)
    results = [fields(trainer.train_epoch(epoch), EpochResult, "train_epoch()") for epoch in range(config["epochs"])]
    return {
        "results": results,
        "steps": plain(trainer.steps, "ProductionTrainer.steps"),
        "weight": trainer.model.whole().double(),
        "told": sink.told,
    }


def _elsewhere(case: Case, student: Any, begun: int | None, epochs: Sequence[int]) -> list[list[int]]:
    """The samples of each batch of these epochs, where the loader has handed out one batch of the epoch `begun`."""
    trainer = case.make(student, base_of(student) / f"from {begun} to {epochs}")
    if begun is not None:
        case.train.set_epoch(begun)
        next(iter(case.train))
    for epoch in epochs:
        trainer.train_epoch(epoch)
    seen: list[list[int]] = trainer.model.seen
    return seen


def mixed(
    student: Any,
    *,
    weight: Tensor,
    inputs: Tensor,
    targets: Tensor,
    batch_size: int,
    config: Mapping[str, Any],
    growth: int,
    settings: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Epochs of float16 whose first steps overflow, and of bfloat16; with which batch a step was made, and the weights.

    The loss scale grows after `growth` steps in a row that were taken. `settings` change the configuration, by dtype.
    """
    torch.set_num_threads(1)
    seen = {}
    device = student.device
    for dtype in ("float16", "bfloat16"):
        own = {**config, **settings[dtype], "dtype": dtype}
        case, sink = Case(weight, inputs, targets, batch_size, own, low=True), Sink()
        trainer = case.make(student, Path(dtype), device=device, monitor=sink)
        trainer.scaler.set_growth_interval(growth)
        taken: list[int] = []
        note = optimizers.register_optimizer_step_pre_hook(
            lambda *given, model=trainer.model, taken=taken: taken.append(len(model.seen) - 1)
        )
        try:
            with learning_rates() as rates:
                results = [
                    fields(trainer.train_epoch(epoch), EpochResult, "train_epoch()")
                    for epoch in range(config["epochs"])
                ]
        finally:
            note.remove()
        seen[dtype] = {
            "told": sink.told,
            "validation": fields(trainer.validate(), ValidationResult, "validate()"),
            "validated_products": sorted(set(trainer.model.validated_products)),
            "losses_of": sorted(set(trainer.model.losses_of)),
            "results": results,
            "seen": trainer.model.seen,
            "taken": taken,
            "weight": trainer.model.whole(),
            "rates": rates,
            "products": trainer.model.products,
            "steps": plain(trainer.steps, "ProductionTrainer.steps"),
            "next_rate": float(trainer.optimizer.param_groups[0]["lr"]),
            "parameter_dtype": str(trainer.model.linear.weight.dtype).removeprefix("torch."),
            "scale": float(trainer.scaler.get_scale()) if trainer.scaler.is_enabled() else None,
        }
    return seen
