"""The constants behind single kernels, each with what one would say without a measurement, and how they are fitted.

Least squares in logarithms, with each constant drawn towards its prior, and figures that are far off counting less
(P. Huber, Ann. Math. Statist. 35(1), 1964), by damped Gauss-Newton steps that begin at the priors: a fit without some
kernels knows nothing of them. Not here: which kernels are left out (`benchmarks.measured.cross_validation`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy
from numpy.typing import NDArray

import vgpu
from benchmarks.measured.captured import Kernel
from vgpu.device import convolution_cost, cost
from vgpu.device.pricing import Pricing
from vgpu.runtime.operations import traffic

Array = NDArray[numpy.float64]
# What a kernel is off by itself, and how far a prior is from the truth: spreads of logarithms.
_KERNEL_SPREAD, _PRIOR_SPREAD, _HUBER_SPREADS = 0.10, 0.8, 1.5
_STEP, _ROUNDS = 0.05, 5
_FARTHEST = 0.7
"""In one round, in logarithms."""
# 64 instructions for each element, on a multiprocessor's 128 lanes.
_CYCLES = 0.5


@dataclass(frozen=True)
class Constant:
    """`set_to` puts a value in its place; `prior` is what one would say without any figure."""

    name: str
    value: float
    prior: float
    set_to: Callable[[float], None]


def constants() -> list[Constant]:
    """All that were fitted to single kernels, but the card's own figures."""
    known = [
        attribute(traffic, name, _CYCLES)
        for name in (
            "_BROADCAST_CYCLES", "_RANDOM_CYCLES", "_DROPOUT_CYCLES", "_COLUMN_CYCLES", "_SOFTMAX_CYCLES",
            "_POOL_CYCLES",
        )
    ]  # fmt: skip
    # For each time that an element is read or written: half of that.
    known += [attribute(traffic, name, _CYCLES / 2) for name in ("_LAYER_NORM_CYCLES", "_GROUP_NORM_CYCLES")]
    # A sector of 32 bytes for each element, at the L2 cache's 5.3 TB/s; a shuffle for each of a warp's five levels.
    known += [attribute(traffic, "_TRANSPOSED_CYCLES", 1.6), attribute(traffic, "_SHUFFLE_CYCLES", 32.0)]
    known += [attribute(traffic, "_NATIVE_NORM_BLOCK_CYCLES", 64.0)]
    known.append(attribute(traffic, "_POOL_BACKWARD_CYCLES", 2 * _CYCLES))  # looks at gradient and place
    known.append(attribute(traffic, "_BATCH_NORM_CYCLES", 0.6))  # each of 512 threads waits 600 cycles for two loads
    known.append(attribute(traffic, "_NATIVE_NORM_CYCLES_LAST", 4 * _CYCLES / 2))  # three accesses forward, five back
    known += [entry(cost.FILL_SECONDS, kind, 2e-6) for kind in ("hopper", "hopper cuda cores")]
    known += [entry(cost.EPILOGUE_DEPTH, "hopper", 16.0), attribute(cost, "_OVERLAP", 2.0)]
    fills = convolution_cost.FILL_SECONDS
    known += [entry(fills, kind, 2e-6) for kind in ("hopper", "hopper cuda cores")]
    known.append(entry(convolution_cost.RATIO, "hopper cuda cores", 1.0))
    known += [
        entry(convolution_cost.WEIGHT_RATIO, kind, 1.0)
        for kind in ("tf32", "hopper cuda cores", "hopper cuda cores 1 x 1")
    ]
    # One shape of the record has them. EfficientNets that others ran on an A100 and a V100 say what they are there: in
    # NHWC from 0.08 to 0.11 of the peak, which stands for cuDNN's other kernel as well, and in NCHW 0.3 cycles.
    known += [entry(convolution_cost.DEPTHWISE_RATIO, kind, 0.1) for kind in ("16 bits", "NHWC")]
    # For each product, the gradient of images loads one element, as the result does, and that of filters loads two.
    known += [entry(convolution_cost.DEPTHWISE_BACKWARD, kind, 3.0) for kind in ("NCHW", "NHWC")]
    known += [
        attribute(convolution_cost, "DEPTHWISE_CYCLES", 0.3),
        attribute(convolution_cost, "LAYOUT_CYCLES", _CYCLES),
        attribute(convolution_cost, "UNALIGNED_TF32", 0.5),
    ]
    return known


def attribute(module: Any, name: str, prior: float) -> Constant:
    """A number of a module."""
    return Constant(
        name.strip("_").lower(), float(getattr(module, name)), prior, lambda value: setattr(module, name, value)
    )


def entry(table: Any, key: Any, prior: float, name: str = "") -> Constant:
    """A number in a table."""
    return Constant(name or f"{key}", float(table[key]), prior, lambda value: table.__setitem__(key, value))


def of_card(spec: vgpu.Spec, kernels: Sequence[Kernel]) -> Fit:
    """The fit of all kernels that were measured on one card."""

    def seconds(chosen: Sequence[int]) -> list[float]:
        pricing = Pricing(replace(spec), vgpu.get_interconnect(spec.interconnect))
        return [kernels[index].seconds(pricing) for index in chosen]

    return Fit([kernel.measured for kernel in kernels], seconds, constants())


class Fit:
    """Prices all kernels for constants given as logarithms of their values.

    `seconds` prices the kernels at the given places by the constants as they are; `measured` is what a card took.
    """

    def __init__(
        self,
        measured: Sequence[float],
        seconds: Callable[[Sequence[int]], Sequence[float]],
        constants: Sequence[Constant],
    ) -> None:
        self.constants = constants
        self._seconds = seconds
        self.priors = numpy.log([constant.prior for constant in self.constants])
        self.values = numpy.log([constant.value for constant in self.constants])
        self._logs = numpy.log(measured)
        everything = list(range(len(measured)))
        first = self.errors(self.values, everything)
        # Most constants touch a few kernels: the others need no second look.
        self._touched = []
        for place in range(len(self.constants)):
            moved = self.values.copy()
            moved[place] += 0.3
            self._touched.append([i for i, e in enumerate(self.errors(moved, everything)) if abs(e - first[i]) > 1e-12])

    def errors(self, logarithms: Array, chosen: Sequence[int]) -> Array:
        """Logarithms of measured over simulated, of the chosen kernels."""
        with self._set(logarithms):
            seconds = self._seconds(chosen)
        errors: Array = self._logs[list(chosen)] - numpy.log(seconds)
        return errors

    def fitted_to(self, chosen: Sequence[int]) -> Array:
        """The constants' logarithms, fitted to these kernels alone."""
        now = self.priors.copy()
        places = {index: place for place, index in enumerate(chosen)}
        best, best_loss, damping = now, self._loss(now, chosen), 0.3
        for _ in range(_ROUNDS):
            errors = self.errors(now, chosen)
            slopes = numpy.zeros((len(chosen), len(now)))
            for column, touched in enumerate(self._touched):
                both = [index for index in touched if index in places]
                if not both:
                    continue
                moved = now.copy()
                moved[column] += _STEP
                rows = [places[index] for index in both]
                slopes[rows, column] = (self.errors(moved, both) - errors[rows]) / _STEP
            far = numpy.abs(errors) / _KERNEL_SPREAD
            counts = numpy.minimum(1.0, _HUBER_SPREADS / numpy.maximum(far, 1e-9)) / _KERNEL_SPREAD**2
            weighted = slopes.T * counts
            normal = weighted @ slopes + numpy.eye(len(now)) * (1 + damping) / _PRIOR_SPREAD**2
            change = numpy.linalg.solve(normal, (self.priors - now) / _PRIOR_SPREAD**2 - weighted @ errors)
            now = now + numpy.clip(change, -_FARTHEST, _FARTHEST)
            loss = self._loss(now, chosen)
            if loss < best_loss:
                best, best_loss = now, loss
        return best

    def _loss(self, logarithms: Array, chosen: Sequence[int]) -> float:
        far = numpy.abs(self.errors(logarithms, chosen)) / _KERNEL_SPREAD
        huber = numpy.where(far < _HUBER_SPREADS, far**2 / 2, _HUBER_SPREADS * (far - _HUBER_SPREADS / 2))
        return float(huber.sum() + ((logarithms - self.priors) ** 2).sum() / (2 * _PRIOR_SPREAD**2))

    @contextlib.contextmanager
    def _set(self, logarithms: Array) -> Iterator[None]:
        for constant, logarithm in zip(self.constants, logarithms, strict=True):
            constant.set_to(math.exp(logarithm))
        try:
            yield
        finally:
            for constant in self.constants:
                constant.set_to(constant.value)
