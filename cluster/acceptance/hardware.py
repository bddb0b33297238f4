"""What a board can do by its maker's documents (hardware.toml), found by the name that the driver gives it."""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PCIE_LANE_BYTES_PER_SECOND = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Of one lane in one direction, by generation (PCI-SIG, after encoding)."""
PCIE_GIGATRANSFERS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""Generation by transfers per second and lane, as sysfs has them (GT/s)."""


@dataclass(frozen=True, kw_only=True)
class Board:
    """One model; None where nobody has published the figure."""

    name: str
    memory_gib: float | None = None
    memory_clock_mhz: float | None = None
    watts: float | None = None
    sm_clock_mhz: float | None = None
    bandwidth_gb: float | None = None
    copied: float = 0.77
    multiprocessors: int | None = None
    tflops: dict[str, float] | None = None
    pcie_generation: int | None = None
    pcie_lanes: int = 16
    nvlinks: int = 0
    nvlink_gb: float = 25.0
    attained: float = 0.78
    joined: str = ""
    host: str = "pcie"
    domain: bool = False

    @property
    def wired(self) -> bool:
        """Whether all its links lead to a switch or to neighbours; bridges are optional."""
        return self.joined in ("switch", "mesh")


@cache
def boards() -> tuple[Board, ...]:
    """All boards of hardware.toml, in its order."""
    document = tomllib.loads((Path(__file__).parent / "hardware.toml").read_text(encoding="utf-8"))
    return tuple(Board(**entry) for entry in document["board"])


@cache
def board(name: str | None) -> Board | None:
    """The board of that name; None if nobody has written down what it can do."""
    return next((entry for entry in boards() if name and re.fullmatch(entry.name, name)), None)


def pcie_bytes_per_second(generation: float | None, lanes: float | None) -> float | None:
    """One direction of a link; None if it is not known."""
    lane = PCIE_LANE_BYTES_PER_SECOND.get(int(generation or 0))
    return None if lane is None or not lanes else lane * lanes
