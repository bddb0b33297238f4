"""Probes of what Lab 4's functions do with arguments that make no sense: no measurement, nothing that takes long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from grader.shared.probes.calls import on_device
from grader.shared.probes.endings import ending
from labkit.results import TrainingSetup

_CHECKPOINTING, _ATTENTION = "lab4_memory.gradient_checkpointing", "lab4_memory.flash_attention"

_DEFAULT_INTERVAL = 1


def ask(student: Any) -> dict[str, Any]:
    """By criterion and call: the name of the error it raised, None where there was none.

    `calls` make no sense; `sensible` are neighbours of theirs that do.
    """
    operands = [torch.zeros(1, 1, 3, 4, device=student.device) for _ in range(3)]
    tiny: dict[str, Any] = {**on_device(student), "num_layers": 2, "width": 8, "heads": 2, "batch": 1, "length": 4}
    short: dict[str, Any] = {**on_device(student), "batch": 1, "heads": 1, "head_dim": 4, "dtype": torch.float32}

    def called(module: str, name: str, *arguments: Any, **named: Any) -> Callable[[], Any]:
        return lambda: getattr(student.module(module), name)(*arguments, **named)

    def model(layers: int, interval: int | None) -> Callable[[], Any]:
        options = {} if interval == _DEFAULT_INTERVAL else {"checkpoint_every": interval}
        return called(_CHECKPOINTING, "CheckpointedTransformer", layers, **options)

    def measured(**named: int) -> Callable[[], Any]:
        return called(_CHECKPOINTING, "measure_checkpointing", [None], **tiny, **named)

    def benchmark(methods: Sequence[str], **named: int) -> Callable[[], Any]:
        return called(_ATTENTION, "benchmark_attention", [8], methods, **short, **named)

    def train(micro_batch: int) -> Callable[[], Any]:
        network = torch.nn.Linear(4, 4).to(student.device)
        batches = [(torch.zeros(3, 4), torch.zeros(3, 4))]
        return called("lab4_memory.oom_fixes", "train_large_model", network, batches, batches, micro_batch=micro_batch)

    def retry(size: int) -> Callable[[], Any]:
        return called("lab4_memory.oom_retry", "run_with_oom_retry", lambda micro_batch: micro_batch, size)

    def predict(**changed: Any) -> Callable[[], Any]:
        setup: dict[str, Any] = {
            "model": "mlp", "layers": 3, "width": 64, "heads": 1, "tokens": 100, "optimizer": "adam",
            "dtype": "float32", "checkpoint_every": None,
        }  # fmt: skip
        return called("lab4_memory.memory_analysis", "predict_memory", TrainingSetup(**{**setup, **changed}))

    calls: dict[str, dict[str, Callable[[], Any]]] = {
        "checkpointing": {
            "CheckpointedTransformer(0)": model(0, 1),
            "CheckpointedTransformer(2, checkpoint_every=0)": model(2, 0),
            "CheckpointedTransformer(2, checkpoint_every=-1)": model(2, -1),
            "measure_checkpointing(steps=0)": measured(steps=0),
            "measure_checkpointing(warmup=-1)": measured(warmup=-1),
        },
        "attention": {
            "tiled_attention(block_size=0)": called(_ATTENTION, "tiled_attention", *operands, block_size=0),
            "tiled_attention(block_size=-1)": called(_ATTENTION, "tiled_attention", *operands, block_size=-1),
            "benchmark_attention(methods=['fast'])": benchmark(["fast"]),
            "benchmark_attention(iterations=0)": benchmark(["standard"], iterations=0),
            "benchmark_attention(warmup=0)": benchmark(["standard"], warmup=0),
        },
        "oom": {
            "train_large_model(micro_batch=0)": train(0),
            "run_with_oom_retry(attempt, 0)": retry(0),
            "run_with_oom_retry(attempt, -2)": retry(-2),
        },
        "analysis": {
            "predict_memory() of an unknown model": predict(model="cnn"),
            "predict_memory() of an unknown optimizer": predict(optimizer="lion"),
            "predict_memory() of an unknown dtype": predict(dtype="float8"),
            "predict_memory() of an mlp with checkpointing": predict(checkpoint_every=1),
        },
    }
    sensible: dict[str, dict[str, Callable[[], Any]]] = {
        "checkpointing": {
            "CheckpointedTransformer(2)": model(2, _DEFAULT_INTERVAL),
            "CheckpointedTransformer(2, checkpoint_every=2)": model(2, 2),
            "measure_checkpointing(steps=1, warmup=0)": measured(steps=1, warmup=0),
        },
        "attention": {
            "tiled_attention(block_size=2)": called(_ATTENTION, "tiled_attention", *operands, block_size=2),
            "benchmark_attention(iterations=1, warmup=1)": benchmark(["standard"], iterations=1, warmup=1),
        },
        "oom": {
            "train_large_model(micro_batch=2)": train(2),
            "run_with_oom_retry(attempt, 2)": retry(2),
        },
        "analysis": {
            "predict_memory() of an mlp": predict(),
            "predict_memory() of a transformer with checkpointing": predict(
                model="transformer", heads=8, checkpoint_every=1
            ),
        },
    }
    return {"calls": _errors(calls), "sensible": _errors(sensible)}


def _errors(calls: dict[str, dict[str, Callable[[], Any]]]) -> dict[str, dict[str, str | None]]:
    return {criterion: {what: _error(call) for what, call in of.items()} for criterion, of in calls.items()}


def _error(call: Callable[[], Any]) -> str | None:
    """As `ending`; an open task has a name, too, since others are asked in the same request."""
    try:
        return ending(call) or None
    except NotImplementedError:
        return "NotImplementedError"
