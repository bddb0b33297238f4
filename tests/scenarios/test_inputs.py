"""Gradings ask each value of each declared input, and within ten of them each pair of values (`cases.SPACES`)."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from grader.shared.dimensions import Space
from tests.scenarios.grading import Bench
from tests.scenarios.inputs.asked import requests_of
from tests.scenarios.inputs.coverage import Coverage

LABS = (1, 2, 3, 4, 5)
SEEDS = range(10)


def declared(lab: int) -> tuple[tuple[Space, ...], Mapping[str, str]]:
    """The spaces of a lab's probes (`SPACES`), and why other probes have none (`WITHOUT`), of all its criteria."""
    spaces: list[Space] = []
    without: dict[str, str] = {}
    for module in _modules_with_cases(lab):
        spaces += getattr(module, "SPACES", ())
        without |= getattr(module, "WITHOUT", {})
    return tuple(spaces), without


def _modules_with_cases(lab: int) -> Iterator[Any]:
    for criterion in _packages(f"grader.lab{lab}"):
        for part in ("cases", "reference"):  # a dimension that is an answer must not be where probes are
            if importlib.util.find_spec(f"{criterion}.{part}"):
                yield from _with_inner(f"{criterion}.{part}")


def _packages(name: str) -> list[str]:
    package = importlib.import_module(name)
    return [f"{name}.{entry.name}" for entry in pkgutil.iter_modules(package.__path__) if entry.ispkg]


def _with_inner(name: str) -> list[Any]:
    """A module, and those in it if it is a package."""
    module = importlib.import_module(name)
    inner = [entry.name for entry in pkgutil.iter_modules(getattr(module, "__path__", ()))]
    return [module, *(importlib.import_module(f"{name}.{each}") for each in inner)]


def covered(bench: Bench, lab: int, seeds: range) -> list[Coverage]:
    coverages = [Coverage(space) for space in declared(lab)[0]]
    for request in requests_of(bench, lab, seeds):
        for coverage in coverages:
            coverage.add(request)
    return coverages


def probes_of(lab: int) -> set[str]:
    """Every public probe of a lab that is given inputs."""
    names: set[str] = set()
    for package in _packages(f"grader.lab{lab}"):
        if importlib.util.find_spec(f"{package}.probes"):
            for module in _with_inner(f"{package}.probes"):
                names |= {f"{module.__name__}.{name}" for name in _public_probes(module)}
    return {name.removeprefix("grader.").replace(".probes.", ".", 1) for name in names}


def _public_probes(module: Any) -> Iterator[str]:
    for name, function in vars(module).items():
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_"):
            parameters = inspect.signature(function).parameters
            if "student" in parameters and len(parameters) > 1:
                yield name


@pytest.mark.parametrize("lab", LABS)
def test_each_probe_that_is_given_inputs_has_a_space_or_a_reason(lab: int) -> None:
    spaces, without = declared(lab)
    named = {probe for space in spaces for probe in space.probes}
    assert named & set(without) == set()
    assert named | set(without) == probes_of(lab)
    assert all(without.values())


@pytest.mark.night
@pytest.mark.parametrize("lab", LABS)
def test_a_grading_asks_each_value(lab: int, bench: Bench) -> None:
    for coverage in covered(bench, lab, range(bench.seed, bench.seed + 1)):
        assert coverage.missing_values() == [], coverage.space.probes


@pytest.mark.night
@pytest.mark.parametrize("lab", LABS)
def test_ten_gradings_ask_each_pair_of_values(lab: int, bench: Bench) -> None:
    for coverage in covered(bench, lab, SEEDS):
        assert coverage.missing_pairs() == [], coverage.space.probes
        assert coverage.idle_excuses() == [], coverage.space.probes
