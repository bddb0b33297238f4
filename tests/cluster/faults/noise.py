"""Noise of sound machines: how much repetitions of one thing vary, with what public measurements say of it.

- Boards: clocks at a power limit vary by one or two percent from sample to sample (Sinha et al. 2022, arXiv:2208.11035).
- Hosts: a program is interrupted now and then, mostly for less than a repetition, seldom for milliseconds (Hoefler et
  al. 2010, "Characterizing the Influence of System Noise on Large-Scale Applications by Simulation", SC'10).
- Networks: the 99th percentile of small messages is up to three times the median where others use the switches
  (De Sensi et al. 2020, "An In-Depth Analysis of the Slingshot Interconnect", arXiv:2008.08886).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How repetitions vary; times the usual time."""

    sigma: tuple[float, float]
    """Of a log-normal, drawn between these for each machine."""
    tail: tuple[float, float] = (0.0, 0.0)
    """Share of repetitions that take longer, drawn alike."""
    longest: float = 1.0
    """Times the usual, of those; between one and that."""
    interruption: float = 0.0
    """Chance that the host takes a repetition's time several times over, once."""
    interrupted_times: float = 1.0
    warming: float = 0.0
    """By how much the last repetition is slower than the first: the board becomes warm."""


PRODUCTS = Noise(
    sigma=(0.005, 0.02), tail=(0.0, 0.002), longest=2.0, interruption=0.3, interrupted_times=20, warming=0.03
)
PRODUCT = Noise(sigma=(0.005, 0.02), tail=(0.0, 0.005), longest=2.0, interruption=0.02, interrupted_times=10)
"""Twenty of them, one at a time."""
COPIES = Noise(sigma=(0.01, 0.03), tail=(0.0, 0.02), longest=1.6, interruption=0.3, interrupted_times=15)
COPY = Noise(sigma=(0.01, 0.03), tail=(0.0, 0.02), longest=1.6, interruption=0.02, interrupted_times=15)
"""Fifteen of them, for which an interruption is less likely than for a second of them."""
STEPS = Noise(sigma=(0.02, 0.05), tail=(0.0, 0.02), longest=3.0, interruption=0.3, interrupted_times=10)
"""Of a training: the host starts sixty kernels, and copies the images."""
SMALL = {
    "node": Noise(sigma=(0.02, 0.06), tail=(0.0, 0.01), longest=2.0, interruption=0.5, interrupted_times=200),
    "rdma": Noise(sigma=(0.03, 0.08), tail=(0.002, 0.02), longest=3.0, interruption=0.5, interrupted_times=100),
    "ethernet": Noise(sigma=(0.05, 0.1), tail=(0.005, 0.02), longest=3.0, interruption=0.5, interrupted_times=50),
}
LARGE = {
    "node": Noise(sigma=(0.003, 0.01), tail=(0.0, 0.005), longest=1.3),
    "rdma": Noise(sigma=(0.01, 0.02), tail=(0.0, 0.03), longest=1.5),
    "ethernet": Noise(sigma=(0.01, 0.03), tail=(0.0, 0.04), longest=1.5),
}


class Jitter:
    """Draws noise, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed)
        self.numbers = numpy.random.default_rng(seed)
        self.sigmas: dict[int, tuple[float, float]] = {}

    def of(self, noise: Noise, count: int) -> numpy.ndarray:
        """Times the usual time, of so many repetitions; a machine keeps its sigma and its share of the tail."""
        sigma, tail = self.sigmas.setdefault(
            id(noise), (self.pick.uniform(*noise.sigma), self.pick.uniform(*noise.tail))
        )
        times = numpy.exp(self.numbers.normal(0.0, sigma, count))
        long = self.numbers.random(count) < tail
        times[long] *= self.numbers.uniform(1.0, noise.longest, int(long.sum()))
        if noise.warming:
            times *= numpy.linspace(1.0, 1.0 + noise.warming * self.pick.random(), count)
        if noise.interruption and self.pick.random() < noise.interruption:
            times[self.pick.randrange(count)] *= self.pick.uniform(1.0, noise.interrupted_times)
        return times


def comes_and_goes(times: numpy.ndarray, share: float, factor: float, seed: int) -> numpy.ndarray:
    """The same repetitions, of which a share takes so many times as long."""
    slow = numpy.random.default_rng(seed).random(len(times)) < share
    return numpy.where(slow, factor * times, times)
