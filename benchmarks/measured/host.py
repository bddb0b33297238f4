"""Host time until a call returns, for what programs call most."""

# mypy: disable-error-code="no-untyped-call, misc"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's custom
from torch import nn

from benchmarks.measured.case import Case, Make, Step, host_seconds


def host_calls() -> Iterator[Case]:
    """Host time until a call returns, for what programs call most."""

    def small(*shape: int, **options: Any) -> torch.Tensor:
        return torch.randn(shape, device="cuda", **options)

    def layer(module: nn.Module, *shape: int, train: bool = False, autocast: bool = False) -> Make:
        def make() -> Step:
            made, x = module.cuda().train(train), small(*shape)

            def step() -> None:
                with torch.set_grad_enabled(train), torch.autocast("cuda", torch.float16, enabled=autocast):
                    made(x)

            return step

        return make

    def backward(module: nn.Module, *shape: int) -> Make:
        def make() -> Step:
            made, x = module.cuda(), small(*shape)
            return lambda: made(x).sum().backward()

        return make

    def optimizer(kind: Any, **options: Any) -> Make:
        def make() -> Step:
            weights = [small(8, requires_grad=True) for _ in range(60)]
            for weight in weights:
                weight.grad = torch.ones_like(weight)
            made = kind(weights, lr=1e-3, **options)
            return lambda: made.step()

        return make

    def plain(call: Callable[[torch.Tensor], Any], *shape: int) -> Make:
        def make() -> Step:
            x = small(*shape)
            return lambda: call(x)

        return make

    labels = torch.zeros(8, dtype=torch.int64)
    makers: dict[str, Make] = {
        "x.add_(1)": plain(lambda x: x.add_(1), 8),
        "x + 1": plain(lambda x: x + 1, 8),
        "x + x": plain(lambda x: x + x, 8),
        "x.mul_(x)": plain(lambda x: x.mul_(x), 8),
        "x @ x": plain(lambda x: x @ x, 8, 8),
        "torch.mm": plain(lambda x: torch.mm(x, x), 8, 8),
        "torch.bmm": plain(lambda x: torch.bmm(x, x), 2, 8, 8),
        "F.linear": plain(lambda x: F.linear(x, x), 8, 8),
        "F.relu": plain(F.relu, 8),
        "F.gelu": plain(F.gelu, 8),
        "torch.softmax": plain(lambda x: torch.softmax(x, -1), 8, 8),
        "F.layer_norm": plain(lambda x: F.layer_norm(x, (8,)), 8, 8),
        "F.dropout": plain(F.dropout, 8),
        "F.scaled_dot_product_attention": plain(lambda x: F.scaled_dot_product_attention(x, x, x), 1, 2, 8, 8),
        "F.max_pool2d": plain(lambda x: F.max_pool2d(x, 2), 1, 2, 8, 8),
        "x.sum()": plain(lambda x: x.sum(), 8),
        "x.mean(0)": plain(lambda x: x.mean(0), 8, 8),
        "x.argmax(1)": plain(lambda x: x.argmax(1), 8, 8),
        "torch.cat": plain(lambda x: torch.cat((x, x)), 8),
        "x.clone()": plain(lambda x: x.clone(), 8),
        "x.half()": plain(lambda x: x.half(), 8),
        "x.view(-1)": plain(lambda x: x.view(-1), 8, 8),
        "x.t()": plain(lambda x: x.t(), 8, 8),
        "x[0]": plain(lambda x: x[0], 8, 8),
        "x.item()": plain(lambda x: x[0].item(), 8),
        "torch.zeros": plain(lambda x: torch.zeros(8, device="cuda"), 8),
        "torch.empty": plain(lambda x: torch.empty(8, device="cuda"), 8),
        "torch.randn": plain(lambda x: torch.randn(8, device="cuda"), 8),
        "x.to(cuda), from 8 elements": plain(lambda x: labels.to("cuda"), 8),
        "x.cpu()": plain(lambda x: x.cpu(), 8),
        "synchronize": plain(lambda x: torch.cuda.synchronize(), 8),
        "Event(), record": plain(lambda x: torch.cuda.Event(enable_timing=True).record(), 8),
        "nn.Linear, no grad": layer(nn.Linear(8, 8), 8, 8),
        "nn.Linear, grad": layer(nn.Linear(8, 8), 8, 8, train=True),
        "nn.Linear, autocast": layer(nn.Linear(8, 8), 8, 8, train=True, autocast=True),
        "nn.Conv2d, no grad": layer(nn.Conv2d(8, 8, 3), 1, 8, 8, 8),
        "nn.Conv2d, grad": layer(nn.Conv2d(8, 8, 3), 1, 8, 8, 8, train=True),
        "nn.BatchNorm2d, evaluation": layer(nn.BatchNorm2d(8), 1, 8, 8, 8),
        "nn.BatchNorm2d, training": layer(nn.BatchNorm2d(8), 1, 8, 8, 8, train=True),
        "nn.LayerNorm, grad": layer(nn.LayerNorm(8), 8, 8, train=True),
        "nn.ReLU, grad": layer(nn.ReLU(), 8, 8, train=True),
        "nn.GELU, grad": layer(nn.GELU(), 8, 8, train=True),
        "nn.Dropout, training": layer(nn.Dropout(), 8, 8, train=True),
        "nn.Linear, forward, sum, backward": backward(nn.Linear(8, 8), 8, 8),
        "4 x nn.Linear, forward, sum, backward": backward(nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)]), 8, 8),
        "nn.Conv2d, forward, sum, backward": backward(nn.Conv2d(8, 8, 3), 1, 8, 8, 8),
        "SGD, 60 tensors": optimizer(torch.optim.SGD),
        "SGD with momentum, 60 tensors": optimizer(torch.optim.SGD, momentum=0.9),
        "Adam, 60 tensors": optimizer(torch.optim.Adam),
        "Adam, 60 tensors, one by one": optimizer(torch.optim.Adam, foreach=False),
        "AdamW fused, 60 tensors": optimizer(torch.optim.AdamW, fused=True),
    }
    for name, make in makers.items():
        yield Case("host call", name, "seconds", lambda make=make: host_seconds(make()))
