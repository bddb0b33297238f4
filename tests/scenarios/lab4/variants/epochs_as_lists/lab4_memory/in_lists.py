"""Lists of everything first, then one pass over them."""

from __future__ import annotations

import functools
import itertools
import statistics
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from labkit.models import TransformerBlock
from labkit.results import (
    ATTENTION_METHODS,
    AttentionResult,
    CheckpointingResult,
    LargeTraining,
    MemoryPrediction,
)

from .readings import now, peak_bytes, reset_peak


def _pieces(batch, size):
    data, target = batch
    for first in range(0, len(data), size):
        yield data[first : first + size], target[first : first + size]


def train_large_model(
    model, train_loader, val_loader, *, epochs=1, micro_batch=8, learning_rate=1e-4, criterion=nn.functional.mse_loss
):
    if not micro_batch >= 1:
        raise ValueError("one sample at a time is the least")
    device = next(iter(model.parameters())).device
    optimizer = torch.optim.Adam(model.parameters(), learning_rate)
    reset_peak(str(device))
    losses, validations = [], []
    for _ in range(epochs):
        batches = list(train_loader)
        model.train()
        for batch in batches:
            terms = []
            for data, target in _pieces(batch, micro_batch):
                term = criterion(model(data.to(device)), target.to(device)) * len(data) / len(batch[0])
                term.backward()
                terms.append(term.detach())
            del term
            losses.append(torch.stack(terms).sum())
            optimizer.step()
            optimizer.zero_grad()
        validations.append(_mean_loss(model, list(val_loader), micro_batch, criterion, device))
    model.train()
    return LargeTraining(
        device=device.type,
        micro_batch=micro_batch,
        optimizer_steps=len(losses),
        losses=tuple(torch.stack(losses).tolist()) if losses else (),
        validation_losses=tuple(float(value) for value in validations),
        peak_bytes=peak_bytes(str(device)),
    )


@torch.inference_mode()
def _mean_loss(model, batches, micro_batch, criterion, device):
    model.eval()
    pieces = [
        (len(data), criterion(model(data.to(device)), target.to(device)))
        for batch in batches
        for data, target in _pieces(batch, micro_batch)
    ]
    return sum(count * loss.double() for count, loss in pieces) / sum(count for count, _ in pieces)


class CheckpointedTransformer(nn.Module):
    """Segments are slices of the list of blocks; a forward pass folds over them."""

    def __init__(self, num_layers=12, *, width=256, heads=8, dropout=0.1, checkpoint_every=1):
        if num_layers < 1:
            raise ValueError("a transformer has a block")
        if checkpoint_every is not None and checkpoint_every <= 0:
            raise ValueError("a segment has a block")
        super().__init__()
        self.layers = nn.Sequential(*[TransformerBlock(width, heads, dropout=dropout) for _ in range(num_layers)])
        self.checkpoint_every = checkpoint_every

    def _segments(self):
        length = self.checkpoint_every
        saving = length is not None and self.training and torch.is_grad_enabled()
        if not saving:
            return [self.layers]
        segments = [self.layers[first : first + length] for first in range(0, len(self.layers), length)]
        return [functools.partial(checkpoint, segment, use_reentrant=False) for segment in segments]

    def forward(self, x):
        return functools.reduce(lambda value, segment: segment(value), self._segments(), x)


def measure_checkpointing(
    intervals=(None, 1, 2, 3, 4, 6, 12),
    *,
    device="cuda",
    num_layers=12,
    width=512,
    heads=8,
    batch=8,
    length=512,
    steps=5,
    warmup=1,
):
    if steps <= 0 or warmup < 0:
        raise ValueError("time one step at least")

    def measured(interval):
        model = CheckpointedTransformer(num_layers, width=width, heads=heads, checkpoint_every=interval)
        model.to(device).train()
        inputs = torch.rand((batch, length, width), device=device)
        stamps = []
        for number in range(warmup + steps):
            if number == warmup:
                reset_peak(device)
            began = now(device)
            for parameter in model.parameters():
                parameter.grad = None
            model(inputs).pow(2).mean().backward()
            stamps.append(now(device) - began)
        return CheckpointingResult(
            device=inputs.device.type,
            checkpoint_every=interval,
            step_seconds=statistics.median(stamps[warmup:]),
            peak_bytes=peak_bytes(device),
        )

    return list(map(measured, intervals))


def best_interval(results, *, budget_bytes):
    ranked = sorted(results, key=lambda result: (result.step_seconds, result.peak_bytes))
    try:
        return next(itertools.filterfalse(lambda result: result.peak_bytes > budget_bytes, ranked))
    except StopIteration:
        raise ValueError(f"everything needs more than {budget_bytes} bytes") from None


@dataclass(frozen=True)
class _Kept:
    """What an operation keeps per token: numbers in the type of the products, numbers in float32, bytes."""

    low: float = 0
    wide: float = 0
    raw: int = 0


def _block(width, heads):
    yield _Kept(wide=width, raw=8)  # first norm: its input, mean and deviation
    yield _Kept(low=width)  # into queries, keys and values
    yield _Kept(low=3 * width)  # attention: queries, keys, values
    yield _Kept(low=width, raw=4 * heads)  # its output and log-sum-exp
    yield _Kept(wide=width, raw=8)  # second norm
    yield _Kept(low=width)  # into the hidden layer
    yield _Kept(low=4 * width)  # GELU's input
    yield _Kept(low=4 * width)  # into the last layer


def predict_memory(setup):
    from .memory_analysis import _check

    _check(setup)
    width, layers = setup.width, setup.layers
    matrices, vectors = {"mlp": (1, 1), "transformer": (12, 13)}[setup.model]
    parameters = 4 * layers * (matrices * width**2 + vectors * width)
    half = setup.dtype in {"float16", "bfloat16"}
    size = 2 if half else 4
    if setup.checkpoint_every is not None:
        activations = 4 * width * setup.tokens * len(range(0, layers, setup.checkpoint_every))
    elif setup.model == "transformer":
        rows = list(_block(width, setup.heads))
        per_token = sum(size * row.low + 4 * row.wide + row.raw for row in rows)
        activations = layers * (setup.tokens * per_token + half * 2 * matrices * width**2)
    else:
        activations = size * width * setup.tokens * (layers + half) + half * 2 * width**2 * (layers - 1)
    return MemoryPrediction(
        parameter_bytes=parameters,
        gradient_bytes=parameters,
        optimizer_state_bytes=parameters * ("sgd", "momentum", "adam").index(setup.optimizer),
        activation_bytes=activations,
    )


def benchmark_attention(
    lengths=(512, 1024, 2048, 4096, 8192, 16384),
    methods=("standard", "flash"),
    *,
    device="cuda",
    dtype=torch.float16,
    batch=1,
    heads=16,
    head_dim=64,
    causal=True,
    iterations=5,
    warmup=1,
):
    from . import flash_attention as given

    functions = dict(
        zip(
            ("standard", "flash", "tiled"),
            (given.standard_attention, given.flash_attention, given.tiled_attention),
            strict=True,
        )
    )
    if any(method not in ATTENTION_METHODS for method in methods):
        raise ValueError(f"know {ATTENTION_METHODS} only")
    if min(iterations, warmup) < 1:
        raise ValueError("iterations and warm-up start at 1")

    def inputs_of(length):
        tensors = [torch.randn(batch, heads, length, head_dim, device=device, dtype=dtype) for _ in range(4)]
        return [tensor.requires_grad_() for tensor in tensors[:3]], tensors[3]

    def run(method, leaves, gradient):
        for leaf in leaves:
            leaf.grad = None
        torch.autograd.backward(functions[method](*leaves, causal=causal), gradient)

    def measured(method, leaves, gradient):
        for _ in range(warmup):
            run(method, leaves, gradient)
        for leaf in leaves:
            leaf.grad = None
        on_gpu = leaves[0].is_cuda
        before = torch.cuda.memory_allocated(device) if on_gpu else None
        reset_peak(device)
        stamps = []
        for _ in range(iterations):
            began = now(device)
            run(method, leaves, gradient)
            stamps.append(now(device) - began)
        for leaf in leaves:
            leaf.grad = None
        return statistics.median(stamps), None if before is None else peak_bytes(device) - before

    results = []
    for length in lengths:
        shared = None
        for method in methods:
            seconds = added = None
            try:
                shared = shared or inputs_of(length)
                seconds, added = measured(method, *shared)
            except torch.OutOfMemoryError:
                shared = None
            results.append(
                AttentionResult(
                    device=torch.device(device).type,
                    method=method,
                    backend=given.attention_backend(device, dtype) if method == "flash" else "torch",
                    dtype=str(dtype)[len("torch.") :],
                    length=length,
                    seconds=seconds,
                    peak_bytes=added,
                )
            )
    return results
