"""Bytes by category against bytes counted by hand; the categories are those of torch/profiler/_memory_profiler.py."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import vgpu
from tests.vgpu.conftest import rounded
from vgpu.runtime.memory import workspaces

WIDTH, ROWS = 256, 64
WEIGHT, BIAS = 4 * WIDTH * WIDTH, 4 * WIDTH
LAYER = rounded(WEIGHT, BIAS)
ACTIVATION = rounded(4 * ROWS * WIDTH)
KEPT = workspaces.torch_version() < (2, 15)


def _model(layers: int = 2) -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(layers)]).cuda()


def _input() -> torch.Tensor:
    return torch.ones(ROWS, WIDTH, device="cuda")


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize(
    ("kind", "options", "state"),
    [
        (torch.optim.SGD, {}, 0),
        (torch.optim.SGD, {"momentum": 0.9}, 2 * LAYER),
        (torch.optim.Adam, {}, 4 * LAYER),  # two moments; the step counts stay on the CPU
        (torch.optim.Adam, {"foreach": False}, 4 * LAYER),
        (torch.optim.Adam, {"amsgrad": True}, 6 * LAYER),
        (torch.optim.AdamW, {"fused": True}, 4 * LAYER + 4 * 512),  # and a step count per parameter, on the GPU
        (torch.optim.Adam, {"capturable": True}, 4 * LAYER + 4 * 512),
        (torch.optim.Adagrad, {}, 2 * LAYER),
    ],
)
def test_every_category_after_a_step(values: bool, kind: Any, options: dict[str, Any], state: int) -> None:
    with vgpu.attach("A100-80GB", values=values) as gpu:
        model, x = _model(), _input()
        optimizer = kind(model.parameters(), lr=0.01, **options)
        assert gpu.memory_by_category()["parameters"] == 2 * LAYER
        loss = model(x).sum()
        before = gpu.memory_by_category()
        # Adagrad makes its state at once, the others in their first step.
        assert before["gradients"] == 0
        assert before["optimizer_state"] == (state if kind is torch.optim.Adagrad else 0)
        assert before["activations"] == ACTIVATION + 512  # the first layer's result, and the loss
        assert before["other"] == ACTIVATION  # the input
        loss.backward()
        optimizer.step()
        del loss
        after = gpu.memory_by_category()
        assert {name: after[name] for name in ("parameters", "gradients", "optimizer_state", "activations")} == {
            "parameters": 2 * LAYER, "gradients": 2 * LAYER, "optimizer_state": state, "activations": 0,
        }  # fmt: skip
        assert sum(after.values()) == torch.cuda.memory_allocated()
        optimizer.zero_grad()
        assert gpu.memory_by_category()["gradients"] == 0
        peak = gpu.peak_by_category()
        assert sum(peak.values()) == torch.cuda.max_memory_allocated()


def test_gradients_set_to_zero_stay(shapes: vgpu.VirtualGPU) -> None:
    model, x = _model(), _input()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).sum().backward()
    optimizer.zero_grad(set_to_none=False)
    assert shapes.memory_by_category()["gradients"] == 2 * LAYER


def test_accumulated_gradients_take_the_room_of_one(shapes: vgpu.VirtualGPU) -> None:
    model, x = _model(), _input()
    for _ in range(3):
        model(x).sum().backward()
        assert shapes.memory_by_category()["gradients"] == 2 * LAYER
    # While a weight's second gradient is added to the first, both are there.
    gradients = [sample.bytes["gradients"] for sample in shapes.category_timeline]
    assert max(gradients) == 2 * LAYER


def test_casts_of_autocast_are_activations(shapes: vgpu.VirtualGPU) -> None:
    model, x = _model(1), _input()
    with torch.autocast("cuda", dtype=torch.float16):
        out = model(x)
        inside = shapes.memory_by_category()["activations"]
    # The result and the input, weight and bias in half precision. Then the cache of casts is emptied: autograd keeps
    # the input for the weight's gradient, but not the weight, since the input needs no gradient.
    assert inside == rounded(2 * ROWS * WIDTH, 2 * ROWS * WIDTH, 2 * WIDTH * WIDTH, 2 * WIDTH)
    assert shapes.memory_by_category()["activations"] == rounded(2 * ROWS * WIDTH, 2 * ROWS * WIDTH)
    assert shapes.memory_by_category()["parameters"] == LAYER
    out.float().sum().backward()
    assert shapes.memory_by_category()["gradients"] == LAYER


def test_checkpointing_keeps_one_activation_per_block(shapes: vgpu.VirtualGPU) -> None:
    blocks = nn.ModuleList(_model(4) for _ in range(3)).cuda()
    x = _input().requires_grad_()

    def kept(checkpointed: bool) -> int:
        h: Any = x
        for block in blocks:
            h = checkpoint(block, h, use_reentrant=False) if checkpointed else block(h)
        return shapes.memory_by_category()["activations"]

    assert kept(False) == 12 * ACTIVATION
    assert kept(True) == 3 * ACTIVATION


def test_what_is_recomputed_in_backward_counts_as_activations(shapes: vgpu.VirtualGPU) -> None:
    block, x = _model(4), _input().requires_grad_()
    loss = checkpoint(block, x, use_reentrant=False).sum()  # type: ignore[union-attr]
    torch.cuda.reset_peak_memory_stats()
    begin = len(shapes.category_timeline)
    loss.backward()
    recomputed = max(sample.bytes["activations"] for sample in shapes.category_timeline[begin:])
    # The loss, its gradient that backward starts with, and the results again that backward needs: the last layer's is
    # not among them (torch.utils.checkpoint, early stop).
    assert recomputed == 3 * ACTIVATION + 2 * 512


def test_gradients_of_activations_are_other(shapes: vgpu.VirtualGPU) -> None:  # AUTOGRAD_DETAIL in the profiler
    x = torch.ones(1 << 20, device="cuda", requires_grad=True)
    loss = x.exp().exp().sum()
    loss.backward()
    peak = shapes.peak_by_category()
    assert peak["activations"] == 2 * 4 * (1 << 20) + 2 * 512  # the loss, and the gradient that backward starts with
    assert peak["gradients"] == 0  # x is no parameter of a module or an optimizer
    assert peak["other"] == 2 * 4 * (1 << 20)  # x, and the gradient of the first exponential


def test_buffers_count_as_parameters(gpu: vgpu.VirtualGPU) -> None:
    nn.BatchNorm1d(1000).cuda()
    norm = nn.BatchNorm1d(1000).cuda()
    # Weight, bias, running mean and variance, and the 0-dimensional count of batches.
    assert gpu.memory_by_category()["parameters"] == 4 * rounded(4000) + 512
    del norm


def test_modules_are_known_however_they_come_about(shapes: vgpu.VirtualGPU) -> None:
    made = nn.Linear(WIDTH, WIDTH, device="cuda")
    copied = copy.deepcopy(made)
    with torch.device("cuda"):
        under = nn.Linear(WIDTH, WIDTH)
    cast = nn.Linear(WIDTH, WIDTH).to("cuda", torch.float16)
    assert shapes.memory_by_category()["parameters"] == 3 * LAYER + rounded(WEIGHT // 2, BIAS // 2)
    del made, copied, under, cast


def test_state_that_is_loaded_counts_as_state(gpu: vgpu.VirtualGPU) -> None:
    model = _model(1)
    optimizer = torch.optim.Adam(model.parameters())
    model(_input()).sum().backward()
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    fresh = torch.optim.Adam(model.parameters())
    fresh.load_state_dict(saved)
    del optimizer, saved
    assert gpu.memory_by_category()["optimizer_state"] == 2 * LAYER


def test_leaves_that_an_optimizer_updates_are_parameters(shapes: vgpu.VirtualGPU) -> None:
    weight = torch.zeros(1000, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    (weight * 2).sum().backward()
    optimizer.step()
    assert shapes.memory_by_category() == {
        "parameters": 4096, "gradients": 4096, "optimizer_state": 4096, "activations": 0, "workspaces": 0, "other": 0,
    }  # fmt: skip


def test_temporary_results_of_an_optimizer_step_are_other(shapes: vgpu.VirtualGPU) -> None:
    model = _model()
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    model(_input()).sum().backward()
    optimizer.step()
    torch.cuda.reset_peak_memory_stats()
    before = shapes.memory_by_category()
    optimizer.step()
    peak = shapes.peak_by_category()
    # `torch._foreach_sqrt(exp_avg_sq)` makes one tensor per parameter (torch/optim/adam.py, _multi_tensor_adam).
    assert peak["other"] - before["other"] == 2 * LAYER
    assert peak["activations"] == before["activations"]


def test_workspaces_show_at_the_peak(shapes: vgpu.VirtualGPU) -> None:
    x = torch.ones(64, 64, device="cuda")
    _ = x @ x
    assert shapes.peak_by_category()["workspaces"] == 8519680
    assert shapes.memory_by_category()["workspaces"] == KEPT * 8519680


def test_the_timeline_adds_up_at_every_moment(shapes: vgpu.VirtualGPU) -> None:
    model = _model()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(_input()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    for sample, memory in zip(shapes.category_timeline, shapes.memory_timeline, strict=True):
        assert sum(sample.bytes.values()) == memory.allocated_bytes
        assert min(sample.bytes.values()) >= 0


def test_the_peak_is_looked_for_after_the_last_reset(shapes: vgpu.VirtualGPU) -> None:
    big = torch.zeros(1 << 20, device="cuda")
    del big
    torch.cuda.reset_peak_memory_stats()
    _small = nn.Linear(16, 16).cuda()
    assert shapes.peak_by_category()["parameters"] == rounded(4 * 16 * 16, 4 * 16)
    assert sum(shapes.peak_by_category().values()) == torch.cuda.max_memory_allocated()


def test_hooks_are_removed_on_exit() -> None:
    before = nn.Module._apply, nn.Module.__setstate__, torch.autograd.graph._engine_run_backward
    from torch.optim import optimizer

    with vgpu.attach("T4", values=False):
        assert optimizer._global_optimizer_pre_hooks
    assert (nn.Module._apply, nn.Module.__setstate__, torch.autograd.graph._engine_run_backward) == before
    assert not optimizer._global_optimizer_pre_hooks
    assert not optimizer._global_optimizer_post_hooks


def test_the_buckets_of_ddp_count_as_gradients(shapes: vgpu.VirtualGPU, tmp_path: Path) -> None:
    from torch import distributed

    store = f"file://{tmp_path / 'store'}"
    distributed.init_process_group("nccl", init_method=store, rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(_model(), device_ids=[0])
        model(_input()).sum().backward()
        # Gradients of their own, and a bucket that they are copied to (gradient_as_bucket_view=False).
        assert shapes.memory_by_category()["gradients"] == 4 * LAYER
        before = shapes.memory_by_category()["gradients"]
        views = nn.parallel.DistributedDataParallel(_model(), device_ids=[0], gradient_as_bucket_view=True)
        views(_input()).sum().backward()
        assert shapes.memory_by_category()["gradients"] - before == 2 * LAYER
    finally:
        distributed.destroy_process_group()
