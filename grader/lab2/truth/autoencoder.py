"""The truth about the unstable model in float32, where its gain changes nothing: NumPy float64, gradients by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from grader.lab2.truth.training import Adam

Array = NDArray[np.float64]


def follow(
    weights: Mapping[str, NDArray[np.float32]],
    images: NDArray[np.float32],
    sizes: Sequence[int],
    epochs: int,
    rate: float | None,
    skipped: int | None = None,
) -> tuple[Array, list[float]]:
    """Train the autoencoder on batches of these sizes.

    Args:
        weights: "w1" [32, 64], "b1", "w2" [64, 32], "b2": of encoder and decoder.
        images: [samples, 1, 8, 8].
        sizes: of the batches.
        epochs: how often to go through them.
        rate: of SGD; None: Adam with its defaults.
        skipped: the batch whose step is skipped in each epoch.

    Returns:
        All weights afterwards, in one row, and the mean loss over the samples of each epoch.
    """
    now: dict[str, Array] = {name: np.asarray(value, dtype=np.float64) for name, value in weights.items()}
    pixels = np.asarray(images, dtype=np.float64).reshape(len(images), -1)
    adam = {name: Adam() for name in now}
    losses = []
    for _ in range(epochs):
        total, samples = 0.0, 0
        for place, batch in enumerate(np.split(pixels, np.cumsum(sizes)[:-1])):
            if place == skipped:
                continue
            samples += len(batch)
            loss, gradients = _loss(now, batch)
            total += loss * len(batch)
            for name, gradient in gradients.items():
                now[name] = now[name] - (adam[name].step(gradient) if rate is None else rate * gradient)
        losses.append(total / samples)
    return np.concatenate([value.ravel() for value in now.values()]), losses


def _loss(weights: Mapping[str, Array], pixels: Array) -> tuple[float, dict[str, Array]]:
    """The mean squared difference between output and pixels, and its gradients."""
    before = pixels @ weights["w1"].T + weights["b1"]
    hidden = np.maximum(before, 0)
    difference = hidden @ weights["w2"].T + weights["b2"] - pixels
    slope = 2 * difference / difference.size
    inner = (slope @ weights["w2"]) * (before > 0)
    return float((difference**2).mean()), {
        "w1": inner.T @ pixels,
        "b1": inner.sum(axis=0),
        "w2": slope.T @ hidden,
        "b2": slope.sum(axis=0),
    }
