"""Host time of ordinary calls, and of copies between host and device, which may wait for the device."""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's custom
from torch import Tensor, nn

from benchmarks.measured.case import Step
from benchmarks.measured.drawn import timing
from benchmarks.measured.drawn.case import Drawn, Family, Measured, Parameters

_KIB = 2**10
_SIZES = (4 * _KIB, 100_003, 1024 * _KIB, 16_384 * _KIB)
_DIRECTIONS = ("to the device", "to the host")


def _on(call: Callable[[Tensor], Any], *shape: int) -> Callable[[], Step]:
    def prepare() -> Step:
        x = torch.randn(shape or (16, 16), device="cuda")
        return lambda: call(x)

    return prepare


def _module(make: Callable[[], nn.Module], *shape: int, train: bool = False) -> Callable[[], Step]:
    def prepare() -> Step:
        module, x = make().cuda().train(train), torch.randn(shape, device="cuda")

        def call() -> None:
            with torch.set_grad_enabled(train):
                module(x)

        return call

    return prepare


def _zero_grad(set_to_none: bool) -> Callable[[], Step]:
    def prepare() -> Step:
        weights = [torch.randn(16, device="cuda", requires_grad=True) for _ in range(50)]
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        optimizer = torch.optim.SGD(weights, lr=0.1)
        return lambda: optimizer.zero_grad(set_to_none=set_to_none)

    return prepare


def _stream_switch() -> Step:
    stream = torch.cuda.Stream()

    def call() -> None:
        with torch.cuda.stream(stream):
            pass

    return call


def _event_record() -> Step:
    event = torch.cuda.Event()
    return event.record


def _event_query() -> Step:
    event = torch.cuda.Event()
    event.record()
    return event.query


def _stream_waits_for_event() -> Step:
    event, stream = torch.cuda.Event(), torch.cuda.Stream()
    event.record()
    return lambda: stream.wait_event(event)


def _clip() -> Step:
    weights = [torch.randn(16, device="cuda", requires_grad=True) for _ in range(50)]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    return lambda: nn.utils.clip_grad_norm_(weights, 1.0)


def _backward() -> Step:
    x = torch.randn(16, 16, device="cuda", requires_grad=True)
    return lambda: (x * 2).sum().backward()


def _no_grad() -> None:
    with torch.no_grad():
        pass


def _autocast() -> None:
    with torch.autocast("cuda", torch.bfloat16):
        pass


def _embedding() -> Step:
    table, index = torch.randn(16, 16, device="cuda"), torch.zeros(4, dtype=torch.int64, device="cuda")
    return lambda: F.embedding(index, table)


def _layer() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))


CALLS: dict[str, Callable[[], Step]] = {
    "x * 2": _on(lambda x: x * 2),
    "x - x": _on(lambda x: x - x),
    "x.sub_(x)": _on(lambda x: x.sub_(x)),
    "x > 0": _on(lambda x: x > 0),
    "torch.where": _on(lambda x: torch.where(x > 0, x, x)),
    "torch.exp": _on(torch.exp),
    "torch.sigmoid": _on(torch.sigmoid),
    "x.fill_(0)": _on(lambda x: x.fill_(0)),
    "x.max()": _on(lambda x: x.max()),
    "x.amax(1)": _on(lambda x: x.amax(1)),
    "x.std()": _on(lambda x: x.std()),
    "torch.stack": _on(lambda x: torch.stack((x, x))),
    "torch.addmm": _on(lambda x: torch.addmm(x, x, x)),
    "torch.einsum": _on(lambda x: torch.einsum("ij,jk->ik", x, x)),
    "torch.arange": _on(lambda x: torch.arange(16, device="cuda")),
    "torch.full": _on(lambda x: torch.full((16,), 1.0, device="cuda")),
    "torch.rand": _on(lambda x: torch.rand(16, device="cuda")),
    "torch.empty_like": _on(torch.empty_like),
    "x.reshape(-1)": _on(lambda x: x.reshape(-1)),
    "x.permute(1, 0)": _on(lambda x: x.permute(1, 0)),
    "x[:, 1:3]": _on(lambda x: x[:, 1:3]),
    "x[index]": _on(lambda x: x[[0, 3, 5]]),
    "x.detach()": _on(lambda x: x.detach()),
    "x.contiguous(), already so": _on(lambda x: x.contiguous()),
    "x.t().contiguous()": _on(lambda x: x.t().contiguous()),
    "x.to(bfloat16)": _on(lambda x: x.to(torch.bfloat16)),
    "x.item()": _on(lambda x: x.item(), 1),
    "bool(x.isnan().any())": _on(lambda x: bool(x.isnan().any())),
    "x.tolist() of 256": _on(lambda x: x.tolist(), 256),
    "F.silu": _on(F.silu),
    "F.log_softmax": _on(lambda x: F.log_softmax(x, -1)),
    "F.rms_norm": _on(lambda x: F.rms_norm(x, (16,))),
    "F.mse_loss": _on(lambda x: F.mse_loss(x, x)),
    "F.embedding": _embedding,
    "nn.Module call, 3 layers, no grad": _module(_mlp, 4, 16),
    "nn.Module call, 3 layers, grad": _module(_mlp, 4, 16, train=True),
    "nn.Identity call": _module(nn.Identity, 4, 16),
    "nn.TransformerEncoderLayer, grad": _module(_layer, 2, 8, 16, train=True),
    "multiply, sum, backward": _backward,
    "optimizer.zero_grad(), 50 tensors": _zero_grad(True),
    "optimizer.zero_grad(set_to_none=False), 50 tensors": _zero_grad(False),
    "clip_grad_norm_, 50 tensors": _clip,
    "torch.no_grad()": lambda: _no_grad,
    "torch.autocast()": lambda: _autocast,
    "Event.record()": _event_record,
    "Event.query()": _event_query,
    "Stream.wait_event()": _stream_waits_for_event,
    "torch.cuda.stream()": _stream_switch,
    "torch.cuda.synchronize(), idle": lambda: torch.cuda.synchronize,
    "torch.cuda.memory_allocated()": lambda: torch.cuda.memory_allocated,
    "torch.cuda.mem_get_info()": lambda: torch.cuda.mem_get_info,
}
"""By name; the names of `benchmarks.measured.host` are not repeated, except those that show whether both agree."""


def _draw(rng: random.Random) -> Iterator[Drawn]:
    for name in CALLS:
        yield "fp32", {"call": name}
    for direction in _DIRECTIONS:
        for pinned in (False, True):
            for count in _SIZES:
                yield "", {"call": "copy", "direction": direction, "pinned": pinned, "bytes": count}


def _copy(p: Parameters) -> Step:
    on_host = torch.empty(p["bytes"], dtype=torch.uint8, pin_memory=p["pinned"])
    on_device = torch.empty(p["bytes"], dtype=torch.uint8, device="cuda")
    here, there = (on_device, on_host) if p["direction"] == _DIRECTIONS[0] else (on_host, on_device)
    return lambda: here.copy_(there, non_blocking=True)


def _measure(p: Parameters, precision: str) -> Measured:
    step = _copy(p) if p["call"] == "copy" else CALLS[p["call"]]()
    return Measured(timing.host_and_wall(step))


HOST_CALLS = Family("host-call", _draw, _measure, lambda p, precision: 2.0 * p.get("bytes", _KIB))
