"""Steps of whole networks, with the memory that they need; forward passes launched one by one and as a CUDA graph."""

# mypy: disable-error-code="no-untyped-call, misc"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's custom
from torch import nn

from benchmarks.measured.case import Case, Make, Step, step_and_memory
from benchmarks.published.timing import wall_seconds
from vgpu.tools.calibrate.models import Gpt

_WORDS = 50304


def _step_of(model: nn.Module, inputs: Any, targets: torch.Tensor, optimizer: Any, dtype: torch.dtype | None) -> Step:
    scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype or torch.float16, enabled=dtype is not None):
            output = model(inputs)
            loss = F.cross_entropy(output.reshape(-1, output.shape[-1]), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def _network(name: str) -> nn.Module:
    """One of torchvision's, which is imported here: that takes seconds, since it brings Dynamo with it."""
    from torchvision import models

    network: nn.Module = getattr(models, name)(weights=None)
    return network


def _images(name: str, batch: int, size: int, *, last: bool = False, amp: bool) -> Step:
    model = _network(name).cuda()
    x = torch.randn(batch, 3, size, size, device="cuda")
    if last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    targets = torch.zeros(batch, dtype=torch.int64, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return _step_of(model, x, targets, optimizer, torch.float16 if amp else None)


def _gpt(layers: int, width: int, length: int, dtype: torch.dtype | None, *, fused: bool = False) -> Step:
    model = Gpt(vocabulary=_WORDS, length=length, width=width, layers=layers, heads=width // 64).cuda()
    tokens = torch.zeros(8, length, dtype=torch.int64, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused or None)
    return _step_of(model, tokens, tokens.view(-1), optimizer, dtype)


def _mlp(width: int, batch: int, depth: int) -> Step:
    layers = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, 10)).cuda()
    x, targets = torch.randn(batch, width, device="cuda"), torch.zeros(batch, dtype=torch.int64, device="cuda")
    return _step_of(model, x, targets, torch.optim.Adam(model.parameters(), lr=1e-3), None)


def _makers() -> Iterator[tuple[str, str, Make]]:
    """Name, precision, and what makes a step."""
    images = (("resnet50", 64, 224), ("resnet18", 256, 64), ("mobilenet_v2", 64, 224), ("resnet18", 16, 32))
    part = functools.partial
    for name, batch, size in images:
        for last in (False, True):
            for kind, precision, amp in (("FP32", "fp32", False), ("TF32", "tf32", False), ("AMP", "tf32", True)):
                title = f"{name}, {batch} x {size}, {kind}{', channels_last' if last else ''}"
                yield title, precision, part(_images, name, batch, size, last=last, amp=amp)
    yield "vgg16, 32 x 224, TF32", "tf32", part(_images, "vgg16", 32, 224, amp=False)
    yield "vit_b_16, 64 x 224, AMP", "tf32", part(_images, "vit_b_16", 64, 224, amp=True)
    low = torch.bfloat16
    for dtype, kind, precision in ((None, "FP32", "fp32"), (None, "TF32", "tf32"), (low, "AMP BF16", "tf32")):
        yield f"GPT-2 small, 8 x 1024, {kind}", precision, part(_gpt, 12, 768, 1024, dtype)
    yield "GPT-2 small, 8 x 1024, AMP BF16, fused AdamW", "tf32", part(_gpt, 12, 768, 1024, low, fused=True)
    yield "GPT-2 medium, 8 x 1024, AMP BF16, fused AdamW", "tf32", part(_gpt, 24, 1024, 1024, low, fused=True)
    yield "GPT of 4 layers of 256, 8 x 128, AMP BF16", "tf32", part(_gpt, 4, 256, 128, low)
    yield "MLP 2 x 128, batch 64", "fp32", part(_mlp, 128, 64, 2)
    yield "MLP 8 x 512, batch 256", "fp32", part(_mlp, 512, 256, 8)
    yield "MLP 4 x 4096, batch 4096", "tf32", part(_mlp, 4096, 4096, 4)


def training() -> Iterator[Case]:
    """Steps of whole networks: seconds and bytes."""
    for name, precision, make in _makers():
        yield Case("training step", name, "seconds", functools.partial(step_and_memory, make), precision)


def _parts(make: Callable[[], tuple[nn.Module, Any, torch.Tensor]]) -> dict[str, float]:
    """Host seconds of the parts of a step, each with an idle device before it and no waiting in it; medians of ten."""
    model, inputs, targets = make()
    model.cuda()
    inputs, targets = inputs.cuda(), targets.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    seconds: dict[str, list[float]] = {}

    def timed(name: str, call: Step) -> Any:
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = call()
        seconds.setdefault(f"{name}_seconds", []).append(time.perf_counter() - start)
        return result

    for _ in range(12):
        output = timed("forward", lambda: model(inputs))
        loss = timed("loss", lambda output=output: F.cross_entropy(output.reshape(-1, output.shape[-1]), targets))
        timed("backward", lambda loss=loss: loss.backward())
        timed("optimizer", optimizer.step)
        timed("clearing", optimizer.zero_grad)
    return {name: statistics.median(values[2:]) for name, values in seconds.items()}


def hosts() -> Iterator[Case]:
    """What the host does in a step of small networks, which do not keep the device busy."""

    def images() -> tuple[nn.Module, Any, torch.Tensor]:
        return _network("resnet18"), torch.randn(4, 3, 32, 32), torch.zeros(4, dtype=torch.int64)

    def words() -> tuple[nn.Module, Any, torch.Tensor]:
        tokens = torch.zeros(2, 64, dtype=torch.int64)
        return Gpt(vocabulary=1000, length=64, width=128, layers=12, heads=2), tokens, tokens.view(-1)

    def linears() -> tuple[nn.Module, Any, torch.Tensor]:
        layers = [part for _ in range(16) for part in (nn.Linear(64, 64), nn.ReLU())]
        return nn.Sequential(*layers), torch.randn(8, 64), torch.zeros(8, dtype=torch.int64)

    for name, make in (
        ("resnet18, 4 x 32", images),
        ("GPT of 12 layers of 128", words),
        ("16 x nn.Linear(64)", linears),
    ):
        yield Case("host of a step", name, "seconds", functools.partial(_parts, make), "tf32")


def _graph(make: Callable[[], nn.Module], *shape: int) -> dict[str, float]:
    model, x = make().cuda().eval(), torch.randn(shape, device="cuda")
    with torch.no_grad():
        eager = wall_seconds(lambda: model(x), 50, 10)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(x)
        return {"eager_seconds": eager, "replay_seconds": wall_seconds(graph.replay, 50, 10)}


def _linears() -> nn.Module:
    return nn.Sequential(*[nn.Linear(256, 256) for _ in range(16)])


def graphs() -> Iterator[Case]:
    """Forward passes of small models, launched one by one and as a CUDA graph."""
    chosen: list[tuple[str, Callable[[], nn.Module], tuple[int, ...]]] = [
        ("16 x nn.Linear(256), batch 8", _linears, (8, 256)),
        ("resnet18, 1 x 224", lambda: _network("resnet18"), (1, 3, 224, 224)),
        ("resnet50, 1 x 224", lambda: _network("resnet50"), (1, 3, 224, 224)),
    ]
    for name, make, shape in chosen:
        yield Case("CUDA graph", name, "seconds", functools.partial(_graph, make, *shape), "tf32")
