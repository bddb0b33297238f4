"""Device time of layers, forward and backward: of CNNs and of transformers; and of optimizers."""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's custom
from torch import nn

from benchmarks.measured.case import Make, Step
from benchmarks.measured.kernels import Entry

_Shape = tuple[int, ...]
_Layer = tuple[str, _Shape, Callable[[], nn.Module]]
_HALF, _FULL = torch.float16, torch.float32
_DTYPES = ((_FULL, "float32"), (_HALF, "float16"))


def single() -> Iterator[Entry]:
    """Each layer alone."""
    yield from _convolutions()
    yield from _of_a_cnn()
    yield from _of_a_transformer()
    yield from _optimizers()


def _layer(module: Callable[[], nn.Module], shape: _Shape, dtype: torch.dtype, *, last: bool, back: bool) -> Make:
    def make() -> Step:
        memory = torch.channels_last if last else torch.contiguous_format
        made = module().cuda().to(dtype).to(memory_format=memory)
        x = torch.randn(shape, device="cuda").to(dtype).to(memory_format=memory).requires_grad_()
        y = made(x)
        if not back:
            return lambda: made(x)
        gradient = torch.randn_like(y)
        inputs = [x, *made.parameters()]
        return lambda: torch.autograd.grad(y, inputs, gradient, retain_graph=True)

    return make


def _convolutions() -> Iterator[Entry]:
    layers: list[_Layer] = [
        ("7x7, 3 to 64, stride 2, 224", (64, 3, 224, 224), lambda: nn.Conv2d(3, 64, 7, 2, 3, bias=False)),
        ("1x1, 64 to 256, 56", (64, 64, 56, 56), lambda: nn.Conv2d(64, 256, 1, bias=False)),
        ("3x3, 64, 56", (64, 64, 56, 56), lambda: nn.Conv2d(64, 64, 3, 1, 1, bias=False)),
        ("3x3, 256, 14", (64, 256, 14, 14), lambda: nn.Conv2d(256, 256, 3, 1, 1, bias=False)),
        ("1x1, 1024 to 256, 14", (64, 1024, 14, 14), lambda: nn.Conv2d(1024, 256, 1, bias=False)),
        ("3x3, 512, 7", (64, 512, 7, 7), lambda: nn.Conv2d(512, 512, 3, 1, 1, bias=False)),
        ("3x3 depthwise, 192, 28", (64, 192, 28, 28), lambda: nn.Conv2d(192, 192, 3, 1, 1, groups=192, bias=False)),
        ("3x3, 32, 32 (small)", (128, 32, 32, 32), lambda: nn.Conv2d(32, 32, 3, 1, 1, bias=False)),
    ]
    for name, shape, module in layers:
        for precision, dtype in (("fp32", _FULL), ("tf32", _FULL), ("fp16", _HALF)):
            for last in (False, True):
                for back in (False, True):
                    group = f"kernel: convolution {precision}{' NHWC' if last else ''}{' backward' if back else ''}"
                    yield group, name, precision, _layer(module, shape, dtype, last=last, back=back)


def _of_a_cnn() -> Iterator[Entry]:
    layers: list[_Layer] = [
        ("batch norm, 64 x 64 x 56 x 56", (64, 64, 56, 56), lambda: nn.BatchNorm2d(64)),
        ("batch norm, 64 x 512 x 7 x 7", (64, 512, 7, 7), lambda: nn.BatchNorm2d(512)),
        ("group norm, 64 x 64 x 56 x 56", (64, 64, 56, 56), lambda: nn.GroupNorm(32, 64)),
        ("max pool 3x3, 64 x 64 x 112 x 112", (64, 64, 112, 112), lambda: nn.MaxPool2d(3, 2, 1)),
        ("average pool, 64 x 2048 x 7 x 7", (64, 2048, 7, 7), lambda: nn.AdaptiveAvgPool2d(1)),
        ("relu, 64 x 64 x 56 x 56", (64, 64, 56, 56), nn.ReLU),
    ]
    for name, shape, module in layers:
        for dtype, kind in _DTYPES:
            for last in (False, True):
                for back in (False, True):
                    group = f"kernel: layers of a CNN{' backward' if back else ''}"
                    title = f"{name}, {kind}{' NHWC' if last else ''}"
                    yield group, title, "", _layer(module, shape, dtype, last=last, back=back)


def _of_a_transformer() -> Iterator[Entry]:
    group = "kernel: layers of a transformer"
    layers: list[_Layer] = [
        ("layer norm, 8 x 1024 x 768", (8, 1024, 768), lambda: nn.LayerNorm(768)),
        ("linear 768 to 3072, 8 x 1024", (8, 1024, 768), lambda: nn.Linear(768, 3072)),
        ("gelu, 8 x 1024 x 3072", (8, 1024, 3072), nn.GELU),
        ("dropout, 8 x 1024 x 3072", (8, 1024, 3072), nn.Dropout),
        ("softmax, 96 x 1024 x 1024", (96, 1024, 1024), lambda: nn.Softmax(-1)),
    ]
    for name, shape, module in layers:
        for dtype, kind in _DTYPES:
            for back in (False, True):
                make = _layer(module, shape, dtype, last=False, back=back)
                yield f"{group}{' backward' if back else ''}", f"{name}, {kind}", "", make

    def embedding() -> Step:
        table, tokens = nn.Embedding(50304, 768).cuda(), torch.randint(50304, (8, 1024), device="cuda")
        return lambda: table(tokens)

    def entropy() -> Step:
        logits, targets = torch.randn(8192, 50304, device="cuda"), torch.randint(50304, (8192,), device="cuda")
        return lambda: F.cross_entropy(logits, targets)

    yield group, "embedding, 8 x 1024 of 50304 x 768", "", embedding
    yield group, "cross entropy, 8192 x 50304 float32", "", entropy


def _optimizers() -> Iterator[Entry]:
    def maker(kind: Any, options: dict[str, Any]) -> Make:
        def make() -> Step:
            weights = [torch.randn(1024, 1024, device="cuda", requires_grad=True) for _ in range(64)]
            for weight in weights:
                weight.grad = torch.ones_like(weight)
            made = kind(weights, lr=1e-3, **options)
            return lambda: made.step()

        return make

    chosen: list[tuple[str, Any, dict[str, Any]]] = [
        ("SGD", torch.optim.SGD, {}),
        ("SGD, momentum", torch.optim.SGD, {"momentum": 0.9}),
        ("Adam", torch.optim.Adam, {}),
        ("AdamW fused", torch.optim.AdamW, {"fused": True}),
    ]
    for name, kind, options in chosen:
        yield "kernel: optimizer", f"{name}, 64 x 1M", "", maker(kind, options)
