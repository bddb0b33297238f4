"""What the four programs of Lab 1 measure with: a place, a stopwatch, readings of memory, figures of a roofline.

Not for the results themselves (labkit.results), and nothing here draws or writes.
"""

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from fractions import Fraction
from statistics import median
from types import TracebackType
from typing import Literal, Self

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A rule that numbers have to keep."""

    least: int

    def of(self, **numbers: int) -> None:
        """Refuse the first number below the least one."""
        if broken := [f"{name} is {number!r}" for name, number in numbers.items() if number < self.least]:
            raise ValueError(f"{broken[0]}, but has to be {self.least} or more")


@dataclass(frozen=True, slots=True)
class Positive:
    """A rate that is really one: above 0."""

    value: float

    @classmethod
    def checked(cls, name: str, value: float) -> Self:
        if not value > 0:
            raise ValueError(f"{name} is {value!r}, but has to be above 0")
        return cls(value)

    def seconds_for(self, amount: Fraction | int) -> Fraction:
        return Fraction(amount) / Fraction(self.value)


@dataclass(frozen=True, slots=True)
class Place:
    """A device, and how one waits for it."""

    where: torch.device

    @classmethod
    def named(cls, device: str | torch.device) -> Self:
        return cls(torch.device(device))

    @classmethod
    def gpu(cls, device: str | torch.device, why: str) -> Self:
        """The same, where a CPU will not do."""
        place = cls.named(device)
        if not place.has_queue:
            raise ValueError(f"the device is {str(device)!r}: {why}")
        return place

    @property
    def kind(self) -> str:
        return self.where.type

    @property
    def has_queue(self) -> bool:
        return self.kind != "cpu"

    def settle(self) -> None:
        if self.has_queue:
            torch.cuda.synchronize(self.where)


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """`with watch.over(n):` times n pieces of work, the place being idle at both ends."""

    place: Place
    laps: list[Fraction] = field(default_factory=list)
    pieces: list[int] = field(default_factory=list)
    _started: list[int] = field(default_factory=list)

    @classmethod
    def at(cls, place: Place) -> Self:
        return cls(place)

    def over(self, pieces: int) -> Self:
        self.pieces.append(pieces)
        return self

    def __enter__(self) -> Self:
        self.place.settle()
        self._started.append(time.perf_counter_ns())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.place.settle()
        stopped = time.perf_counter_ns()
        self.laps.append(Fraction(stopped - self._started.pop(), 10**9 * self.pieces[-1]))

    @property
    def typical(self) -> Fraction:
        """Seconds per piece, the median of all laps."""
        return median(self.laps)


@dataclass(frozen=True, slots=True)
class Blocks:
    """So many products, shared out among at most `parts` measurements as evenly as it goes."""

    products: int
    parts: int

    @classmethod
    def of(cls, products: int, parts: int = 9) -> Self:
        return cls(products, min(products, parts))

    def __iter__(self) -> Iterator[int]:
        length, longer = divmod(self.products, self.parts)
        return (length + (position < longer) for position in range(self.parts))


@dataclass(frozen=True, slots=True)
class Product:
    """Two square operands and room for what they give."""

    left: Tensor
    right: Tensor
    into: Tensor

    @classmethod
    def random(cls, place: Place, size: int, dtype: torch.dtype) -> Self:
        left, right = (torch.normal(0.0, 1.0, (size, size), device=place.where, dtype=dtype) for _ in range(2))
        return cls(left, right, torch.empty_like(left))

    def repeat(self, times: int) -> None:
        for _ in range(times):
            torch.mm(self.left, self.right, out=self.into)


@dataclass(frozen=True, slots=True)
class Roofline:
    """Three times that a product needs whatever the program does, as exact fractions of a second."""

    launch: Fraction
    memory: Fraction
    compute: Fraction

    @property
    def longest(self) -> Literal["launch", "memory", "compute"]:
        if self.launch >= max(self.memory, self.compute):
            return "launch"
        return "memory" if self.memory >= self.compute else "compute"


@dataclass(frozen=True, slots=True)
class Reading:
    """What the caching allocator of a GPU says of itself, in bytes."""

    allocated: int
    reserved: int
    peak: int

    @classmethod
    def taken(cls, place: Place) -> Self:
        """Read, and begin a new peak."""
        place.settle()
        said = torch.cuda.memory_stats(place.where)
        reading = cls(
            said.get("allocated_bytes.all.current", 0),
            said.get("reserved_bytes.all.current", 0),
            said.get("allocated_bytes.all.peak", 0),
        )
        torch.cuda.reset_peak_memory_stats(place.where)
        return reading


@dataclass(frozen=True, slots=True)
class Trainee:
    """A model on its device, and what will change it."""

    model: nn.Module
    adam: torch.optim.Adam

    @classmethod
    def moved(cls, model: nn.Module, place: Place, dtype: torch.dtype) -> Self:
        moved = model.to(device=place.where, dtype=dtype)
        return cls(moved, torch.optim.Adam(moved.parameters(), foreach=False))


@dataclass(frozen=True, slots=True)
class Forward:
    """A batch on its device and what a model makes of it."""

    inputs: Tensor
    targets: Tensor
    output: Tensor = field(init=False)
    model: InitVar[nn.Module]

    def __post_init__(self, model: nn.Module) -> None:
        object.__setattr__(self, "output", model(self.inputs))

    @classmethod
    def moved(cls, batch: tuple[Tensor, Tensor], trainee: Trainee, place: Place, dtype: torch.dtype) -> Self:
        inputs, targets = batch
        return cls(inputs.to(place.where, dtype), targets.to(place.where), trainee.model)

    def loss(self, criterion: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return criterion(self.output, self.targets)


@dataclass(frozen=True, slots=True)
class Driver:
    """The NVIDIA driver, where there is one."""

    version: str | None = None

    @classmethod
    def asked(cls) -> Self:
        with suppress(ImportError):
            nvml = importlib.import_module("pynvml")
            with suppress(nvml.NVMLError):
                nvml.nvmlInit()
                try:
                    said = nvml.nvmlSystemGetDriverVersion()
                finally:
                    nvml.nvmlShutdown()
                return cls(said.decode() if isinstance(said, bytes) else said)
        return cls()
