"""Loops over samples, heads, strips of queries and tiles of keys; the online softmax for each strip."""

import torch


def attend(query, key, value, causal, size):
    return _Loops.apply(query, key, value, causal, size)


class _Loops(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, causal, size):
        ctx.save_for_backward(query, key, value)
        ctx.causal, ctx.size = causal, size
        output = torch.zeros_like(query)
        for b in range(query.shape[0]):
            for h in range(query.shape[1]):
                for first in range(0, query.shape[2], size):
                    strip = query[b, h, first : first + size]
                    output[b, h, first : first + size] = _strip(strip, key[b, h], value[b, h], first, ctx, query)
        return output

    @staticmethod
    def backward(ctx, gradient):
        query, key, value = ctx.saved_tensors
        wide = torch.promote_types(query.dtype, torch.float32)
        grads = [torch.zeros_like(x, dtype=wide) for x in (query, key, value)]
        for b in range(query.shape[0]):
            for h in range(query.shape[1]):
                for first in range(0, query.shape[2], ctx.size):
                    rows = slice(first, first + ctx.size)
                    with torch.enable_grad():
                        pieces = query[b, h, rows], key[b, h], value[b, h]
                        parts = [x.detach().to(wide).requires_grad_() for x in pieces]
                        output = _strip(*parts, first, ctx, query)
                    if not output.requires_grad:
                        continue
                    found = torch.autograd.grad(output, parts, gradient[b, h, rows].to(wide))
                    grads[0][b, h, rows] = found[0]
                    grads[1][b, h] += found[1]
                    grads[2][b, h] += found[2]
        return *(g.to(query.dtype) for g in grads), None, None


def _strip(strip, key, value, first, ctx, query):
    wide = torch.promote_types(strip.dtype, torch.float32)
    shift = key.shape[0] - query.shape[2]
    highest = torch.full((strip.shape[0],), -1e30, dtype=wide, device=strip.device)
    weight = torch.zeros_like(highest)
    mean = torch.zeros(strip.shape[0], value.shape[1], dtype=wide, device=strip.device)
    for start in range(0, key.shape[0], ctx.size):
        if ctx.causal and start > first + strip.shape[0] - 1 + shift:
            break
        keys, values = key[start : start + ctx.size].to(wide), value[start : start + ctx.size].to(wide)
        scores = strip.to(wide) @ keys.T / query.shape[3] ** 0.5
        seen = torch.ones(scores.shape, dtype=torch.bool, device=strip.device)
        if ctx.causal:
            row = torch.arange(first, first + strip.shape[0], device=strip.device)[:, None] + shift
            seen = torch.arange(start, start + keys.shape[0], device=strip.device)[None] <= row
        scores = torch.where(seen, scores, -1e30)
        now = torch.maximum(highest, scores.max(1).values)
        exponents = torch.where(seen, torch.exp(scores - now[:, None]), 0.0)
        old = torch.exp(highest - now)
        weight = weight * old + exponents.sum(1)
        mean = mean * old[:, None] + exponents @ values
        highest = now
    return (mean / torch.where(weight > 0, weight, 1.0)[:, None]).to(strip.dtype)
