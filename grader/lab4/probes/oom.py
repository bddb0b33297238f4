"""Probes of Lab 4's out-of-memory script and handler.

Whether the script fits is asked of a virtual GPU of 24 GB, on every machine: the probe attaches it by itself.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import vgpu
from gradebox.sandbox.measuring import measures
from grader.shared.probes.support import fields, plain, run_program
from labkit.device import GPU_24_GB
from labkit.results import LargeTraining

SCRIPT, RETRY = "lab4_memory.oom_fixes", "lab4_memory.oom_retry"
_BALLAST_BYTES = 2**20
_NOBODY_HAS = 2**50
"""Bytes. A driver may lend a GPU the machine's memory (Windows does), so that twice its own is there."""
_STEP = 2**28
"""Bytes: what fills the device leaves less than that free."""


def fits(
    student: Any, *, batches: Sequence[int], validation: Sequence[int], length: int, micro_batch: int
) -> dict[str, Any]:
    """Train the full model on 24 GB, shapes only, where something before it has filled the device and gone."""
    module = student.module(SCRIPT)
    with vgpu.attach(GPU_24_GB, values=False, force=True) as gpu:
        with torch.device("cuda"):
            model = module.VeryLargeModel()
        parameters = sum(parameter.numel() for parameter in model.parameters())
        row = torch.zeros(1, 1, 4096)
        before = torch.empty(torch.cuda.mem_get_info()[0] // _STEP * _STEP, dtype=torch.uint8, device="cuda")
        del before
        torch.cuda.empty_cache()
        before_bytes = torch.cuda.max_memory_allocated()

        # Loader that was asked last, and what the device held then; of each, what its first micro-batch added to that.
        fetched: list[tuple[str, int]] = []
        moved: dict[str, int] = {}

        class Loader:
            """Batches; notes what the device holds when one is fetched."""

            def __init__(self, name: str, sizes: Sequence[int]) -> None:
                self.name, self.sizes = name, sizes

            def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
                for size in self.sizes:
                    fetched.append((self.name, torch.cuda.memory_allocated()))
                    yield row.expand(size, length, 4096), row.expand(size, length, 4096)

        forwards: list[int] = []

        def note(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            (data,) = (*inputs, *named.values())
            forwards.append(data.numel() // (length * 4096))
            name, held = fetched[-1]
            # Of the first only: later on a step may fall between fetching a batch and using it.
            moved.setdefault(name, torch.cuda.memory_allocated() - held)

        model.register_forward_pre_hook(note, with_kwargs=True)
        died, result = None, None
        try:
            result = module.train_large_model(
                model, Loader("train", batches), Loader("val", validation), micro_batch=micro_batch
            )
        except torch.OutOfMemoryError as error:
            died = str(error).partition(". GPU")[0]
        told = None if result is None else fields(result, LargeTraining, "train_large_model()")
        return {
            "died": died,
            "result": told,
            "parameters": parameters,
            "forwards": forwards,
            "moved_bytes": moved,
            "before_bytes": before_bytes,
            "peak_bytes": torch.cuda.max_memory_allocated(),
            "capacity_bytes": gpu.spec.memory_bytes,
        }


def twin(
    student: Any,
    *,
    layers: int,
    epochs: int,
    micro_batch: int,
    learning_rate: float,
    batches: Sequence[int],
    validation: Sequence[int],
    weights: Tensor,
    biases: Tensor,
    data: Tensor,
    targets: Tensor,
    scale: float,
    others: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """Train a small model in float64; `data` and `targets` hold the samples of all batches one after the other.

    Then the same in float32 with the criterion multiplied by `scale`: one epoch of the same samples, each of them cut
    out as a sequence of one token, to see what small gradients do. And once more in float64 for each of `others`: with
    another `micro_batch`, so many `epochs`, samples that are a `sequence` of two tokens each, the criterion `given`
    (the absolute error), and batches that have no length and no index (`streamed`).
    """
    module = student.module(SCRIPT)

    def filled(dtype: torch.dtype) -> Any:
        model = module.VeryLargeModel(layers, weights.shape[-1]).to(dtype)
        with torch.no_grad():
            for layer, weight, bias in zip(model.layers, weights, biases, strict=True):
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)
        return model.to(student.device)

    model = filled(torch.float64)
    pairs = list(zip(data.split([*batches, *validation]), targets.split([*batches, *validation]), strict=True))
    result = module.train_large_model(
        model,
        pairs[: len(batches)],
        pairs[len(batches) :],
        epochs=epochs,
        micro_batch=micro_batch,
        learning_rate=learning_rate,
    )
    small = filled(torch.float32)
    tokens = [(sample.float().unsqueeze(1), target.float().unsqueeze(1)) for sample, target in pairs]
    small_result = module.train_large_model(
        small,
        tokens[: len(batches)],
        tokens[len(batches) :],
        epochs=1,
        micro_batch=micro_batch,
        learning_rate=learning_rate,
        criterion=lambda output, target: functional.mse_loss(output, target) * scale,
    )
    told = fields(result, LargeTraining, "train_large_model()")

    def again(*, micro_batch: int, epochs: int, sequence: bool, given: bool, streamed: bool) -> dict[str, Any]:
        other = filled(torch.float64)
        own = [tuple(x.reshape(len(x) // 2, 2, -1) for x in pair) for pair in pairs] if sequence else pairs
        trained, validated = own[: len(batches)], own[len(batches) :]
        wrap: Any = _Streamed if streamed else list
        extra = {"criterion": functional.l1_loss} if given else {}
        ended = module.train_large_model(
            other,
            wrap(trained),
            wrap(validated),
            epochs=epochs,
            micro_batch=micro_batch,
            learning_rate=learning_rate,
            **extra,
        )
        return {
            "result": fields(ended, LargeTraining, "train_large_model()"),
            "weights": torch.stack([layer.weight.detach() for layer in other.layers]),
        }

    return {
        "others": [again(**each) for each in others],
        "device": student.device,
        "result": told,
        "weights": torch.stack([layer.weight.detach() for layer in model.layers]),
        "are_numbers": all(isinstance(loss, (int, float)) for loss in (*result.losses, *result.validation_losses)),
        "small_result": fields(small_result, LargeTraining, "train_large_model()"),
        "small_weights": torch.stack([layer.weight.detach() for layer in small.layers]),
    }


class _Streamed:
    """What can be gone through again and again, and nothing else."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


class _Ballast(torch.autograd.Function):
    """The identity, whose node in the graph holds memory for as long as the graph lives, backward or not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.ballast = torch.empty(_BALLAST_BYTES, dtype=torch.uint8, device=x.device)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0]


class _Loader:
    """Batches on the CPU; for each pass, notes what the device holds whenever one is fetched, and after the last.

    `passes` has what is allocated, `requested` what live tensors asked for: without the allocator's rounding.
    """

    def __init__(self, sizes: Sequence[int], width: int, phases: list[str], phase: str) -> None:
        self.sizes, self.width, self.phases, self.phase = sizes, width, phases, phase
        self.passes: list[list[int]] = []
        self.requested: list[list[int]] = []

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.phases.append(self.phase)
        notes: list[int] = []
        requested: list[int] = []
        self.passes.append(notes)
        self.requested.append(requested)

        def note() -> None:
            notes.append(torch.cuda.memory_allocated())
            requested.append(int(torch.cuda.memory_stats().get("requested_bytes.all.current", 0)))

        for size in self.sizes:
            note()
            yield torch.randn(size, self.width), torch.randn(size, self.width)
        note()


class _Watched(nn.Module):
    """A small model that notes each forward pass: phase, samples, mode, and whether a graph is recorded."""

    def __init__(self, width: int, phases: list[str]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.Dropout(0.3), nn.ReLU(), nn.Linear(width, width))
        self.phases = phases
        self.forwards: list[dict[str, Any]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.forwards.append(
            {
                "phase": self.phases[-1] if self.phases else "none",
                "samples": len(x),
                "training": self.training,
                "graph": torch.is_grad_enabled(),
            }
        )
        output: Tensor = self.layers(x)
        return output


def steady(student: Any, *, width: int, batches: Sequence[int], validation: Sequence[int], micro_batch: int) -> Any:
    """What is allocated whenever a batch is fetched, over two epochs, and how the model was called.

    Each graph holds a ballast, so that a loss which is kept with its graph shows.
    """
    phases: list[str] = []
    model = _Watched(width, phases).to(student.device).eval()

    def criterion(output: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = _Ballast.apply(functional.mse_loss(output, target))
        return loss

    train_loader = _Loader(batches, width, phases, "training")
    val_loader = _Loader(validation, width, phases, "validation")
    result = student.module(SCRIPT).train_large_model(
        model,
        train_loader,
        val_loader,
        epochs=2,
        micro_batch=micro_batch,
        criterion=criterion,
    )
    return {
        "result": fields(result, LargeTraining, "train_large_model()"),
        "training_bytes": train_loader.passes,
        "requested_bytes": train_loader.requested,
        "sample_bytes": width * 4,
        "validation_bytes": val_loader.passes,
        "forwards": model.forwards,
        "training_afterwards": model.training,
        "ballast_bytes": _BALLAST_BYTES,
    }


@measures("device memory")
def retry(student: Any, *, cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`run_with_oom_retry` with attempts that really run out of memory above `fits`, or then raise the error named.

    Memory of a failed attempt is held by its local variables, and of every second case by objects that refer to each
    other.
    """
    run = student.module(RETRY).run_with_oom_retry
    kinds = {"RuntimeError": RuntimeError, "ValueError": ValueError, "MemoryError": MemoryError}
    too_much = 2 * torch.cuda.get_device_properties(0).total_memory if student.gpu is not None else _NOBODY_HAS
    observed = []
    for case in cases:
        attempts: list[int] = []
        held: list[int] = []
        reserved: list[int] = []

        def attempt(
            micro_batch: int,
            case: dict[str, Any] = case,
            attempts: list[int] = attempts,
            held: list[int] = held,
            reserved: list[int] = reserved,
        ) -> str | None:
            attempts.append(micro_batch)
            held.append(torch.cuda.memory_allocated())
            reserved.append(torch.cuda.memory_reserved())
            if len(attempts) > 50:
                raise AssertionError("no end of attempts")
            activations = torch.empty(64 * 2**20, dtype=torch.uint8, device=student.device)
            if case.get("cycle"):
                own: list[Any] = [activations]
                own.append(own)
            if micro_batch > case["fits"]:
                torch.empty(too_much, dtype=torch.uint8, device=student.device)
            if case.get("raises"):
                raise kinds[case["raises"]](case["message"])
            return None if case.get("returns_nothing") else f"done with {micro_batch} and {activations.numel()} bytes"

        ended: dict[str, Any]
        gc.collect()
        torch.cuda.empty_cache()
        try:
            returned = run(attempt, case["start"])
            ended = {"returned": plain(returned, "run_with_oom_retry()"), "raised": None}
        except NotImplementedError:
            raise
        except Exception as error:
            ended = {"returned": None, "raised": type(error).__name__, "message": str(error)}
            error.__traceback__ = None
        observed.append({**ended, "attempts": attempts, "held_bytes": held, "reserved_bytes": reserved})
    return {"cases": observed}


def program(student: Any) -> dict[str, Any]:
    """The script as a program, on a virtual GPU of 24 GB."""
    with vgpu.attach(GPU_24_GB, values=False, force=True), tempfile.TemporaryDirectory() as folder:
        return run_program(student, SCRIPT, ["--micro-batch", "16"], Path(folder, "results"))
