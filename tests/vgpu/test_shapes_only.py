"""Shapes-only mode: what its documentation (`vgpu.runtime.operations.shapes_only`, `vgpu.attach`) promises."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import vgpu


def test_item_is_the_declared_placeholder_and_cpu_gives_zeros(shapes: vgpu.VirtualGPU) -> None:
    x = torch.full((2, 2), 7.0, device="cuda")
    assert x.sum().item() == 0.0
    assert x.cpu().tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert x.cpu().device.type == "cpu"


def test_a_tensor_without_values_prints_its_shape_and_device(shapes: vgpu.VirtualGPU) -> None:
    assert repr(torch.zeros(2, 3, device="cuda")) == "tensor(..., device='cuda:0', size=(2, 3))"


def test_cpu_tensors_keep_their_values(shapes: vgpu.VirtualGPU) -> None:
    assert (torch.arange(4) * 2).tolist() == [0, 2, 4, 6]


def test_a_module_keeps_its_parameters_when_it_moves(shapes: vgpu.VirtualGPU) -> None:
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer.cuda()
    assert optimizer.param_groups[0]["params"][0] is layer.weight
    assert layer.weight.is_cuda


def test_a_12_layer_transformer_step_takes_no_real_memory(shapes: vgpu.VirtualGPU) -> None:
    def peak(checkpointed: bool) -> int:
        torch.cuda.reset_peak_memory_stats()
        x = torch.ones(16, 512, 4096, device="cuda")
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False) if checkpointed else layer(x)
        x.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return torch.cuda.max_memory_allocated()

    with torch.device("cuda"):
        layers = nn.ModuleList(nn.TransformerEncoderLayer(4096, 32, 16384, batch_first=True) for _ in range(12))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    parameters = 4 * sum(parameter.numel() for parameter in layers.parameters())
    plain, saving = peak(False), peak(True)
    assert plain > saving > 2 * parameters
    assert plain < shapes.spec.memory_bytes


def test_values_and_shapes_only_agree_on_time_and_memory() -> None:
    def run(values: bool) -> tuple[list[vgpu.Kernel], int, float]:
        with vgpu.attach("T4", values=values) as gpu:
            model = nn.Sequential(
                nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
            ).cuda()
            optimizer = torch.optim.AdamW(model.parameters())
            x, y = torch.randn(2, 3, 8, 8, device="cuda"), torch.randint(0, 5, (2,), device="cuda")
            for _ in range(2):
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            torch.cuda.synchronize()
            return gpu.timeline, torch.cuda.max_memory_allocated(), gpu.now()

    assert run(values=True) == run(values=False)


def test_a_result_whose_shape_depends_on_values_is_refused(shapes: vgpu.VirtualGPU) -> None:
    with pytest.raises(vgpu.Unsupported, match=r"with shapes only .aten::nonzero."):
        torch.ones(3, device="cuda").nonzero()


def test_large_cpu_products_are_charged_but_not_computed(shapes: vgpu.VirtualGPU) -> None:
    x = torch.ones(1, 1).expand(4096, 4096)
    before = shapes.now()
    product = torch.mm(x, x)
    assert product.shape == (4096, 4096)
    assert not product.any()
    charged = vgpu.device.cost.cpu_matmul_seconds(shapes.spec, 4096, 4096, 4096)
    assert shapes.now() - before == pytest.approx(charged, rel=0.05)


def test_saving_without_values_is_refused(shapes: vgpu.VirtualGPU, tmp_path: object) -> None:
    with pytest.raises(vgpu.Unsupported, match="saving GPU tensors with shapes only"):
        torch.save(torch.ones(2, device="cuda"), f"{tmp_path}/x.pt")


def test_a_large_product_on_the_cpu_is_charged_and_not_computed(shapes: vgpu.VirtualGPU) -> None:
    """Source: this mode's promise: values nobody asked for are zeros, time is that of the model."""
    left = torch.ones(512, 512)
    out = torch.ones(512, 512)
    start = time.perf_counter()
    torch.mm(left, left, out=out)
    seconds = time.perf_counter() - start
    assert out.count_nonzero() == 0
    assert seconds >= vgpu.device.cost.cpu_matmul_seconds(shapes.spec, 512, 512, 512, "float32")
    assert torch.addmm(out, left, left).count_nonzero() == 0


@pytest.mark.parametrize("product", [torch.mm, torch.matmul, nn.functional.linear])
def test_products_of_two_dtypes_are_refused_as_with_values(
    shapes: vgpu.VirtualGPU, product: Callable[..., Any]
) -> None:
    left, right = torch.ones(8, 8, device="cuda", dtype=torch.float16), torch.ones(8, 8, device="cuda")
    with pytest.raises(RuntimeError, match="same dtype, but got: c10::Half != float"):
        product(left, right)
    assert product(left, right.half()).dtype == torch.float16
