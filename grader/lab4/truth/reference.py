"""The truth about Lab 4's attention and training, in NumPy float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradebox.run.submission import Seen

Array = NDArray[np.float64]


def runs(seen: Seen, name: str = "runs") -> list[dict[str, Any]]:
    """The rows of a probe's `runs`, or of another field, with its arrays in float64 where it put tensors."""

    def read(value: Any) -> Any:
        is_path = isinstance(value, str) and value.startswith(f"{name}/")
        return np.asarray(seen[value], dtype=np.float64) if is_path else value

    return [{field: read(value) for field, value in run.items()} for run in getattr(seen, name)]


def as_bfloat16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounded to 8 significant bits, so that every format of the course holds them exactly."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


def attention(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    gradient: NDArray[Any] | None,
    *,
    causal: bool,
    shift: int = 0,
) -> dict[str, Array]:
    """Output, and the gradients of query, key and value; causal is aligned to the last query and key.

    A query that sees no key has an output of 0. With a mistake, `shift` more keys are seen by each.
    """
    q, k, v = (np.asarray(array, dtype=np.float64) for array in (query, key, value))
    scale = q.shape[-1] ** -0.5
    scores = q @ k.swapaxes(-1, -2) * scale
    queries, keys = scores.shape[-2:]
    seen = np.ones((queries, keys), dtype=bool)
    if causal:
        seen = np.arange(keys)[None, :] <= np.arange(queries)[:, None] + keys - queries + shift
    largest = np.where(seen, scores, -1e300).max(-1, keepdims=True)
    weights = np.where(seen, np.exp(np.where(seen, scores - largest, 0.0)), 0.0)
    total = weights.sum(-1, keepdims=True)
    weights = weights / np.where(total > 0, total, 1.0)
    result = {"output": weights @ v}
    if gradient is not None:
        g = np.asarray(gradient, dtype=np.float64)
        d_weights = g @ v.swapaxes(-1, -2)
        d_scores = weights * (d_weights - (d_weights * weights).sum(-1, keepdims=True)) * scale
        result |= {
            "d_query": d_scores @ k,
            "d_key": d_scores.swapaxes(-1, -2) @ q,
            "d_value": weights.swapaxes(-1, -2) @ g,
        }
    return result


class Training:
    """Linear layers with ReLU between them, trained with Adam on `scale` times the mean squared error of batches, or on
    their mean `absolute` error."""

    def __init__(
        self,
        weights: NDArray[Any],
        biases: NDArray[Any],
        learning_rate: float,
        *,
        scale: float = 1.0,
        absolute: bool = False,
    ) -> None:
        self.parameters = [np.array(array, dtype=np.float64) for array in (weights, biases)]
        self._averages = [(np.zeros_like(array), np.zeros_like(array)) for array in self.parameters]
        self._rate, self._steps, self._scale, self._absolute = learning_rate, 0, scale, absolute

    def loss(self, data: Array, target: Array) -> float:
        """Mean error of the present parameters."""
        return self._error(self._forward(data)[-1] - target)

    def _error(self, difference: Array) -> float:
        return self._scale * float((np.abs(difference) if self._absolute else difference**2).mean())

    def step(self, data: Array, target: Array) -> float:
        """One step of Adam (D. Kingma, J. Ba 2014, algorithm 1) with PyTorch's defaults; the loss before it."""
        outputs = self._forward(data)
        weights, _ = self.parameters
        d_weights, d_biases = (np.zeros_like(array) for array in self.parameters)
        difference = outputs[-1] - target
        gradient = self._scale * (np.sign(difference) if self._absolute else 2 * difference) / target.size
        for layer in reversed(range(len(weights))):
            d_weights[layer] = gradient.T @ outputs[layer]
            d_biases[layer] = gradient.sum(axis=0)
            gradient = (gradient @ weights[layer]) * (outputs[layer] > 0)
        self._steps += 1
        for parameter, grad, (first, second) in zip(
            self.parameters, (d_weights, d_biases), self._averages, strict=True
        ):
            first += 0.1 * (grad - first)
            second += 0.001 * (grad**2 - second)
            corrected = np.sqrt(second / (1 - 0.999**self._steps)) + 1e-8
            parameter -= self._rate * first / (1 - 0.9**self._steps) / corrected
        return self._error(difference)

    def _forward(self, data: Array) -> list[Array]:
        """The input of each layer, and the last one's output."""
        outputs = [data]
        weights, biases = self.parameters
        for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            output = outputs[-1] @ weight.T + bias
            outputs.append(np.maximum(output, 0) if layer < len(weights) - 1 else output)
        return outputs


def split(samples: NDArray[Any], sizes: Sequence[int]) -> list[Array]:
    """Samples cut into batches, in float64."""
    return np.split(np.asarray(samples, dtype=np.float64), np.cumsum(sizes)[:-1])
