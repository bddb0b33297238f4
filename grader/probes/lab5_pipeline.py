"""Probes of Lab 5's trainer: which samples made which step, what a run in two parts ends with, who wrote what.

Runs in each rank. Looked at are only things that any trainer must do: batches that pass the model, learning rates at
optimizer steps, parameters and states in the end, files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import random
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import optimizer as optimizers
from torch.utils.data import Dataset

from grader.probes.lab3 import Indexed, group, half_squares, numbered
from grader.probes.lab3_accumulation import Collectives
from grader.probes.lab3_checkpoints import _disk_full_after
from grader.probes.support import fields, plain
from labkit.loader import ResumableLoader
from labkit.results import EpochResult, TrainerRun, ValidationResult

LAB = "lab5_production"
_kept: list[object] = []
"""A DistributedDataParallel that dies after its process group hangs now and then: trainers live on here."""


class Model(nn.Module):
    """A linear model with dropout and a counting buffer; the first number of each input is the sample's, only noted."""

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

    def make(self, student: Any, folder: Path, *, device: str = "cpu", start: float = 1.0, at: int | None = None) -> Any:
        """A trainer that writes below `folder`; its model begins with `start` times the weight."""
        config = student.module(f"{LAB}.config").TrainerConfig(output_dir=str(folder), **self.config)
        dtype = torch.float32 if self.low else torch.float64
        model = Model(self.weight * start, dropout=self.dropout, dtype=dtype).to(device)
        dataset = Indexed(numbered(self.inputs), self.targets.to(dtype))
        if self.low:
            dataset.inputs = dataset.inputs.float()
        train = ResumableLoader(Signalling(dataset, at=at), self.batch_size, seed=5)
        val = ResumableLoader(dataset, self.batch_size, shuffle=False, padded=False)
        trainer = student.module(f"{LAB}.trainer").ProductionTrainer(
            model, train, val, config, criterion=half_squares, device=device
        )
        _kept.append(trainer)
        return trainer


@contextlib.contextmanager
def _learning_rates() -> Iterator[list[float]]:
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
def _ranks(student: Any, name: str = "ours") -> Iterator[None]:
    with group(student, name) if student.ranks > 1 else contextlib.nullcontext():
        yield


def _base(student: Any) -> Path:
    """A folder that all ranks share."""
    return Path(student.rendezvous.removeprefix("file://")).parent if student.ranks > 1 else Path.cwd()


def configuration(student: Any, *, texts: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Save and load a configuration with these values; then load files with these texts, which must be refused."""
    module = student.module(f"{LAB}.config")
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
    with _ranks(student):
        trainer = case.make(student, _base(student) / "steps")
        results = []
        with _learning_rates() as rates, Collectives() as reduced:
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
    """One epoch of float16 whose first steps overflow, and one of bfloat16; weights after each optimizer step."""
    torch.set_num_threads(1)
    seen = {}
    device = student.device
    for dtype in ("float16", "bfloat16"):
        case = Case(weight, inputs, targets, batch_size, {**config, "dtype": dtype}, low=True)
        trainer = case.make(student, Path(dtype), device=device)
        with _learning_rates() as rates:
            result = fields(trainer.train_epoch(0), EpochResult, "train_epoch()")
        seen[dtype] = {
            "result": result,
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
    with _ranks(student):
        settings = student.module(f"{LAB}.config").TrainerConfig(output_dir=str(_base(student) / "run"), **config)
        model = _Classifier(logits.shape[1], 0.0)
        train = ResumableLoader(Indexed(logits.double(), targets), 4)
        trainer = student.module(f"{LAB}.trainer").ProductionTrainer(model, train, batches, settings)
        _kept.append(trainer)
        model.get_buffer("shift")[0] = 3.0 * student.rank  # as batch norm's running mean may differ
        seen: dict[str, Any] = {}
        for name, training in (("training", True), ("evaluation", False)):
            trainer.model.train(training)
            result = fields(trainer.validate(), ValidationResult, "validate()")
            seen[name] = {"result": result, "modes": [module.training for module in trainer.model.modules()]}
    return {**seen, "graphs": model.graphs}


def _fingerprint(value: Any) -> str:
    """Of a state dictionary: equal bits, equal text."""
    digest = hashlib.sha256()

    def take(item: Any) -> None:
        if isinstance(item, Tensor):
            digest.update(str(item.dtype).encode() + item.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
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
    """All epochs in one run; and `stop` of them, saved, then the others by a new trainer that begins with other weights."""
    torch.set_num_threads(1)
    low = dtype != "float32"
    device = student.device if low else "cpu"
    case = Case(weight, inputs, targets, batch_size, {**config, "dtype": dtype}, dropout=0.5, low=low)
    folder = _base(student) / "resumed"
    with _ranks(student):
        whole = case.make(student, _base(student) / "whole", device=device)
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
        resumed = [fields(second.train_epoch(epoch), EpochResult, "train_epoch()") for epoch in range(stop, config["epochs"])]
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
    """`fit` to the end; and `fit` on which SIGTERM comes to rank `signalled` in the middle, then a new trainer's `fit`."""
    torch.set_num_threads(1)
    case = Case(weight, inputs, targets, batch_size, config, dropout=0.5)
    base = _base(student)
    with _ranks(student):
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
    student: Any, *, weight: Tensor, inputs: Tensor, targets: Tensor, losses: Sequence[float], config: Mapping[str, Any]
) -> dict[str, Any]:
    """`fit` whose validation losses are given; then a new trainer's `fit` on the same folder."""
    torch.set_num_threads(1)
    case = Case(weight, inputs, targets, 8, config)
    runs = []
    for start in (1.0, 0.5):
        trainer = case.make(student, Path("early"), start=start)
        given = iter(losses)
        trainer.validate = lambda given=given: ValidationResult(loss=next(given), accuracy=None, samples=8)
        run = fields(trainer.fit(), TrainerRun, "fit()")
        runs.append({"run": run, "batches": len(trainer.model.seen)})
    return {"runs": runs}


def saving(student: Any) -> dict[str, Any]:
    """Save several times; save again where the disk is full; leave what killed processes leave; and look for the newest.

    Files are looked at by loading them; the rest of a folder by name.
    """
    torch.set_num_threads(1)
    module = student.module(f"{LAB}.checkpoints")
    folder = Path("saved", "checkpoints")
    payload = {"numbers": torch.arange(20_000, dtype=torch.float64)}
    none = plain(_name(module.latest_checkpoint(folder)), "latest_checkpoint()")
    synced: list[str] = []
    real_fsync, real_replace, real_rename = os.fsync, os.replace, os.rename

    def fsync(descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        synced.append("folder" if os.path.isdir(f"/proc/self/fd/{number}") else "file")
        real_fsync(number)

    def replace(*given: Any, **named: Any) -> None:
        synced.append("name")
        real_replace(*given, **named)

    for step in (7, 25, 130):
        module.write_checkpoint(module.checkpoint_path(folder, step), {**payload, "steps": step}, keep=2)
    kept = _names(folder)
    (folder / f".{module.checkpoint_path(folder, 131).name}.tmp").write_bytes(b"half")
    os.fsync, os.replace, os.rename = fsync, replace, replace
    try:
        module.write_checkpoint(module.checkpoint_path(folder, 140), {**payload, "steps": 140}, keep=2)
    finally:
        os.fsync, os.replace, os.rename = real_fsync, real_replace, real_rename
    cleaned = _names(folder)
    failed = False
    with _disk_full_after(60_000):
        try:
            module.write_checkpoint(module.checkpoint_path(folder, 140), {**payload, "steps": 141}, keep=2)
        except Exception as error:
            _kept.append(error)
            failed = True
    after_failure = _names(folder)
    newest = module.latest_checkpoint(folder)
    steps = plain(module.read_checkpoint(newest)["steps"], "read_checkpoint()") if newest else None
    # A disk that lied: the newest is cut in two. Times of files say the opposite of their numbers.
    bad = module.checkpoint_path(folder, 1_000)
    bad.write_bytes(module.checkpoint_path(folder, 140).read_bytes()[:40_000])
    os.utime(module.checkpoint_path(folder, 130), (4e9, 4e9))
    older = plain(_name(module.latest_checkpoint(folder)), "latest_checkpoint()")
    return {
        "none": none, "kept": kept, "cleaned": cleaned, "synced": synced, "failed": failed,
        "after_failure": after_failure, "newest": plain(_name(newest), "latest_checkpoint()"), "steps": steps, "older": older,
    }  # fmt: skip


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _name(path: Any) -> str | None:
    return None if path is None else Path(path).name


def logged(
    student: Any, *, weight: Tensor, inputs: Tensor, targets: Tensor, batch_size: int, config: Mapping[str, Any]
) -> dict[str, Any]:
    """`fit` on ranks that each have a folder of their own; the entries of each rank, by TensorBoard's own reader."""
    torch.set_num_threads(1)
    case = Case(weight, inputs, targets, batch_size, config)
    folder = _base(student) / f"own-{student.rank}"
    folder.mkdir()
    os.chdir(folder)
    with _ranks(student):
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
