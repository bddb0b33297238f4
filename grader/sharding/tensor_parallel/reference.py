"""What an MLP of two layers computes, and its gradients, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grader.sharding.tensor_parallel.cases import LayersCase, ShareLayers

Array = NDArray[np.float64]
SPLIT = {"up_weight": 0, "up_bias": 0, "down_weight": 1}
"""The side of each parameter that is shared out."""


@dataclass(frozen=True)
class Layers:
    """Both layers; a bias that is not there is None. Weights are [out, in] as those of `torch.nn.Linear`."""

    up: Array
    up_bias: Array | None
    down: Array
    down_bias: Array | None


@dataclass(frozen=True)
class Passes:
    """The output and the gradients of everything, of whole layers."""

    output: Array
    input_gradient: Array
    gradients: dict[str, Array]


def both_passes(layers: Layers, activation: str, inputs: Array, slopes: Array) -> Passes:
    """Forward of `inputs` [..., in], then backward of the output's gradient `slopes` [..., out]."""
    before = inputs @ layers.up.T + (0.0 if layers.up_bias is None else layers.up_bias)
    hidden, slope = _activated(activation, before)
    output = hidden @ layers.down.T + (0.0 if layers.down_bias is None else layers.down_bias)
    back = (slopes @ layers.down) * slope

    def flat(values: Array) -> Array:
        return values.reshape(-1, values.shape[-1])

    gradients = {
        "up_weight": flat(back).T @ flat(inputs),
        "up_bias": flat(back).sum(axis=0),
        "down_weight": flat(slopes).T @ flat(hidden),
        "down_bias": flat(slopes).sum(axis=0),
    }
    return Passes(output, back @ layers.up, gradients)


def _activated(name: str, values: Array) -> tuple[Array, Array]:
    """The activation and its derivative."""
    if name == "relu":
        return np.maximum(values, 0.0), (values > 0).astype(np.float64)
    if name == "silu":
        share = 1 / (1 + np.exp(-values))
        return values * share, share * (1 + values * (1 - share))
    below = 0.5 * (1 + np.vectorize(math.erf)(values / math.sqrt(2)))
    return values * below, below + values * np.exp(-(values**2) / 2) / math.sqrt(2 * math.pi)


def whole_parameters(case: LayersCase, inputs: ShareLayers) -> dict[str, Array]:
    """The whole layers' weights and biases; a bias that is not there has no elements."""
    hidden, features, outputs = case["hidden"], case["features"], case["outputs"]
    values = {
        "up_weight": inputs.up[:hidden, :features],
        "up_bias": inputs.biases[0][: hidden * case["up_bias"]],
        "down_weight": inputs.down[:outputs, :hidden],
        "down_bias": inputs.biases[1][: outputs * case["down_bias"]],
    }
    return {name: np.asarray(value, np.float64) for name, value in values.items()}


def part_of(whole: Array, name: str, number: int, ranks: int) -> Array:
    """The part of a parameter that the rank of this number in its group has."""
    return whole if name not in SPLIT else np.split(whole, ranks, axis=SPLIT[name])[number]


def passes_of_ranks(case: LayersCase, inputs: ShareLayers, ranks: int) -> list[Passes]:
    """What the whole layers do with each rank's inputs."""
    whole = whole_parameters(case, inputs)
    layers = Layers(
        whole["up_weight"],
        whole["up_bias"] if case["up_bias"] else None,
        whole["down_weight"],
        whole["down_bias"] if case["down_bias"] else None,
    )
    passes = []
    for rank in range(ranks):
        pair = rank // 2 if case["pairs"] else 0
        x, slopes = (np.asarray(values[pair], np.float64) for values in (inputs.inputs, inputs.slopes))
        passes.append(
            both_passes(layers, case["activation"], x[..., : case["features"]], slopes[..., : case["outputs"]])
        )
    return passes
