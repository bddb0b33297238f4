"""Small networks, which do not keep a GPU busy, and steps of training them."""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's custom
from torch import Tensor, nn

from benchmarks.measured.case import Step
from benchmarks.measured.drawn import timing
from benchmarks.measured.drawn.case import Drawn, Family, Measured, Parameters, log_uniform, size
from benchmarks.published.timing import dtype_of, is_amp

NETWORKS = ("mlp", "cnn", "residual cnn", "transformer", "lstm")
_EACH = 16
_PRECISIONS = ("fp32", "tf32", "amp_bf16", "amp_fp16")
_OPTIMIZERS = ("sgd", "adamw", "adamw, fused")
_CLASSES = 10


def draw_network(rng: random.Random, network: str) -> dict[str, Any]:
    """Sizes of a network of this kind, and of a batch."""
    sizes: dict[str, Any] = {"network": network, "batch": log_uniform(rng, 1, 64)}
    if network == "mlp":
        return sizes | {"width": size(rng, 16, 2048), "depth": rng.randint(1, 12)}
    if network in ("cnn", "residual cnn"):
        sides = {"channels": size(rng, 8, 96), "depth": rng.randint(1, 6), "side": rng.choice((28, 32, 33, 64))}
        return sizes | sides | {"channels_last": rng.random() < 0.5}
    if network == "lstm":
        return sizes | {"width": size(rng, 16, 512), "depth": rng.randint(1, 3), "length": size(rng, 4, 128)}
    heads = rng.choice((1, 2, 4, 8))
    sides = {"heads": heads, "width": heads * rng.choice((16, 32, 64)), "depth": rng.randint(1, 6)}
    return sizes | sides | {"length": size(rng, 8, 256)}


class _Residual(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_convolution(channels, channels), *_convolution(channels, channels)[:2])

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.body(x))


class _Recurrent(nn.Module):
    """A recurrent layer, of which the last output counts."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.LSTM(width, width, depth, batch_first=True)
        self.head = nn.Linear(width, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.layers(x)[0][:, -1])
        return output


class _Encoder(nn.Module):
    """A transformer's encoder, whose outputs are averaged."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.layers(x).mean(1))
        return output


def _convolution(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]


def _cnn(p: Parameters) -> nn.Module:
    channels, depth = p["channels"], p["depth"]
    layers = _convolution(3, channels, 2)
    for _ in range(depth):
        layers += [_Residual(channels)] if p["network"] == "residual cnn" else _convolution(channels, channels)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, _CLASSES))


def network(p: Parameters) -> tuple[nn.Module, Tensor]:
    """The network and a batch, on the GPU."""
    kind, batch = p["network"], p["batch"]
    if kind == "mlp":
        layers = [part for _ in range(p["depth"]) for part in (nn.Linear(p["width"], p["width"]), nn.ReLU())]
        model: nn.Module = nn.Sequential(*layers, nn.Linear(p["width"], _CLASSES))
        return model.cuda(), torch.randn(batch, p["width"], device="cuda")
    if kind in ("cnn", "residual cnn"):
        memory = torch.channels_last if p["channels_last"] else torch.contiguous_format
        images = torch.randn(batch, 3, p["side"], p["side"], device="cuda").contiguous(memory_format=memory)
        return _cnn(p).cuda().to(memory_format=memory), images
    model = _Recurrent(p["width"], p["depth"]) if kind == "lstm" else _Encoder(p["width"], p["heads"], p["depth"])
    return model.cuda(), torch.randn(batch, p["length"], p["width"], device="cuda")


def targets(p: Parameters) -> Tensor:
    """The class of each sample."""
    return torch.randint(_CLASSES, (p["batch"],), device="cuda")


def bytes_needed(p: Parameters, precision: str = "") -> float:
    """A bound: these networks are small."""
    return 2.0**32


@dataclass(frozen=True)
class _Training:
    model: nn.Module
    inputs: Tensor
    targets: Tensor
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    precision: str

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        low = is_amp(self.precision)
        with torch.autocast("cuda", dtype_of(self.precision) if low else torch.float16, enabled=low):
            loss = F.cross_entropy(self.model(self.inputs), self.targets)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


def _optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True if "fused" in name else None)


def training_step(p: Parameters, precision: str) -> Step:
    """A whole step: the forward and backward pass, and the optimizer."""
    model, inputs = network(p)
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "amp_fp16")
    return _Training(model, inputs, targets(p), _optimizer(p["optimizer"], model), scaler, precision).step


def _draw(rng: random.Random) -> Iterator[Drawn]:
    for number in range(_EACH):
        for place, kind in enumerate(NETWORKS):
            optimizer = _OPTIMIZERS[(number // len(_PRECISIONS) + place) % len(_OPTIMIZERS)]
            precision = _PRECISIONS[(number + place) % len(_PRECISIONS)]
            yield precision, draw_network(rng, kind) | {"optimizer": optimizer}


def _measure(p: Parameters, precision: str) -> Measured:
    step = training_step(p, precision)
    values = timing.wall(step) | timing.host(step, most_calls=1)
    if precision != "amp_fp16":  # the scaler waits for the device, so its calls cannot be queued
        values |= timing.device(step)
    return Measured(values, step)


STEPS = Family("training-step", _draw, _measure, bytes_needed)
