"""Activation checkpointing: what it saves, what it computes again, and that nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from tests.conformance.machine import Gpu
from tests.conformance.measure import allocated, bytes_of
from tests.conformance.programs import program

CHECKPOINT = "torch docs: torch.utils.checkpoint"
ROWS, WIDTH = 512, 128
ACTIVATION = ROWS * WIDTH * 4


class Scale(nn.Module):
    """One activation kept: the result of tanh, which is also the next layer's input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * self.weight)


class Block(nn.Module):
    """Keeps five activations of its input's size for backward; counts its forward passes.

    Without products, whose libraries take workspaces.
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[Scale() for _ in range(5)], nn.Dropout(dropout))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layers(x)


def stack(count: int = 4, dropout: float = 0.0) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(Block(dropout) for _ in range(count)).cuda()


def run(blocks: nn.ModuleList, x: torch.Tensor, *, checkpointed: bool = True, **options: Any) -> torch.Tensor:
    options = {"use_reentrant": False, **options}
    for block in blocks:
        x = checkpoint(block, x, **options) if checkpointed else block(x)
    return x


def batch() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True)


def gradients(blocks: nn.ModuleList, **options: Any) -> list[torch.Tensor]:
    blocks.zero_grad()
    x = batch()
    torch.manual_seed(2)
    run(blocks, x, **options).square().mean().backward()
    return [x.grad, *[parameter.grad.clone() for parameter in blocks.parameters()]]


@program(CHECKPOINT)
def test_checkpointing_changes_no_gradient(cuda: Gpu) -> None:
    blocks = stack()
    expected = gradients(blocks, checkpointed=False)
    for reentrant in (False, True):
        for gradient, other in zip(gradients(blocks, use_reentrant=reentrant), expected, strict=True):
            assert torch.equal(gradient, other)


@program(f"{CHECKPOINT}: preserve_rng_state")
def test_dropout_is_the_same_in_the_second_pass(cuda: Gpu) -> None:
    blocks = stack(dropout=0.5)
    expected = gradients(blocks, checkpointed=False)
    for reentrant in (False, True):
        for gradient, other in zip(gradients(blocks, use_reentrant=reentrant), expected, strict=True):
            assert torch.equal(gradient, other)


@program(f"{CHECKPOINT}: the segment is run again in backward")
def test_tensors_made_in_the_second_pass_are_on_the_gpu(cuda: Gpu) -> None:
    devices = []

    def masked(x: torch.Tensor) -> torch.Tensor:
        hidden = torch.arange(WIDTH, device=x.device) > WIDTH // 2
        devices.append(hidden.device)
        return x.tanh().masked_fill(hidden, 0.0)

    for reentrant in (False, True):
        checkpoint(masked, batch(), use_reentrant=reentrant).sum().backward()
    assert devices == [torch.device("cuda", 0)] * 4


@program(f"{CHECKPOINT}: the segment is run again in backward")
def test_each_block_runs_twice_in_training_and_once_without_gradients(cuda: Gpu) -> None:
    for reentrant in (False, True):
        blocks = stack(2)
        run(blocks, batch(), use_reentrant=reentrant).sum().backward()
        assert [block.calls for block in blocks] == [2, 2]
        with torch.no_grad():
            run(blocks, batch(), use_reentrant=reentrant)
        assert [block.calls for block in blocks] == [3, 3]


@program(f"{CHECKPOINT}: intermediate activations are not saved")
def test_only_the_blocks_inputs_are_kept(cuda: Gpu) -> None:
    blocks, x = stack(), batch()
    run(blocks, x, checkpointed=False).sum().backward()
    plain = bytes_of(lambda: run(blocks, x, checkpointed=False)).kept
    for reentrant in (False, True):
        kept = bytes_of(lambda reentrant=reentrant: run(blocks, x, use_reentrant=reentrant)).kept
        assert 4 * ACTIVATION <= kept <= 4 * ACTIVATION + 32_768  # and the generator's states
    assert plain == 4 * 5 * ACTIVATION


@program(f"{CHECKPOINT}; Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost")
def test_the_peak_of_a_step_falls(cuda: Gpu) -> None:
    blocks, x = stack(5), batch()

    def step(**options: Any) -> None:
        run(blocks, x, **options).sum().backward()

    plain = bytes_of(lambda: step(checkpointed=False)).peak
    saved = bytes_of(step).peak
    assert plain >= 5 * 5 * ACTIVATION
    assert saved <= (5 + 5 + 4) * ACTIVATION


@program("torch docs: torch.utils.checkpoint.checkpoint_sequential")
def test_a_sequence_is_cut_into_segments(cuda: Gpu) -> None:
    blocks = nn.Sequential(*stack(4))
    x = batch()
    expected = blocks(x)
    expected.sum().backward()
    gradient, x.grad = x.grad, None
    for block in blocks:
        block.calls = 0
    result = checkpoint_sequential(blocks, 2, x, use_reentrant=False)
    assert torch.equal(result, expected)
    result.sum().backward()
    assert torch.equal(x.grad, gradient)
    assert [block.calls for block in blocks] == [2, 2, 1, 1]  # the last segment is not checkpointed


@program(f"{CHECKPOINT}: autocast state is restored in the second pass")
def test_the_second_pass_runs_under_the_same_autocast(cuda: Gpu) -> None:
    dtypes: list[torch.dtype] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x @ x.t()
        dtypes.append(y.dtype)
        return y.tanh().sum()  # tanh keeps its result, so the second pass goes on to here

    for reentrant in (False, True):
        dtypes.clear()
        with torch.autocast("cuda"):
            loss = checkpoint(function, batch()[:16], use_reentrant=reentrant)
        loss.backward()
        assert dtypes == [torch.float16, torch.float16]


@program(f"{CHECKPOINT}: use_reentrant must be passed explicitly; inputs without gradients")
def test_warnings_of_the_reentrant_kind(cuda: Gpu) -> None:
    blocks = stack(1)
    with pytest.warns(UserWarning, match="the use_reentrant parameter should be passed explicitly"):
        checkpoint(blocks[0], batch())
    plain = batch().detach()
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True. Gradients will be None"):
        result = checkpoint(blocks[0], plain, use_reentrant=True)
    assert not result.requires_grad
    checkpoint(blocks[0], plain, use_reentrant=False).sum().backward()
    assert blocks[0].layers[0].weight.grad is not None


@program(f"{CHECKPOINT}: determinism_check")
def test_a_different_second_pass_is_found(cuda: Gpu) -> None:
    calls = []

    def fickle(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.exp() if len(calls) == 1 else x[:10].exp()

    loss = checkpoint(fickle, batch(), use_reentrant=False).sum()
    text = "Recomputed values for the following tensors have different metadata than during the forward pass"
    with pytest.raises(torch.utils.checkpoint.CheckpointError, match=text):
        loss.backward()


@program("torch docs: torch.utils.checkpoint.create_selective_checkpoint_contexts")
def test_products_may_be_kept_and_the_rest_computed_again(cuda: Gpu) -> None:
    products = [torch.ops.aten.mul.Tensor]

    def policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operation in products else CheckpointPolicy.PREFER_RECOMPUTE

    def contexts() -> Any:
        return create_selective_checkpoint_contexts(policy)

    blocks, x = stack(2), batch()
    expected = gradients(blocks, checkpointed=False)
    for gradient, other in zip(gradients(blocks, context_fn=contexts), expected, strict=True):
        assert torch.equal(gradient, other)
    kept = bytes_of(lambda: run(blocks, x, context_fn=contexts)).kept
    assert 2 * (1 + 5) * ACTIVATION <= kept <= 2 * (1 + 5) * ACTIVATION + 32_768


@program(f"{CHECKPOINT}: memory is given back after backward")
def test_nothing_is_left_after_a_checkpointed_step(cuda: Gpu) -> None:
    blocks, x = stack(2), batch()
    run(blocks, x).sum().backward()
    blocks.zero_grad()
    x.grad = None
    start = allocated()
    for _ in range(3):
        run(blocks, x).sum().backward()
        blocks.zero_grad()
        x.grad = None
    assert allocated() == start
