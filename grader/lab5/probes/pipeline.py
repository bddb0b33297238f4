"""Probes of Lab 5's trainer: which samples made which step, what a validation counts, who wrote what.

Runs in each rank. Looked at are only things that any trainer must do: batches that pass the model, learning rates at
optimizer steps, parameters and states in the end, files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import optimizer as optimizers
from torch.utils.data import Dataset

from grader.shared.probes.collectives import Collectives
from grader.shared.probes.ranks import Indexed, group, half_squares, numbered
from grader.shared.probes.support import fields, plain
from labkit.loader import ResumableLoader
from labkit.results import EpochResult, TrainerRun, ValidationResult

CONFIG = "lab5_production.config"
TRAINER = "lab5_production.trainer"
KEPT: list[object] = []
"""A DistributedDataParallel that dies after its process group hangs now and then: trainers live on here."""


class Model(nn.Module):
    """A linear model with dropout; the first number of each input is the sample's, only noted."""

    def __init__(self, weight: Tensor, *, dropout: float = 0.0, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=dtype)
        self.linear.weight.data = weight.to(dtype).clone()
        self.dropout = dropout
        self.seen: list[list[int]] = []
        self.validated: list[int] = []
        self.products: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        numbers = [round(number) for number in x[:, 0].tolist()]
        if self.training:
            self.seen.append(numbers)
        else:
            self.validated += numbers
        dropped = functional.dropout(x[:, 1:].to(self.linear.weight.dtype), self.dropout, self.training)
        output: Tensor = self.linear(dropped)
        if self.training:
            self.products.append(str(output.dtype).removeprefix("torch."))
        return output


class Signalling(Dataset[tuple[Tensor, Tensor]]):
    """Samples by number; when the `at`-th one is asked for, SIGTERM is sent to this process."""

    def __init__(self, inner: Indexed, *, at: int | None) -> None:
        self.inner, self.at, self.asked = inner, at, 0

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.asked += 1
        if self.asked == self.at:
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

    def make(
        self, student: Any, folder: Path, *, device: str = "cpu", start: float = 1.0, at: int | None = None
    ) -> Any:
        """A trainer that writes below `folder`; its model begins with `start` times the weight."""
        config = student.module(CONFIG).TrainerConfig(output_dir=str(folder), **self.config)
        dtype = torch.float32 if self.low else torch.float64
        model = Model(self.weight * start, dropout=self.dropout, dtype=dtype).to(device)
        dataset = Indexed(numbered(self.inputs), self.targets.to(dtype))
        if self.low:
            dataset.inputs = dataset.inputs.float()
        train = ResumableLoader(Signalling(dataset, at=at), self.batch_size, seed=5)
        val = ResumableLoader(dataset, self.batch_size, shuffle=False, padded=False)
        trainer = student.module(TRAINER).ProductionTrainer(
            model, train, val, config, criterion=half_squares, device=device
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


def configuration(student: Any, *, texts: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Save and load a configuration with these values; then load files with these texts, which must be refused."""
    module = student.module(CONFIG)
    config = module.TrainerConfig(**settings)
    path = Path("configured", "run.toml")
    config.save(path)
    loaded = module.TrainerConfig.load(path)
    outcomes = []
    for index, text in enumerate(texts):
        file = Path(f"given-{index}.toml")
        file.write_text(text, encoding="utf-8")
        try:
            given = module.TrainerConfig.load(file)
        except module.ConfigError as error:
            outcomes.append({"error": "ConfigError", "message": str(error)})
        except NotImplementedError:
            raise
        except Exception as error:
            outcomes.append({"error": type(error).__name__, "message": str(error)})
        else:
            outcomes.append({"error": "", "message": "", "given": plain(given, "TrainerConfig.load()")})
    return {"loaded": plain(loaded, "TrainerConfig.load()"), "outcomes": outcomes}


def steps(
    student: Any, *, weight: Tensor, inputs: Tensor, targets: Tensor, batch_size: int, config: Mapping[str, Any]
) -> dict[str, Any]:
    """`train_epoch` for every epoch; samples of each batch, learning rates, bytes reduced, and the weights."""
    torch.set_num_threads(1)
    case = Case(weight, inputs, targets, batch_size, config)
    with ranks_of(student):
        trainer = case.make(student, base_of(student) / "steps")
        results = []
        with learning_rates() as rates, Collectives() as reduced:
            for epoch in range(config["epochs"]):
                results.append(fields(trainer.train_epoch(epoch), EpochResult, "train_epoch()"))
    return {
        "results": results,
        "seen": trainer.model.seen,
        "rates": rates,
        "steps": plain(trainer.steps, "ProductionTrainer.steps"),
        "weight": trainer.model.linear.weight.detach(),
        "reduced_bytes": reduced.reduced_bytes,
        "gradient_bytes": trainer.model.linear.weight.nbytes,
    }


def mixed(
    student: Any, *, weight: Tensor, inputs: Tensor, targets: Tensor, batch_size: int, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Epochs of float16 whose first steps overflow, and of bfloat16; which windows made a step, and the weights."""
    torch.set_num_threads(1)
    seen = {}
    device = student.device
    for dtype in ("float16", "bfloat16"):
        case = Case(weight, inputs, targets, batch_size, {**config, "dtype": dtype}, low=True)
        trainer = case.make(student, Path(dtype), device=device)
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
            "results": results,
            "seen": trainer.model.seen,
            "taken": taken,
            "weight": trainer.model.linear.weight.detach().cpu(),
            "rates": rates,
            "products": trainer.model.products,
            "steps": plain(trainer.steps, "ProductionTrainer.steps"),
            "next_rate": float(trainer.optimizer.param_groups[0]["lr"]),
            "parameter_dtype": str(trainer.model.linear.weight.dtype).removeprefix("torch."),
            "scale": float(trainer.scaler.get_scale()) if trainer.scaler.is_enabled() else None,
        }
    return seen


class _Classifier(nn.Module):
    """A classifier that says what its inputs say, by its dropout's mode; buffers differ between ranks."""

    def __init__(self, classes: int, shift: float) -> None:
        super().__init__()
        self.linear = nn.Linear(classes, classes, bias=False, dtype=torch.float64)
        self.linear.weight.data = torch.eye(classes, dtype=torch.float64)
        self.dropout = nn.Dropout(0.9)
        self.register_buffer("shift", torch.tensor([shift] + [0.0] * (classes - 1), dtype=torch.float64))
        self.graphs = 0

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.linear(self.dropout(x)) + self.get_buffer("shift")
        self.graphs += output.requires_grad
        return output


def validate(
    student: Any, *, logits: Tensor, targets: Tensor, sizes: Sequence[Sequence[int]], config: Mapping[str, Any]
) -> dict[str, Any]:
    """`validate` on batches of these sizes (`sizes[rank]`, the ranks' samples one after the other), in both modes."""
    torch.set_num_threads(1)
    start = sum(sum(rank) for rank in sizes[: student.rank])
    own = list(sizes[student.rank])
    part = slice(start, start + sum(own))
    batches = list(zip(logits[part].double().split(own), targets[part].split(own), strict=True)) if own else []
    with ranks_of(student):
        settings = student.module(CONFIG).TrainerConfig(output_dir=str(base_of(student) / "run"), **config)
        model = _Classifier(logits.shape[1], 0.0)
        train = ResumableLoader(Indexed(logits.double(), targets), 4)
        trainer = student.module(TRAINER).ProductionTrainer(model, train, batches, settings)
        KEPT.append(trainer)
        model.get_buffer("shift")[0] = 3.0 * student.rank  # as batch norm's running mean may differ
        seen: dict[str, Any] = {}
        for name, training in (("training", True), ("evaluation", False)):
            trainer.model.train(training)
            result = fields(trainer.validate(), ValidationResult, "validate()")
            seen[name] = {"result": result, "modes": [module.training for module in trainer.model.modules()]}
    return {**seen, "graphs": model.graphs}


def logged(
    student: Any, *, weight: Tensor, inputs: Tensor, targets: Tensor, batch_size: int, config: Mapping[str, Any]
) -> dict[str, Any]:
    """`fit` on ranks that each have a folder of their own; the entries of each rank, by TensorBoard's own reader."""
    torch.set_num_threads(1)
    case = Case(weight, inputs, targets, batch_size, config)
    folder = base_of(student) / f"own-{student.rank}"
    folder.mkdir()
    os.chdir(folder)
    with ranks_of(student):
        trainer = case.make(student, Path("run"))
        run = fields(trainer.fit(), TrainerRun, "fit()")
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    entries: dict[str, list[list[float]]] = {}
    for place in sorted({Path(name).parent for name in files if "tfevents" in name}):
        reader = EventAccumulator(str(place))
        reader.Reload()
        for tag in reader.Tags()["scalars"]:
            entries.setdefault(tag, []).extend([[entry.step, entry.value] for entry in reader.Scalars(tag)])
    return {"run": run, "files": files, "entries": entries}
