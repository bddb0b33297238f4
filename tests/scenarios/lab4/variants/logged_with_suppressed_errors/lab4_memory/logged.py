"""Everything says to the log what it does; what may fail is inside a context manager."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
from collections import defaultdict
from functools import wraps

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import BatchSampler, SequentialSampler

from labkit import plotting
from labkit.results import LargeTraining

from .readings import peak_bytes, reset_peak

LOG = logging.getLogger(__name__)


def logged(function):
    """Say when a call begins and what came of it."""

    @wraps(function)
    def wrapper(*args, **options):
        LOG.debug("%s begins", function.__name__)
        try:
            return function(*args, **options)
        finally:
            LOG.debug("%s ends", function.__name__)

    return wrapper


@logged
def run_with_oom_retry(attempt, micro_batch):
    if micro_batch <= 0:
        raise ValueError("micro_batch")
    while micro_batch > 1:
        with contextlib.suppress(torch.OutOfMemoryError):
            return attempt(micro_batch), micro_batch
        LOG.warning("%d samples do not fit", micro_batch)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        micro_batch >>= 1
    return attempt(1), 1


class Averages:
    """Means over samples, batch by batch, as Python numbers."""

    def __init__(self):
        self.means, self._sum, self._samples = [], 0.0, 0

    def add(self, loss, samples):
        self._sum += float(loss) * samples
        self._samples += samples

    def close(self):
        self.means.append(self._sum / self._samples)
        LOG.info("mean loss %g over %d samples", self.means[-1], self._samples)
        self._sum, self._samples = 0.0, 0


@logged
def train_large_model(
    model, train_loader, val_loader, *, epochs=1, micro_batch=8, learning_rate=1e-4, criterion=nn.functional.mse_loss
):
    if micro_batch < 1:
        raise ValueError("micro_batch")
    device = next(model.parameters()).device
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    reset_peak(str(device))
    training, validation = Averages(), Averages()

    def micro_batches(data, target):
        for places in BatchSampler(SequentialSampler(data), micro_batch, drop_last=False):
            rows = slice(places[0], places[-1] + 1)
            yield data[rows].to(device), target[rows].to(device)

    for epoch in range(epochs):
        LOG.info("epoch %d", epoch)
        for data, target in train_loader:
            model.train()
            model.zero_grad(set_to_none=True)
            for inputs, wanted in micro_batches(data, target):
                loss = criterion(model(inputs), wanted)
                (loss * (len(inputs) / len(data))).backward()
                training.add(loss.item(), len(inputs))
                del loss
            training.close()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for data, target in val_loader:
                for inputs, wanted in micro_batches(data, target):
                    validation.add(criterion(model(inputs), wanted), len(inputs))
        validation.close()
    model.train()
    return LargeTraining(
        device=device.type,
        micro_batch=micro_batch,
        optimizer_steps=len(training.means),
        losses=tuple(training.means),
        validation_losses=tuple(validation.means),
        peak_bytes=peak_bytes(str(device)),
    )


@logged
def standard_attention(Q, K, V, *, causal=False):
    scale = math.sqrt(1 / Q.size(-1))
    scores = torch.matmul(Q, K.mT).mul(scale)
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=Q.device).tril(scores.size(-1) - scores.size(-2))
        weights = torch.where(seen, scores, float("-inf")).softmax(-1)
        weights = torch.where(seen.any(-1, keepdim=True), weights, 0.0)
        return weights @ V
    return scores.softmax(-1) @ V


def _tiles(K, V, block_size):
    for first in range(0, K.size(-2), block_size):
        yield first, K[..., first : first + block_size, :], V[..., first : first + block_size, :]


def _rows(Q, K, V, offset, block_size):
    """Some queries against all keys that the last of them sees; offset: what the first of them sees, None: all."""
    kind = torch.promote_types(Q.dtype, torch.float32)
    q = Q.to(kind) / math.sqrt(Q.size(-1))
    most = torch.full_like(q[..., :1], -1e30)
    weight, value = torch.zeros_like(most), torch.zeros_like(q)
    for first, keys, values in _tiles(K, V, block_size):
        if offset is not None and first > offset + q.size(-2) - 1:
            break
        scores = q @ keys.to(kind).mT
        if offset is not None:
            last = torch.arange(q.size(-2), device=Q.device).add_(offset).unsqueeze(-1)
            places = torch.arange(first, first + keys.size(-2), device=Q.device)
            scores = scores.masked_fill(places > last, -torch.inf)
        higher = torch.maximum(most, scores.amax(-1, keepdim=True))
        shrink, parts = (most - higher).exp(), (scores - higher).exp()
        weight = weight * shrink + parts.sum(-1, keepdim=True)
        value = value * shrink + parts @ values.to(kind)
        most = higher
    return (value / torch.where(weight > 0, weight, 1.0)).to(Q.dtype)


@logged
def tiled_attention(Q, K, V, *, causal=False, block_size=128):
    if block_size < 1:
        raise ValueError("block_size")
    shift = K.size(-2) - Q.size(-2)
    parts, first = [], 0
    for rows in Q.split(block_size, dim=-2):
        parts.append(checkpoint(_rows, rows, K, V, first + shift if causal else None, block_size, use_reentrant=False))
        first += rows.size(-2)
    return torch.cat(parts, -2)


@logged
def plot_checkpointing(results, path):
    figure, (axis,) = plotting.new_figure("Less memory, more time", x_label="ms per step", y_label="MiB at the peak")
    rows = [(1000 * each.step_seconds, each.peak_bytes / 2**20, each.checkpoint_every) for each in results]
    axis.scatter([row[0] for row in rows], [row[1] for row in rows])
    for x, y, every in rows:
        axis.text(x, y, f" {every}" if every else " nothing")
    return plotting.save_png(figure, path)


@logged
def plot_attention(results, path):
    figure, (memory, clock) = plotting.new_figure("Attention", columns=2, x_label="tokens", share_y=False)
    series = defaultdict(list)
    for each in results:
        if each.seconds is not None:
            series[each.method].append((each.length, each.peak_bytes / 1024**2, each.seconds * 1000))
    for method, rows in series.items():
        x, mebibytes, milliseconds = zip(*sorted(rows), strict=True)
        memory.loglog(x, mebibytes, "o", label=method)
        clock.loglog(x, milliseconds, "o", label=method)
    memory.set_ylabel("MiB added")
    clock.set_ylabel("ms")
    for axis in (memory, clock):
        axis.legend()
    return plotting.save_png(figure, path)
