"""TorchDynamo on the virtual GPU, where no card could show it: attachments, shapes only, what is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch._dynamo
from torch import nn
from torch.utils._triton import has_triton

import vgpu


def seconds(gpu: vgpu.VirtualGPU, run: object) -> float:
    torch.cuda.synchronize()
    begin = gpu.now()
    run()  # type: ignore[operator]
    torch.cuda.synchronize()
    return gpu.now() - begin


def test_a_function_lives_through_attachments_and_is_compiled_in_each() -> None:
    @torch.compile
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.is_cuda else x * 3

    eager = torch.compile(lambda x: x * 2, backend="eager")
    assert eager(torch.ones(1)).item() == 2.0
    for _ in range(2):
        with vgpu.attach("T4") as gpu:
            x = torch.ones(1, device="cuda")
            took = [seconds(gpu, lambda x=x: double(x)) for _ in range(2)]
            assert [duration > 1.0 for duration in took] == [True, False]
            assert (double(x).item(), double(torch.ones(1)).item()) == (2.0, 3.0)
            assert eager(x).device == torch.device("cuda", 0)
    assert eager(torch.ones(1)).item() == 2.0


def test_guards_tell_gpus_apart() -> None:
    with vgpu.attach("T4", gpus=2):
        function = torch.compile(lambda x: x + torch.ones(2, device=x.device), dynamic=False)
        for device in ("cuda:0", "cuda:1", "cpu", "cuda:1"):
            assert function(torch.ones(2, device=device)).device == torch.device(device)


def test_compiled_code_has_shapes_only_too() -> None:
    with vgpu.attach("T4", values=False) as gpu:
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).cuda()
        out = torch.compile(model, fullgraph=True)(torch.ones(4, 8, device="cuda"))
        out.sum().backward()
        assert (out.device, tuple(out.shape)) == (gpu.device, (4, 8))
        assert any(kernel.name.startswith("triton_fused_") for kernel in gpu.timeline)


@pytest.mark.parametrize("backend", ["inductor", "eager"])
def test_hooks_and_modules_are_traced_past_what_prices_their_calls(gpu: vgpu.VirtualGPU, backend: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).cuda()
    torch._dynamo.reset()
    model[0].register_forward_hook(lambda module, args, out: out * 2)
    x = torch.ones(2, 4, device="cuda")
    assert torch.allclose(torch.compile(model, fullgraph=True, backend=backend)(x), model(x))


def test_code_between_graphs_is_simulated_and_not_compiled(gpu: vgpu.VirtualGPU) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    @torch.compile(backend="eager")
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        torch.cuda.Event().record()
        return y + 1

    x = torch.ones(2, device="cuda")
    before = len(gpu.timeline)
    result = function(x)
    torch.cuda.synchronize()
    assert [kernel.name for kernel in gpu.timeline[before:]] == ["aten::mul", "aten::add"]
    assert result.tolist() == [3.0, 3.0]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


def test_guards_know_the_stream_whatever_was_compiled_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._dynamo.guards._CLOSURE_VARS", None)
    torch._dynamo.reset()

    @torch.compile(backend="eager")
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        if x.is_cuda:
            torch.cuda.Event().record()
        return x + 1

    for _ in range(2):
        assert function(torch.ones(1)).item() == 2.0
        with vgpu.attach("T4"):
            assert function(torch.ones(1, device="cuda")).item() == 2.0
            torch._dynamo.reset()


def test_make_fx_sees_the_gpu(gpu: vgpu.VirtualGPU) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def gradient(x: torch.Tensor) -> torch.Tensor:
        (result,) = torch.autograd.grad((x * torch.ones(2, device="cuda")).sin().sum(), x)
        return result

    x = torch.ones(2, device="cuda", requires_grad=True)
    for mode in ("real", "fake"):
        graph = make_fx(gradient, tracing_mode=mode)(x)
        assert graph(x).device == gpu.device
        assert torch.allclose(graph(x), x.cos())


@pytest.mark.night
def test_compilation_can_be_switched_off() -> None:
    code = (
        "import torch, vgpu\n"
        "with vgpu.attach('T4') as gpu:\n"
        "    torch.compile(lambda x: x * 2 + 1)(torch.ones(1, device='cuda'))\n"
        "    print([kernel.name for kernel in gpu.timeline][-2:])\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={"PATH": "", "PYTHONPATH": ":".join(sys.path), "TORCH_COMPILE_DISABLE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "['aten::mul', 'aten::add']"


def test_whether_triton_has_a_device_is_asked_at_each_attachment() -> None:
    """TorchDynamo of PyTorch 2.11 traced no kernel in a process that had asked before."""
    assert not has_triton()
    with vgpu.attach("A100-80GB", values=False):
        assert has_triton()
    assert not has_triton()
