"""Probes of Lab 2's comparison: what the student measured and concluded, and the same measured by the course."""

from __future__ import annotations

import functools
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from gradebox.sandbox.measuring import measures
from grader.lab2.probes.training import classifier, one_thread
from grader.shared.probes.calls import on_device
from grader.shared.probes.card import full_precision
from grader.shared.probes.handed_out import linear, zeros
from grader.shared.probes.record import mark, reading
from grader.shared.probes.support import fields, mapping, plain, sequence
from labkit import data
from labkit.results import PrecisionConclusions, PrecisionResult

COMPARISON = "lab2_mixed_precision.precision_comparison"
_LOSS = "aten::_log_softmax"
"""What a cross entropy runs that is not put together by hand."""
TRAINING_BATCH = 200
"""So few steps that the model is far from done: one that is not made anew, and trained twice as long by that, reaches
0.058 more (the least of 151 seeds), while bfloat16 and float32 never lie further apart than 0.0084."""


def _network(widths: Sequence[int], batch: int) -> tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]]]:
    """Large, and quick to make: weights and samples are zeros."""

    def create_model() -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def create_batch() -> tuple[Tensor, Tensor]:
        return zeros(batch, widths[0]), torch.zeros(batch, dtype=torch.int64)

    return create_model, create_batch


class Noted(nn.Module):
    """A model that tells of each forward pass, however it is called; a hook would miss `model.forward(x)`."""

    def __init__(self, model: nn.Module, tell: Callable[[nn.Module, Tensor], object]) -> None:
        super().__init__()
        self.model, self.tell = model, tell

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.model(x)
        self.tell(self, output)
        return output


@measures("time")
def compare(
    student: Any,
    *,
    widths: Sequence[int],
    batch: int,
    accuracies: Sequence[tuple[str, float]],
    steps: int,
    warmup: int,
    truth_steps: int = 0,
) -> dict[str, Any]:
    """`compare_precisions` of a fully connected network.

    `accuracies` are pairs of a precision and its accuracy, in the order in which they are handed in.

    Beside its rows, for each model that it made: how often that ran, which optimizer made how many steps then, how
    often a loss scale was updated, in which modes it ran, and on a virtual GPU in which dtypes a logarithm of softmax
    was computed.

    With `truth_steps`, `truths` are the seconds of so many steps of the course's own in each precision, some of them
    right before the student's call and some right after it: a real card's clock changes.
    """
    create, create_batch = _network(widths, batch)
    module = student.module(COMPARISON)
    precisions = [name for name, _ in accuracies]
    truths = _true_seconds(widths, batch, precisions, truth_steps)
    made: list[dict[str, Any]] = []
    begins: list[int] = []

    def place() -> int:
        return mark(student.gpu) if student.gpu is not None else 0

    def create_model() -> nn.Module:
        note: dict[str, Any] = {"forwards": 0, "steps": 0, "updates": 0, "optimizers": [], "modes": []}
        made.append(note)
        begins.append(place())

        def ran(model: nn.Module, _: Tensor) -> None:
            note["forwards"] += 1
            if model.training not in note["modes"]:
                note["modes"].append(model.training)

        return Noted(create(), ran)

    def after_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if made:
            made[-1]["steps"] += 1
            settings = {name: optimizer.defaults.get(name) for name in ("lr", "betas", "eps", "weight_decay")}
            told = plain({"kind": type(optimizer).__name__, **settings}, "optimizer")
            if told not in made[-1]["optimizers"]:
                made[-1]["optimizers"].append(told)

    update = torch.amp.GradScaler.update

    @functools.wraps(update)
    def counted(scaler: torch.amp.GradScaler, *arguments: Any, **options: Any) -> None:
        if made and scaler.is_enabled():
            made[-1]["updates"] += 1
        update(scaler, *arguments, **options)

    handle = register_optimizer_step_post_hook(after_step)
    torch.amp.GradScaler.update = counted  # type: ignore[assignment,method-assign]
    try:
        told = sequence(
            module.compare_precisions(
                dict(accuracies), create_model, create_batch, steps=steps, warmup=warmup, **on_device(student)
            ),
            "compare_precisions()",
        )
    finally:
        torch.amp.GradScaler.update = update  # type: ignore[method-assign]
        handle.remove()
    for note, begin, end in zip(made, begins, [*begins[1:], place()][: len(made)], strict=True):
        note["losses"] = reading(student.gpu, "dtypes", begin, end, name=_LOSS) if student.gpu is not None else []
    rows = [fields(row, PrecisionResult, f"compare_precisions()[{i}]") for i, row in enumerate(told)]
    for name, more in _true_seconds(widths, batch, precisions, truth_steps).items():
        truths[name] += more
    return {"rows": rows, "models": made, "truths": truths}


def _true_seconds(widths: Sequence[int], batch: int, precisions: Sequence[str], steps: int) -> dict[str, list[float]]:
    """Quartiles of the seconds of so many steps, by precision; nothing for none."""
    if not steps:
        return {}
    found = {}
    for name in precisions:
        with full_precision():
            took = _measure(widths, batch, getattr(torch, name), steps)["seconds"]
        low, _, high = statistics.quantiles(took, n=4, method="inclusive")
        found[name] = [low, high]
        gc.collect()
    torch.cuda.empty_cache()
    return found


def _on_cpu() -> tuple[list[str], Callable[[], nn.Module], tuple[Tensor, Tensor]]:
    """On which devices models ran, as they are made by what follows; and a batch for them."""
    ran: list[str] = []

    def create_model() -> nn.Module:
        return Noted(nn.Linear(4, 3), lambda _, output: ran.append(output.device.type))

    return ran, create_model, (torch.ones(5, 4), torch.zeros(5, dtype=torch.int64))


def compared_on_cpu(student: Any) -> dict[str, Any]:
    """`compare_precisions(..., device="cpu")` where there is a GPU: on which devices its models ran, and its rows."""
    ran, create_model, batch = _on_cpu()
    told = student.module(COMPARISON).compare_precisions(
        {"float32": 0.9}, create_model, lambda: batch, device="cpu", steps=1, warmup=1
    )
    rows = [fields(row, PrecisionResult, "compare_precisions()") for row in sequence(told, "compare_precisions()")]
    return {"ran": sorted(set(ran)), "rows": rows}


def accuracies_on_cpu(student: Any) -> dict[str, Any]:
    """`measure_accuracies(..., device="cpu")` where there is a GPU: on which devices its models ran."""
    ran, create_model, batch = _on_cpu()
    student.module(COMPARISON).measure_accuracies(
        create_model, [batch], [batch], device="cpu", dtypes=[torch.float32], epochs=1
    )
    return {"ran": sorted(set(ran))}


def compare_truth(
    student: Any, *, widths: Sequence[int], batch: int, precisions: Sequence[str], steps: int, turn: int
) -> dict[str, Any]:
    """The same steps measured by the course, in a child without any student's code. `turn` tells repetitions apart."""
    rows = {}
    for name in precisions:
        seen = _measure(widths, batch, getattr(torch, name), steps)
        rows[name] = {"step_seconds": statistics.median(seen["seconds"]), "peak_bytes": seen["peak_bytes"]}
    return {"rows": rows}


def _measure(widths: Sequence[int], batch: int, dtype: torch.dtype, steps: int) -> dict[str, Any]:
    create_model, create_batch = _network(widths, batch)
    torch.cuda.reset_peak_memory_stats()
    model = create_model().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    inputs, targets = (tensor.cuda() for tensor in create_batch())
    seconds = []
    for _ in range(3 + steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
            loss = nn.functional.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds[3:], "peak_bytes": torch.cuda.max_memory_allocated()}


def _digits(order: Tensor, wrong: Tensor) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
    """Training batches in this order, and test batches in which some labels (`wrong`, one per image) are shifted."""
    images, labels = data.load("digits").tensors
    train = [(images[part], labels[part]) for part in order.split(TRAINING_BATCH)]
    images, labels = data.load("digits", split="test").tensors
    return train, list(zip(images.split(57), ((labels + wrong) % 10).split(57), strict=True))


def accuracies(
    student: Any, *, first: Tensor, second: Tensor, order: Tensor, wrong: Tensor, precisions: Sequence[str], epochs: int
) -> dict[str, Any]:
    """`measure_accuracies` on the handwritten digits, some of the test labels being wrong.

    Beside them, for each model that it made: the dtypes of its outputs in training and in evaluation, and how often it
    ran in training.
    """
    one_thread()
    train, test = _digits(order, wrong)
    made: list[dict[str, Any]] = []

    def create_model() -> nn.Module:
        note: dict[str, Any] = {"training": [], "evaluation": []}
        made.append(note)

        def look(model: nn.Module, output: Tensor) -> None:
            note["training" if model.training else "evaluation"].append(plain(output.dtype, ""))

        return Noted(classifier(first, second), look)

    told = student.module(COMPARISON).measure_accuracies(
        create_model,
        train,
        test,
        dtypes=[getattr(torch, name) for name in precisions],
        epochs=epochs,
        **on_device(student),
    )
    models = [
        {mode: sorted(set(dtypes)) for mode, dtypes in note.items()} | {"batches": len(note["training"])}
        for note in made
    ]
    return {"accuracies": plain(mapping(told, "measure_accuracies()"), "measure_accuracies()"), "models": models}


def accuracies_truth(
    student: Any, *, first: Tensor, second: Tensor, order: Tensor, wrong: Tensor, epochs: int
) -> dict[str, Any]:
    """The accuracy that the course's own training in float32 reaches there: on the test images, and on the others."""
    one_thread()
    train, test = _digits(order, wrong)
    model = classifier(first, second)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(epochs):
        for images, labels in train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    with torch.no_grad():
        right = [sum(int((model(x).argmax(1) == y).sum()) for x, y in part) for part in (test, train)]
    return {"test": right[0] / sum(len(y) for _, y in test), "train": right[1] / sum(len(y) for _, y in train)}


def conclude(student: Any, *, cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`conclude` on made-up results: each case has rows of (precision, seconds, peak or None, accuracy), and a loss."""
    answers = []
    for case in cases:
        results = [
            PrecisionResult(
                device="cuda",
                dtype=name,
                step_seconds=seconds,
                samples_per_second=64 / seconds,
                peak_bytes=peak,
                accuracy=accuracy,
            )
            for name, seconds, peak, accuracy in case["rows"]
        ]
        options = {"accuracy_loss": case["loss"]} if "loss" in case else {}
        told = student.module(COMPARISON).conclude(results, **options)
        answers.append(fields(told, PrecisionConclusions, "conclude()"))
    return {"answers": answers}
