"""Probes of Lab 5's trainer: samples that do not count, what a validation counts, what is logged and by whom.

Runs in each rank.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import optimizer as optimizers

from grader.lab5.probes.pipeline import CONFIG, KEPT, TRAINER, Case, Sink, base_of, ranks_of
from grader.lab5.probes.resume import slow_names
from grader.shared.probes.kept import nap, notes
from grader.shared.probes.ranks import Indexed, half_squares
from grader.shared.probes.support import fields, plain
from labkit.loader import ResumableLoader
from labkit.results import EpochResult, TrainerRun, ValidationResult


class Tagger(nn.Module):
    """Logits [N, classes, length] of inputs [N, length, features]."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
        self.linear.weight.data = weight.double().clone()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.linear(x).transpose(1, 2)
        return output


def tokens(
    student: Any, *, weight: Tensor, inputs: Tensor, targets: Tensor, batch_size: int, config: Mapping[str, Any]
) -> dict[str, Any]:
    """One epoch over sequences [N, length, features] in their order, many of whose targets do not count."""
    torch.set_num_threads(1)
    with ranks_of(student):
        settings = student.module(CONFIG).TrainerConfig(output_dir=str(base_of(student) / "tokens"), **config)
        dataset = Indexed(inputs.double(), targets)
        train = ResumableLoader(dataset, batch_size, shuffle=False)
        trainer = student.module(TRAINER).ProductionTrainer(Tagger(weight), train, [], settings)
        KEPT.append(trainer)
        result = fields(trainer.train_epoch(0), EpochResult, "train_epoch()")
        steps = plain(trainer.steps, "ProductionTrainer.steps")
    return {
        "result": result,
        "steps": steps,
        "weight": trainer.model.linear.weight.detach(),
        "next_rate": float(trainer.optimizer.param_groups[0]["lr"]),
    }


class _Classifier(nn.Module):
    """A classifier that says what its inputs say, by its dropout's mode; buffers differ between ranks.

    `transposed`: of sequences [N, length, classes], as logits [N, classes, length].
    """

    def __init__(
        self, classes: int, shift: float, *, dtype: torch.dtype = torch.float64, transposed: bool = False
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(classes, classes, bias=False, dtype=dtype)
        self.linear.weight.data = torch.eye(classes, dtype=dtype)
        self.dropout = nn.Dropout(0.9)
        self.transposed = transposed
        self.register_buffer("shift", torch.tensor([shift] + [0.0] * (classes - 1), dtype=dtype))
        self.graphs = 0

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.linear(self.dropout(x))
        output = output + self.get_buffer("shift").to(output.dtype)
        self.graphs += output.requires_grad
        return output.transpose(1, 2) if self.transposed else output


def validate(
    student: Any,
    *,
    logits: Tensor,
    targets: Tensor,
    sizes: Sequence[Sequence[int]],
    config: Mapping[str, Any],
    weight: Tensor,
    inputs: Tensor,
    words: Tensor,
    batch_size: int,
    cases: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """`validate` on batches of these sizes (`sizes[rank]`, the ranks' samples one after the other), in both modes.

    Where the model is in training mode, its linear layer is not. Then on sequences as `tokens` gets them, with targets
    `words`; and other `cases`. One rank alone is also asked with nothing to validate.
    """
    torch.set_num_threads(1)
    batches = _share(student, logits.double(), targets, sizes)
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
            model.linear.eval()
            before = [module.training for module in trainer.model.modules()]
            result = fields(trainer.validate(), ValidationResult, "validate()")
            modes = [module.training for module in trainer.model.modules()]
            seen[name] = {"result": result, "before": before, "modes": modes}
        dataset = Indexed(inputs.double(), words)
        own_part = ResumableLoader(dataset, batch_size, shuffle=False, padded=False)
        tagger = student.module(TRAINER).ProductionTrainer(Tagger(weight), train, own_part, settings)
        KEPT.append(tagger)
        seen["sequences"] = fields(tagger.validate(), ValidationResult, "validate()")
        seen["cases"] = [_validated(student, train, **case) for case in cases]
        refused = student.ranks > 1
        if student.ranks == 1:
            empty = student.module(TRAINER).ProductionTrainer(model, train, [], settings)
            try:
                empty.validate()
            except ValueError:
                refused = True
            except ArithmeticError:
                refused = False
    return {**seen, "graphs": model.graphs, "refused": refused}


def _share(student: Any, outputs: Tensor, targets: Tensor, sizes: Sequence[Sequence[int]]) -> list[Any]:
    """This rank's batches, of these sizes; the ranks' samples come one after the other."""
    start, own = sum(sum(rank) for rank in sizes[: student.rank]), list(sizes[student.rank])
    part = slice(start, start + sum(own))
    return list(zip(outputs[part].split(own), targets[part].split(own), strict=True)) if own else []


def _validated(
    student: Any, train: Any, *, outputs: Tensor, targets: Tensor, sizes: Sequence[Sequence[int]], dtype: str
) -> dict[str, Any]:
    """`validate` where the model's outputs are given: of classes, of sequences, or numbers like the targets.

    With float64, float32, or in autocast to bfloat16.
    """
    kind, numbers = torch.float64 if dtype == "float64" else torch.float32, targets.is_floating_point()
    settings = student.module(CONFIG).TrainerConfig(
        output_dir=str(base_of(student) / "case"), dtype=dtype if dtype == "bfloat16" else "float32"
    )
    model = _Classifier(outputs.shape[-1], 0.0, dtype=kind, transposed=targets.ndim > 1 and not numbers)
    trainer = student.module(TRAINER).ProductionTrainer(
        model,
        train,
        _share(student, outputs.to(kind), targets.to(kind) if numbers else targets, sizes),
        settings,
        criterion=half_squares if numbers else None,
    )
    KEPT.append(trainer)
    model.get_buffer("shift")[0] = 3.0 * student.rank
    return fields(trainer.validate(), ValidationResult, "validate()")


def kinds(student: Any, *, logits: Tensor, targets: Tensor) -> dict[str, Any]:
    """What `validate` says on the GPU of classes and of numbers as targets; and of an epoch in which nothing counts."""
    torch.set_num_threads(1)
    settings = student.module(CONFIG).TrainerConfig(output_dir=str(Path("kinds")), accumulation_steps=1)
    ignored = torch.full_like(targets, -100)

    def first_column(outputs: Tensor, numbers: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs[:, 0], numbers.to(outputs.dtype))

    def made(given: Tensor, criterion: Any = None) -> Any:
        model = _Classifier(logits.shape[1], 0.0).to(student.device)
        train = ResumableLoader(Indexed(logits.double(), given), 4)
        batches = list(zip(logits.double().split(4), given.split(4), strict=True))
        trainer = student.module(TRAINER).ProductionTrainer(
            model, train, batches, settings, criterion=criterion, device=student.device
        )
        KEPT.append(trainer)
        return trainer

    return {
        "classes": fields(made(targets).validate(), ValidationResult, "validate()"),
        "numbers": fields(made(targets.double(), first_column).validate(), ValidationResult, "validate()"),
        "nothing": fields(made(ignored).train_epoch(0), EpochResult, "train_epoch()"),
    }


def scaled(student: Any, *, logits: Tensor, targets: Tensor, halvings: int) -> dict[str, Any]:
    """A run of one epoch in float16 on the GPU, begun with a loss scale that was halved so often; and that scale then.

    The batches are what the trainer trains and validates.
    """
    torch.set_num_threads(1)
    settings = student.module(CONFIG).TrainerConfig(output_dir="scaled", dtype="float16", epochs=1)
    model = _Classifier(logits.shape[1], 0.0, dtype=torch.float32).to(student.device)
    train = ResumableLoader(Indexed(logits.float(), targets), 4)
    batches = list(zip(logits.float().split(4), targets.split(4), strict=True))
    trainer = student.module(TRAINER).ProductionTrainer(model, train, batches, settings, device=student.device)
    KEPT.append(trainer)
    state = trainer.scaler.state_dict()
    trainer.scaler.load_state_dict({**state, "scale": state["scale"] / 2**halvings})
    return {"run": fields(trainer.fit(), TrainerRun, "fit()"), "scale": trainer.scaler.get_scale()}


def logged(
    student: Any,
    *,
    weight: Tensor,
    inputs: Tensor,
    targets: Tensor,
    batch_size: int,
    config: Mapping[str, Any],
    step_seconds: float,
    back_to: int,
) -> dict[str, Any]:
    """`fit` on ranks that each have a folder of their own; the entries of each rank, by TensorBoard's own reader.

    Every optimizer step is made `step_seconds` longer, and so is every batch that is validated, and every file's
    rename. `moments` are when a "batch" was begun in training, when a "step" was about to be made, and when something
    "outside" of epochs was over: a batch validated, a file renamed.

    Then, on one rank, another trainer goes back to the checkpoint of step `back_to` and goes on from there, as after a
    kill: `again` are the entries that then count.
    """
    torch.set_num_threads(1)
    case = Case(weight, inputs, targets, batch_size, config)
    folder = base_of(student) / f"own-{student.rank}"
    folder.mkdir()
    os.chdir(folder)
    sink = Sink()
    (note, noted), wait = notes(), nap(step_seconds)

    def outside() -> None:
        note(["outside", time.time()])

    def step(*_: Any) -> None:
        wait()
        note(["step", time.time()])

    handle = optimizers.register_optimizer_step_pre_hook(step)
    try:
        with ranks_of(student):
            trainer = case.make(student, Path("run"), monitor=sink)
            _note_batches(trainer.model, note, wait, outside)
            with slow_names(step_seconds, outside):
                begin = time.perf_counter()
                run = fields(trainer.fit(), TrainerRun, "fit()")
                elapsed = time.perf_counter() - begin
            moments = noted()
            files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
            entries = _entries(folder, files)
            again: dict[str, Any] = {}
            if student.ranks == 1:
                second = case.make(student, Path("run"))
                second.load_checkpoint(Path("run", "checkpoints", f"step-{back_to:08d}.pt"))
                second.fit()
                more = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
                again = _entries(folder, more)
    finally:
        handle.remove()
    return {
        "run": run,
        "elapsed": elapsed,
        "seen": trainer.model.seen,
        "files": files,
        "entries": entries,
        "again": again,
        "told": sink.told,
        "moments": moments,
    }


def _note_batches(
    model: Any, note: Callable[[Any], None], wait: Callable[[], None], validated: Callable[[], None]
) -> None:
    """Let a model note when it begins a batch in training; in evaluation it takes longer, and tells its end."""
    forward = model.forward

    def noting(x: Tensor) -> Tensor:
        if model.training:
            note(["batch", time.time()])
        else:
            wait()
        output: Tensor = forward(x)
        if not model.training:
            validated()
        return output

    model.forward = noting


def _entries(folder: Path, files: Sequence[str]) -> dict[str, list[list[float]]]:
    """[step, value, moment] of what TensorBoard shows, by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    entries: dict[str, list[list[float]]] = {}
    for place in sorted({Path(name).parent for name in files if "tfevents" in name}):
        reader = EventAccumulator(str(folder / place))
        reader.Reload()
        for tag in reader.Tags()["scalars"]:
            rows = [[entry.step, entry.value, entry.wall_time] for entry in reader.Scalars(tag)]
            entries.setdefault(tag, []).extend(rows)
    return entries
