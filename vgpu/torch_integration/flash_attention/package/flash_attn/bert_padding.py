"""Padded batches and packed ones: what takes the padding out before flash attention, and puts it back.

Source of names and results: flash_attn/bert_padding.py of flash-attn 2.8.
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

_Tensor = torch.Tensor


class IndexFirstAxis(torch.autograd.Function):
    """Rows of a tensor by their indices."""

    @staticmethod
    def forward(ctx: Any, input: _Tensor, indices: _Tensor) -> _Tensor:
        ctx.save_for_backward(indices)
        assert input.ndim >= 2
        ctx.first_axis_dim = input.shape[0]
        rows = input.reshape(input.shape[0], -1)
        return torch.gather(rows, 0, _columns(indices, rows)).reshape(-1, *input.shape[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (indices,) = ctx.saved_tensors
        rows = gradients[0].reshape(gradients[0].shape[0], -1)
        result = rows.new_zeros((ctx.first_axis_dim, rows.shape[1])).scatter_(0, _columns(indices, rows), rows)
        return result.reshape(ctx.first_axis_dim, *gradients[0].shape[1:]), None


class IndexPutFirstAxis(torch.autograd.Function):
    """Rows put into zeros by their indices."""

    @staticmethod
    def forward(ctx: Any, values: _Tensor, indices: _Tensor, first_axis_dim: int) -> _Tensor:
        ctx.save_for_backward(indices)
        assert indices.ndim == 1
        assert values.ndim >= 2
        output = values.new_zeros((first_axis_dim, *values.shape[1:]))
        output[indices] = values
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (indices,) = ctx.saved_tensors
        return gradients[0][indices], None, None


class IndexFirstAxisResidual(torch.autograd.Function):
    """Rows by their indices, and the tensor itself, to whose gradient those of the rows are added."""

    @staticmethod
    def forward(ctx: Any, input: _Tensor, indices: _Tensor) -> tuple[_Tensor, _Tensor]:
        ctx.save_for_backward(indices)
        assert input.ndim >= 2
        return input[indices], input.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (indices,) = ctx.saved_tensors
        rows, whole = gradients
        places = indices.reshape(-1, *(1,) * (rows.ndim - 1)).expand_as(rows)
        return whole.scatter_add_(0, places, rows), None


def _columns(indices: _Tensor, rows: _Tensor) -> _Tensor:
    return indices[:, None].expand(-1, rows.shape[1])


index_first_axis = IndexFirstAxis.apply
index_put_first_axis = IndexPutFirstAxis.apply
index_first_axis_residual = IndexFirstAxisResidual.apply


def unpad_input(
    hidden_states: _Tensor, attention_mask: _Tensor, unused_mask: _Tensor | None = None
) -> tuple[_Tensor, _Tensor, _Tensor, int, _Tensor]:
    """Pack the tokens that a mask keeps.

    Args:
        hidden_states: (batch, places, ...)
        attention_mask: (batch, places), 1 for a token.
        unused_mask: the same for tokens that have a place and are not used.

    Returns:
        Tokens (tokens, ...), their indices in the flattened batch, cumulative lengths (batch + 1,) in int32, the
        longest length (the host waits for it), and the number of used tokens of each sequence.
    """
    every = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = every.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(every.flatten(), as_tuple=False).flatten()
    return *_packed(hidden_states, indices, lengths), used


def unpad_input_for_concatenated_sequences(
    hidden_states: _Tensor, attention_mask_in_length: _Tensor
) -> tuple[_Tensor, _Tensor, _Tensor, int]:
    """Pack batches whose rows hold several sequences; the mask has their lengths in each row, then zeros."""
    lengths = attention_mask_in_length.sum(dim=-1)
    places = torch.arange(attention_mask_in_length.size(-1), device=lengths.device, dtype=lengths.dtype)
    kept = places.expand(len(lengths), -1) < lengths.unsqueeze(1)
    at = torch.nonzero(attention_mask_in_length.flatten(), as_tuple=False).flatten()
    indices = torch.nonzero(kept.flatten(), as_tuple=False).flatten()
    return _packed(hidden_states, indices, attention_mask_in_length.flatten()[at])


def _packed(hidden_states: _Tensor, indices: _Tensor, lengths: _Tensor) -> tuple[_Tensor, _Tensor, _Tensor, int]:
    longest = int(lengths.max().item())
    starts = functional.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, starts, longest


def pad_input(hidden_states: _Tensor, indices: _Tensor, batch: int, seqlen: int) -> _Tensor:
    """Tokens (tokens, ...) back to their places in (batch, seqlen, ...); zeros elsewhere."""
    padded: _Tensor = index_put_first_axis(hidden_states, indices, batch * seqlen)
    result: _Tensor = padded.unflatten(0, (batch, seqlen))
    return result
