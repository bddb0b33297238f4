"""Ordinary training code on the virtual GPU: the values are those of the CPU, the tensors stay on the GPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import vgpu


def _train(model: nn.Module, device: str, options: dict[str, object], kind: type[torch.optim.Optimizer]) -> list[float]:
    torch.manual_seed(3)
    x, y = torch.randn(32, 8).to(device), torch.randint(0, 4, (32,)).to(device)
    model = copy.deepcopy(model).to(device)
    optimizer = kind(model.parameters(), lr=0.05, **options)  # type: ignore[call-arg]
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("options", [{}, {"foreach": False}, {"fused": True}])
def test_training_gives_the_losses_of_the_cpu(
    gpu: vgpu.VirtualGPU, kind: type[torch.optim.Optimizer], options: dict[str, object]
) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    assert _train(model, "cuda", options, kind) == pytest.approx(_train(model, "cpu", options, kind), rel=1e-5)


def test_optimizers_use_foreach_kernels_on_the_gpu(gpu: vgpu.VirtualGPU) -> None:  # _default_to_fused_or_foreach
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(5)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 4, device="cuda")).sum().backward()
    before = len(gpu.timeline)
    optimizer.step()
    assert [kernel.name for kernel in gpu.timeline[before:]] == ["aten::_foreach_add_"]


def test_a_convolutional_network_with_batch_norm_trains(gpu: vgpu.VirtualGPU) -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2)
    )
    net.cuda()
    net(torch.randn(5, 1, 8, 8, device="cuda")).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.is_cuda for parameter in net.parameters())
    assert net[1].running_mean.is_cuda


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_gives_the_same_gradients_with_dropout(gpu: vgpu.VirtualGPU, reentrant: bool) -> None:
    block = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)).cuda()
    x = torch.randn(4, 8, device="cuda", requires_grad=True)

    def gradient(checkpointed: bool) -> torch.Tensor:
        torch.cuda.manual_seed(5)
        block.zero_grad()
        out = checkpoint(block, x, use_reentrant=reentrant) if checkpointed else block(x)
        out.square().sum().backward()
        return block[0].weight.grad.clone()

    assert torch.equal(gradient(True), gradient(False))


def test_attention_equals_the_plain_formula(gpu: vgpu.VirtualGPU) -> None:
    q, k, v = (torch.randn(2, 3, 5, 8, device="cuda") for _ in range(3))
    expected = torch.softmax(q @ k.transpose(-2, -1) / 8**0.5, -1) @ v
    assert torch.allclose(nn.functional.scaled_dot_product_attention(q, k, v), expected, atol=1e-5)
    mask = torch.rand(5, 5, device="cuda") > 0.3
    mask[:, 0] = True
    scores = (q @ k.transpose(-2, -1) / 8**0.5).masked_fill(~mask, float("-inf"))
    masked = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert torch.allclose(masked, torch.softmax(scores, -1) @ v, atol=1e-5)


def test_a_transformer_layer_trains_and_evaluates(gpu: vgpu.VirtualGPU) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).cuda()
    x = torch.randn(2, 4, 16, device="cuda")
    layer(x).sum().backward()
    with torch.inference_mode():
        assert layer.eval()(x).is_cuda


def test_data_parallel_on_one_gpu_is_the_module_itself(gpu: vgpu.VirtualGPU) -> None:  # torch.nn.DataParallel
    layer = nn.Linear(2, 2).cuda()
    x = torch.ones(3, 2)
    assert torch.equal(nn.DataParallel(layer)(x), layer(x.cuda()))


def test_optimizer_state_survives_a_round_trip(gpu: vgpu.VirtualGPU) -> None:
    layer = nn.Linear(2, 2).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    layer(torch.ones(1, 2, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert optimizer.state[layer.weight]["momentum_buffer"].is_cuda


def test_a_data_loader_with_workers_and_pinned_memory_works(gpu: vgpu.VirtualGPU) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(12.0))
    for workers in (0, 2):
        loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=workers, pin_memory=True)
        batches = [batch.to("cuda", non_blocking=True) for (batch,) in loader]
        assert torch.cat(batches).tolist() == list(range(12))


def test_half_precision_products_are_rounded_fp32_products(gpu: vgpu.VirtualGPU) -> None:  # tensor cores: FP32 inside
    a, b = torch.randn(33, 65).half(), torch.randn(65, 17).half()
    expected = (a.float() @ b.float()).half()
    assert torch.equal((a.cuda() @ b.cuda()).cpu(), expected)
    assert torch.equal(torch.addmm(torch.zeros(17).half().cuda(), a.cuda(), b.cuda()).cpu(), expected)


def test_autocast_runs_products_low_and_norms_and_losses_high(gpu: vgpu.VirtualGPU) -> None:  # torch.amp, CUDA op lists
    x, weight = torch.randn(4, 8, device="cuda"), torch.randn(8, 8, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        product = x @ weight
        assert product.dtype == torch.float16
        assert nn.functional.linear(x, weight).dtype == torch.float16
        assert nn.functional.layer_norm(product, (8,)).dtype == torch.float32
        assert product.softmax(-1).dtype == torch.float32
        assert product.sum().dtype == torch.float32
        assert product.exp().dtype == torch.float32
        assert torch.relu(product).dtype == torch.float16
        assert nn.functional.mse_loss(product, x).dtype == torch.float32
        assert (product + x).dtype == torch.float32
        with torch.autocast("cuda", enabled=False):
            assert (x @ weight).dtype == torch.float32
        assert (x.cpu() @ weight.cpu()).dtype == torch.float32
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            nn.functional.binary_cross_entropy(product.sigmoid(), x)
    assert (x @ weight).dtype == torch.float32


def test_autocast_casts_a_weight_once(gpu: vgpu.VirtualGPU) -> None:  # autocast_mode.cpp, cached_cast
    layer, x = nn.Linear(8, 8, bias=False).cuda(), torch.randn(2, 8, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        low = layer(x)
        before = len(gpu.timeline)
        layer(low)
    assert [kernel.name for kernel in gpu.timeline[before:]] == ["aten::mm"]


def test_an_overflow_skips_the_step_and_halves_the_scale(gpu: vgpu.VirtualGPU) -> None:  # torch.amp.GradScaler
    layer = nn.Linear(4, 4).cuda()
    optimizer, scaler = torch.optim.SGD(layer.parameters(), lr=0.1), torch.amp.GradScaler("cuda", init_scale=1024.0)
    before = layer.weight.detach().clone()
    scaler.scale(layer(torch.full((1, 4), 3e38, device="cuda")).sum() * 10).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 512.0
    assert torch.equal(layer.weight, before)


def test_amp_trains_with_parameters_and_state_in_fp32(gpu: vgpu.VirtualGPU) -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)).cuda()
    optimizer, scaler = torch.optim.Adam(model.parameters(), lr=0.02), torch.amp.GradScaler("cuda")
    torch.manual_seed(0)
    x = torch.randn(128, 8, device="cuda")
    y = (x.sum(1) > 0).long()
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert optimizer.state[model[0].weight]["exp_avg"].dtype == torch.float32
