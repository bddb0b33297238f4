"""What the exercise "kernels of your own" measures: tiles and their times, work, and a kernel's place on the roofline.

Not for measuring, and no PyTorch here.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """The tiles of a product: of the result [m, n], of the left operand [m, k], of the right one [k, n]."""

    m: int
    n: int
    k: int


@dataclass(frozen=True, kw_only=True)
class TileTiming:
    """How long a product takes with one size of tiles."""

    tiles: Tiles
    seconds: float


@dataclass(frozen=True, kw_only=True)
class KernelWork:
    """The least work of a kernel."""

    flops: float
    """Floating-point operations."""
    bytes: int
    """Through the device's memory, each operand read once and each result written once."""


@dataclass(frozen=True, kw_only=True)
class KernelPlace:
    """The place of a kernel on the roofline of a device."""

    kernel: str
    flops: float
    bytes: int
    seconds: float
    """Of one run."""
    intensity: float
    """FLOPs per byte."""
    achieved_flops: float
    """Per second."""
    attainable_flops: float
    """Per second: the roof above this intensity."""
    bound: str
    """"memory" below the slope of the roof, "compute" below its flat part, to which the ridge belongs."""
