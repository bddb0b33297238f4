"""Blocks of queries, each checkpointed as a whole; inside them tiles of keys, added up by plain operations.

Gradients come from plain operations: the block's largest scores are found without a graph, then each tile is added.
"""

import math

import torch
from torch.utils.checkpoint import checkpoint


def attend(query, key, value, causal, size):
    rows = max(size, 64)
    parts = []
    for first in range(0, query.shape[-2], rows):
        strip = query.narrow(-2, first, min(rows, query.shape[-2] - first))
        offset = first + key.shape[-2] - query.shape[-2]
        if torch.is_grad_enabled():
            parts.append(checkpoint(_block, strip, key, value, offset, causal, size, use_reentrant=False))
        else:
            parts.append(_block(strip, key, value, offset, causal, size))
    return torch.cat(parts, -2)


def _tiles(strip, key, offset, causal, size):
    kind = torch.promote_types(strip.dtype, torch.float32)
    last = torch.arange(strip.shape[-2], device=strip.device).add_(offset).unsqueeze(-1)
    for start in range(0, key.shape[-2], size):
        if causal and start > offset + strip.shape[-2] - 1:
            return
        length = min(size, key.shape[-2] - start)
        scores = (strip @ key.narrow(-2, start, length).to(kind).mT) / math.sqrt(strip.shape[-1])
        hidden = None
        if causal:
            hidden = torch.arange(start, start + length, device=strip.device) > last
            scores = scores.masked_fill(hidden, -math.inf)
        yield start, length, scores


def _block(strip, key, value, offset, causal, size):
    given, kind = strip.dtype, torch.promote_types(strip.dtype, torch.float32)
    strip = strip.to(kind)  # once, so that its gradient is added up in that type
    with torch.no_grad():
        top = torch.full(
            (*strip.shape[:-1], 1), -1e300 if kind == torch.float64 else -1e30, dtype=kind, device=strip.device
        )
        for _, _, scores in _tiles(strip, key, offset, causal, size):
            torch.maximum(top, scores.amax(-1, keepdim=True), out=top)
    total = torch.zeros_like(top)
    mixed = torch.zeros(strip.shape, dtype=kind, device=strip.device)
    for start, length, scores in _tiles(strip, key, offset, causal, size):
        weights = (scores - top).exp()
        total = total + weights.sum(-1, keepdim=True)
        mixed = mixed + weights @ value.narrow(-2, start, length).to(kind)
    return (mixed / total.masked_fill(total == 0, 1)).to(given)
