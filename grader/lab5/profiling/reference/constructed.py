"""Steps and points that are made up around a known answer: the bottleneck they have, and the point to take."""

from __future__ import annotations

from dataclasses import dataclass

from gradebox.run.input_generator import InputGenerator
from grader.lab5.profiling.cases import Bottlenecks, Chosen, PointCase, SettingsCase
from grader.lab5.profiling.cases.drawn import NAMES, TOLERANCES

LOSSES = ("data", "transfer", "sync", "communication", "launch")
"""What a step loses time to, in the order of the docstring of `find_bottleneck`."""
TOLERATED = 0.05
"""What `choose` may lose unless its arguments say otherwise, by its docstring."""


def device_time(generator: InputGenerator, **shares: float) -> dict[str, float]:
    """A made-up step with these shares of it; what is left is computing."""
    step = generator.log_uniform(1e-3, 1.0)
    shares = {name: shares.get(name, 0.0) for name in NAMES[1:]}
    shares["compute"] = 1 - sum(shares.values())
    return {f"{name}_seconds": share * step for name, share in shares.items()}


def bottlenecks(generator: InputGenerator) -> tuple[list[str], Bottlenecks]:
    """Steps and targets, and the bottleneck of each."""
    cases: list[tuple[dict[str, float], str, float | None]] = []
    for name in (*LOSSES, *LOSSES):
        shares = {each: generator.uniform(0.02, 0.06) for each in LOSSES}
        shares[name] = generator.uniform(0.25, 0.5)
        cases.append((device_time(generator, **shares), name, None))
    # None of the losses is large by itself, and together they are; then computing enough; then other targets.
    first, second = generator.shuffled([name for name in LOSSES if name != "communication"])[:2]
    small = dict.fromkeys(LOSSES, 0.05) | {first: 0.08}
    fine = dict.fromkeys(LOSSES, 0.02) | {second: 0.09}
    cases += [(device_time(generator, **small), first, None), (device_time(generator, **fine), "compute", None)]
    cases += [(device_time(generator, **fine), second, 0.9), (device_time(generator, **small), "compute", 0.6)]
    # Equal ones, to the last bit; and one that computes for exactly as long as the target says.
    names = [name for name in LOSSES if generator.integer(0, 1)] or list(LOSSES)
    equal = {f"{name}_seconds": 0.25 if name in names else 0.0 for name in LOSSES}
    cases.append(({"compute_seconds": 0.25, **equal}, names[0], None))
    half = dict.fromkeys((f"{name}_seconds" for name in LOSSES), 0.0) | {f"{second}_seconds": 0.5}
    cases.append(({"compute_seconds": 0.5, **half}, second, 0.5))
    cases = generator.shuffled(cases)
    inputs = Bottlenecks(times=[times for times, _, _ in cases], targets=[target for _, _, target in cases])
    return [name for _, name, _ in cases], inputs


@dataclass(frozen=True)
class Point:
    """A point to choose from."""

    batch_size: int
    num_workers: int
    share: float
    """Of the fastest point's speed."""
    utilization: float

    def case(self, fastest: float) -> PointCase:
        """As a probe is given it; `fastest` in samples per second."""
        settings: SettingsCase = {
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            "pin_memory": True,
            "log_every": 50,
        }
        speed = self.share * fastest
        return {"settings": settings, "samples_per_second": speed, "utilization": self.utilization}


def cheapest(points: list[Point], tolerance: float) -> Point:
    """The smallest batch, then the fewest workers, among those that are fast enough; of equal settings the faster."""
    return min(
        (point for point in points if point.share >= 1 - tolerance),
        key=lambda point: (point.batch_size, point.num_workers, -point.share),
    )


@dataclass(frozen=True)
class Choice:
    """Points to choose from."""

    fastest: float
    points: list[Point]
    tolerances: list[float | None]

    def inputs(self) -> Chosen:
        """As the probe is given them."""
        return Chosen(points=[point.case(self.fastest) for point in self.points], tolerances=self.tolerances)


def choice(generator: InputGenerator) -> Choice:
    """Points of which neither the fastest, nor the busiest, nor the one with fewest workers is the one to take."""
    fastest = generator.log_uniform(1e3, 1e5)
    points = _points(generator)
    return Choice(fastest, points, generator.shuffled(list(TOLERANCES.values())))


def _points(generator: InputGenerator) -> list[Point]:
    while True:
        batches, workers = generator.shuffled((32, 64, 128, 256, 512, 1024))[:4], generator.shuffled(range(9))[:4]
        # Far from the limits, and two of them with the same settings.
        shares = [
            1.0,
            *(generator.uniform(0.955, 0.995) for _ in range(4)),
            *(generator.uniform(0.89, 0.94) for _ in range(2)),
        ]
        shares += [generator.uniform(0.4, 0.8)]
        points = [
            Point(generator.shuffled(batches)[0], generator.shuffled(workers)[0], share, generator.uniform(0.5, 0.99))
            for share in shares
        ]
        best = cheapest(points, TOLERATED)
        slower = generator.uniform(0.952, best.share)
        points.append(Point(best.batch_size, best.num_workers, slower, generator.uniform(0.5, 0.99)))
        enough = [point for point in points if point.share >= 1 - TOLERATED]
        others = (
            max(points, key=lambda point: point.share),
            max(enough, key=lambda point: point.utilization),
            min(enough, key=lambda point: (point.num_workers, point.batch_size)),
            cheapest(points, 0.12),
        )
        if all((point.batch_size, point.num_workers) != (best.batch_size, best.num_workers) for point in others):
            return generator.shuffled(points)
