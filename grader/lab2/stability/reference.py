"""What Lab 2's numerical tools and its unstable model come to, in NumPy float64, gradients by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grader.lab2.shared.reference import Adam, FloatArray, LossScale, to_bfloat16
from grader.lab2.stability.cases.loss_scale import ScaleSettings
from grader.lab2.stability.cases.softmax import Softmax, SoftmaxCase
from grader.lab2.stability.cases.unstable import WEIGHTS, StepsCase, UnstableSteps


@dataclass(frozen=True)
class Format:
    """Range and precision of a floating-point format."""

    dtype: str
    bits: int
    exponent: int
    """Of 2's largest power."""
    fraction_bits: int

    def fields(self) -> dict[str, float]:
        """The numbers that describe it, by the names of `NumberFormat`."""
        return {
            "largest": (2 - 2.0**-self.fraction_bits) * 2.0**self.exponent,
            "smallest_normal": 2.0 ** (1 - self.exponent),
            "smallest": 2.0 ** (1 - self.exponent - self.fraction_bits),
            "epsilon": 2.0**-self.fraction_bits,
        }


FORMATS = (Format("float16", 16, 15, 10), Format("bfloat16", 16, 127, 7), Format("float32", 32, 127, 23))


def softmax_argument(inputs: Softmax, case: SoftmaxCase) -> FloatArray:
    """The tensor of a call, rounded to its dtype."""
    x = np.asarray(inputs.tensors[case.name], dtype=np.float64)
    x = np.swapaxes(x, 0, -1) if case.transposed else x
    if case.dtype == "bfloat16":
        return to_bfloat16(x)
    return x.astype(np.float16).astype(np.float64) if case.dtype == "float16" else x


def softmax(x: FloatArray, dim: int) -> FloatArray:
    """Along `dim`."""
    shifted = np.exp(x - x.max(axis=dim, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=dim, keepdims=True))


def scales(settings: ScaleSettings, overflows: Sequence[bool]) -> list[float]:
    """The scale of a `DynamicLossScale` before and after each step."""
    options = {"init_scale" if name == "initial_scale" else name: value for name, value in dict(settings).items()}
    scaling = LossScale(**options)  # type: ignore[arg-type]
    values = [scaling.scale]
    for overflow in overflows:
        scaling.update(overflow)
        values.append(scaling.scale)
    return values


def mistaken_scales(settings: ScaleSettings, overflows: Sequence[bool], mistake: str) -> list[float]:
    """The same with a mistake: "never_reset", "each_good_step", "one_step_late" or "never_grows"."""
    scale = settings.get("initial_scale", 2.0**16)
    interval = settings.get("growth_interval", 2000)
    needed = {"each_good_step": 1, "one_step_late": interval + 1}.get(mistake, interval)
    values, good = [scale], 0
    for overflow in overflows:
        if overflow:
            scale *= settings.get("backoff_factor", 0.5)
            good = good if mistake == "never_reset" else 0
        else:
            good += 1
            if good == needed and mistake != "never_grows":
                scale, good = scale * settings.get("growth_factor", 2.0), 0
        values.append(scale)
    return values


@dataclass(frozen=True)
class Trajectory:
    """What a training of the unstable model comes to."""

    weights: FloatArray
    """All of them afterwards, in one row."""
    losses: list[float]
    """The mean over the samples of each epoch."""


def start(inputs: UnstableSteps) -> FloatArray:
    """All weights before a training, in one row."""
    return np.concatenate([np.asarray(inputs.weights[name], dtype=np.float64).ravel() for name in WEIGHTS])


def follow(inputs: UnstableSteps, case: StepsCase, mistake: str = "", *, as_autocast: bool = False) -> Trajectory:
    """Train the unstable model in float32, where its gain changes nothing, by SGD or by Adam with its defaults.

    The step of the batch that overflows is skipped in each epoch. With a mistake gradients are "never_cleared" or
    "never_unscaled". `as_autocast` rounds what linear layers take and return to the training's dtype: in 16 bits a unit
    near zero may be on the other side of the ReLU, and then its whole gradient is another one.
    """
    rounded = _ROUNDINGS[case.arguments["dtype"]] if as_autocast else _exact
    scale = (case.scale or {}).get("initial_scale", 1.0)
    weights = {name: np.asarray(inputs.weights[name], dtype=np.float64) for name in WEIGHTS}
    pixels = np.asarray(inputs.images, dtype=np.float64).reshape(len(inputs.images), -1)
    adam = {name: Adam() for name in weights}
    losses = []
    left = {name: np.zeros_like(weight) for name, weight in weights.items()}
    for _ in range(case.arguments.get("epochs", 5)):
        total, samples = 0.0, 0
        for position, batch in enumerate(np.split(pixels, np.cumsum(inputs.sizes)[:-1])):
            if position == case.skipped:
                continue
            samples += len(batch)
            loss, gradients = _loss(weights, batch, rounded)
            total += loss * len(batch)
            for name, gradient in gradients.items():
                if mistake == "never_cleared":  # what is left has been unscaled, and what is added has not
                    gradient = left[name] = left[name] / scale + gradient
                if mistake == "never_unscaled":
                    gradient = scale * gradient
                step = adam[name].step(gradient) if case.rate is None else case.rate * gradient
                weights[name] = weights[name] - step
        losses.append(total / samples)
    return Trajectory(np.concatenate([value.ravel() for value in weights.values()]), losses)


def _exact(x: FloatArray) -> FloatArray:
    return x


def _to_float16(x: FloatArray) -> FloatArray:
    return x.astype(np.float16).astype(np.float64)


_ROUNDINGS = {"float16": _to_float16, "bfloat16": to_bfloat16, "float32": _exact}


def _loss(
    weights: Mapping[str, FloatArray], pixels: FloatArray, rounded: Callable[[FloatArray], FloatArray]
) -> tuple[float, dict[str, FloatArray]]:
    """The mean squared difference between output and pixels, and its gradients."""
    w1, b1, w2, b2 = (rounded(weights[name]) for name in WEIGHTS)
    before = rounded(rounded(pixels) @ w1.T + b1)
    hidden = np.maximum(before, 0)
    difference = rounded(hidden @ w2.T + b2) - pixels
    slope = 2 * difference / difference.size
    inner = (slope @ weights["w2"]) * (before > 0)
    return float((difference**2).mean()), {
        "w1": inner.T @ pixels,
        "b1": inner.sum(axis=0),
        "w2": slope.T @ hidden,
        "b2": slope.sum(axis=0),
    }
