"""Steps and points that are made up around a known answer: the bottleneck they have, and the point to take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gradebox.run.input_generator import InputGenerator
from grader.lab5.profiling.cases import Bottlenecks, Chosen, PointCase, SettingsCase
from grader.lab5.profiling.cases.drawn import NAMES, TOLERANCES

LOSSES = ("data", "transfer", "sync", "communication", "launch")
"""What a step loses time to, in the order of the docstring of `find_bottleneck`."""
USUAL_TARGET = 0.8
"""Of `find_bottleneck`, by its docstring."""
TOLERATED = 0.05
"""What `choose` may lose unless its arguments say otherwise, by its docstring."""


def device_time(generator: InputGenerator, **shares: float) -> dict[str, float]:
    """A made-up step with these shares of it; what is left is computing."""
    step = generator.log_uniform(1e-3, 1.0)
    shares = {name: shares.get(name, 0.0) for name in NAMES[1:]}
    shares["compute"] = 1 - sum(shares.values())
    return {f"{name}_seconds": share * step for name, share in shares.items()}


BOTTLENECK_MISTAKES = (
    "always_a_loss",
    "communication_is_work",
    "each_against_the_limit",
    "target_is_enough",
    "target_ignored",
    "never_communication",
)
"""What `bottleneck_by` can make of a step."""


def bottleneck_by(mistake: str, times: Mapping[str, float], target: float | None) -> str:
    """The bottleneck of a step (the fields of a `DeviceTime`) by one of these mistakes."""
    limit = USUAL_TARGET if target is None or mistake == "target_ignored" else target
    step = sum(times[f"{name}_seconds"] for name in NAMES)
    compute = times["compute_seconds"]
    losses = [name for name in LOSSES if mistake != "never_communication" or name != "communication"]
    largest = max(losses, key=lambda name: times[f"{name}_seconds"])
    busy = {
        "always_a_loss": not any(times[f"{name}_seconds"] for name in LOSSES),
        "communication_is_work": compute + times["communication_seconds"] > limit * step,
        "each_against_the_limit": max(times[f"{name}_seconds"] for name in LOSSES) < (1 - limit) * step,
        "target_is_enough": compute >= limit * step,
    }.get(mistake, compute > limit * step)
    return "compute" if busy else largest


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
    cases.append((device_time(generator, **small), "compute", 0.0))  # a target, and not the default
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


CHOICE_MISTAKES = (
    "fastest",
    "busiest",
    "busiest_of_all",
    "workers_first",
    "limit_too_slow",
    "no_tolerance_is_usual",
    "tolerance_ignored",
    "all_points",
    "slowest_of_equal",
)
"""What `chosen_by` can choose."""


def chosen_by(mistake: str, points: list[Point], tolerance: float | None) -> Point:
    """The point that one of these mistakes takes."""
    usual = (
        tolerance is None or mistake == "tolerance_ignored" or (not tolerance and mistake == "no_tolerance_is_usual")
    )
    allowed = TOLERATED if usual or tolerance is None else tolerance
    enough = [point for point in points if point.share >= 1 - allowed]
    if mistake == "limit_too_slow":
        enough = [point for point in points if point.share > 1 - allowed] or points
    if mistake in ("busiest_of_all", "all_points"):
        enough = points
    keys: Mapping[str, Callable[[Point], tuple[float, ...]]] = {
        "fastest": lambda point: (-point.share,),
        "busiest": lambda point: (-point.utilization,),
        "busiest_of_all": lambda point: (-point.utilization,),
        "workers_first": lambda point: (point.num_workers, point.batch_size, -point.share),
        "slowest_of_equal": lambda point: (point.batch_size, point.num_workers, point.share),
    }
    return min(enough, key=keys.get(mistake, _cost))


def _cost(point: Point) -> tuple[float, ...]:
    """The smallest batch, then the fewest workers, then the most samples per second."""
    return point.batch_size, point.num_workers, -point.share


def cheapest(points: list[Point], tolerance: float) -> Point:
    """The smallest batch, then the fewest workers, among those that are fast enough; of equal settings the faster."""
    return min(
        (point for point in points if point.share >= 1 - tolerance),
        key=_cost,
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
        # Far from the limits; below come two with the settings of the best.
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
        slower = [
            Point(best.batch_size, best.num_workers, generator.uniform(0.952, best.share), generator.uniform(0.5, 0.99))
            for _ in range(2)
        ]
        points += slower
        enough = [point for point in points if point.share >= 1 - TOLERATED]
        others = (
            max(points, key=lambda point: point.share),
            max(enough, key=lambda point: point.utilization),
            min(enough, key=lambda point: (point.num_workers, point.batch_size)),
            cheapest(points, 0.12),
        )
        if all((point.batch_size, point.num_workers) != (best.batch_size, best.num_workers) for point in others):
            # Neither the first nor the last of equal settings is the one to take.
            ordered = generator.shuffled(points)
            places = sorted(ordered.index(point) for point in (best, *slower))
            for place, point in zip(places, (slower[0], best, slower[1]), strict=True):
                ordered[place] = point
            return ordered
