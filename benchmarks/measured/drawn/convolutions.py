"""Convolutions and the other layers of CNNs: device time of one pass, in both memory layouts."""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch.nn.functional as F  # noqa: N812 - PyTorch's custom
from torch import Tensor

from benchmarks.measured.case import Step
from benchmarks.measured.drawn import timing
from benchmarks.measured.drawn.case import (
    LOW_AND_FULL,
    PRECISIONS,
    Drawn,
    Family,
    Measured,
    Parameters,
    backward_of,
    element_bytes,
    size,
    tensor,
    until,
)

_CONVOLUTIONS, _LAYERS_EACH = 60, 9
_PASSES = ("forward", "backward data", "backward weight")
_MOST_OPERATIONS, _MOST_ELEMENTS = 3e11, 2**26
_WORKSPACE_BYTES = 2**28
_LAYERS = ("batch norm, training", "batch norm, evaluation", "max pool", "average pool", "adaptive average pool")


def _output(p: Parameters) -> tuple[int, int]:
    """Height and width of a convolution's output, which is padded by half its kernel."""
    height, width = (
        (p[side] + 2 * (p["kernel"] // 2) - p["kernel"]) // p["stride"] + 1 for side in ("height", "width")
    )
    return height, width


def _elements(p: Parameters) -> tuple[int, int, int]:
    """Elements of input, weight and output."""
    height, width = _output(p)
    data = p["batch"] * p["in_channels"] * p["height"] * p["width"]
    weight = p["out_channels"] * p["in_channels"] // p["groups"] * p["kernel"] ** 2
    return data, weight, p["batch"] * p["out_channels"] * height * width


def _fits(p: Parameters) -> bool:
    data, weight, output = _elements(p)
    operations = 2 * output * p["in_channels"] // p["groups"] * p["kernel"] ** 2
    return max(data, weight, output) <= _MOST_ELEMENTS and operations <= _MOST_OPERATIONS


def _shape(rng: random.Random, kernel: int, stride: int, depthwise: bool, large: bool) -> dict[str, Any]:
    def draw() -> dict[str, Any]:
        channels = size(rng, 8 if depthwise else 1, 1024)
        height = size(rng, max(kernel, 4), 256)
        return {
            "batch": size(rng, 16, 256) if large else size(rng, 1, 8),
            "in_channels": channels,
            "out_channels": channels if depthwise else size(rng, 4, 1024),
            "height": height,
            "width": height if rng.random() < 0.7 else size(rng, max(kernel, 4), 256),
            "kernel": kernel,
            "stride": stride,
            "groups": channels if depthwise else 1,
        }

    return until(draw, _fits)


def _draw(rng: random.Random) -> Iterator[Drawn]:
    """Every shape in one pass, with all precisions and both layouts."""
    kinds = list(itertools.product((1, 3, 5, 7), (1, 2), (False, True), (False, True)))
    rng.shuffle(kinds)
    for number, kind in zip(range(_CONVOLUTIONS), itertools.cycle(kinds), strict=False):
        shape = _shape(rng, *kind) | {"pass": _PASSES[number % len(_PASSES)]}
        for precision in PRECISIONS:
            for channels_last in (False, True):
                yield precision, shape | {"channels_last": channels_last}


def _prepare(p: Parameters, precision: str) -> Step:
    x = tensor(
        p["batch"], p["in_channels"], p["height"], p["width"], precision=precision, channels_last=p["channels_last"]
    )
    shape = (p["out_channels"], p["in_channels"] // p["groups"], p["kernel"], p["kernel"])
    weight = tensor(*shape, precision=precision, channels_last=p["channels_last"])
    x.requires_grad_(p["pass"] == "backward data")
    weight.requires_grad_(p["pass"] == "backward weight")

    def forward() -> Tensor:
        return F.conv2d(x, weight, None, p["stride"], p["kernel"] // 2, 1, p["groups"])

    if p["pass"] == "forward":
        return forward
    return backward_of(forward(), [x if x.requires_grad else weight])


def _measure(p: Parameters, precision: str) -> Measured:
    step = _prepare(p, precision)
    return Measured(timing.device(step), step)


def _bytes(p: Parameters, precision: str) -> float:
    return 3.0 * sum(_elements(p)) * element_bytes(precision) + _WORKSPACE_BYTES


CONVOLUTIONS = Family("conv2d", _draw, _measure, _bytes)


def _layer_shape(rng: random.Random, layer: str) -> dict[str, Any]:
    def draw() -> dict[str, Any]:
        height = size(rng, 7, 224)
        parameters: dict[str, Any] = {
            "layer": layer, "batch": size(rng, 1, 256), "channels": size(rng, 3, 2048), "height": height,
            "width": height if rng.random() < 0.7 else size(rng, 7, 224),
        }  # fmt: skip
        if layer in ("max pool", "average pool"):
            kernel = rng.choice((2, 3))
            parameters |= {"kernel": kernel, "stride": rng.choice((1, 2)), "padding": rng.choice((0, kernel // 2))}
        elif layer == "adaptive average pool":
            parameters["output"] = rng.choice((1, 1, 3, 7))
        return parameters

    return until(draw, lambda p: bool(2**10 <= _layer_elements(p) <= _MOST_ELEMENTS))


def _layer_elements(p: Parameters) -> int:
    return int(p["batch"] * p["channels"] * p["height"] * p["width"])


def _draw_layers(rng: random.Random) -> Iterator[Drawn]:
    for number in range(_LAYERS_EACH):
        for place, layer in enumerate(_LAYERS):
            shape, precision = _layer_shape(rng, layer), LOW_AND_FULL[(number + place) % len(LOW_AND_FULL)]
            for channels_last in (False, True):
                for which in ("forward", "backward"):
                    yield precision, shape | {"channels_last": channels_last, "pass": which}


def _batch_norm(p: Parameters, precision: str) -> tuple[Callable[[Tensor], Tensor], list[Tensor]]:
    """Statistics and weights are in float32, as mixed precision keeps them."""
    mean, variance, weight, bias = (tensor(p["channels"], precision="fp32") for _ in range(4))
    variance.abs_().add_(0.1)
    parameters = [weight.requires_grad_(), bias.requires_grad_()]
    training = p["layer"].endswith("training")
    return lambda x: F.batch_norm(x, mean, variance, weight, bias, training), parameters


def _pool(p: Parameters) -> Callable[[Tensor], Tensor]:
    if p["layer"] == "adaptive average pool":
        return lambda x: F.adaptive_avg_pool2d(x, p["output"])
    pool = F.max_pool2d if p["layer"] == "max pool" else F.avg_pool2d
    return lambda x: pool(x, p["kernel"], p["stride"], p["padding"])


def _measure_layer(p: Parameters, precision: str) -> Measured:
    shape = (p["batch"], p["channels"], p["height"], p["width"])
    x = tensor(*shape, precision=precision, channels_last=p["channels_last"]).requires_grad_()
    layer, parameters = _batch_norm(p, precision) if "norm" in p["layer"] else (_pool(p), [])

    def forward() -> Tensor:
        return layer(x)

    step = forward if p["pass"] == "forward" else backward_of(forward(), [x, *parameters])
    return Measured(timing.device(step), step)


def _layer_bytes(p: Parameters, precision: str) -> float:
    return 6.0 * _layer_elements(p) * element_bytes(precision)


LAYERS = Family("cnn-layer", _draw_layers, _measure_layer, _layer_bytes)
