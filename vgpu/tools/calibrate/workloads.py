"""What calibration runs: kernels, transfers, launches and training steps, the same on a real and on the virtual GPU.

Each workload is made on "cuda", whichever that is. Not here: how it is timed (`vgpu.tools.calibrate.measure`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's custom
from torch import nn

from vgpu.tools.calibrate.models import Gpt, ResNet18

Step = Callable[[], Any]


@dataclass(frozen=True)
class Workload:
    """`make` prepares tensors and returns what is timed.

    `clock` is "device" (events around `repeats` calls that wait in the queue, so that launches do not count), "host"
    (until the call returns) or "both" (until the device is done as well). `memory` also compares bytes.
    """

    group: str
    name: str
    make: Callable[[], Step]
    repeats: int = 20
    clock: str = "device"
    tf32: bool = False
    memory: bool = False
    moved_bytes: int = 0


def _product(size: tuple[int, int, int], dtype: torch.dtype) -> Callable[[], Step]:
    def make() -> Step:
        m, n, k = size
        a, b = torch.randn(m, k, device="cuda", dtype=dtype), torch.randn(k, n, device="cuda", dtype=dtype)
        return lambda: a @ b

    return make


def _products() -> list[Workload]:
    sizes = [(512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 1024)]
    sizes += [(4096, 4096, 4095), (128, 4096, 4096), (4096, 1000, 512)]
    entries = []
    for m, n, k in sizes:
        name = f"({m}, {k}) @ ({k}, {n})"
        entries.append(Workload("matmul", f"{name} float32", _product((m, n, k), torch.float32), 10))
        entries.append(Workload("matmul", f"{name} tf32", _product((m, n, k), torch.float32), 10, tf32=True))
        entries.append(Workload("matmul", f"{name} float16", _product((m, n, k), torch.float16)))
        entries.append(Workload("matmul", f"{name} bfloat16", _product((m, n, k), torch.bfloat16)))
    return entries


def _on(shape: tuple[int, ...], step: Callable[[torch.Tensor], Any], dtype: torch.dtype = torch.float32) -> Any:
    def make() -> Step:
        x = torch.randn(shape, device="cuda", dtype=dtype)
        return lambda: step(x)

    return make


def _memory_bound() -> list[Workload]:
    # 256 MiB: more than any L2 cache holds.
    big = (1 << 26,)
    rows = (16384, 4096)
    return [
        Workload("elementwise", "x + 1, 64M float32", _on(big, lambda x: x + 1)),
        Workload("elementwise", "x * x, 64M float32", _on(big, lambda x: x * x)),
        Workload("elementwise", "x.add_(1), 64M float32", _on(big, lambda x: x.add_(1))),
        Workload("elementwise", "gelu, 64M float32", _on(big, F.gelu)),
        Workload("elementwise", "x + 1, 64M float16", _on(big, lambda x: x + 1, torch.float16)),
        Workload("elementwise", "x.half(), 64M float32", _on(big, lambda x: x.half())),
        Workload("elementwise", "x.t().contiguous(), (8192, 8192)", _on((8192, 8192), lambda x: x.t().contiguous())),
        Workload("reduction", "sum, 64M float32", _on(big, torch.sum)),
        Workload("reduction", "sum over rows, (16384, 4096)", _on(rows, lambda x: x.sum(1))),
        Workload("reduction", "max over rows, (16384, 4096)", _on(rows, lambda x: x.amax(1))),
        Workload("normalisation", "softmax, (16384, 4096)", _on(rows, lambda x: torch.softmax(x, -1))),
        Workload("normalisation", "layer norm, (16384, 4096)", _on(rows, lambda x: F.layer_norm(x, (4096,)))),
        Workload("normalisation", "layer norm, (16384, 4096) float16",
                 _on(rows, lambda x: F.layer_norm(x, (4096,)), torch.float16)),
    ]  # fmt: skip


def _convolution(channels: int, size: int, kernel: int, dtype: torch.dtype) -> Callable[[], Step]:
    def make() -> Step:
        x = torch.randn(32, channels, size, size, device="cuda", dtype=dtype)
        layer = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, bias=False).to("cuda", dtype)
        weight = layer.weight.detach()
        return lambda: F.conv2d(x, weight, padding=kernel // 2)

    return make


def _attention(dtype: torch.dtype, length: int, causal: bool) -> Callable[[], Step]:
    def make() -> Step:
        q, k, v = (torch.randn(8, 16, length, 64, device="cuda", dtype=dtype) for _ in range(3))
        return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return make


def _library_kernels() -> list[Workload]:
    entries = []
    for channels, size, kernel in ((64, 56, 3), (256, 14, 3), (256, 28, 1)):
        for dtype in (torch.float32, torch.float16):
            name = f"conv {kernel}x{kernel}, (32, {channels}, {size}, {size}) {str(dtype).removeprefix('torch.')}"
            entries.append(Workload("convolution", name, _convolution(channels, size, kernel, dtype)))
    for dtype, length, causal in (
        (torch.float16, 1024, True),
        (torch.float16, 2048, False),
        (torch.float32, 1024, True),
    ):
        name = f"attention, (8, 16, {length}, 64) {str(dtype).removeprefix('torch.')}{', causal' if causal else ''}"
        entries.append(Workload("attention", name, _attention(dtype, length, causal)))
    return entries


def _optimizer(kind: type[torch.optim.Optimizer], **options: Any) -> Callable[[], Step]:
    def make() -> Step:
        parameters = [torch.randn(1024, 1024, device="cuda", requires_grad=True) for _ in range(32)]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer = kind(parameters, lr=1e-3, **options)  # type: ignore[call-arg]
        return optimizer.step

    return make


def _copy(to_gpu: bool, pinned: bool, size: int) -> Callable[[], Step]:
    def make() -> Step:
        host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        device = torch.empty(size, dtype=torch.uint8, device="cuda")
        if to_gpu:
            return lambda: device.copy_(host, non_blocking=pinned)
        return lambda: host.copy_(device, non_blocking=pinned)

    return make


def _transfers() -> list[Workload]:
    entries = []
    for size in (1 << 20, 64 << 20, 256 << 20):
        for to_gpu in (True, False):
            for pinned in (False, True):
                way = "to GPU" if to_gpu else "to host"
                name = f"{size >> 20} MiB {way}, {'pinned' if pinned else 'pageable'}"
                entries.append(Workload("transfer", name, _copy(to_gpu, pinned, size), 5, "both", moved_bytes=size))
    return entries


def _host() -> list[Workload]:
    small = (8,)
    return [
        Workload("host", "launch of x.add_(1), 8 elements", _on(small, lambda x: x.add_(1)), 500, "host"),
        Workload("host", "launch of x + 1, 8 elements", _on(small, lambda x: x + 1), 500, "host"),
        Workload("host", "launch of a product (8, 8)", _product((8, 8, 8), torch.float32), 500, "host"),
        Workload("host", "view, x.view(-1)", _on(small, lambda x: x.view(-1)), 500, "host"),
        Workload("host", "synchronize, nothing to wait for", lambda: torch.cuda.synchronize, 200, "host"),
        Workload("host", "x.item()", _on((), lambda x: x.item()), 100, "host"),
        Workload("small kernel", "x.add_(1), 8 elements", _on(small, lambda x: x.add_(1)), 300),
    ]


def _training(model: str, amp: bool) -> Callable[[], Step]:
    def make() -> Step:
        torch.manual_seed(0)
        optimizer: torch.optim.Optimizer
        if model == "ResNet-18":
            network: nn.Module = ResNet18().cuda()
            inputs = torch.randn(32, 3, 224, 224, device="cuda")
            targets = torch.zeros(32, dtype=torch.int64, device="cuda")
            optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
        else:
            network = Gpt(vocabulary=16384, length=512, width=768, layers=6, heads=12).cuda()
            inputs = torch.zeros(8, 512, dtype=torch.int64, device="cuda")
            targets = torch.zeros(8 * 512, dtype=torch.int64, device="cuda")
            optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
        scaler = torch.amp.GradScaler("cuda", enabled=amp)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.float16, enabled=amp):
                logits = network(inputs)
                loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        return step

    return make


def workloads() -> list[Workload]:
    """All of them, in the order in which they run: it decides what the allocator has cached."""
    steps = [
        Workload("training step", f"{model}, {'AMP float16' if amp else 'float32'}, {kind}", _training(model, amp), 5,
                 "both", memory=True)
        for model, kind in (("ResNet-18", "batch 32, SGD"), ("GPT, 6 layers", "8 x 512 tokens, Adam"))
        for amp in (False, True)
    ]  # fmt: skip
    optimizers = [
        Workload("optimizer", "Adam step, 32 x 1M (foreach)", _optimizer(torch.optim.Adam, foreach=True), 10),
        Workload("optimizer", "Adam step, 32 x 1M (fused)", _optimizer(torch.optim.Adam, fused=True), 10),
        Workload("optimizer", "SGD momentum step, 32 x 1M", _optimizer(torch.optim.SGD, momentum=0.9), 10),
    ]
    return [*steps, *_products(), *_memory_bound(), *_library_kernels(), *optimizers, *_transfers(), *_host()]
